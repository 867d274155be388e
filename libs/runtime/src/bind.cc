#include "bind.h"

#include <algorithm>
#include <cstring>

#include "kern/base/assert.h"

namespace kern::runtime {
namespace {

using manifest::BindSegment;
using manifest::Buffer;
using manifest::Dtype;
using manifest::Range;
using manifest::RangeTable;
using safetensors::Tensor;

constexpr uintptr_t kInPlaceAlignment = 16;

/// A tensor as [first axis, product of the rest], in bytes.
struct Matrix {
  const Tensor* tensor = nullptr;
  int64_t rows = 1, cols = 1;
  int64_t element = 1;
  int64_t row_bytes() const { return cols * element; }
};

std::string_view disk_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
      return "BF16";
    case Dtype::f16:
      return "F16";
    case Dtype::f32:
      return "F32";
    case Dtype::fp8e4m3:
      return "F8_E4M3";
    case Dtype::fp8e8m0:
      return "F8_E8M0";
    case Dtype::i8:
      return "I8";
    case Dtype::i32:
      return "I32";
    case Dtype::u32:
      return "U32";
    case Dtype::i64:
      return "I64";
    case Dtype::u64:
      return "U64";
    case Dtype::u8:
      return "U8";
  }
  return "?";
}

bool dtypes_agree(Dtype dtype, std::string_view on_disk) {
  if (disk_name(dtype) == on_disk) return true;
  return on_disk == "U8" && (dtype == Dtype::fp8e4m3 || dtype == Dtype::fp8e8m0);
}

Result<Matrix> matrix_of(const Buffer& buffer, const std::string& name,
                         const safetensors::Catalog& catalog) {
  KERN_TRY(tensor, catalog.get(name));
  if (!dtypes_agree(buffer.dtype, tensor->dtype))
    return fail(Kind::weight_artifact, "tensor `{}` is {} in the checkpoint, expected {}", name,
                tensor->dtype, disk_name(buffer.dtype));
  Matrix out{tensor, 1, 1, manifest::size_of(buffer.dtype)};
  if (!tensor->shape.empty()) out.rows = tensor->shape[0];
  for (size_t axis = 1; axis < tensor->shape.size(); ++axis) out.cols *= tensor->shape[axis];
  KERN_ASSERT(out.rows * out.row_bytes() == static_cast<int64_t>(tensor->bytes.size()));
  return out;
}

Result<size_t> place_in(const std::string& group, size_t entries, const Ranks& ranks) {
  if (group.empty()) return size_t{0};
  const auto at = ranks.find(group);
  if (at == ranks.end() || at->second < 0 || static_cast<size_t>(at->second) >= entries)
    return fail(Kind::caller, "group `{}`: no rank for its table of {} entries", group, entries);
  return static_cast<size_t>(at->second);
}

Result<Range> range_of(const manifest::Rare<RangeTable>& table, int64_t extent,
                       std::string_view axis, const Ranks& ranks) {
  if (!table) return Range{0, extent};
  KERN_TRY(place, place_in(table->group, table->ranges.size(), ranks));
  const Range range = table->ranges[place];
  if (range.first < 0 || range.first > range.last || range.last > extent)
    return fail(Kind::weight_artifact, "{} [{}, {}) do not lie in its {}", axis, range.first,
                range.last, extent);
  return range;
}

Result<Piece> piece_of(const BindSegment& segment, const Matrix& matrix, const Ranks& ranks) {
  KERN_TRY(rows, with_context(range_of(segment.rows, matrix.rows, "rows", ranks), "tensor `{}`",
                              matrix.tensor->name));
  KERN_TRY(cols, with_context(range_of(segment.cols, matrix.cols, "columns", ranks), "tensor `{}`",
                              matrix.tensor->name));
  return Piece{
      matrix.tensor->bytes.data() + rows.first * matrix.row_bytes() + cols.first * matrix.element,
      rows.last - rows.first, (cols.last - cols.first) * matrix.element, matrix.row_bytes()};
}

/// Of the `index`-th tensor of its series.
Result<SegmentBytes> segment_bytes(const Buffer& buffer, const BindSegment& segment, int64_t index,
                                   const safetensors::Catalog& catalog, const Ranks& ranks) {
  KERN_TRY(place, place_in(segment.group, segment.tensors.size(), ranks));
  size_t number = 0;
  if (segment.series) {
    KERN_TRY(at, place_in(segment.series->group, segment.series->firsts.size(), ranks));
    number = at;
  }
  const auto named = [&](const std::string& name) {
    return manifest::name_in(segment, name, number, index);
  };
  KERN_TRY(matrix, matrix_of(buffer, named(segment.tensors[place]), catalog));
  if (!segment.interleave) {
    KERN_TRY(piece, piece_of(segment, matrix, ranks));
    return SegmentBytes{piece, std::nullopt};
  }
  KERN_TRY(with, matrix_of(buffer, named(segment.interleave->with), catalog));
  if (matrix.tensor->shape != with.tensor->shape || matrix.tensor->dtype != with.tensor->dtype)
    return fail(Kind::weight_artifact, "tensors `{}` and `{}` interleave but differ in shape",
                matrix.tensor->name, with.tensor->name);
  const int64_t block = segment.interleave->rows;
  if (block <= 0 || matrix.rows % block != 0)
    return fail(Kind::weight_artifact, "tensor `{}`: its {} rows are no multiple of blocks of {}",
                matrix.tensor->name, matrix.rows, block);
  const int64_t block_bytes = block * matrix.row_bytes();
  const auto blocks_of = [&](const Matrix& m) {
    return Piece{m.tensor->bytes.data(), m.rows / block, block_bytes, block_bytes};
  };
  return SegmentBytes{blocks_of(matrix), blocks_of(with)};
}

