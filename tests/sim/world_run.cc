#include <algorithm>

#include "world.h"

namespace kern::sim {

using namespace engine;

namespace {
constexpr TimeNs kMs = kMillisecondNs;
}

// ---- clients ----

Request World::make_request() {
  Prng& prng = network_.prng;
  Request request;
  request.id = RequestId{next_request_++};
  // few families of prompts, so that some begin as others did
  const uint64_t family = prng.below(3);
  const uint64_t length = 1 + prng.below(prng.below(3) == 0 ? 450 : 150);
  for (uint64_t at = 0; at < length; ++at)
    request.prompt.push_back(static_cast<Token>((family * 131 + at * 7) % 900));
  if (prng.below(2) == 0) request.prompt.back() = static_cast<Token>(900 + prng.below(50));
  request.max_tokens = 1 + static_cast<int32_t>(prng.below(prng.below(4) == 0 ? 100 : 12));
  request.priority = static_cast<int32_t>(prng.below(2));
  request.sampling.seed = prng.next() & ~kFragile;
  if (prng.below(2) == 0) request.sampling.temperature = 1;
  if (prng.below(8) == 0) request.sampling.seed |= kFragile;
  if (prng.below(2) == 0) request.stop_tokens = {kStop, 11};
  if (prng.below(10) == 0) request.deadline = network_.now + network_.between(kMs, 200 * kMs);
  return request;
}

void World::submit(Request request) {
  if (!head_.alive()) return;
  Client client{
      .request = request, .expected = answer(options_.model, request), .head_life = head_.life()};
  const uint64_t id = request.id.value();
  clients_.emplace(id, std::move(client));
  head_.head->submit(std::move(request), network_.now);
}

void World::plan_requests() {
  planned_ = options_.requests;
  for (int32_t i = 0; i < options_.requests; ++i) {
    // half of them come at once, the others one by one
    const TimeNs when = i % 2 == 0 ? 60 * kMs : network_.between(0, options_.busy_for);
    network_.at(when, [this] {
      --planned_;
      head_.post(0, [this] {
        Request request = make_request();
        const RequestId id = request.id;
        submit(std::move(request));
        if (network_.prng.below(6) != 0 || !clients_.contains(id.value())) return;
        head_.post(network_.between(0, 60 * kMs), [this, id] {
          clients_.at(id.value()).aborted = true;
          head_.head->abort(id, network_.now);
        });
      });
    });
  }
}

void World::client_event(const RequestEvent& event) {
  const auto at = clients_.find(event.id.value());
  expect(at != clients_.end(), "an event of request {}, which nobody sent", event.id.value());
  Client& client = at->second;
  expect(!client.ended, "request {} ended as {} and goes on", event.id.value(), client.how);
  if (const auto* token = std::get_if<TokenEvent>(&event.what)) {
    const size_t index = client.tokens.size();
    expect(index < client.expected.tokens.size() && client.expected.tokens[index] == token->token,
           "request {}: token {} is {}, expected {}", event.id.value(), index, token->token,
           index < client.expected.tokens.size() ? client.expected.tokens[index] : -1);
    client.tokens.push_back(token->token);
    ++tally_.tokens;
    return;
  }
  client.ended = true;
  if (const auto* finished = std::get_if<FinishedEvent>(&event.what))
    client_end(client, *finished);
  else
    client_end(client, std::get<FailedEvent>(event.what));
}

void World::client_end(Client& client, const FinishedEvent& finished) {
  const uint64_t id = client.request.id.value();
  client.how = "finished";
  tally_.cached_tokens += static_cast<uint64_t>(finished.cached_tokens);
  expect(finished.cached_tokens % 64 == 0, "request {}: {} cached", id, finished.cached_tokens);
  expect(static_cast<size_t>(finished.cached_tokens) < client.request.prompt.size(),
         "request {}: all is cached", id);
  if (finished.reason == FinishReason::aborted) {
    expect(client.aborted, "request {} is aborted and nobody asked", id);
    ++tally_.aborted;
    return;
  }
  ++tally_.finished;
  const bool stop = finished.reason == FinishReason::stop;
  expect(client.expected.end == (stop ? EndReason::stop : EndReason::length) &&
             client.tokens == client.expected.tokens,
         "request {} ends after {} tokens of {}", id, client.tokens.size(),
         client.expected.tokens.size());
  expect(static_cast<size_t>(finished.completion_tokens) == client.tokens.size() + stop,
         "request {}: {} tokens counted", id, finished.completion_tokens);
}

void World::client_end(Client& client, const FailedEvent& failed) {
  const Request& request = client.request;
  const uint64_t id = request.id.value();
  client.how = failed.message;
  ++tally_.failed;
  switch (failed.kind) {
    case FailureKind::internal:
      expect(client.expected.end == EndReason::failed && client.tokens == client.expected.tokens,
             "request {} failed: {}", id, failed.message);
      return;
    case FailureKind::unavailable:
      expect(faulty_ || network_.now < 200 * kMs, "request {}: {} without a fault", id,
             failed.message);
      return;
    case FailureKind::deadline:
      expect(request.deadline != 0 && network_.now >= request.deadline, "request {}: too early",
             id);
      return;
    case FailureKind::too_long:
      expect(request.prompt.size() + static_cast<size_t>(request.max_tokens) >
                 head_.head->context_max(),
             "request {}: {}", id, failed.message);
      return;
    case FailureKind::queue_full:
      expect(false, "request {}: the queue is not full", id);
  }
}

// ---- faults ----

void World::plan_faults() {
  if (!options_.faults) return;
  weather_.part_lost = network_.chance(0.3) ? 0.02 : 0;
  weather_.part_damaged = network_.chance(0.3) ? 0.02 : 0;
  faulty_ = weather_.part_lost + weather_.part_damaged > 0;
  for (uint64_t left = 1 + network_.prng.below(6); left > 0; --left)
    network_.at(network_.between(70 * kMs, options_.busy_for), [this] { fault(); });
  network_.at(options_.busy_for, [this] { weather_.part_lost = weather_.part_damaged = 0; });
}

void World::fault() {
  faulty_ = true;
  ++tally_.faults;
  Prng& prng = network_.prng;
  auto& group = groups_[prng.below(groups_.size())];
  RankNode& rank = *group[prng.below(group.size())];
  StageNode* stage = stages_.empty() ? nullptr : stages_[prng.below(stages_.size())].get();
  switch (prng.below(9)) {
    case 0:
      return stage != nullptr ? crash_stage(*stage) : crash_head();
    case 1:
      return stage != nullptr ? cut_stage(*stage) : cut_group(*group[0]);
    case 2:
      return crash_rank(rank);
    case 3:
      return rank.rank > 0 ? cut_rank(rank) : cut_group(rank);
    case 4:
      return cut_group(*group[0]);
    case 5:
      return rank.stall(network_.between(kMs, 700 * kMs));
    case 6:
      return stage != nullptr ? stage->stall(network_.between(kMs, 700 * kMs)) : void();
    case 7:
      return head_.stall(network_.between(kMs, 300 * kMs));
    default:
      return prng.below(3) == 0 ? crash_head() : crash_rank(rank);
  }
}

void World::crash_stage(StageNode& node) {
  if (!node.alive()) return;
  cut_stage(node);
  node.die();
  node.shell.reset();
  network_.at(network_.now + network_.between(kMs, 300 * kMs), [this, &node] {
    node.live();
    start_stage(node);
  });
}

void World::crash_rank(RankNode& node) {
  if (!node.alive()) return;
  if (node.rank == 0) {
    cut_group(node);
    for (size_t rank = 1; rank < groups_[node.group].size(); ++rank)
      cut_rank(*groups_[node.group][rank]);
  } else {
    cut_rank(node);
  }
  node.die();
  node.shell.reset();
  node.head.reset();
  network_.at(network_.now + network_.between(kMs, 300 * kMs), [this, &node] {
    node.live();
    start_rank(node);
  });
}

void World::crash_head() {
  if (!head_.alive()) return;
  for (auto& node : stages_) cut_stage(*node);
  for (auto& group : groups_) cut_group(*group[0]);
  head_.die();
  head_.head.reset();
  head_.stage.reset();
  for (auto& group : groups_) group[0]->name.reset();
  for (auto& [id, client] : clients_) {
    if (client.ended) continue;
    client.ended = true;
    client.how = "the head died";
  }
  network_.at(network_.now + network_.between(kMs, 300 * kMs), [this] {
    head_.live();
    start_head();
  });
}

// ---- the run ----

bool World::quiet() const {
  if (planned_ > 0 || !head_.alive() || !head_.head->ready() || !head_.head->idle()) return false;
  for (const auto& [id, client] : clients_)
    if (!client.ended) return false;
  for (const auto& group : groups_)
    for (const auto& node : group)
      if (!node->alive() || (node->head && !node->head->idle())) return false;
  return true;
}

void World::run_until_quiet() {
  const TimeNs limit = network_.now + 30 * kSecondNs;
  // the last fault is heard of, and the last dead process is back, well within a second and a half
  while (!(quiet() && network_.now > options_.busy_for + 1500 * kMs)) {
    if (network_.step(limit)) {
      ++tally_.events;
      expect(tally_.events < 1'000'000, "a loop: {} events and no rest", tally_.events);
      continue;
    }
    for (const auto& [id, client] : clients_)
      expect(client.ended, "request {} never ends, {} of {} tokens", id, client.tokens.size(),
             client.expected.tokens.size());
    expect(false, "all requests ended, yet the cluster does not come to rest: ready {}, idle {}",
           head_.head->ready(), head_.head->idle());
  }
}

void World::check_memory() {
  const Counters counters = head_.head->counters();
  expect(counters.pages_used == counters.pages_frozen, "the head holds {} pages, {} of them cached",
         counters.pages_used, counters.pages_frozen);
  for (const uint64_t gauge : counters.requests) expect(gauge == 0, "{} requests are left", gauge);
  expect(counters.items_in_flight == 0, "{} items are in flight", counters.items_in_flight);
  for (const GroupStatus& group : head_.head->groups())
    expect(group.handoffs == 0 && group.pages_free == group.pages_max &&
               group.slots_free == (options_.model.recurrent ? group.slots_max : 0),
           "group {}: {} pages of {} are free", group.id, group.pages_free, group.pages_max);
  for (const auto& group : groups_) {
    const GroupCounters mine = group[0]->head->counters();
    expect(mine.pages_used == 0 && mine.slots_used == 0 && mine.running == 0,
           "a group holds {} pages for nobody", mine.pages_used);
    expect(group[0]->pages_held.empty(), "a grant was never released");
  }
  expect(counters.host_bytes_used <= options_.host_bytes, "{} of {} bytes of host memory",
         counters.host_bytes_used, options_.host_bytes);
  tally_.parked = counters.prefixes_parked;
  tally_.woken = counters.prefixes_woken;
  tally_.handoffs_again += counters.handoffs_again;
  tally_.late_messages += counters.late_messages;
}

Tally World::run() {
  maintain();
  plan_requests();
  plan_faults();
  run_until_quiet();
  check_memory();
  // what comes after the storm runs as if there had been none
  bool whole = false;
  for (int attempt = 0; attempt < 20 && !whole; ++attempt) {
    Request request = make_request();
    request.deadline = 0;
    request.sampling.seed &= ~kFragile;
    const uint64_t id = request.id.value();
    head_.post(0, [this, request] { submit(request); });
    while (!clients_.contains(id)) network_.step(network_.now + kSecondNs);
    run_until_quiet();
    whole = clients_.at(id).how == "finished";
    expect(whole || clients_.at(id).how.starts_with("maximum context"), "request {}: {}", id,
           clients_.at(id).how);
  }
  expect(whole, "no request fits this cluster");
  check_memory();
  tally_.damaged = weather_.damaged;
  return tally_;
}

}  // namespace kern::sim
