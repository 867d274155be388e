#include <limits>

#include "scope.h"

namespace kern::manifest {
namespace {

struct Place {
  const Buffer& buffer;
  int64_t segment;  ///< as written
  std::string pointer() const {
    return fmt::format("{}/bind/{}", pointer_to("buffers", buffer.name), segment);
  }
};

/// A table over a group has one entry a rank. Messages are built only on failure: there may be half
/// a million segments in a large manifest.
void check_table(const Scope& scope, const Place& place, const std::string& group, size_t entries,
                 std::string_view what) {
  if (group.empty()) {
    if (entries != 1)
      scope.problem(place.pointer(), "{} {} without a group; expected one", entries, what);
    return;
  }
  const Group* found = scope.group(group);
  if (found == nullptr)
    scope.problem(place.pointer(), "unknown topology group `{}`", group);
  else if (static_cast<int64_t>(entries) != found->size)
    scope.problem(place.pointer(), "group `{}` needs {} {}, got {}", group, found->size, what,
                  entries);
}

void check_ranges(const Scope& scope, const Place& place, const RangeTable& table,
                  std::string_view what) {
  check_table(scope, place, table.group, table.ranges.size(), what);
  for (const Range& range : table.ranges)
    if (range.first < 0 || range.last <= range.first)
      scope.problem(place.pointer(), "{}: [{}, {}) is empty", what, range.first, range.last);
}

/// How often a name says where its number stands.
int64_t numbers_in(std::string_view name) {
  int64_t count = 0;
  for (size_t at = name.find(kNumber); at != std::string_view::npos;
       at = name.find(kNumber, at + kNumber.size()))
    ++count;
  return count;
}

void check_series_name(const Scope& scope, const Place& place, std::string_view name) {
  if (const int64_t count = numbers_in(name); count != 1)
    scope.problem(place.pointer(), "`{}` names a series: expected `{{}}` in it once, got {}", name,
                  count);
}

void check_series(const Scope& scope, const Place& place, const BindSegment& segment) {
  const Series& series = *segment.series;
  check_table(scope, place, series.group, series.firsts.size(), "first numbers");
  if (!segment.group.empty() && !series.group.empty() && segment.group != series.group)
    scope.problem(place.pointer(), "the names run over group `{}`, the numbers over `{}`",
                  segment.group, series.group);
  for (const std::string& tensor : segment.tensors) check_series_name(scope, place, tensor);
  if (series.count < 1)
    return scope.problem(place.pointer(), "a series of {} tensors; expected at least 1",
                         series.count);
  for (const int64_t first : series.firsts)
    if (first < 0 || first > std::numeric_limits<int64_t>::max() - (series.count - 1))
      scope.problem(place.pointer(), "{} numbers from {} on do not fit 64 bits", series.count,
                    first);
  if (!segment.interleave) return;
  check_series_name(scope, place, segment.interleave->with);
  if (!series.group.empty())
    scope.problem(place.pointer(), "an interleaved series starts at one number on every rank");
}

void check_segment(const Scope& scope, const Place& place, const BindSegment& segment) {
  check_table(scope, place, segment.group, segment.tensors.size(), "tensor names");
  for (const std::string& tensor : segment.tensors)
    if (tensor.empty()) scope.problem(place.pointer(), "an empty tensor name");
  if (segment.rows) check_ranges(scope, place, *segment.rows, "row ranges");
  if (segment.cols) check_ranges(scope, place, *segment.cols, "column ranges");
  if (segment.series) check_series(scope, place, segment);
  if (!segment.interleave) return;
  if (segment.interleave->rows < 1)
    scope.problem(place.pointer(), "interleaves blocks of {} rows; expected at least 1",
                  segment.interleave->rows);
  if (segment.interleave->with.empty())
    scope.problem(place.pointer(), "interleaves with an empty tensor name");
  if (segment.rows || segment.cols)
    scope.problem(place.pointer(), "an interleaved segment takes both tensors whole, no range");
}

}  // namespace

void verify_binds(const Scope& scope) {
  for (const Buffer& buffer : scope.m.buffers) {
    Place place{buffer, 0};
    for (const BindSegment& segment : buffer.bind) {
      const int64_t end = place.segment + segment.written();
      const size_t problems = scope.problems();
      check_segment(scope, place, segment);
      // the others of a run are alike, and each has its own place
      while (++place.segment < end && scope.problems() > problems)
        check_segment(scope, place, segment);
      place.segment = end;
    }
  }
}

}  // namespace kern::manifest
