#pragma once
/// How the rows of one prefill item are shared among prompts.

#include <cstdint>
#include <span>
#include <vector>

namespace kern::engine {

/// One prompt that still has rows to run.
struct Want {
  uint32_t start = 0;  ///< position of the next row
  uint32_t left = 0;   ///< rows still to run, at least one
  uint32_t cut = 0;    ///< a position that no item may run across; 0: none
};

struct Packing {
  std::vector<uint32_t> rows;  ///< for each want; 0: not in this item
  bool full = false;           ///< whether waiting could not add to the item
};

/// Shares `rows_max` rows (at least one grid step) among at most `seqs_max` wants, oldest first.
/// Each has a fair share, and what is left over goes to the oldest. Ends lie on the grid or at the
/// end.
Packing share_rows(std::span<const Want> wants, uint32_t rows_max, uint32_t seqs_max);

}  // namespace kern::engine
