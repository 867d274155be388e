#pragma once
/// Which part of a checkpoint tensor a rank's weight buffer takes.

#include <string>

#include "gen/builder.h"

namespace k3 {

inline constexpr const char* kGroup = "tp";  ///< the ranks of a decode group

/// Every rank the whole tensor.
m::BindSegment whole(std::string tensor);
/// Every rank rows [first, last).
m::BindSegment rows(std::string tensor, int64_t first, int64_t last);
/// Rank r of `ranks` its equal part of `count` rows, or of columns.
m::BindSegment rows_by_rank(std::string tensor, int64_t count, int64_t ranks);
m::BindSegment cols_by_rank(std::string tensor, int64_t count, int64_t ranks);
/// Rank r its `own` tensors of a series, whole: those numbered from r * own on.
m::BindSegment series_by_rank(std::string tensor, int64_t own, int64_t ranks, bool spelled_out);

}  // namespace k3
