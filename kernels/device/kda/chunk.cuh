#pragma once
/// Chunks of 16 tokens, counted from the start of the sequence, and the record that stands for one
/// chunk of one head between kern_kda_chunk and kern_kda_scan.
///
/// A call's sequence of n rows that begins at position s covers ceil((s % 16 + n) / 16) chunks, the
/// first and last perhaps short. Chunks of sequence i lie from slot cu_seqlens[i] / 16 + 2 i on, so
/// rows / 16 + 2 seqs slots are enough.

#include "kda/line.cuh"
#include "mma/tile.cuh"

namespace kern::kda {

constexpr int kChunk = 16;

/// The rows of one chunk.
struct ChunkRows {
  int first, count;  ///< rows of the sequence's call
};

struct Sequence {
  int first, rows;  ///< of the call
  int phase;        ///< position of the first row within its chunk
  int slot;         ///< of its first chunk

  __device__ static Sequence of(const int32_t* cu_seqlens, const int32_t* seq_len, int seq) {
    const int first = cu_seqlens[seq], rows = cu_seqlens[seq + 1] - first;
    return {first, rows, (seq_len[seq] - rows) % kChunk, slot_of(cu_seqlens, seq)};
  }
  __device__ static int slot_of(const int32_t* cu_seqlens, int seq) {
    return cu_seqlens[seq] / kChunk + 2 * seq;
  }
  __device__ int chunks() const { return (phase + rows + kChunk - 1) / kChunk; }
  __device__ ChunkRows chunk(int index) const {
    const int begin = max(index * kChunk - phase, 0);
    return {begin, min((index + 1) * kChunk - phase, rows) - begin};
  }
};

/// Byte offsets in a record. With G the decay's logarithm summed over the chunk, inclusive:
///   kd = k e^G, qd = q e^G, kr = k e^(G_end - G), v: bf16 [16][dim], tiles of mma/tile.cuh;
///   solve: bf16 [16][16], (I + A)^-1 diag(beta), A_ij = beta_i sum_d kd_i k_j e^-G_j below the
///   diagonal; mix: bf16 [16][16], sum_d qd_i k_j e^-G_j on and below the diagonal; end: f32 [dim],
///   e^G_end.
struct Record {
  static constexpr int kTile = kChunk * kDim * 2, kSquare = kChunk * kChunk * 2;
  static constexpr int kKd = 0, kQd = kTile, kKr = 2 * kTile, kV = 3 * kTile, kSolve = 4 * kTile,
                       kMix = kSolve + kSquare, kEnd = kMix + kSquare, kBytes = kEnd + kDim * 4;
};
static_assert(Record::kBytes % 128 == 0);

}  // namespace kern::kda