/// Bytes [begin, begin + to.size()) of a piece's total.
void copy_piece(const Piece& piece, int64_t begin, MutableByteSpan to) {
  if (piece.contiguous()) {
    std::memcpy(to.data(), piece.from + begin, to.size());
    return;
  }
  int64_t row = begin / piece.bytes, column = begin % piece.bytes;
  for (size_t at = 0; at < to.size(); ++row, column = 0) {
    const auto size = std::min(to.size() - at, static_cast<size_t>(piece.bytes - column));
    std::memcpy(to.data() + at, piece.from + row * piece.stride + column, size);
    at += size;
  }
}

void copy_segment(const SegmentBytes& segment, int64_t begin, MutableByteSpan to) {
  if (!segment.second) return copy_piece(segment.first, begin, to);
  // Blocks of equal size alternate: the even ones are the first tensor's.
  const int64_t block = segment.first.bytes;
  int64_t number = begin / block, within = begin % block;
  for (size_t at = 0; at < to.size(); ++number, within = 0) {
    const auto size = std::min(to.size() - at, static_cast<size_t>(block - within));
    const Piece& piece = number % 2 == 0 ? segment.first : *segment.second;
    std::memcpy(to.data() + at, piece.from + number / 2 * piece.stride + within, size);
    at += size;
  }
}

Result<WeightPlan> plan_segments(const Buffer& buffer, int64_t bytes,
                                 const safetensors::Catalog& catalog, const Ranks& ranks) {
  std::vector<SegmentBytes> segments;
  for (const BindSegment& segment : buffer.bind) {
    for (int64_t index = 0; index < segment.count(); ++index) {
      KERN_TRY(one, segment_bytes(buffer, segment, index, catalog, ranks));
      segments.push_back(one);
    }
  }
  WeightPlan plan(std::move(segments));
  if (plan.bytes() != bytes)
    return fail(Kind::weight_artifact, "its tensors hold {} bytes, expected {}", plan.bytes(),
                bytes);
  return plan;
}

}  // namespace

WeightPlan::WeightPlan(std::vector<SegmentBytes> segments) : segments_(std::move(segments)) {
  for (const SegmentBytes& segment : segments_) bytes_ += segment.total();
}

WeightPlan WeightPlan::repeating(ByteSpan block, int64_t bytes) {
  const auto size = static_cast<int64_t>(block.size());
  KERN_ASSERT(size > 0 || bytes == 0, "{} bytes of nothing", bytes);
  std::vector<SegmentBytes> segments;
  if (bytes > 0) {
    segments.push_back({Piece{block.data(), bytes / size, size, 0}, std::nullopt});
    segments.push_back({Piece{block.data(), 1, bytes % size, 0}, std::nullopt});
  }
  WeightPlan plan(std::move(segments));
  plan.repeated_ = block;
  return plan;
}

const std::byte* WeightPlan::in_place() const {
  if (!repeated_.empty() || segments_.size() != 1 || segments_[0].second ||
      !segments_[0].first.contiguous())
    return nullptr;
  const std::byte* from = segments_[0].first.from;
  return reinterpret_cast<uintptr_t>(from) % kInPlaceAlignment == 0 ? from : nullptr;
}

void WeightPlan::copy(int64_t begin, MutableByteSpan to) const {
  KERN_ASSERT(begin >= 0 && begin + static_cast<int64_t>(to.size()) <= bytes_, "{} + {} of {}",
              begin, to.size(), bytes_);
  for (const SegmentBytes& segment : segments_) {
    if (to.empty()) return;
    if (begin >= segment.total()) {
      begin -= segment.total();
      continue;
    }
    const auto size = std::min(to.size(), static_cast<size_t>(segment.total() - begin));
    copy_segment(segment, begin, to.first(size));
    to = to.subspan(size);
    begin = 0;
  }
}

Result<WeightPlan> plan_weight(const Buffer& buffer, int64_t bytes,
                               const safetensors::Catalog& catalog, const Ranks& ranks) {
  return with_context(plan_segments(buffer, bytes, catalog, ranks), "{} `{}`",
                      manifest::to_string(buffer.kind), buffer.name);
}

}  // namespace kern::runtime
