// A continuous-batching scheduler around kern-pool, small enough to read in ten minutes.
//
// Requests wait in a queue. Each step admits as many as memory allows, then gives every running
// one some work: a chunk of its prompt, or its next token. A finished sequence becomes a checkpoint
// in the prefix tree, so that a later prompt that begins alike starts behind it. When memory is
// short, the checkpoints worth least go to host memory, and from there for good: on the device
// those that are recomputed with least work for the bytes they free, in host memory the least
// recently hit.
//
// The model is a toy that reads its memory as a real one does: the next token is a hash of every
// page of the sequence and of its recurrent state. So a wrong plan gives wrong tokens, and `main`
// compares all of them with a run in which nothing is shared.

#include <kern/pool/pool.h>
#include <kern/pool/prefix.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace {

using namespace kern::pool;
using Tokens = std::vector<int32_t>;

constexpr uint32_t kPageTokens = 4;
constexpr uint32_t kChunk = 8;  // prompt tokens of one sequence in one step
constexpr Geometry kGeometry{.page_tokens = kPageTokens,
                             .pages = 21,
                             .slots = 7,
                             .recurrent = true,
                             .row_pages_max = 10,
                             .host_bytes = 1200,
                             .page_bytes = kPageTokens * sizeof(int32_t),
                             .slot_bytes = sizeof(uint64_t)};

// What owns the memory: it executes plans and runs the toy model. It decides nothing.
class Device {
 public:
  void execute(const Copies& copies) {
    if (copies.page) pages_[copies.page->to.value()] = pages_[copies.page->from.value()];
    if (copies.slot) slots_[copies.slot->to.value()] = slots_[copies.slot->from.value()];
  }

  void execute(const Pool& pool, const Transfers& plan, bool to_host) {
    const auto move = [&](void* device, uint64_t offset, size_t bytes) {
      void* const host = &host_.at(offset);
      to_host ? std::memcpy(host, device, bytes) : std::memcpy(device, host, bytes);
    };
    for (const PageTransfer& page : plan.pages)
      move(pages_[page.device.value()].data(), pool.host_offset(page.host), kGeometry.page_bytes);
    if (plan.slot)
      move(&slots_[plan.slot->device.value()], pool.host_offset(plan.slot->host),
           kGeometry.slot_bytes);
  }

  void clear(SlotId slot) { slots_[slot.value()] = 0; }

  void write(const Lease& lease, uint32_t position, int32_t token) {
    const LeaseView view = lease.view();  // of this moment; another is taken for the next step
    pages_[view.pages()[position / kPageTokens].value()][position % kPageTokens] = token;
    uint64_t& state = slots_[view.slot().value()];
    state = (state ^ static_cast<uint64_t>(token)) * 0x9E3779B97F4A7C15ULL;
  }

  int32_t next(const Lease& lease, uint32_t len) const {
    const LeaseView view = lease.view();
    uint64_t hash = slots_[view.slot().value()];
    for (uint32_t i = 0; i < len; ++i) {
      const auto& page = pages_[view.pages()[i / kPageTokens].value()];
      hash = (hash + static_cast<uint64_t>(page[i % kPageTokens])) * 0x100000001B3ULL;
    }
    return static_cast<int32_t>(hash >> 48);
  }

 private:
  std::vector<std::array<int32_t, kPageTokens>> pages_{kGeometry.pages};
  std::vector<uint64_t> slots_ = std::vector<uint64_t>(kGeometry.slots);
  std::vector<uint8_t> host_ = std::vector<uint8_t>(kGeometry.host_bytes);
};

struct Request {
  size_t id;
  Tokens tokens;       // the prompt, then what was generated
  uint32_t final_len;  // of the prompt and all that is to be generated
};

class Scheduler {
 public:
  explicit Scheduler(bool share) : share_(share) {}

  void submit(Request request) { waiting_.push_back(std::move(request)); }
  bool idle() const { return waiting_.empty() && running_.empty(); }

