#include "shells.h"

#include <algorithm>
#include <utility>

namespace kern::sim {

using namespace engine;

// ---- stage ----

StageShell::StageShell(Network& network, Process& process, const Model& model, int stage,
                       Memory memory, Weather& weather, Ways ways)
    : network_(network),
      process_(process),
      model_(model),
      stage_(stage),
      memories_{std::move(memory)},
      memory_(memories_.front()),
      weather_(weather),
      ways_(std::move(ways)) {}

void StageShell::command(const StageCommand& command) {
  follower_.on_command(command);
  if (!std::holds_alternative<ResetEpoch>(command)) return;
  while (!moves_.empty()) moves_.step(memories_);
  moves_.forget();
  unblock();
}

/// One move after the other, each of which takes its time.
void StageShell::keep_moving() {
  if (moving_ || moves_.empty()) return;
  moving_ = true;
  process_.post(network_.between(1'000, 400'000), [this] {
    moving_ = false;
    if (!moves_.empty()) moves_.step(memories_);
    keep_moving();
    try_compute();
  });
}

void StageShell::head_lost() {
  follower_.on_head_lost();
  unblock();
}

/// A device that waits for a neighbour waits no more.
void StageShell::unblock() {
  hidden_.clear();
  if (!item_ || computing_) return;
  const uint64_t id = item_->id;
  item_.reset();
  follower_.on_item_done({.id = id});
}

void StageShell::hidden_came(Epoch epoch, uint64_t item, std::vector<Digest> hidden) {
  hidden_.insert_or_assign({epoch, item}, std::move(hidden));
  try_compute();
}

void StageShell::try_compute() {
  if (!item_ || computing_) return;
  const auto came = hidden_.find({epoch_, item_->id});
  if (stage_ > 0 && came == hidden_.end()) return;
  if (moves_.holds_up(*item_)) return;
  input_ = stage_ == 0 ? embed(*item_) : std::move(came->second);
  if (stage_ > 0) hidden_.erase(came);
  const auto why = moves_.in_the_way(*item_, memory_.page_tokens);
  expect(!why, "stage {}: {}", stage_, why.value_or(""));
  computing_ = true;
  process_.post(network_.between(50'000, 1500'000), [this] { complete(); });
}

void StageShell::complete() {
  for (const Slice& slice : item_->slices) {
    for (const auto& [generation, sending] : sending_) {
      const auto& read = sending.order.from.pages;
      const auto end = slice.start + static_cast<uint32_t>(slice.tokens.size());
      for (uint32_t at = slice.start; at < end; ++at)
        expect(std::find(read.begin(), read.end(), slice.pages.at(at / memory_.page_tokens)) ==
                   read.end(),
               "stage {}: item {} writes a page that generation {} reads", stage_, item_->id,
               generation.value());
    }
  }
  auto hidden = run_stage(model_, stage_, memory_, *item_, input_);
  ItemResult result{.id = item_->id};
  if (ways_.pass_on)
    ways_.pass_on(epoch_, item_->id, std::move(hidden));
  else
    result = emit(*item_, hidden);
  result.moved = moves_.moved();
  item_.reset();
  computing_ = false;
  follower_.on_item_done(std::move(result));
}

void StageShell::flush() {
  for (;;) {
    StageFollower::Actions actions = follower_.take_actions();
    if (!actions.run && actions.send.empty() && actions.cancel.empty() && actions.reports.empty() &&
        actions.groups_up.empty() && actions.groups_gone.empty())
      return;
    for (const GroupUp& up : actions.groups_up) groups_.insert_or_assign(up.group, up.hello);
    for (const GroupId gone : actions.groups_gone) groups_.erase(gone);
    for (StageReport& report : actions.reports) ways_.report(std::move(report));
    for (const SendState& order : actions.send) start_send(order);
    for (const Generation generation : actions.cancel) finish_send(generation, false, "cancelled");
    if (!actions.run) continue;
    expect(!item_, "stage {}: item {} is run beside {}", stage_, actions.run->id, item_->id);
    const auto why = unsound(*actions.run, memory_.page_tokens, 1);
    expect(!why, "stage {}: {}", stage_, why.value_or(""));
    item_ = std::move(actions.run);
    epoch_ = actions.run_epoch;
    moves_.start(*item_);
    keep_moving();
    try_compute();
  }
}

void StageShell::start_send(const SendState& order) {
  sending_.emplace(order.generation, Sending{order});
  const Generation generation = order.generation;
  process_.post(network_.between(0, kMillisecondNs), [this, generation] { transmit(generation); });
  process_.post(100 * kMillisecondNs,
                [this, generation] { finish_send(generation, false, "a rank does not answer"); });
}

void StageShell::transmit(Generation generation) {
  const auto at = sending_.find(generation);
  if (at == sending_.end()) return;
  const SendState order = at->second.order;
  const auto group = groups_.find(order.group);
  if (group == groups_.end()) return finish_send(generation, false, "the group is unknown");
  const GroupHello hello = group->second;
  at->second.parts_out = hello.ranks * (model_.recurrent ? 2u : 1u);
  for (uint32_t rank = 0; rank < hello.ranks; ++rank) {
    send_part(order, hello.addresses[rank], rank, hello.ranks, true);
    if (model_.recurrent) send_part(order, hello.addresses[rank], rank, hello.ranks, false);
  }
}

void StageShell::send_part(const SendState& order, const std::string& address, uint32_t rank,
                           uint32_t ranks, bool paged) {
  const auto door = ways_.directory(address);
  if (!door || network_.chance(weather_.part_lost)) return;
  const PartHeader header{.request = order.request,
                          .generation = order.generation,
                          .state = fmt::format("{}.{}", paged ? "kv" : "line", stage_),
                          .tokens = order.tokens};
  auto rows = cut_part(memory_, order.from, order.tokens, paged, rank, ranks);
  const bool damaged = network_.chance(weather_.part_damaged);
  weather_.damaged += damaged;
  // the shell may be gone by the time of the answer; its process, in another life, is not
  auto answer = [this, &process = process_, &network = network_, life = process_.life(),
                 generation = order.generation](bool whole) {
    if (process.life() != life) return;
    process.post(network.between(10'000, 2 * kMillisecondNs),
                 [this, generation, whole] { part_answered(generation, whole); });
  };
  door->process->post(
      network_.between(10'000, 2 * kMillisecondNs),
      [shell = door->shell, header, rows = std::move(rows), damaged, answer = std::move(answer)] {
        shell()->part(header, rows, damaged, answer);
      });
}

void StageShell::part_answered(Generation generation, bool whole) {
  const auto at = sending_.find(generation);
  if (at == sending_.end()) return;
  if (!whole) return finish_send(generation, false, "a rank refused a part");
  if (--at->second.parts_out == 0) finish_send(generation, true, "");
}

void StageShell::finish_send(Generation generation, bool whole, const std::string& why) {
  if (sending_.erase(generation) > 0) follower_.on_sent(generation, whole, why);
}

// ---- rank ----

RankShell::RankShell(Network& network, Process& process, const Model& model, uint32_t rank,
                     Memories memories, Ways ways)
    : network_(network),
      process_(process),
      model_(model),
      rank_(rank),
      memories_(std::move(memories)),
      ways_(std::move(ways)),
      follower_(state_names(model)) {}

std::vector<std::string> RankShell::state_names(const Model& model) {
  std::vector<std::string> names;
  for (int stage = 0; stage < model.stages; ++stage) {
    names.push_back(fmt::format("kv.{}", stage));
    if (model.recurrent) names.push_back(fmt::format("line.{}", stage));
  }
  return names;
}

void RankShell::command(const RankCommand& command) {
  follower_.on_command(command);
  if (std::holds_alternative<ResetEpoch>(command)) unblock();
}

void RankShell::head_lost() {
  follower_.on_head_lost();
  unblock();
}

/// What a device waits for ends, and with it what was started behind it.
void RankShell::unblock() {
  over_ = computing_;
  if (computing_) return;
  for (const Item& item : std::exchange(items_, {})) follower_.on_item_done({.id = item.id});
}

void RankShell::feed_first() {
  if (!items_.empty()) feed(items_.front(), kept_);
}

void RankShell::part(const PartHeader& header, std::vector<Digest> rows, bool damaged,
                     std::function<void(bool)> answer) {
  if (!follower_.accept(header)) return answer(false);
  process_.post(network_.between(0, 2 * kMillisecondNs), [this, header, rows = std::move(rows),
                                                          damaged, answer = std::move(answer)] {
    const auto place = follower_.accept(header);
    if (!place) return answer(false);
    const bool paged = header.state.starts_with("kv.");
    const auto stage = static_cast<size_t>(std::stoi(header.state.substr(paged ? 3 : 5)));
    if (!damaged) land_part(memories_.at(stage), place->place, paged, rank_, rows);
    follower_.on_part(header, !damaged);
    answer(!damaged);
  });
}

void RankShell::flush() {
  for (;;) {
    RankFollower::Actions actions = follower_.take_actions();
    if (actions.runs.empty() && actions.reports.empty()) return;
    for (RankReport& report : actions.reports) ways_.report(std::move(report));
    for (Item& item : actions.runs) {
      expect(items_.size() < RankFollower::kRunningMax, "rank {}: item {} is one too many", rank_,
             item.id);
      items_.push_back(std::move(item));
      if (items_.size() == 1) feed_first();
    }
    if (!actions.runs.empty()) ways_.try_step();
  }
}

void RankShell::compute(ItemResult result, std::vector<Write> writes) {
  computing_ = true;
  // now and then one rank is far behind the others
  const TimeNs most = network_.chance(0.05) ? 60 * kMillisecondNs : kMillisecondNs;
  process_.post(network_.between(50'000, most),
                [this, result = std::move(result), writes = std::move(writes)] {
                  apply(memories_, writes);
                  computing_ = false;
                  items_.pop_front();
                  kept_ = tokens_of(result);
                  feed_first();
                  follower_.on_item_done(result);
                  if (over_) unblock();
                  ways_.try_step();
                });
}

}  // namespace kern::sim
