// Which experts a row goes to, and with what weight.
//
// kern_router, per row:
//   s = sigmoid(logits);  the top_k experts by s + bias, the lower index first among equals
//   weight_e = s_e / (sum over chosen of s + 1e-20) * scaling     (without renormalize: s_e *
//   scaling) in f32 [rows, experts] logits; in f32 [experts] bias; out i32 [rows, top_k] ids,
//   ascending; out f32 [rows, top_k] weights; i32 experts, top_k, renormalize; f32 scaling; i32
//   rows
// grid: [any, 1, 1], the rows are divided over it. shared: experts * 4. top_k is at most 64.
// Rounding points: none, f32; the sum of the chosen runs in ascending expert order.
// A NaN score never wins over a number; a row of NaNs chooses 0 … top_k - 1 with NaN weights.

#include "common/args.h"
#include "common/numeric.h"

using namespace kern::host;

namespace {

constexpr int64_t kTopMax = 64;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

/// The k largest of `values`, lower index first among equals, as ascending indices.
void choose(const float* values, int64_t count, int64_t k, int32_t* chosen) {
  int64_t held = 0;
  int32_t order[kTopMax];  // best first
  for (int64_t e = 0; e < count; ++e) {
    if (held == k && !(values[e] > values[order[k - 1]])) continue;
    int64_t at = held < k ? held++ : k - 1;
    for (; at > 0 && values[e] > values[order[at - 1]]; --at) order[at] = order[at - 1];
    order[at] = static_cast<int32_t>(e);
  }
  std::sort(order, order + k);
  std::copy(order, order + k, chosen);
}

}  // namespace

extern "C" void kern_router(const kern_block* where, void* const* raw) {
  Args args(raw);
  const auto* logits = args.pointer<const float>();
  const auto* bias = args.pointer<const float>();
  auto* ids = args.pointer<int32_t>();
  auto* weights = args.pointer<float>();
  const int64_t experts = args.i32(), top_k = args.i32(), renormalize = args.i32();
  const float scaling = args.f32();
  const int64_t rows = args.i32();
  auto* biased = static_cast<float*>(where->shared);
  const Span mine = share_of(where, 0, rows);
  for (int64_t row = mine.first; row < mine.last; ++row) {
    const float* from = logits + row * experts;
    int32_t* chosen = ids + row * top_k;
    float* share = weights + row * top_k;
    for (int64_t e = 0; e < experts; ++e) {
      const float score = sigmoid(from[e]) + bias[e];
      biased[e] = score == score ? score : kLowest;
    }
    choose(biased, experts, top_k, chosen);
    float sum = 0;
    for (int64_t i = 0; i < top_k; ++i) sum += share[i] = sigmoid(from[chosen[i]]);
    const float whole = renormalize != 0 ? sum + 1e-20F : 1.0F;
    for (int64_t i = 0; i < top_k; ++i) share[i] = share[i] / whole * scaling;
  }
}
