#include "kern/manifest/shard.h"

#include <catch2/catch.hpp>
#include <set>

using namespace kern::manifest;

namespace {

/// Smallest line with a part that is one row and a part that is several.
Shard heads() {
  Shard shard;
  shard.group = "tp";
  shard.by = Shard::By::heads;
  shard.segments = {{1, 64}, {3, 16}};
  return shard;
}

}  // namespace

TEST_CASE("a member holds its part of every row of every segment", "[manifest][shard]") {
  CHECK(whole_line_bytes(heads()) == 112);
  CHECK(line_ranges(heads(), {1, 4}) ==
        std::vector<ByteRange>{{16, 16}, {68, 4}, {84, 4}, {100, 4}});
}

TEST_CASE("one member of one holds the whole line", "[manifest][shard]") {
  int64_t bytes = 0;
  for (const ByteRange& range : line_ranges(heads(), {0, 1})) {
    CHECK(range.first == bytes);
    bytes += range.size;
  }
  CHECK(bytes == 112);
}

TEST_CASE("the members' ranges cover the whole line once", "[manifest][shard]") {
  for (const int64_t members : {1, 2, 4, 8, 16}) {
    std::set<int64_t> seen;
    for (int64_t m = 0; m < members; ++m) {
      int64_t own = 0;
      for (const ByteRange& range : line_ranges(heads(), {m, members})) {
        own += range.size;
        for (int64_t b = 0; b < range.size; ++b) CHECK(seen.insert(range.first + b).second);
      }
      CHECK(own == 112 / members);
    }
    CHECK(seen.size() == 112);
    CHECK(*seen.rbegin() == 111);
  }
}

TEST_CASE("every position lives in one row of one member", "[manifest][shard]") {
  for (const int64_t members : {1, 2, 3, 8}) {
    for (const int64_t length : {0, 1, 2, 7, 8, 9, 64, 65}) {
      int64_t held = 0;
      for (int64_t m = 0; m < members; ++m) {
        const int64_t rows = rows_held(length, {m, members});
        held += rows;
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t position = position_of(row, {m, members});
          CHECK(position < length);
          CHECK(member_of(position, members) == m);
          CHECK(row_of(position, members) == row);
        }
        CHECK(position_of(rows, {m, members}) >= length);
      }
      CHECK(held == length);
    }
  }
}

TEST_CASE("a sequence makes the bytes its member's state declares", "[manifest][shard]") {
  State kv{"kv", State::Size::per_token, 1152, {}, {}};
  CHECK(sequence_bytes(kv, 100, {0, 1}) == 115200);
  kv.shard = Shard{"tp", Shard::By::position, {}};
  CHECK(sequence_bytes(kv, 100, {3, 8}) == 13 * 1152);
  CHECK(sequence_bytes(kv, 100, {4, 8}) == 12 * 1152);
  const State line{"rec", State::Size::per_seq, 28, heads(), {}};
  CHECK(sequence_bytes(line, 100, {3, 4}) == 28);
  const State fixed{"f", State::Size::fixed, 8, {}, {}};
  CHECK(sequence_bytes(fixed, 100, {0, 1}) == 0);
}
