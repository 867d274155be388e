// The gated delta rule, token by token in f32, and the convolution windows.
//
// kern_kda_recurrence, per sequence and head, S the line's rec [v][k], row by row:
//   S[v][k] *= alpha[k];  e[v] = beta * (value[v] - sum_k S[v][k] key[k]);  S[v][k] += e[v] key[k]
//   o[v] = sum_k S[v][k] q[k]
//   in f32 [rows, heads * dim] q, k, v, alpha; in f32 [rows, heads] beta; inout state;
//   in i32 [seqs] lines; in i32 cu_seqlens; out f32 [rows, heads * dim] o;
//   i32 heads, dim, taps
// kern_kda_recurrence_snapshot: the same, and S at the last multiple of `boundary` positions inside
// the
//   call also goes to line snapshot[seq] unless that is 0; after taps come
//   in i32 [seqs] snapshot, seq_len; i32 boundary
// grid: [seqs, heads, 1].
//
// kern_kda_windows: each window becomes the last taps - 1 inputs of (window, the call's rows)
//   in bf16 [rows, x_stride] x (columns q | k | v first); inout state; in i32 [seqs] lines;
//   in i32 cu_seqlens; i32 heads, dim, taps, x_stride
// kern_kda_windows_snapshot: also writes the windows at the boundary; after x_stride come
//   in i32 [seqs] snapshot, seq_len; i32 boundary
// grid: [seqs, 1, 1].
//
// shared: 0.
// Rounding points: none; state, error and output are f32, sums over k in 16 lanes and a fixed tree.
// The state after n tokens depends on those tokens alone, not on where calls were cut.

#include "common/args.h"
#include "common/numeric.h"
#include "kda/line.h"

using namespace kern::host;

namespace {

/// Where to leave a copy: none when rows is 0.
struct Snapshot {
  int64_t line = 0, rows = 0;
};

Snapshot snapshot_of(Args& args, int64_t seq, int64_t rows) {
  const auto* snapshot = args.pointer<const int32_t>();
  const auto* seq_len = args.pointer<const int32_t>();
  const int64_t boundary = args.i32();
  if (snapshot[seq] == 0) return {};
  return {snapshot[seq], rows_to_boundary(seq_len[seq], rows, boundary)};
}

/// One token on one head.
struct Token {
  const float *q, *k, *v, *alpha;
  float beta;

  void step(float* rec, int64_t dim, float* o) const {
    for (int64_t i = 0; i < dim; ++i) {
      float* s = rec + i * dim;
      for (int64_t d = 0; d < dim; ++d) s[d] *= alpha[d];
      const float e = beta * (v[i] - dot(s, k, dim));
      for (int64_t d = 0; d < dim; ++d) s[d] += e * k[d];
      o[i] = dot(s, q, dim);
    }
  }
};

template <bool kSnapshot>
void recurrence(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* q = args.pointer<const float>();
  const auto* k = args.pointer<const float>();
  const auto* v = args.pointer<const float>();
  const auto* alpha = args.pointer<const float>();
  const auto* beta = args.pointer<const float>();
  auto* state = args.pointer<std::byte>();
  const auto* lines = args.pointer<const int32_t>();
  const auto* cu_seqlens = args.pointer<const int32_t>();
  auto* o = args.pointer<float>();
  KdaLine line;
  line.heads = args.i32();
  line.dim = args.i32();
  line.taps = args.i32();

  const int64_t seq = where->index[0], head = where->index[1];
  const int64_t first = cu_seqlens[seq], rows = cu_seqlens[seq + 1] - first;
  Snapshot snapshot;
  if (kSnapshot) snapshot = snapshot_of(args, seq, rows);
  float* rec = line.rec(state, lines[seq], head);
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t at = (first + t) * line.inner() + head * line.dim;
    const Token token{q + at, k + at, v + at, alpha + at, beta[(first + t) * line.heads + head]};
    token.step(rec, line.dim, o + at);
    if (kSnapshot && t + 1 == snapshot.rows)
      std::memcpy(line.rec(state, snapshot.line, head), rec, line.dim * line.dim * sizeof(float));
  }
}

struct Windows {
  KdaLine line;
  const bf16* x;
  int64_t x_stride, first;

  /// Writes to line `to` the window that stands after `rows` rows of the call on line `from`.
  /// Oldest tap first, so that `to` may be `from`.
  void write(std::byte* state, int64_t from, int64_t to, int64_t rows) const {
    const int64_t inner = line.inner(), kept = line.taps - 1;
    for (int stream = 0; stream < 3; ++stream) {
      const bf16* old = line.window(state, from, stream);
      bf16* fresh = line.window(state, to, stream);
      for (int64_t tap = 0; tap < kept; ++tap) {
        const int64_t at = rows - kept + tap;  // row of the call; negative: still in the window
        const bf16* source =
            at >= 0 ? x + (first + at) * x_stride + stream * inner : old + (kept + at) * inner;
        std::memmove(fresh + tap * inner, source, inner * sizeof(bf16));
      }
    }
  }
};

template <bool kSnapshot>
void windows(const kern_block* where, void* const* raw) {
  Args args(raw);
  Windows windows;
  windows.x = args.pointer<const bf16>();
  auto* state = args.pointer<std::byte>();
  const auto* lines = args.pointer<const int32_t>();
  const auto* cu_seqlens = args.pointer<const int32_t>();
  windows.line.heads = args.i32();
  windows.line.dim = args.i32();
  windows.line.taps = args.i32();
  windows.x_stride = args.i32();

  const int64_t seq = where->index[0];
  windows.first = cu_seqlens[seq];
  const int64_t rows = cu_seqlens[seq + 1] - windows.first;
  if (kSnapshot) {
    const Snapshot snapshot = snapshot_of(args, seq, rows);
    if (snapshot.rows > 0) windows.write(state, lines[seq], snapshot.line, snapshot.rows);
  }
  windows.write(state, lines[seq], lines[seq], rows);
}

}  // namespace

extern "C" void kern_kda_recurrence(const kern_block* where, void* const* args) {
  recurrence<false>(where, args);
}
extern "C" void kern_kda_recurrence_snapshot(const kern_block* where, void* const* args) {
  recurrence<true>(where, args);
}
extern "C" void kern_kda_windows(const kern_block* where, void* const* args) {
  windows<false>(where, args);
}
extern "C" void kern_kda_windows_snapshot(const kern_block* where, void* const* args) {
  windows<true>(where, args);
}
