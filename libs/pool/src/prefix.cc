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

class PrefixTree::Tree {
 public:
  Tree(Store& store, std::unique_ptr<EvictionPolicy> policy)
      : store_(store), policy_(std::move(policy)) {
    if (policy_ == nullptr) policy_ = std::make_unique<LeastRecentlyHit>();
  }

  bool insert(std::span<const int32_t> tokens, Checkpoint checkpoint);
  std::optional<Hit> lookup(std::span<const int32_t> tokens);
  std::optional<Checkpoint> evict();
  Evicted evict(const Amount& missing);
  uint32_t entries() const { return static_cast<uint32_t>(order_.size()); }

 private:
  Rank rank_now(uint32_t number, uint64_t last_hit);
  void touch(uint32_t number, uint64_t last_hit);
  // What an entry held, and where to look on: there or, if its going made one, at an earlier leaf.
  struct Removed {
    Checkpoint checkpoint;
    Rank resume;
  };
  Removed remove(std::set<Rank>::iterator rank);

  Store& store_;
  std::unique_ptr<EvictionPolicy> policy_;
  Radix radix_;
  std::set<Rank> order_;  // every entry, the one to go first in front
  uint64_t uses_ = 0;     // insertions and hits so far
};

Rank PrefixTree::Tree::rank_now(uint32_t number, uint64_t last_hit) {
  const Radix::Node& node = radix_.node(number);
  const EntryView view{node.depth, radix_.node(radix_.ancestor_entry(number)).depth,
                       node.entry->hits, !node.entry->checkpoint.slot().null()};
  const double worth = policy_->worth(view);
  KERN_POOL_ASSERT(!std::isnan(worth), "an entry is worth a number");
  return {!node.children.empty(), worth, last_hit, number};
}

// Puts an entry where it belongs now; its place in the order moves without an allocation.
void PrefixTree::Tree::touch(uint32_t number, uint64_t last_hit) {
  Radix::Entry& entry = *radix_.node(number).entry;
  auto held = order_.extract(entry.rank);
  held.value() = rank_now(number, last_hit);
  entry.rank = order_.insert(std::move(held)).position;
}

bool PrefixTree::Tree::insert(std::span<const int32_t> tokens, Checkpoint checkpoint) {
  KERN_POOL_ASSERT(tokens.size() == checkpoint.len(), "a checkpoint is entered under its tokens");
  const uint32_t number = radix_.reach(tokens);
  Radix::Node& node = radix_.node(number);
  if (node.entry) {
    touch(number, ++uses_);
    return false;
  }
  node.entry.emplace(Radix::Entry{std::move(checkpoint), 0, order_.end()});
  node.entry->rank = order_.insert(rank_now(number, ++uses_)).first;
  const uint32_t above = radix_.ancestor_entry(number);
  if (above != Radix::kRoot && !radix_.node(above).entry->rank->interior)
    touch(above, radix_.node(above).entry->rank->last_hit);
  return true;
}

std::optional<Hit> PrefixTree::Tree::lookup(std::span<const int32_t> tokens) {
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
  Radix::Entry& entry = *radix_.node(number).entry;
  ++entry.hits;
  touch(number, ++uses_);
  return Hit{len, store_.share(entry.checkpoint, len)};
}

PrefixTree::Tree::Removed PrefixTree::Tree::remove(std::set<Rank>::iterator rank) {
  Radix::Node& node = radix_.node(rank->node);
  Removed removed{std::move(node.entry->checkpoint), *rank};
  node.entry.reset();
  order_.erase(rank);
  policy_->evicted(removed.resume.worth);
  const uint32_t leaf = radix_.prune(removed.resume.node);
  if (leaf == Radix::kRoot) return removed;
  touch(leaf, radix_.node(leaf).entry->rank->last_hit);
  removed.resume = std::min(removed.resume, *radix_.node(leaf).entry->rank);
  return removed;
}

std::optional<Checkpoint> PrefixTree::Tree::evict() {
  if (order_.empty()) return std::nullopt;
  return remove(order_.begin()).checkpoint;
}

Evicted PrefixTree::Tree::evict(const Amount& missing) {
  Evicted done;
  const auto free_now = [&] {
    return Amount{store_.occupancy().pages_free, store_.occupancy().slots_free};
  };
  const Amount before = free_now();
  auto next = order_.begin();
  while (true) {
    const Amount now = free_now();
    done.freed = {now.pages - before.pages, now.slots - before.slots};
    const bool pages = done.freed.pages < missing.pages;
    const bool slots = done.freed.slots < missing.slots;
    done.enough = !pages && !slots;
    if (done.enough) return done;
    const auto helps = [&](const Rank& rank) {
      const Amount sole = radix_.node(rank.node).entry->checkpoint.sole_holder();
      return (pages && sole.pages > 0) || (slots && sole.slots > 0);
    };
    next = std::find_if(next, order_.end(), helps);
    if (next == order_.end()) return done;
    next = order_.lower_bound(remove(next).resume);  // what was passed over still does not help
    ++done.entries;
  }
}

PrefixTree::PrefixTree(Pool& pool, std::unique_ptr<EvictionPolicy> policy)
    : tree_(std::make_unique<Tree>(*pool.store_, std::move(policy))) {}
PrefixTree::~PrefixTree() = default;

bool PrefixTree::insert(std::span<const int32_t> tokens, Checkpoint checkpoint) {
  return tree_->insert(tokens, std::move(checkpoint));
}

std::optional<Hit> PrefixTree::lookup(std::span<const int32_t> tokens) {
  return tree_->lookup(tokens);
}

std::optional<Checkpoint> PrefixTree::evict() {
  return tree_->evict();
}
Evicted PrefixTree::evict(const Amount& missing) {
  return tree_->evict(missing);
}
uint32_t PrefixTree::entries() const {
  return tree_->entries();
}

}  // namespace kern::pool
