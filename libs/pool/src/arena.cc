#include "arena.h"

#include <algorithm>
#include <functional>

#include "check.h"

namespace kern::pool {

uint32_t ArenaEnd::take() {
  ++live_;
  while (!holes_.empty()) {
    std::pop_heap(holes_.begin(), holes_.end(), std::greater<>());
    const uint32_t place = holes_.back();
    holes_.pop_back();
    if (place >= edge() || used_[place]) continue;
    used_[place] = true;
    return place;
  }
  used_.push_back(true);
  return edge() - 1;
}

void ArenaEnd::give(uint32_t place) {
  KERN_POOL_ASSERT(place < edge() && used_[place], "a place of the arena is given back once");
  used_[place] = false;
  --live_;
  if (place + 1 < edge()) {
    holes_.push_back(place);
    std::push_heap(holes_.begin(), holes_.end(), std::greater<>());
    return;
  }
  while (!used_.empty() && !used_.back()) used_.pop_back();
}

uint64_t Arena::excess(const Amount& amount) const {
  const uint64_t wanted = amount.pages * page_bytes_ + amount.slots * slot_bytes_;
  return wanted > bytes_ ? wanted - bytes_ : 0;
}

Amount Arena::missing(const Amount& need) const {
  const uint64_t taken = pages_.edge() * page_bytes_ + slots_.edge() * slot_bytes_;
  KERN_POOL_ASSERT(taken <= bytes_, "the two ends of the arena do not meet");
  uint64_t middle = bytes_ - taken;
  const auto beyond = [&middle](uint32_t wanted, uint32_t holes, uint64_t size) {
    const uint32_t more = wanted - std::min(wanted, holes);
    if (more == 0) return more;
    const uint64_t fit = std::min<uint64_t>(more, middle / size);
    middle -= fit * size;
    return static_cast<uint32_t>(more - fit);
  };
  const uint32_t pages = beyond(need.pages, pages_.holes(), page_bytes_);
  return {pages, beyond(need.slots, slots_.holes(), slot_bytes_)};
}

}  // namespace kern::pool
