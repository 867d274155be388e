#pragma once
// Host memory as one budget of bytes: places of one size from its low end, of another from its high
// end. A freed place at the edge gives its bytes back to the middle, where either end may take
// them; one behind the edge waits for its own kind. The lowest free place goes first.

#include <cstdint>
#include <vector>

#include "kern/pool/denied.h"

namespace kern::pool {

// The places of one end, numbered from it.
class ArenaEnd {
 public:
  uint32_t edge() const { return static_cast<uint32_t>(used_.size()); }
  uint32_t live() const { return live_; }
  uint32_t holes() const { return edge() - live_; }
  uint32_t take();
  void give(uint32_t place);

 private:
  std::vector<bool> used_;       // up to the edge; the last one is
  std::vector<uint32_t> holes_;  // a heap, lowest in front; some may be used or beyond the edge
  uint32_t live_ = 0;
};

class Arena {
 public:
  Arena(uint64_t bytes, uint64_t page_bytes, uint64_t slot_bytes)
      : bytes_(bytes), page_bytes_(page_bytes), slot_bytes_(slot_bytes) {}

  // Bytes by which a whole arena is too small for so much; 0: it fits.
  uint64_t excess(const Amount& amount) const;
  // What must become free for so much more to have a place.
  Amount missing(const Amount& need) const;
  uint32_t take_page() { return pages_.take(); }
  uint32_t take_slot() { return slots_.take(); }
  void give_page(uint32_t place) { pages_.give(place); }
  void give_slot(uint32_t place) { slots_.give(place); }
  Amount live() const { return {pages_.live(), slots_.live()}; }
  uint64_t page_offset(uint32_t place) const { return place * page_bytes_; }
  uint64_t slot_offset(uint32_t place) const { return bytes_ - (place + 1) * slot_bytes_; }

 private:
  const uint64_t bytes_, page_bytes_, slot_bytes_;
  ArenaEnd pages_, slots_;
};

}  // namespace kern::pool
