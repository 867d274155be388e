// A step's token, fed to the next step where it lies.
//
// kern_embed_fed:  out[r] = table[t],  t = token[r] where source[r] < 0, else kept[source[r]]; a
//   kept token below 0 (a row that failed) counts as 0, its row is nobody's
//   in i32 [rows] token; in i32 [rows] source; in i32 [seqs] kept; in bf16 [vocab, width] table;
//   out bf16 [rows, width]; i32 width, rows
// kern_keep:       kept = token
//   in i32 [seqs] token; out i32 [seqs] kept; i32 seqs
//
// grid: [any, 1, 1], the rows are divided over it. shared: 0.

#include <algorithm>

#include "common/args.h"

using namespace kern::host;

extern "C" void kern_embed_fed(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* token = args.pointer<const int32_t>();
  const auto* source = args.pointer<const int32_t>();
  const auto* kept = args.pointer<const int32_t>();
  const auto* table = args.pointer<const uint16_t>();
  auto* out = args.pointer<uint16_t>();
  const int64_t width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    const int64_t id = source[row] < 0 ? token[row] : std::max(kept[source[row]], 0);
    std::memcpy(out + row * width, table + id * width, width * sizeof(uint16_t));
  }
}

extern "C" void kern_keep(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* token = args.pointer<const int32_t>();
  auto* kept = args.pointer<int32_t>();
  const Span mine = share_of(where, 0, args.i32());
  std::copy(token + mine.first, token + mine.last, kept + mine.first);
}
