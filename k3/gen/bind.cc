#include "gen/bind.h"

#include "kern/base/assert.h"

namespace k3 {

namespace {

m::RangeTable ranges_by_rank(int64_t count, int64_t ranks) {
  KERN_ASSERT(count % ranks == 0, "{} over {} ranks", count, ranks);
  m::RangeTable table;
  table.group = kGroup;
  const int64_t part = count / ranks;
  for (int64_t r = 0; r < ranks; ++r) table.ranges.push_back({r * part, (r + 1) * part});
  return table;
}

}  // namespace

m::BindSegment whole(std::string tensor) {
  m::BindSegment segment;
  segment.tensors.push_back(std::move(tensor));
  return segment;
}

m::BindSegment rows(std::string tensor, int64_t first, int64_t last) {
  m::BindSegment segment = whole(std::move(tensor));
  segment.rows = m::RangeTable{{}, {{first, last}}};
  return segment;
}

m::BindSegment rows_by_rank(std::string tensor, int64_t count, int64_t ranks) {
  m::BindSegment segment = whole(std::move(tensor));
  if (ranks > 1) segment.rows = ranges_by_rank(count, ranks);
  return segment;
}

m::BindSegment cols_by_rank(std::string tensor, int64_t count, int64_t ranks) {
  m::BindSegment segment = whole(std::move(tensor));
  if (ranks > 1) segment.cols = ranges_by_rank(count, ranks);
  return segment;
}

m::BindSegment series_by_rank(std::string tensor, int64_t own, int64_t ranks, bool spelled_out) {
  m::BindSegment segment = whole(std::move(tensor));
  m::Series series;
  if (ranks > 1) series.group = kGroup;
  for (int64_t r = 0; r < ranks; ++r) series.firsts.push_back(r * own);
  series.count = own;
  series.spelled_out = spelled_out;
  segment.series = std::move(series);
  return segment;
}

}  // namespace k3
