#pragma once
/// What launch-bench times, as lines of words:
///   machine                                   measures a copy, a product and an empty launch
///   row ID SETS [RANKS]                       begins a row; RANKS launches run side by side
///   buffer NAME BYTES own|shared FILL         shared: one for all sets of a rank
///     FILL  zero | bf16 | f32[:SPREAD] | bytes:LOW:HIGH | file:PATH:VARIANTS (a set takes the
///     next)
///   prepare|launch MODULE ENTRY GRID*3 BLOCK*3 CLUSTER*3 SHARED ARG…     prepare: once a set
///     ARG  b:NAME:OFFSET | i:I32 | l:I64 | f:F32 | r (the rank) | p:NAME (every rank's address)
///          | t:NAME:DTYPE:DIMS:STRIDES:BOX:SWIZZLE:L2 (lists by commas; a last dim 0 spans NAME)
///   product N K A_STRIDE C_STRIDE F32 ADDS ROWS ROWS_MAX A W C           each NAME:OFFSET
///   end
/// Thread safety: plain values.

#include <charconv>
#include <istream>
#include <string>
#include <vector>

#include "kern/base/result.h"
#include "kern/cuda/blas.h"
#include "kern/cuda/launch.h"

namespace launch_bench {

struct BufferLine {
  std::string name;
  int64_t bytes = 0;
  bool shared = false;
  std::string fill;
};
struct LaunchLine {
  std::string module, entry;
  kern::cuda::LaunchShape shape;
  std::vector<std::string> args;
};
struct ProductLine {
  kern::cuda::Product product;
  int64_t rows = 0, rows_max = 0;
  std::string a, w, c;
};
struct Row {
  std::string id;  ///< "machine": what the machine gives, and nothing else
  size_t sets = 1, ranks = 1;
  std::vector<BufferLine> buffers;
  std::vector<LaunchLine> prepare, launches;
  std::vector<ProductLine> products;
};

/// Kind caller for a line that is not as above, with the line.
kern::Result<std::vector<Row>> read_plan(std::istream& in);

/// The words of a text between separators.
std::vector<std::string> split(const std::string& text, char by);

/// A whole number or a float that fills the text. Kind caller.
template <class T>
kern::Result<T> number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    return kern::fail(kern::Kind::caller, "`{}`: expected a number", text);
  return value;
}

}  // namespace launch_bench
