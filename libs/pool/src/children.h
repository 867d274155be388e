#pragma once
// The edges of a radix tree: one table for all its nodes, by parent and first token, so that a step
// down touches one line of it however many children the parent has. The children of a node are also
// a list, the last added in front: the branch that was empty last. Nothing depends on where in the
// table an edge lies. A tree that does not grow allocates nothing.

#include <cstdint>
#include <vector>

#include "check.h"

namespace kern::pool {

class Children {
 public:
  static constexpr uint32_t kNone = 0;  // the root, which is nobody's child

  Children() : edges_(16), links_(1) {}

  // The child that begins with the token; kNone if there is none.
  uint32_t find(uint32_t parent, int32_t first) const { return edges_[place(parent, first)].child; }
  uint32_t count(uint32_t parent) const { return link(parent).count; }
  // The child added last; kNone if there is none.
  uint32_t last(uint32_t parent) const { return link(parent).children; }

  // Whether there was no child yet that begins with the token.
  bool add(uint32_t parent, int32_t first, uint32_t child) {
    KERN_POOL_ASSERT(child != kNone, "the root is nobody's child");
    if (2 * (used_ + 1) > edges_.size()) grow();
    Edge& edge = edges_[place(parent, first)];
    if (edge.child != kNone) return false;
    edge = {parent, first, child};
    ++used_;
    if (links_.size() <= child) links_.resize(child + 1);
    const uint32_t next = links_[parent].children;
    links_[child].next = next;
    links_[child].before = kNone;
    if (next != kNone) links_[next].before = child;
    links_[parent].children = child;
    ++links_[parent].count;
    return true;
  }

  // Puts another child where the one is that begins with the token, in the list too: the branch is
  // the same, its first node is another.
  void replace(uint32_t parent, int32_t first, uint32_t child) {
    Edge& edge = edges_[place(parent, first)];
    const uint32_t gone = edge.child;
    KERN_POOL_ASSERT(gone != kNone && child != kNone, "a child is replaced by another");
    edge.child = child;
    if (links_.size() <= child) links_.resize(child + 1);
    Link& link = links_[child];
    link.next = links_[gone].next;
    link.before = links_[gone].before;
    (link.before == kNone ? links_[parent].children : links_[link.before].next) = child;
    if (link.next != kNone) links_[link.next].before = child;
  }

  void remove(uint32_t parent, int32_t first) {
    const size_t at = place(parent, first);
    const uint32_t child = edges_[at].child;
    KERN_POOL_ASSERT(child != kNone, "only a child is removed");
    close(at);
    --used_;
    const Link& gone = links_[child];
    (gone.before == kNone ? links_[parent].children : links_[gone.before].next) = gone.next;
    if (gone.next != kNone) links_[gone.next].before = gone.before;
    --links_[parent].count;
  }

 private:
  struct Edge {
    uint32_t parent = 0;
    int32_t first = 0;
    uint32_t child = kNone;  // kNone: free
  };
  struct Link {
    uint32_t children = kNone;  // of this node, the last added
    uint32_t count = 0;
    uint32_t next = kNone, before = kNone;  // among its parent's children
  };

  Link link(uint32_t node) const { return node < links_.size() ? links_[node] : Link{}; }

  size_t home(uint32_t parent, int32_t first) const {
    uint64_t mixed = (uint64_t{parent} << 32) | static_cast<uint32_t>(first);
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    return static_cast<size_t>(mixed ^ (mixed >> 31)) & (edges_.size() - 1);
  }
  // Where the edge lies or would lie: the first place from its home that is its own or free.
  size_t place(uint32_t parent, int32_t first) const {
    size_t at = home(parent, first);
    while (edges_[at].child != kNone && (edges_[at].parent != parent || edges_[at].first != first))
      at = (at + 1) & (edges_.size() - 1);
    return at;
  }
  // Frees a place, and moves up what lies behind it and could lie there.
  void close(size_t hole) {
    const size_t mask = edges_.size() - 1;
    for (size_t at = (hole + 1) & mask; edges_[at].child != kNone; at = (at + 1) & mask) {
      const size_t from_home = (at - home(edges_[at].parent, edges_[at].first)) & mask;
      if (from_home < ((at - hole) & mask)) continue;  // its home lies behind the hole
      edges_[hole] = edges_[at];
      hole = at;
    }
    edges_[hole] = {};
  }
  void grow() {
    std::vector<Edge> old(2 * edges_.size());
    old.swap(edges_);
    for (const Edge& edge : old)
      if (edge.child != kNone) edges_[place(edge.parent, edge.first)] = edge;
  }

  std::vector<Edge> edges_;  // a power of two, at most half of them used
  size_t used_ = 0;
  std::vector<Link> links_;  // by node
};

}  // namespace kern::pool
