#pragma once
/// Finds runs of segments, as version 7 writes them, whose tensors' names differ by a number, and
/// keeps each as one series: nearly all bytes of a large manifest are such runs.
/// Thread safety: one thread. Ownership: borrows the segments.

#include <vector>

#include "json.h"
#include "kern/manifest/segment.h"

namespace kern::manifest {

class SeriesFinder {
 public:
  explicit SeriesFinder(std::vector<BindSegment>& bind) : bind_(bind) {}

  /// Takes a value that is spelled just as the next segment of the last run would be.
  bool take(Json value);
  /// To be told of every segment that was read and appended, and of what.
  void appended(Json value);

 private:
  /// Where a number stands in what is expected next.
  struct Digits {
    size_t at, count;
  };

  bool begins_series(BindSegment& first, const BindSegment& second) const;
  bool continues(const BindSegment& run, const BindSegment& next) const;
  void expect_next(const Spelling& last);
  void count_up();

  std::vector<BindSegment>& bind_;
  std::string next_;  ///< the next segment of the last run, spelled; empty without one
  size_t tokens_ = 0;
  std::vector<Digits> numbers_;
};

}  // namespace kern::manifest