  // One step of the whole batch. Finished requests go to `done`.
  void step(std::vector<Tokens>& done) {
    while (!waiting_.empty() && admit(waiting_.front())) waiting_.pop_front();
    if (running_.empty()) throw std::logic_error("a request that never fits");
    most_running_ = std::max(most_running_, running_.size());
    for (Running& one : running_) advance(one);
    for (size_t i = 0; i < running_.size();) {
      if (running_[i].request.tokens.size() < running_[i].request.final_len) {
        ++i;
        continue;
      }
      finish(running_[i], done);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  std::string report() const {
    return "computed " + std::to_string(computed_) + " positions, reused " +
           std::to_string(reused_) + ", woke " + std::to_string(woken_) + ", at most " +
           std::to_string(most_running_) + " sequences at once";
  }
  uint32_t reused() const { return reused_; }
  uint32_t woken() const { return woken_; }

 private:
  struct Running {
    Request request;
    Lease lease;
    uint32_t computed;
  };

  // Calls `attempt` until it is granted or nothing is left to evict.
  template <class Attempt>
  auto with_room(Attempt attempt) {
    auto outcome = attempt();
    while (!outcome && outcome.denied().reason == Reason::busy && evict_one()) outcome = attempt();
    return outcome;
  }

  // The checkpoint worth least goes to host memory.
  bool evict_one() {
    std::optional<Leaving> leaving = tree_.evict_to_park();
    if (!leaving) return false;
    tree_.evict_parked(leaving->held);
    if (auto slept = pool_.park(leaving->held)) {
      device_.execute(pool_, slept->transfers, true);
      tree_.insert(leaving->tokens, std::move(slept->parked));
    }
    return true;  // the checkpoint's device memory is free from here on
  }

  // The longest checkpoint that the prompt begins with, woken first if it sleeps.
  std::optional<Checkpoint> cached(const Tokens& prompt) {
    std::optional<Found> found = share_ ? tree_.lookup_any(prompt) : std::nullopt;
    if (!found) return std::nullopt;
    if (auto* held = std::get_if<Checkpoint>(&found->held)) return std::move(*held);
    const Parked& parked = std::get<Parked>(found->held);
    auto woken = with_room([&] { return pool_.wake(parked, found->len); });
    if (!woken) return std::nullopt;
    device_.execute(pool_, woken->transfers, false);
    woken_ += found->len;
    tree_.insert(std::span(prompt).first(found->len), woken->checkpoint.share());
    return std::move(woken->checkpoint);
  }

  // A lease for the request's worst case, or false: it waits.
  bool admit(Request& request) {
    if (std::optional<Checkpoint> hit = cached(request.tokens)) {
      auto restored = with_room([&] { return pool_.restore(*hit, hit->len(), request.final_len); });
      if (restored) {
        device_.execute(restored->copies);
        reused_ += hit->len();
        running_.push_back({std::move(request), std::move(restored->lease), hit->len()});
        return true;
      }
      if (!running_.empty()) return false;  // somebody will finish
    }
    auto lease = with_room([&] { return pool_.lease(request.final_len); });
    if (!lease) return false;
    device_.clear(lease->view().slot());
    running_.push_back({std::move(request), *std::move(lease), 0});
    return true;
  }

  // A chunk of the prompt, or the token that was generated last; then the next if all is computed.
  void advance(Running& one) {
    Tokens& tokens = one.request.tokens;
    const uint32_t known = static_cast<uint32_t>(tokens.size());
    const uint32_t end = std::min(known, one.computed + kChunk);
    computed_ += end - one.computed;
    for (; one.computed < end; ++one.computed)
      device_.write(one.lease, one.computed, tokens[one.computed]);
    if (end == known) tokens.push_back(device_.next(one.lease, known));
  }

  // What was computed stays as a checkpoint; the last token was generated and never computed.
  void finish(Running& one, std::vector<Tokens>& done) {
    const std::span<const int32_t> prefix = std::span(one.request.tokens).first(one.computed);
    Checkpoint checkpoint = pool_.retire(std::move(one.lease), one.computed);
    if (share_) tree_.insert(prefix, std::move(checkpoint));
    done[one.request.id] = std::move(one.request.tokens);
  }

  const bool share_;
  Device device_;
  Pool pool_{kGeometry};
  // Attention makes a later position dearer than an early one.
  PrefixTree tree_{pool_, recompute_cost_per_byte({.per_token = 8,
                                                   .per_token_pair = 1,
                                                   .page_bytes = double(kGeometry.page_bytes),
                                                   .slot_bytes = double(kGeometry.slot_bytes),
                                                   .page_tokens = kPageTokens})};
  std::deque<Request> waiting_;
  std::vector<Running> running_;
  uint32_t computed_ = 0, reused_ = 0, woken_ = 0;
  size_t most_running_ = 0;
};

// Eight users hold conversations of four turns over one system prompt.
std::vector<Tokens> serve(Scheduler& scheduler) {
  constexpr size_t kUsers = 8, kTurns = 4;
  std::vector<Tokens> done(kUsers);
  for (size_t turn = 0; turn < kTurns; ++turn) {
    for (size_t user = 0; user < kUsers; ++user) {
      Tokens prompt = turn == 0 ? Tokens{1, 2, 3, 4, 5, 6} : done[user];
      prompt.push_back(static_cast<int32_t>(100 * user + turn));
      const uint32_t final_len = static_cast<uint32_t>(prompt.size()) + 5;
      scheduler.submit({user, std::move(prompt), final_len});
    }
    while (!scheduler.idle()) scheduler.step(done);
  }
  return done;
}

}  // namespace

int main() {
  Scheduler sharing(true), alone(false);
  const std::vector<Tokens> with = serve(sharing), without = serve(alone);
  const bool same = with == without;
  const bool used = sharing.reused() > 0 && sharing.woken() > 0 && alone.reused() == 0;
  std::puts(("sharing: " + sharing.report()).c_str());
  std::puts(("alone:   " + alone.report()).c_str());
  std::puts(same ? "the same tokens with and without sharing" : "sharing changed tokens");
  return same && used ? 0 : 1;
}
