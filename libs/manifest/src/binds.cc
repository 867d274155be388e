#include "kern/manifest/binds.h"

#include <algorithm>
#include <array>

#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "scope.h"

namespace kern::manifest {
namespace {

size_t place_in(std::string_view group, std::span<const Place> places, size_t entries) {
  if (group.empty()) return 0;
  for (const Place& place : places) {
    if (place.group != group) continue;
    KERN_ASSERT(place.member >= 0 && static_cast<size_t>(place.member) < entries,
                "member {} of `{}`", place.member, group);
    return static_cast<size_t>(place.member);
  }
  KERN_ASSERT(false, "no place in group `{}`", group);
  return 0;
}

// Combinations of places in several groups that are worth checking one by one.
constexpr int64_t kPlacesMax = int64_t{1} << 16;

/// A tensor's shape as [first axis, product of the rest]; a scalar is one row of one.
struct Extent {
  int64_t rows = 1, cols = 1;
};

std::optional<Extent> extent_of(const TensorInfo& tensor) {
  Extent extent;
  if (tensor.shape.empty()) return extent;
  extent.rows = tensor.shape[0];
  for (const int64_t size : tensor.shape.subspan(1)) {
    const auto cols = checked_mul(extent.cols, size);
    if (!cols) return std::nullopt;
    extent.cols = *cols;
  }
  return extent;
}

/// Checks every buffer that binds, on every combination of places in the groups its tables are
/// over.
class Checker {
 public:
  Checker(const Verified& manifest, std::span<const TensorInfo> tensors)
      : manifest_(manifest), tensors_(tensors), by_name_(tensors) {}

  Diagnostics run() {
    for (const Buffer& buffer : manifest_->buffers)
      if (!buffer.bind.empty()) check(buffer);
    return std::move(diagnostics_);
  }

 private:
  template <class... Args>
  void problem(const Buffer& buffer, int64_t segment, fmt::format_string<Args...> format,
               Args&&... args) {
    diagnostics_.push_back({fmt::format("{}/bind/{}", pointer_to("buffers", buffer.name), segment),
                            fmt::format(format, std::forward<Args>(args)...)});
  }

  const TensorInfo* find(std::string_view name) const {
    const auto at = by_name_.find(name);
    return at ? &tensors_[*at] : nullptr;
  }

  /// One place in each group that some table of the buffer is over, all at the first member.
  std::vector<Place> places_of(const Buffer& buffer) const {
    std::vector<Place> places;
    const auto note = [&](const std::string& group) {
      const auto same = [&](const Place& place) { return place.group == group; };
      if (!group.empty() && std::none_of(places.begin(), places.end(), same))
        places.push_back({group, 0});
    };
    for (const BindSegment& segment : buffer.bind) {
      note(segment.group);
      if (segment.rows) note(segment.rows->group);
      if (segment.cols) note(segment.cols->group);
      if (segment.series) note(segment.series->group);
    }
    return places;
  }

  int64_t size_of_group(const Place& place) const { return manifest_.group(place.group)->size; }

  /// The next combination of places, the last group's turning fastest; false after all.
  bool advance(std::vector<Place>& places) const {
    for (size_t i = places.size(); i-- > 0;) {
      if (++places[i].member < size_of_group(places[i])) return true;
      places[i].member = 0;
    }
    return false;
  }

  /// "rank 1", or "rank 1 of `tp` and 0 of `ep`" where a buffer is over several groups.
  static std::string text_of(std::span<const Place> places) {
    if (places.size() < 2) return fmt::format("rank {}", places.empty() ? 0 : places[0].member);
    std::string text = "rank ";
    for (size_t i = 0; i < places.size(); ++i)
      text += fmt::format("{}{} of `{}`", i == 0 ? "" : " and ", places[i].member, places[i].group);
    return text;
  }

  /// On every combination of places, until one is refused.
  void check(const Buffer& buffer) {
    std::vector<Place> places = places_of(buffer);
    std::optional<int64_t> combinations = 1;
    for (const Place& place : places)
      combinations = combinations ? checked_mul(*combinations, size_of_group(place)) : std::nullopt;
    if (!combinations || *combinations > kPlacesMax)
      return diagnostics_.push_back(
          {pointer_to("buffers", buffer.name) + "/bind",
           fmt::format("its tables are over {} groups with more than {} places together",
                       places.size(), kPlacesMax)});
    const size_t before = diagnostics_.size();
    do check(buffer, places);
    while (diagnostics_.size() == before && advance(places));
  }

  void check(const Buffer& buffer, std::span<const Place> places) {
    const auto wanted = elements_of(buffer.shape, manifest_.at_bounds());
    KERN_ASSERT(wanted.has_value());
    std::optional<int64_t> total = 0;
    int64_t written = 0;
    for (const BindSegment& segment : buffer.bind) {
      const auto elements = series({buffer, segment, written, places});
      total = total && elements ? checked_add(*total, *elements) : std::nullopt;
      written += segment.written();
    }
    if (total && *total != *wanted)
      diagnostics_.push_back(
          {pointer_to("buffers", buffer.name) + "/bind",
           fmt::format("the segments make {} elements on {}; the buffer holds {}", *total,
                       text_of(places), *wanted)});
  }

  struct Here {
    const Buffer& buffer;
    const BindSegment& segment;
    int64_t written;  ///< which segment of the buffer it is, as written
    std::span<const Place> places;
  };

  /// Elements all tensors of a segment give; nothing when one was refused. One that is not there
  /// ends its series, so that a long one costs no more than there are tensors.
  std::optional<int64_t> series(const Here& here) {
    std::optional<int64_t> total = 0;
    bool goes_on = true;
    for (int64_t index = 0; goes_on && index < here.segment.count(); ++index) {
      const auto elements = tensor(here, index, goes_on);
      total = total && elements ? checked_add(*total, *elements) : std::nullopt;
    }
    return total;
  }

