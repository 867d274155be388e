#pragma once
// The frozen prefixes of one tier, as counts. A page is a node: `parent` is the page before it in
// its prefix; `refs` counts the nodes whose parent it is and whoever else names it as the last of a
// prefix. A node keeps its parent alive, so holding a tail holds a whole prefix with one count. A
// page's predecessor never changes once frozen, because its contents depend on all that came
// before. A slot is a line with a count of its own. A twin is the place of the same bytes in the
// other tier; if a page has one, so have all before it: both chains hold theirs.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "check.h"
#include "kern/pool/plan.h"

namespace kern::pool {

template <class Tier>
class Chains {
 public:
  using Page = typename Tier::Page;
  using Slot = typename Tier::Slot;
  using TwinPage = typename Tier::Other::Page;
  using TwinSlot = typename Tier::Other::Slot;

  struct Node {
    Page parent;
    uint32_t refs = 0;
    TwinPage twin;
  };
  struct Line {
    uint32_t refs = 0;
    TwinSlot twin;
  };

  Node& node(Page page) { return nodes_[page.value()]; }
  const Node& node(Page page) const { return nodes_[page.value()]; }
  Line& line(Slot slot) { return lines_[slot.value()]; }
  const Line& line(Slot slot) const { return lines_[slot.value()]; }
  // Room for places numbered below these; what is there stays.
  void reach(uint32_t pages, uint32_t slots) {
    if (nodes_.size() < pages) nodes_.resize(std::max<size_t>(pages, 2 * nodes_.size()));
    if (lines_.size() < slots) lines_.resize(std::max<size_t>(slots, 2 * lines_.size()));
  }

  void retain(Page tail) {
    if (tail.null()) return;
    KERN_POOL_ASSERT(node(tail).refs > 0, "only a live page is shared");
    ++node(tail).refs;
  }
  void retain(Slot slot) {
    if (slot.null()) return;
    KERN_POOL_ASSERT(line(slot).refs > 0, "only a live slot is shared");
    ++line(slot).refs;
  }
  // Takes one count off; `freed` is called with each page, the last first, that nobody names now.
  template <class Freed>
  void release(Page tail, Freed&& freed) {
    while (!tail.null()) {
      Node& last = node(tail);
      KERN_POOL_ASSERT(last.refs > 0, "a page is released by a holder");
      if (--last.refs > 0) return;
      const Page parent = std::exchange(last.parent, Page());
      freed(tail);
      tail = parent;
    }
  }
  // Whether nobody names the slot now.
  bool release(Slot slot) {
    if (slot.null()) return false;
    KERN_POOL_ASSERT(line(slot).refs > 0, "a slot is released by a holder");
    return --line(slot).refs == 0;
  }

  Page ancestor(Page tail, uint32_t steps) const {
    for (; steps > 0; --steps) tail = node(tail).parent;
    return tail;
  }
  // Writes a whole chain, which is as long as `out`, first page first.
  void list(Page tail, std::span<Page> out) const {
    for (size_t i = out.size(); i > 0; --i, tail = node(tail).parent) out[i - 1] = tail;
    KERN_POOL_ASSERT(tail.null(), "a chain is as long as its pages");
  }

 private:
  std::vector<Node> nodes_;  // by page
  std::vector<Line> lines_;  // by slot
};

}  // namespace kern::pool
