#include "radix.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "check.h"

namespace kern::pool {

namespace {

// Length of the common prefix: whole blocks by memcmp, the differing one token by token.
size_t common(std::span<const int32_t> a, std::span<const int32_t> b) {
  constexpr size_t kBlock = 64;
  const size_t n = std::min(a.size(), b.size());
  size_t i = 0;
  while (n - i >= kBlock && std::memcmp(&a[i], &b[i], kBlock * sizeof(int32_t)) == 0) i += kBlock;
  while (i < n && a[i] == b[i]) ++i;
  return i;
}

}  // namespace

Radix::Walk Radix::walk(std::span<const int32_t> tokens) const {
  Walk walk;
  while (walk.matched < tokens.size()) {
    const uint32_t child = children_.find(walk.node, tokens[walk.matched]);
    if (child == Children::kNone) break;
    const auto label = node(child).label();
    const size_t n = common(label, tokens.subspan(walk.matched));
    KERN_POOL_ASSERT(n > 0, "a child is found by its first token");
    walk.matched += static_cast<uint32_t>(n);
    if (n < label.size()) {
      walk.inside = child;
      break;
    }
    walk.node = child;
    if (node(walk.node).entry && walk.matched < tokens.size()) walk.entry = walk.node;
  }
  return walk;
}

uint32_t Radix::reach(std::span<const int32_t> tokens) {
  KERN_POOL_ASSERT(!tokens.empty(), "the root has no entry");
  const Walk at = walk(tokens);
  uint32_t number = at.node;
  if (at.inside != kRoot) number = split(at.inside, at.matched - node(at.node).depth);
  if (at.matched == tokens.size()) return number;
  const auto rest = tokens.subspan(at.matched);
  const uint32_t made = make(number, rest, static_cast<uint32_t>(tokens.size()));
  const bool fresh = children_.add(number, rest.front(), made);
  KERN_POOL_ASSERT(fresh, "two children of a node begin differently");
  return made;
}

uint32_t Radix::any_entry(uint32_t number) const {
  while (!node(number).entry) {
    KERN_POOL_ASSERT(!leaf(number), "a leaf has an entry");
    number = children_.last(number);
  }
  return number;
}

uint32_t Radix::ancestor_entry(uint32_t number) const {
  do {
    number = node(number).parent;
  } while (number != kRoot && !node(number).entry);
  return number;
}

void Radix::tokens(uint32_t number, std::vector<int32_t>& out) const {
  out.resize(node(number).depth);
  for (; number != kRoot; number = node(number).parent) {
    const auto label = node(number).label();
    std::copy(label.begin(), label.end(),
              out.begin() + static_cast<std::ptrdiff_t>(node(number).depth - label.size()));
  }
}

uint32_t Radix::prune(uint32_t number) {
  KERN_POOL_ASSERT(number != kRoot && !node(number).entry,
                   "only a node without an entry is pruned");
  const uint32_t children = children_.count(number);
  if (children > 1) return kRoot;
  if (children == 1) {
    merge(number);
    return kRoot;
  }
  const uint32_t parent = node(number).parent;
  children_.remove(parent, node(number).label().front());
  erase(number);
  if (parent == kRoot) return kRoot;
  if (node(parent).entry) return leaf(parent) ? parent : kRoot;
  KERN_POOL_ASSERT(!leaf(parent), "a node without an entry had two children");
  if (children_.count(parent) == 1) merge(parent);
  return kRoot;
}

uint32_t Radix::make(uint32_t parent, std::span<const int32_t> label, uint32_t depth) {
  uint32_t number = static_cast<uint32_t>(nodes_.size());
  if (free_nodes_.empty()) {
    nodes_.emplace_back();
  } else {
    number = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Node& made = node(number);
  made.buffer = labels_.take(label.size());
  made.buffer.assign(label.begin(), label.end());
  made.begin = 0;
  made.depth = depth;
  made.parent = parent;
  return number;
}

// Puts a node above `number` that takes the first `matched` tokens of its label. The lower one
// keeps them in its buffer, so that a later merge finds them there.
uint32_t Radix::split(uint32_t number, uint32_t matched) {
  Node& lower = node(number);
  const auto label = lower.label();
  KERN_POOL_ASSERT(matched > 0 && matched < label.size(), "a split lies inside a label");
  const auto head = label.first(matched);
  const uint32_t parent = lower.parent;
  const uint32_t depth = lower.depth - static_cast<uint32_t>(label.size()) + matched;
  const uint32_t upper = make(parent, head, depth);
  children_.replace(parent, head.front(), upper);
  lower.begin += matched;
  lower.parent = upper;
  children_.add(upper, lower.label().front(), number);
  return upper;
}

// Takes out a node without an entry that has one child, whose label grows by the node's.
void Radix::merge(uint32_t number) {
  Node& upper = node(number);
  KERN_POOL_ASSERT(children_.count(number) == 1, "a node merges into its only child");
  const uint32_t below = children_.last(number);
  Node& lower = node(below);
  const auto head = upper.label();
  children_.remove(number, lower.label().front());
  children_.replace(upper.parent, head.front(), below);
  if (lower.begin >= head.size()) {
    lower.begin -= static_cast<uint32_t>(head.size());
  } else {
    const auto tail = lower.label();
    Labels::Buffer whole = labels_.take(head.size() + tail.size());
    whole.insert(whole.end(), head.begin(), head.end());
    whole.insert(whole.end(), tail.begin(), tail.end());
    labels_.give(std::exchange(lower.buffer, std::move(whole)));
    lower.begin = 0;
  }
  lower.parent = upper.parent;
  erase(number);
}

void Radix::erase(uint32_t number) {
  KERN_POOL_ASSERT(leaf(number), "only a node without children is erased");
  labels_.give(std::exchange(node(number).buffer, {}));
  free_nodes_.push_back(number);
}

}  // namespace kern::pool
