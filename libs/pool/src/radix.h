#pragma once
// A radix tree over tokens whose nodes may carry an entry. Nodes are numbers; 0 is the root, which
// has an empty label and no entry. Every other node has an entry or at least two children, so a
// leaf has an entry. Only `split` and `merge` touch labels.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "children.h"
#include "kern/pool/checkpoint.h"
#include "kern/pool/host_tier.h"
#include "labels.h"

namespace kern::pool {

// What decides which entry goes first: the smallest.
struct Rank {
  bool interior = false;
  double worth = 0;
  uint64_t last_hit = 0;  // unique
  uint32_t node = 0;
  friend auto operator<=>(const Rank&, const Rank&) = default;
};

class Radix {
 public:
  static constexpr uint32_t kRoot = 0;

  struct Entry {
    std::variant<Checkpoint, Parked> held;
    uint64_t hits = 0;
    std::set<Rank>::iterator rank;
  };
  struct Node {
    // The label is buffer[begin, end); before `begin` lie tokens that come before it on its path.
    std::vector<int32_t> buffer;
    uint32_t begin = 0;
    uint32_t depth = 0;  // tokens from the root to the end of the label
    uint32_t parent = 0;
    std::optional<Entry> entry;

    std::span<const int32_t> label() const { return std::span(buffer).subspan(begin); }
  };
  // Where a walk along some tokens ends.
  struct Walk {
    uint32_t node = kRoot;    // the last one whose label matched whole
    uint32_t inside = kRoot;  // its child whose label matched in part, if not kRoot
    uint32_t matched = 0;     // tokens matched in all
    uint32_t entry = kRoot;   // the deepest node with an entry shorter than the tokens
  };

  Radix() { nodes_.emplace_back(); }
  Node& node(uint32_t number) { return nodes_[number]; }
  const Node& node(uint32_t number) const { return nodes_[number]; }

  bool leaf(uint32_t number) const { return children_.count(number) == 0; }
  Walk walk(std::span<const int32_t> tokens) const;
  // The node exactly at the end of `tokens`, made if need be.
  uint32_t reach(std::span<const int32_t> tokens);
  // Some entry at or below `number`: where paths part, below the child that came last.
  uint32_t any_entry(uint32_t number) const;
  // The nearest node above with an entry; kRoot when none has.
  uint32_t ancestor_entry(uint32_t number) const;
  // Writes the tokens from the root to the end of its label.
  void tokens(uint32_t number, std::vector<int32_t>& out) const;
  // Restores the invariant around a node whose entry is gone. Returns the node that this turned
  // into a leaf, or kRoot.
  uint32_t prune(uint32_t number);

 private:
  uint32_t make(uint32_t parent, std::span<const int32_t> label, uint32_t depth);
  uint32_t split(uint32_t number, uint32_t matched);
  void merge(uint32_t number);
  void erase(uint32_t number);

  std::deque<Node> nodes_;
  // What is no longer in use, for what comes: a tree that neither grows nor shrinks allocates
  // nothing.
  std::vector<uint32_t> free_nodes_;
  Labels labels_;
  Children children_;
};

}  // namespace kern::pool
