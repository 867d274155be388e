#pragma once
/// One layer's latent cache: pages of page_tokens rows, each kv_lora latent values then `rope`
/// unrotated key values, bf16. Of a cache sharded by position, rank r of R holds position p (p mod
/// R = r) as its row p div R; page tables and slots are the rank's own.

#include <cstdint>

#include "common/args.h"
#include "common/numeric.h"

namespace kern::host {

/// The global position of row `row` of this call.
inline int64_t position_of(const int32_t* cu_seqlens, const int32_t* seq_len, int64_t seq,
                           int64_t row) {
  return seq_len[seq] - (cu_seqlens[seq + 1] - row);
}

/// How many positions of 0 … position, both included, this rank holds.
inline int64_t positions_held(int64_t position, int64_t rank, int64_t ranks) {
  return position < rank ? 0 : (position - rank) / ranks + 1;
}

}  // namespace kern::host
