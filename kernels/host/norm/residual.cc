// The residual stream: embedding, the bank, landing of partial sums.
//
// kern_embed:      out[r] = table[token[r]]
//   in i32 [rows] token; in bf16 [vocab, width] table; out bf16 [rows, width]; i32 width, rows
// kern_copy_rows:  out = in
//   in bf16 [rows, width]; out bf16 [rows, width]; i32 width, rows
// kern_land:       stream = bf(partial)
//   in f32 [rows, width] partial; out bf16 [rows, width] stream; i32 width, rows
// kern_land_add:   next = bf(stream + bf(partial))
//   in f32 [rows, width] partial; in bf16 [rows, width] stream; out bf16 [rows, width] next;
//   i32 width, rows
// kern_land_moe:   next = bf(stream + bf(routed + bf(partial)))
//   in bf16 [rows, width] routed; in f32 [rows, stride] partial (from its own column 0);
//   in bf16 [rows, width] stream; out bf16 [rows, width] next; i32 stride, width, rows
//
// grid: [any, 1, 1], the rows are divided over it. shared: 0.
// Rounding points: a partial sum is rounded once, when all ranks' parts are in it; every add
// rounds.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

extern "C" void kern_embed(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* token = args.pointer<const int32_t>();
  const auto* table = args.pointer<const bf16>();
  auto* out = args.pointer<bf16>();
  const int64_t width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row)
    std::memcpy(out + row * width, table + int64_t{token[row]} * width, width * sizeof(bf16));
}

extern "C" void kern_copy_rows(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* in = args.pointer<const bf16>();
  auto* out = args.pointer<bf16>();
  const int64_t width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  std::memcpy(out + mine.first * width, in + mine.first * width,
              (mine.last - mine.first) * width * sizeof(bf16));
}

extern "C" void kern_land(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* partial = args.pointer<const float>();
  auto* stream = args.pointer<bf16>();
  const int64_t width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t i = mine.first * width; i < mine.last * width; ++i) stream[i] = to_bf16(partial[i]);
}

extern "C" void kern_land_add(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* partial = args.pointer<const float>();
  const auto* stream = args.pointer<const bf16>();
  auto* next = args.pointer<bf16>();
  const int64_t width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t i = mine.first * width; i < mine.last * width; ++i)
    next[i] = to_bf16(to_f32(stream[i]) + through_bf16(partial[i]));
}

extern "C" void kern_land_moe(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* routed = args.pointer<const bf16>();
  const auto* partial = args.pointer<const float>();
  const auto* stream = args.pointer<const bf16>();
  auto* next = args.pointer<bf16>();
  const int64_t stride = args.i32(), width = args.i32(), rows = args.i32();
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    const float* shared = partial + row * stride;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = row * width + i;
      const float mlp = through_bf16(to_f32(routed[at]) + through_bf16(shared[i]));
      next[at] = to_bf16(to_f32(stream[at]) + mlp);
    }
  }
}