  /// The name at this rank, the `index`-th of its series.
  static std::string name_at(const Here& here, std::string_view name, int64_t index) {
    const auto& series = here.segment.series;
    const size_t place = series ? place_in(series->group, here.places, series->firsts.size()) : 0;
    return name_in(here.segment, name, place, index);
  }

  std::optional<int64_t> tensor(const Here& here, int64_t index, bool& goes_on) {
    const auto& [buffer, segment, written, places] = here;
    const int64_t i = written + (segment.written() > 1 ? index : 0);
    const std::string name = name_at(here, at_place(segment.group, segment.tensors, places), index);
    const TensorInfo* tensor = tensor_named(buffer, i, name);
    goes_on = tensor != nullptr || segment.written() > 1;
    if (tensor == nullptr) return std::nullopt;
    const auto extent = extent_of(*tensor);
    if (!extent) {
      problem(buffer, i, "tensor `{}` has more elements than 64 bits count", name);
      return std::nullopt;
    }
    if (segment.interleave)
      return interleaved(here, i, *tensor, *extent, name_at(here, segment.interleave->with, index));
    const Range rows = segment.rows ? at_place(segment.rows->group, segment.rows->ranges, places)
                                    : Range{0, extent->rows};
    const Range cols = segment.cols ? at_place(segment.cols->group, segment.cols->ranges, places)
                                    : Range{0, extent->cols};
    if (rows.last > extent->rows || cols.last > extent->cols) {
      problem(buffer, i, "rows [{}, {}) and columns [{}, {}) of tensor `{}`, which is {} x {}",
              rows.first, rows.last, cols.first, cols.last, name, extent->rows, extent->cols);
      return std::nullopt;
    }
    return checked_mul(rows.last - rows.first, cols.last - cols.first);
  }

  std::optional<int64_t> interleaved(const Here& here, int64_t i, const TensorInfo& tensor,
                                     const Extent& extent, const std::string& with) {
    const Buffer& buffer = here.buffer;
    const int64_t rows = here.segment.interleave->rows;
    const TensorInfo* other = tensor_named(buffer, i, with);
    if (other == nullptr) return std::nullopt;
    if (other->dtype != tensor.dtype || !std::equal(other->shape.begin(), other->shape.end(),
                                                    tensor.shape.begin(), tensor.shape.end())) {
      problem(buffer, i, "interleaves `{}` with `{}`, of another shape or dtype", tensor.name,
              other->name);
      return std::nullopt;
    }
    if (extent.rows % rows != 0) {
      problem(buffer, i, "blocks of {} rows do not divide the {} rows of `{}`", rows, extent.rows,
              tensor.name);
      return std::nullopt;
    }
    const auto elements = checked_mul(extent.rows, extent.cols);
    return elements ? checked_mul<int64_t>(*elements, 2) : std::nullopt;
  }

  const TensorInfo* tensor_named(const Buffer& buffer, int64_t i, std::string_view name) {
    const TensorInfo* tensor = find(name);
    if (tensor == nullptr) {
      problem(buffer, i, "the checkpoint has no tensor `{}`", name);
    } else if (!may_bind(tensor->dtype, buffer.dtype)) {
      problem(buffer, i, "tensor `{}` is {}, the buffer {}", name, tensor->dtype,
              to_string(buffer.dtype));
      return nullptr;
    }
    return tensor;
  }

  template <class T>
  static const T& at_place(const std::string& group, const std::vector<T>& entries,
                           std::span<const Place> places) {
    return entries[place_in(group, places, entries.size())];
  }

  const Verified& manifest_;
  std::span<const TensorInfo> tensors_;
  NameIndex by_name_;
  Diagnostics diagnostics_;
};

}  // namespace

std::string tensor_at(const BindSegment& segment, std::span<const Place> places, int64_t index) {
  const std::string& name =
      segment.tensors[place_in(segment.group, places, segment.tensors.size())];
  if (!segment.series) return name;
  const Series& series = *segment.series;
  return name_in(segment, name, place_in(series.group, places, series.firsts.size()), index);
}

Rectangle part_at(const BindSegment& segment, std::span<const Place> places, int64_t rows,
                  int64_t cols) {
  Rectangle part{{0, rows}, {0, cols}};
  if (segment.rows)
    part.rows =
        segment.rows->ranges[place_in(segment.rows->group, places, segment.rows->ranges.size())];
  if (segment.cols)
    part.cols =
        segment.cols->ranges[place_in(segment.cols->group, places, segment.cols->ranges.size())];
  return part;
}

bool may_bind(std::string_view tensor_dtype, Dtype dtype) {
  static constexpr std::array<std::pair<std::string_view, Dtype>, 13> kPairs = {
      {{"BF16", Dtype::bf16},
       {"F16", Dtype::f16},
       {"F32", Dtype::f32},
       {"F8_E4M3", Dtype::fp8e4m3},
       {"F8_E8M0", Dtype::fp8e8m0},
       {"I8", Dtype::i8},
       {"I32", Dtype::i32},
       {"U32", Dtype::u32},
       {"I64", Dtype::i64},
       {"U64", Dtype::u64},
       {"U8", Dtype::u8},
       {"U8", Dtype::fp8e4m3},
       {"U8", Dtype::fp8e8m0}}};
  return std::find(kPairs.begin(), kPairs.end(), std::pair(tensor_dtype, dtype)) != kPairs.end();
}

Diagnostics check_binds(const Verified& manifest, std::span<const TensorInfo> tensors) {
  return Checker(manifest, tensors).run();
}

}  // namespace kern::manifest
