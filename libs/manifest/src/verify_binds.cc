#include "scope.h"

namespace kern::manifest {
namespace {

struct Place {
  const Buffer& buffer;
  size_t segment;
  std::string pointer() const {
    return fmt::format("{}/bind/{}", pointer_to("buffers", buffer.name), segment);
  }
};

/// A table over a group has one entry a rank. Messages are built only on failure: there are half a
/// million segments in a large manifest.
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

void check_segment(const Scope& scope, const Place& place, const BindSegment& segment) {
  check_table(scope, place, segment.group, segment.tensors.size(), "tensor names");
  for (const std::string& tensor : segment.tensors)
    if (tensor.empty()) scope.problem(place.pointer(), "an empty tensor name");
  if (segment.rows) check_ranges(scope, place, *segment.rows, "row ranges");
  if (segment.cols) check_ranges(scope, place, *segment.cols, "column ranges");
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
  for (const Buffer& buffer : scope.m.buffers)
    for (size_t i = 0; i < buffer.bind.size(); ++i)
      check_segment(scope, Place{buffer, i}, buffer.bind[i]);
}

}  // namespace kern::manifest
