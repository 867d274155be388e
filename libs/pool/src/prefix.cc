#include "kern/pool/prefix.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "radix.h"
#include "store.h"

namespace kern::pool {

namespace {

class LeastRecentlyHit final : public EvictionPolicy {
 public:
  double worth(const EntryView&) override { return 0; }  // recency decides among equals
  void evicted(double) override {}
};

}  // namespace

// One tier's entries.
class PrefixTree::Tree {
 public:
  using Held = std::variant<Checkpoint, Parked>;
  // An entry that a lookup found, and how much of it is wanted.
  struct Match {
    uint32_t node = Radix::kRoot;
    uint32_t len = 0;
  };

  Tree(Store& store, std::unique_ptr<EvictionPolicy> policy)
      : store_(store), policy_(std::move(policy)) {
    if (policy_ == nullptr) policy_ = std::make_unique<LeastRecentlyHit>();
  }

  bool insert(std::span<const int32_t> tokens, Held held);
  std::optional<Match> find(std::span<const int32_t> tokens) const;
  // A handle of the caller's own on what was found, which counts as hit.
  Held hit(const Match& match);
  std::optional<Held> evict(std::vector<int32_t>* tokens = nullptr);
  std::optional<Held> evict_one(const Amount& missing, std::vector<int32_t>& tokens);
  Evicted evict(const Amount& missing);
  Evicted evict_for(const Checkpoint& room_for);
  uint32_t entries() const { return static_cast<uint32_t>(order_.size()); }

 private:
  Rank rank_now(uint32_t number, uint64_t last_hit);
  void touch(uint32_t number, uint64_t last_hit);
  std::set<Rank>::iterator enter(const Rank& rank);
  std::set<Rank>::iterator put_in(std::set<Rank>::node_type held);
  std::set<Rank>::node_type take_out(std::set<Rank>::iterator rank);
  Amount sole_holder(const Rank& rank) const;
  template <class Tier>
  bool held_together(uint32_t number) const;
  // Of the entries from `next` on the first that helps alone; if there is none, of those that end
  // inside one page which only they hold the longest: once all of them went, it is free.
  template <class Helps>
  std::set<Rank>::iterator next_to_go(std::set<Rank>::iterator next, bool pages, Helps&& helps);
  // What an entry held, and where to look on: there or, if its going made one, at an earlier leaf.
  struct Removed {
    Held held;
    Rank resume;
  };
  Removed remove(std::set<Rank>::iterator rank);

