#include "packing.h"

#include <algorithm>

#include "kern/base/assert.h"
#include "kern/engine/prefill.h"

namespace kern::engine {
namespace {

/// The most of `rows` that a want may run: all it has left, or up to a grid line or its cut.
uint32_t allowed(const Want& want, uint32_t rows) {
  uint32_t end = want.start + std::min(rows, want.left);
  if (rows < want.left) end = std::max(want.start, end / kGridTokens * kGridTokens);
  if (want.cut > want.start && want.cut < end) end = want.cut;
  return end - want.start;
}

}  // namespace

Packing share_rows(std::span<const Want> wants, uint32_t rows_max, uint32_t seqs_max) {
  KERN_ASSERT(rows_max >= kGridTokens && seqs_max > 0, "{} rows, {} sequences", rows_max, seqs_max);
  Packing packing;
  packing.rows.assign(wants.size(), 0);
  const size_t count = std::min<size_t>(wants.size(), seqs_max);
  uint32_t left = rows_max;
  const uint32_t share = rows_max / seqs_max;
  for (size_t i = 0; i < count; ++i) {
    KERN_ASSERT(wants[i].left > 0);
    // the oldest always moves, however small the fair share is
    const uint32_t fair = i == 0 ? std::max(share, kGridTokens) : share;
    packing.rows[i] = allowed(wants[i], std::min(fair, left));
    left -= packing.rows[i];
  }
  for (size_t i = 0; i < count && left > 0; ++i) {
    const uint32_t more = allowed(wants[i], packing.rows[i] + left);
    KERN_ASSERT(more >= packing.rows[i]);
    left -= more - packing.rows[i];
    packing.rows[i] = more;
  }
  packing.full = wants.size() >= seqs_max || left == 0;
  for (size_t i = 0; i < count; ++i) packing.full |= packing.rows[i] < wants[i].left;
  return packing;
}

}  // namespace kern::engine
