#include "world.h"

#include <algorithm>

#include "kern/engine/wire.h"

namespace kern::sim {

using namespace engine;

namespace {

constexpr TimeNs kMs = kMillisecondNs;

/// A message as the other end reads it.
template <class T, class Decode>
T through_wire(const T& message, Decode decode) {
  const auto bytes = encode(message);
  auto read = decode(ByteSpan(bytes), WireLimits{});
  expect(bool(read), "a message does not decode: {}", read ? "" : read.error().text());
  return std::move(*read);
}

}  // namespace

WorldOptions options_of(uint64_t seed) {
  Prng prng(seed ^ 0xC1A5);
  WorldOptions options;
  options.model.stages = 1 + static_cast<int>(prng.below(4));
  options.model.recurrent = prng.below(4) != 0;
  options.groups.clear();
  for (uint64_t n = 1 + prng.below(2); n > 0; --n)
    options.groups.push_back(1 + static_cast<uint32_t>(prng.below(4)));
  const uint32_t page_sizes[] = {64, 64, 64, 16, 128};
  options.page_tokens = page_sizes[prng.below(5)];
  options.group_page_tokens = page_sizes[prng.below(5)];
  options.pages =
      12 * 64 / std::min(64u, options.page_tokens) + static_cast<uint32_t>(prng.below(20));
  options.group_pages =
      12 * 64 / std::min(64u, options.group_page_tokens) + static_cast<uint32_t>(prng.below(12));
  options.slots = 3 + static_cast<uint32_t>(prng.below(6));
  options.group_slots = 2 + static_cast<uint32_t>(prng.below(5));
  options.rows_max = 64 + static_cast<int32_t>(prng.below(200));
  options.seqs_max = 1 + static_cast<int32_t>(prng.below(6));
  options.requests = 8 + static_cast<int32_t>(prng.below(16));
  options.prefix_cache = prng.below(5) != 0;
  options.faults = seed % 4 != 0;
  if (prng.below(3) != 0) options.host_bytes = 30 + prng.below(400);
  options.park_tokens_min = prng.below(3) == 0 ? 128 : 0;
  return options;
}

World::World(uint64_t seed, const WorldOptions& options)
    : options_(options), network_(seed), head_(*this, network_) {
  start_head();
  for (int stage = 1; stage < options.model.stages; ++stage) {
    auto node = std::make_unique<StageNode>(network_, stage);
    node->to_head = std::make_unique<Link>(network_, head_, *node);
    start_stage(*node);
    stages_.push_back(std::move(node));
  }
  groups_.resize(options.groups.size());
  for (size_t group = 0; group < groups_.size(); ++group) {
    for (uint32_t rank = 0; rank < options.groups[group]; ++rank) {
      auto node = std::make_unique<RankNode>(*this, network_, group, rank);
      if (rank == 0)
        node->to_head = std::make_unique<Link>(network_, head_, *node);
      else
        node->to_rank0 = std::make_unique<Link>(network_, *groups_[group][0], *node);
      groups_[group].push_back(std::move(node));
      start_rank(*groups_[group].back());
    }
  }
}

World::~World() = default;

// ---- starting ----

void World::start_head() {
  HeadOptions options;
  options.stages = options_.model.stages;
  options.limits = {.prefill_rows_max = options_.rows_max,
                    .prefill_seqs_max = options_.seqs_max,
                    .decode_seqs_max = 1,
                    .context_max = options_.context_max,
                    .page_tokens = static_cast<int32_t>(options_.page_tokens),
                    .recurrent = options_.model.recurrent,
                    .pages = options_.pages,
                    .slots = options_.slots,
                    .host_bytes = options_.host_bytes,
                    .host_page_bytes = 5,
                    .host_slot_bytes = 8};
  options.prefix_cache = options_.prefix_cache;
  options.park_tokens_min = options_.park_tokens_min;
  options.answer_within = 500 * kMs;
  options.release_within = 1000 * kMs;
  options.fill_within = 2000 * kMs;
  options.fill_per_token = kMs / 10;
  options.wait_for_pipeline = 1000 * kMs;
  options.first_generation = static_cast<uint64_t>(network_.now) + 1;
  auto head = PrefillHead::create(options);
  expect(bool(head), "the head does not start: {}", head ? "" : head.error().text());
  head_.head = std::make_unique<PrefillHead>(std::move(*head));
  head_.wake = 0;
  StageShell::Ways ways;
  ways.report = [this](const StageReport& report) {
    head_.head->on_stage_report(
        0, through_wire(report, [](auto... a) { return decode_stage_report(a...); }), network_.now);
  };
  if (options_.model.stages > 1)
    ways.pass_on = [this](Epoch epoch, uint64_t item, std::vector<Digest> hidden) {
      StageNode& next = *stages_[0];
      next.post(network_.between(10'000, 2 * kMs),
                [&next, epoch, item, hidden = std::move(hidden)] {
                  next.shell->hidden_came(epoch, item, hidden);
                });
    };
  ways.directory = [this](const std::string& address) { return door(address); };
  head_.stage = std::make_unique<StageShell>(
      network_, head_, options_.model, 0,
      Memory(options_.pages, options_.slots, options_.page_tokens, network_.prng), weather_, ways);
  head_.post(0, [this] { head_.head->on_stage_up(0, network_.now); });
}

void World::start_stage(StageNode& node) {
  StageShell::Ways ways;
  ways.report = [this, &node](const StageReport& report) {
    node.to_head->send(0, [this, &node, report] {
      head_.head->on_stage_report(
          node.stage, through_wire(report, [](auto... a) { return decode_stage_report(a...); }),
          network_.now);
    });
  };
  if (node.stage + 1 < options_.model.stages)
    ways.pass_on = [this, &node](Epoch epoch, uint64_t item, std::vector<Digest> hidden) {
      StageNode& next = *stages_[static_cast<size_t>(node.stage)];
      next.post(network_.between(10'000, 2 * kMs),
                [&next, epoch, item, hidden = std::move(hidden)] {
                  next.shell->hidden_came(epoch, item, hidden);
                });
    };
  ways.directory = [this](const std::string& address) { return door(address); };
  node.shell = std::make_unique<StageShell>(
      network_, node, options_.model, node.stage,
      Memory(options_.pages, options_.slots, options_.page_tokens, network_.prng), weather_, ways);
}

GroupHello World::hello(size_t group) const {
  GroupHello hello{.ranks = options_.groups[group],
                   .page_tokens = options_.group_page_tokens,
                   .pages = options_.group_pages,
                   .slots = options_.group_slots,
                   .seqs_max = 3,
                   .context_max = static_cast<uint32_t>(options_.context_max)};
  for (uint32_t rank = 0; rank < hello.ranks; ++rank)
    hello.addresses.push_back(fmt::format("{}/{}", group, rank));
  for (const std::string& name : RankShell::state_names(options_.model))
    hello.states.push_back({.name = name, .paged = name.starts_with("kv."), .bytes = 8});
  return hello;
}

void World::start_rank(RankNode& node) {
  Memories memories;
  for (int stage = 0; stage < options_.model.stages; ++stage)
    memories.emplace_back(options_.group_pages, options_.group_slots, options_.group_page_tokens,
                          network_.prng);
  RankShell::Ways ways;
  ways.try_step = [this, group = node.group] { try_step(group); };
  if (node.rank == 0) {
    auto head = DecodeGroupHead::create({.hello = hello(node.group), .feeds = node.group % 2 == 0});
    expect(bool(head), "a group does not start: {}", head ? "" : head.error().text());
    node.head = std::make_unique<DecodeGroupHead>(std::move(*head));
    node.wake = 0;
    node.name.reset();
    node.pages_held.clear();
    ways.report = [this, &node](const RankReport& report) {
      node.head->on_rank_report(0, report, network_.now);
    };
    node.post(0, [this, &node] { node.head->on_rank_up(0, network_.now); });
  } else {
    ways.report = [this, &node](const RankReport& report) {
      node.to_rank0->send(0, [this, &node, report] {
        groups_[node.group][0]->head->on_rank_report(
            static_cast<int32_t>(node.rank),
            through_wire(report, [](auto... a) { return decode_rank_report(a...); }), network_.now);
      });
    };
  }
  node.shell = std::make_unique<RankShell>(network_, node, options_.model, node.rank,
                                           std::move(memories), ways);
}

std::optional<RankDoor> World::door(const std::string& address) {
  const size_t slash = address.find('/');
  auto& node =
      *groups_.at(std::stoul(address.substr(0, slash))).at(std::stoul(address.substr(slash + 1)));
  if (!node.alive()) return std::nullopt;
  return RankDoor{&node, [&node] { return node.shell.get(); }};
}

// ---- carrying ----

void HeadNode::flush() {
  for (;;) {
    stage->flush();
    HeadOutput output = head->take_output();
    for (const RequestEvent& event : output.events) world.client_event(event);
    for (const ToStage& command : output.stages) world.to_stage(command);
    for (const ToGroup& command : output.groups)
      for (auto& group : world.groups_)
        if (group[0]->name == command.group)
          group[0]->to_head->send(1, [node = group[0].get(), command, &network = network_] {
            const auto read =
                through_wire(command.command, [](auto... a) { return decode_group_command(a...); });
            node->head->on_head_command(read, network.now);
          });
    for (const GroupId dropped : output.dropped_groups)
      for (auto& group : world.groups_)
        if (group[0]->name == dropped) world.cut_group(*group[0]);
    expect(output.dropped_stages.empty(), "the head drops a stage that broke no rule");
    if (output.events.empty() && output.stages.empty() && output.groups.empty()) break;
  }
  const TimeNs next = head->wake_at();
  if (next == 0 || (wake != 0 && wake <= next && wake >= network_.now)) return;
  wake = next;
  post(std::max<TimeNs>(0, next - network_.now), [this] {
    wake = 0;
    head->tick(network_.now);
  });
}

void World::to_stage(const ToStage& command) {
  const auto read = [command] {
    return through_wire(command.command, [](auto... a) { return decode_stage_command(a...); });
  };
  if (command.stage == 0) return head_.stage->command(read());
  StageNode& node = *stages_.at(static_cast<size_t>(command.stage) - 1);
  node.to_head->send(1, [&node, read] { node.shell->command(read()); });
}

void RankNode::flush() {
  for (;;) {
    shell->flush();
    if (!head) return;
    const GroupOutput output = head->take_output();
    world.note_grants(*this, output);
    if (output.drop_head) world.cut_group(*this);
    expect(output.dropped_ranks.empty(), "a group drops a rank that broke no rule");
    for (const ToRank& command : output.ranks) world.to_rank(group, command);
    for (const GroupReport& report : output.head) world.to_head(*this, report);
    if (output.ranks.empty() && output.head.empty()) break;
  }
  const TimeNs next = head->wake_at();
  if (next == 0 || (wake != 0 && wake <= next && wake >= network_.now)) return;
  wake = next;
  post(std::max<TimeNs>(0, next - network_.now), [this] {
    wake = 0;
    head->tick(network_.now);
  });
}

void World::to_rank(size_t group, const ToRank& command) {
  const auto read = [command] {
    return through_wire(command.command, [](auto... a) { return decode_rank_command(a...); });
  };
  RankNode& node = *groups_[group][static_cast<size_t>(command.rank)];
  if (command.rank == 0) return node.shell->command(read());
  node.to_rank0->send(1, [&node, read] { node.shell->command(read()); });
}

void World::to_head(RankNode& node, const GroupReport& report) {
  node.to_head->send(0, [this, &node, report] {
    auto read = through_wire(report, [](auto... a) { return decode_group_report(a...); });
    if (!node.name) {
      expect(std::holds_alternative<GroupHello>(read), "a group speaks before its hello");
      auto name = head_.head->on_group_up(std::get<GroupHello>(std::move(read)), network_.now);
      expect(bool(name), "a hello is refused: {}", name ? "" : name.error().text());
      node.name = *name;
      return;
    }
    head_.head->on_group_report(*node.name, read, network_.now);
  });
}

/// No page of a group is granted to two generations at once.
void World::note_grants(RankNode& node, const GroupOutput& output) {
  for (const ToRank& command : output.ranks)
    if (std::holds_alternative<ResetEpoch>(command.command)) node.pages_held.clear();
  if (output.drop_head) node.pages_held.clear();
  for (const GroupReport& report : output.head) {
    if (const auto* granted = std::get_if<Granted>(&report)) {
      for (const uint32_t page : granted->place.pages)
        expect(page != 0 && node.pages_held.emplace(page, granted->generation).second,
               "page {} is granted to generation {} while another holds it", page,
               granted->generation.value());
    } else if (const auto* released = std::get_if<Released>(&report)) {
      std::erase_if(node.pages_held,
                    [&](const auto& held) { return held.second == released->generation; });
    }
  }
}

/// A step begins when every rank of the group has come to the same item.
void World::try_step(size_t group) {
  std::vector<Memories*> memories;
  const Item* item = nullptr;
  for (auto& node : groups_[group]) {
    if (!node->alive() || !node->shell || !node->shell->waiting() || node->shell->computing())
      return;
    if (item != nullptr && item->id != node->shell->waiting()->id) return;
    item = node->shell->waiting();
    memories.push_back(&node->shell->memories());
  }
  const auto why = unsound(*item, options_.group_page_tokens, options_.groups[group]);
  expect(!why, "group {}: {}", group, why.value_or(""));
  expect(item->slices.size() <= 3, "a step of {} sequences", item->slices.size());
  std::vector<std::vector<Write>> writes;
  const ItemResult result = run_group(options_.model, memories, *item, writes);
  for (size_t rank = 0; rank < groups_[group].size(); ++rank)
    groups_[group][rank]->shell->compute(result, std::move(writes[rank]));
}

// ---- links ----

void World::connect_stage(StageNode& node) {
  Link& link = *node.to_head;
  if (link.open() || !link.settled() || !head_.alive() || !node.alive()) return;
  link.connect();
  link.send(0, [this, &node] { head_.head->on_stage_up(node.stage, network_.now); });
}

void World::connect_rank(RankNode& node) {
  Link& link = *node.to_rank0;
  RankNode& first = *groups_[node.group][0];
  if (link.open() || !link.settled() || !first.alive() || !node.alive()) return;
  link.connect();
  link.send(0, [this, &node, &first] {
    first.head->on_rank_up(static_cast<int32_t>(node.rank), network_.now);
  });
}

void World::connect_group(RankNode& node) {
  Link& link = *node.to_head;
  if (link.open() || !link.settled() || !head_.alive() || !node.alive()) return;
  if (!node.head->joined()) return;
  link.connect();
  link.send(1, [this, &node] { node.head->on_head_up(network_.now); });
}

void World::cut_stage(StageNode& node) {
  node.to_head->cut([this, &node] { head_.head->on_stage_lost(node.stage, network_.now); },
                    [&node] { node.shell->head_lost(); });
}

void World::cut_rank(RankNode& node) {
  RankNode& first = *groups_[node.group][0];
  node.to_rank0->cut(
      [this, &node, &first] {
        first.head->on_rank_lost(static_cast<int32_t>(node.rank), network_.now);
      },
      [&node] { node.shell->head_lost(); });
}

void World::cut_group(RankNode& node) {
  node.to_head->cut(
      [this, &node, name = node.name] {
        if (name) head_.head->on_group_lost(*name, network_.now);
        if (node.name == name) node.name.reset();
      },
      [this, &node] { node.head->on_head_lost(network_.now); });
}

void World::maintain() {
  for (auto& node : stages_) connect_stage(*node);
  for (auto& group : groups_) {
    connect_group(*group[0]);
    for (size_t rank = 1; rank < group.size(); ++rank) connect_rank(*group[rank]);
  }
  network_.at(network_.now + 5 * kMs, [this] { maintain(); });
}

}  // namespace kern::sim