  Store& store_;
  std::unique_ptr<EvictionPolicy> policy_;
  Radix radix_;
  std::set<Rank> order_;  // every entry, the one to go first in front
  std::set<Rank>::iterator first_interior_ = order_.end();
  std::vector<std::set<Rank>::node_type> free_ranks_;
  uint64_t uses_ = 0;  // insertions and hits so far
};

Rank PrefixTree::Tree::rank_now(uint32_t number, uint64_t last_hit) {
  const Radix::Node& node = radix_.node(number);
  const EntryView view{node.depth, radix_.node(radix_.ancestor_entry(number)).depth,
                       node.entry->hits, store_.geometry().recurrent};
  const double worth = policy_->worth(view);
  KERN_POOL_ASSERT(!std::isnan(worth), "an entry is worth a number");
  return {!radix_.leaf(number), worth, last_hit, number};
}

// Puts an entry where it belongs now; its place in the order moves without an allocation.
void PrefixTree::Tree::touch(uint32_t number, uint64_t last_hit) {
  Radix::Entry& entry = *radix_.node(number).entry;
  auto held = take_out(entry.rank);
  held.value() = rank_now(number, last_hit);
  entry.rank = put_in(std::move(held));
}

// The last of its kind, as what was just hit is if nothing but recency counts, finds its place at
// once; another is searched for.
std::set<Rank>::iterator PrefixTree::Tree::put_in(std::set<Rank>::node_type held) {
  const auto behind = held.value().interior ? order_.end() : first_interior_;
  const auto rank = order_.insert(behind, std::move(held));
  if (rank->interior && (first_interior_ == order_.end() || *rank < *first_interior_))
    first_interior_ = rank;
  return rank;
}

std::set<Rank>::node_type PrefixTree::Tree::take_out(std::set<Rank>::iterator rank) {
  if (rank == first_interior_) ++first_interior_;
  return order_.extract(rank);
}

std::set<Rank>::iterator PrefixTree::Tree::enter(const Rank& rank) {
  if (free_ranks_.empty()) {
    std::set<Rank> one{rank};
    free_ranks_.push_back(one.extract(one.begin()));
  }
  auto again = std::move(free_ranks_.back());
  free_ranks_.pop_back();
  again.value() = rank;
  return put_in(std::move(again));
}

bool PrefixTree::Tree::insert(std::span<const int32_t> tokens, Held held) {
  const uint32_t len = std::visit([](const auto& prefix) { return prefix.len(); }, held);
  KERN_POOL_ASSERT(tokens.size() == len, "a checkpoint is entered under its tokens");
  const uint32_t number = radix_.reach(tokens);
  Radix::Node& node = radix_.node(number);
  if (node.entry) {
    touch(number, ++uses_);
    return false;
  }
  node.entry.emplace(Radix::Entry{std::move(held), 0, order_.end()});
  node.entry->rank = enter(rank_now(number, ++uses_));
  const uint32_t above = radix_.ancestor_entry(number);
  if (above != Radix::kRoot && !radix_.node(above).entry->rank->interior)
    touch(above, radix_.node(above).entry->rank->last_hit);
  return true;
}

std::optional<PrefixTree::Tree::Match> PrefixTree::Tree::find(
    std::span<const int32_t> tokens) const {
  if (tokens.empty()) return std::nullopt;
  const Radix::Walk walk = radix_.walk(tokens);
  uint32_t number = walk.entry;
  uint32_t len = radix_.node(number).depth;
  if (!store_.geometry().recurrent) {
    const uint32_t proper =
        std::min<uint32_t>(walk.matched, static_cast<uint32_t>(tokens.size()) - 1);
    const uint32_t whole = proper - proper % store_.geometry().page_tokens;
    if (whole > len) {
      len = whole;
      number = radix_.any_entry(walk.inside != Radix::kRoot ? walk.inside : walk.node);
    }
  }
  if (number == Radix::kRoot) return std::nullopt;
  return Match{number, len};
}

PrefixTree::Tree::Held PrefixTree::Tree::hit(const Match& match) {
  Radix::Entry& entry = *radix_.node(match.node).entry;
  ++entry.hits;
  touch(match.node, ++uses_);
  return std::visit([&](const auto& held) { return Held(store_.share(held, match.len)); },
                    entry.held);
}

Amount PrefixTree::Tree::sole_holder(const Rank& rank) const {
  return std::visit([](const auto& held) { return held.sole_holder(); },
                    radix_.node(rank.node).entry->held);
}

template <class Tier>
bool PrefixTree::Tree::held_together(uint32_t number) const {
  const auto& last = std::get<Prefix<Tier>>(radix_.node(number).entry->held);
  const uint32_t page_begin = last.len() - 1 - (last.len() - 1) % store_.geometry().page_tokens;
  uint32_t together = 1;
  for (uint32_t above = radix_.ancestor_entry(number); radix_.node(above).depth > page_begin;
       above = radix_.ancestor_entry(above)) {
    const auto& shorter = std::get<Prefix<Tier>>(radix_.node(above).entry->held);
    together += Store::same_last_page(shorter, last);
  }
  return store_.last_page_holders(last) == together;
}

template <class Helps>
std::set<Rank>::iterator PrefixTree::Tree::next_to_go(std::set<Rank>::iterator next, bool pages,
                                                      Helps&& helps) {
  next = std::find_if(next, order_.end(), helps);
  if (next != order_.end() || !pages) return next;
  return std::find_if(order_.begin(), order_.end(), [&](const Rank& rank) {
    const bool resident = std::holds_alternative<Checkpoint>(radix_.node(rank.node).entry->held);
    return resident ? held_together<DeviceTier>(rank.node) : held_together<HostTier>(rank.node);
  });
}

PrefixTree::Tree::Removed PrefixTree::Tree::remove(std::set<Rank>::iterator rank) {
  Radix::Node& node = radix_.node(rank->node);
  Removed removed{std::move(node.entry->held), *rank};
  node.entry.reset();
  free_ranks_.push_back(take_out(rank));
  policy_->evicted(removed.resume.worth);
  const uint32_t leaf = radix_.prune(removed.resume.node);
  if (leaf == Radix::kRoot) return removed;
  touch(leaf, radix_.node(leaf).entry->rank->last_hit);
  removed.resume = std::min(removed.resume, *radix_.node(leaf).entry->rank);
  return removed;
}

std::optional<PrefixTree::Tree::Held> PrefixTree::Tree::evict(std::vector<int32_t>* tokens) {
  if (order_.empty()) return std::nullopt;
  if (tokens != nullptr) radix_.tokens(order_.begin()->node, *tokens);
  return remove(order_.begin()).held;
}

std::optional<PrefixTree::Tree::Held> PrefixTree::Tree::evict_one(const Amount& missing,
                                                                  std::vector<int32_t>& tokens) {
  const Occupancy& all = store_.occupancy();
  if (missing.pages > all.pages_frozen || missing.slots > all.slots_frozen) return std::nullopt;
  const auto helps = [&](const Rank& rank) {
    const Amount sole = sole_holder(rank);
    return (missing.pages > 0 && sole.pages > 0) || (missing.slots > 0 && sole.slots > 0);
  };
  const auto next = next_to_go(order_.begin(), missing.pages > 0, helps);
  if (next == order_.end()) return std::nullopt;
  radix_.tokens(next->node, tokens);
  return remove(next).held;
}

Evicted PrefixTree::Tree::evict(const Amount& missing) {
  Evicted done;
  const auto free_now = [&] {
    return Amount{store_.occupancy().pages_free, store_.occupancy().slots_free};
  };
  const Amount before = free_now();
  const Occupancy& all = store_.occupancy();
  if (missing.pages > all.pages_frozen || missing.slots > all.slots_frozen) return done;
  auto next = order_.begin();
  while (true) {
    const Amount now = free_now();
    done.freed = {now.pages - before.pages, now.slots - before.slots};
    const bool pages = done.freed.pages < missing.pages;
    const bool slots = done.freed.slots < missing.slots;
    done.enough = !pages && !slots;
    if (done.enough) return done;
    const auto helps = [&](const Rank& rank) {
      const Amount sole = sole_holder(rank);
      return (pages && sole.pages > 0) || (slots && sole.slots > 0);
    };
    next = next_to_go(next, pages, helps);
    if (next == order_.end()) return done;
    next = order_.lower_bound(remove(next).resume);  // what was passed over still does not help
    ++done.entries;
  }
}

Evicted PrefixTree::Tree::evict_for(const Checkpoint& room_for) {
  Evicted done;
  const auto used = [&] {
    return Amount{store_.occupancy().host_pages, store_.occupancy().host_slots};
  };
  const Amount before = used();
  const auto helps = [&](const Rank& rank) { return sole_holder(rank) != Amount{}; };
  auto next = order_.begin();
  while (true) {
    done.freed = {before.pages - used().pages, before.slots - used().slots};
    const auto denied = store_.parking_denied(room_for);
    done.enough = !denied;
    if (!denied || denied->reason != Reason::busy) return done;
    next = next_to_go(next, true, helps);
    if (next == order_.end()) return done;
    next = order_.lower_bound(remove(next).resume);  // what was passed over still frees nothing
    ++done.entries;
  }
}

// --- the two tiers ----------------------------------------------------------------------------

PrefixTree::PrefixTree(Pool& pool, std::unique_ptr<EvictionPolicy> policy,
                       std::unique_ptr<EvictionPolicy> parked_policy)
    : resident_(std::make_unique<Tree>(*pool.store_, std::move(policy))),
      parked_(std::make_unique<Tree>(*pool.store_, std::move(parked_policy))) {}
PrefixTree::~PrefixTree() = default;

bool PrefixTree::insert(std::span<const int32_t> tokens, Checkpoint checkpoint) {
  return resident_->insert(tokens, std::move(checkpoint));
}

bool PrefixTree::insert(std::span<const int32_t> tokens, Parked parked) {
  return parked_->insert(tokens, std::move(parked));
}

std::optional<Hit> PrefixTree::lookup(std::span<const int32_t> tokens) {
  const auto match = resident_->find(tokens);
  if (!match) return std::nullopt;
  return Hit{match->len, std::get<Checkpoint>(resident_->hit(*match))};
}

std::optional<Found> PrefixTree::lookup_any(std::span<const int32_t> tokens) {
  const auto resident = resident_->find(tokens);
  const auto parked = parked_->find(tokens);
  if (parked && (!resident || parked->len > resident->len))
    return Found{parked->len, parked_->hit(*parked)};
  if (!resident) return std::nullopt;
  return Found{resident->len, resident_->hit(*resident)};
}

std::optional<Checkpoint> PrefixTree::evict() {
  auto held = resident_->evict();
  if (!held) return std::nullopt;
  return std::get<Checkpoint>(*std::move(held));
}

std::optional<Leaving> PrefixTree::evict_to_park(std::vector<int32_t>&& memory) {
  auto held = resident_->evict(&memory);
  if (!held) return std::nullopt;
  return Leaving{std::move(memory), std::get<Checkpoint>(*std::move(held))};
}

std::optional<Leaving> PrefixTree::evict_to_park(const Amount& missing,
                                                 std::vector<int32_t>&& memory) {
  auto held = resident_->evict_one(missing, memory);
  if (!held) return std::nullopt;
  return Leaving{std::move(memory), std::get<Checkpoint>(*std::move(held))};
}

Evicted PrefixTree::evict(const Amount& missing) {
  return resident_->evict(missing);
}
Evicted PrefixTree::evict_parked(const Checkpoint& room_for) {
  return parked_->evict_for(room_for);
}
uint32_t PrefixTree::entries() const {
  return resident_->entries();
}
uint32_t PrefixTree::parked_entries() const {
  return parked_->entries();
}

}  // namespace kern::pool
