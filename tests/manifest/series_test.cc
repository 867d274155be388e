#include <catch2/catch.hpp>

#include "fixture.h"
#include "kern/base/prng.h"
#include "kern/manifest/binds.h"

using namespace kern::manifest;
using namespace kern_test;

namespace {

using Names = std::vector<std::string>;

/// The base manifest with these segments for its table.
Manifest with_bind(const std::string& segments, bool series = false) {
  std::string text = changed(fixture("base"), "{\"tensor\": \"embed\"}", segments);
  if (series) text = changed(std::move(text), "\"meta\"],", "\"meta\", \"series\"],");
  return parsed(text);
}

const std::vector<BindSegment>& bind_of(const Manifest& manifest) {
  for (const Buffer& buffer : manifest.buffers)
    if (buffer.name == "table") return buffer.bind;
  FAIL("no table");
  return manifest.buffers[0].bind;
}

/// Every tensor that a rank binds to the table, in order.
Names names_of(const Manifest& manifest, int64_t rank = 0) {
  const std::vector<Place> places = {{"tp", rank}};
  Names names;
  for (const BindSegment& segment : bind_of(manifest))
    for (int64_t i = 0; i < segment.count(); ++i) names.push_back(tensor_at(segment, places, i));
  return names;
}

std::string plain(const Names& names) {
  std::string out;
  for (const std::string& name : names)
    out += (out.empty() ? "" : ",") + std::string("{\"tensor\": \"") + name + "\"}";
  return out;
}

}  // namespace

TEST_CASE("a series is its tensors, one after another", "[manifest][series]") {
  const Manifest m = with_bind(R"({"tensor": "e.{}.w", "series": {"first": 8, "count": 4}})", true);
  CHECK(names_of(m) == Names{"e.8.w", "e.9.w", "e.10.w", "e.11.w"});
  CHECK(bind_of(m).size() == 1);
  CHECK(bind_of(m)[0].written() == 1);
  CHECK(print(parsed(print(m))) == print(m));
}

TEST_CASE("a rank's series starts at its own number, in its own name", "[manifest][series]") {
  const Manifest numbers = with_bind(
      R"({"tensor": "e.{}", "series": {"first": {"group": "tp", "firsts": [0, 3]}, "count": 3}})",
      true);
  CHECK(names_of(numbers, 0) == Names{"e.0", "e.1", "e.2"});
  CHECK(names_of(numbers, 1) == Names{"e.3", "e.4", "e.5"});
  const Manifest names = with_bind(R"({"tensor": {"group": "tp", "tensors": ["a.{}", "b.{}"]},
    "series": {"first": 7, "count": 2}})",
                                   true);
  CHECK(names_of(names, 1) == Names{"b.7", "b.8"});
  CHECK(print(parsed(print(numbers))) == print(numbers));
  CHECK(print(parsed(print(names))) == print(names));
}

TEST_CASE("plain segments whose names count up are kept as one and printed as they were",
          "[manifest][series]") {
  const Names names = {"e.8.w", "e.9.w", "e.10.w", "e.11.w", "e.12.w"};
  const Manifest m = with_bind(plain(names));
  CHECK(names_of(m) == names);
  REQUIRE(bind_of(m).size() == 1);
  CHECK(bind_of(m)[0].written() == 5);
  CHECK(print(m).find("\"e.10.w\"") != std::string::npos);
  CHECK(print(m).find("series") == std::string::npos);
  CHECK(print(parsed(print(m))) == print(m));
  CHECK(load(print(m)));
}

TEST_CASE("what is spelled out and what is a series differ in nothing else", "[manifest][series]") {
  const std::string table = R"({"group": "tp", "firsts": [0, 3]})";
  for (const std::string& first : {std::string("4"), table})
    for (const char* more : {"", R"("rows": [0, 2], )", R"("cols": [1, 2], )"}) {
      INFO(first << more);
      Manifest m = with_bind(std::string(R"({"tensor": "e.{}.w", )") + more +
                                 R"("series": {"first": )" + first + R"(, "count": 3}})",
                             true);
      const Names want = names_of(m, 1);
      for (Buffer& buffer : m.buffers)
        for (BindSegment& segment : buffer.bind)
          if (segment.series) segment.series->spelled_out = true;
      m.uses.pop_back();
      const Manifest again = parsed(print(m));
      CHECK(names_of(again, 1) == want);
      CHECK(bind_of(again).size() == 1);
      CHECK(print(again) == print(m));
      CHECK(load(print(m)));
    }
}

TEST_CASE("an interleaved series takes both numbers along", "[manifest][series]") {
  Manifest m = with_bind(R"({"tensor": "a.{}", "interleave": {"with": "b.{}", "rows": 2},
    "series": {"first": 0, "count": 2}})",
                         true);
  CHECK(names_of(m) == Names{"a.0", "a.1"});
  for (Buffer& buffer : m.buffers)
    for (BindSegment& segment : buffer.bind)
      if (segment.series) segment.series->spelled_out = true;
  CHECK(print(m).find(R"({"tensor": "a.1", "interleave": {"with": "b.1", "rows": 2}})") !=
        std::string::npos);
}

TEST_CASE("only names that count up by one are one series", "[manifest][series]") {
  for (const Names& names :
       {Names{"e.0", "e.2"}, Names{"e.1", "e.0"}, Names{"e.0", "e.0"}, Names{"e.00", "e.01"},
        Names{"e.09", "e.10"}, Names{"e.0.a", "e.1.b"}, Names{"{}.0", "{}.1"}, Names{"e", "e1"},
        Names{"e.0", "f.1"}, Names{"e.", "e.1"}, Names{"1.1", "2.2"}, Names{"e.-1", "e.0"}}) {
    INFO(plain(names));
    const Manifest m = with_bind(plain(names));
    CHECK(bind_of(m).size() == 2);
    CHECK(names_of(m) == names);
  }
  const Manifest ranged =
      with_bind(R"({"tensor": "e.0"}, {"tensor": "e.1", "rows": [0, 1]}, {"tensor": "e.2"})");
  CHECK(bind_of(ranged).size() == 3);
  CHECK(print(parsed(print(ranged))) == print(ranged));
}

TEST_CASE("a run ends where its spelling says something else", "[manifest][series]") {
  // the name in quotes stands twice: which of the two counts up is not told by the spelling
  const Manifest twice = with_bind(R"({"tensor": {"group": "tp", "tensors": ["e.0", "e.0"]}},
    {"tensor": {"group": "tp", "tensors": ["e.1", "e.1"]}},
    {"tensor": {"group": "tp", "tensors": ["e.2", "e.1"]}})");
  CHECK(names_of(twice, 0) == Names{"e.0", "e.1", "e.2"});
  CHECK(names_of(twice, 1) == Names{"e.0", "e.1", "e.1"});
  const Manifest escaped = with_bind(
      R"({"tensor": "e.0"}, {"tensor": "e.1"}, {"tensor": "\u0065.2"}, {"tensor": "e.3"})");
  CHECK(names_of(escaped) == Names{"e.0", "e.1", "e.2", "e.3"});
  const Manifest spaced = with_bind(
      "{\"tensor\":\"e.0\"},{ \"tensor\" : \"e.1\" } ,\n{\"tensor\":\"e.2\"}, "
      "{\"tensor\":\"e.3\"}");
  CHECK(names_of(spaced) == Names{"e.0", "e.1", "e.2", "e.3"});
  CHECK(bind_of(spaced).size() == 1);
}

TEST_CASE("a series of more tensors than there are is refused at the first that is missing",
          "[manifest][series]") {
  const Manifest m = with_bind(
      R"({"tensor": "embed.{}", "series": {"first": 1, "count": 9000000000000000000}})", true);
  const auto checked = verify(m);
  REQUIRE(checked);
  const int64_t shape[] = {1, 32};
  const TensorInfo tensors[] = {{"embed.1", "BF16", shape}, {"embed.2", "BF16", shape}};
  std::string said;
  for (const std::string& line : lines_of(check_binds(*checked, tensors)))
    if (line.starts_with("/buffers/table")) said += line + "\n";
  CHECK(said == "/buffers/table/bind/0: the checkpoint has no tensor `embed.3`\n");
}

TEST_CASE("any list of segments reads as its names and prints as it was",
          "[manifest][series][prop]") {
  static constexpr const char* kStems[] = {"a.", "b.", "a.1.", "9"};
  for (uint64_t seed = 0; seed < 400; ++seed) {
    INFO("seed " << seed);
    kern::Prng random(seed);
    std::array<Names, 2> names;
    std::string text;
    int64_t number = static_cast<int64_t>(random.below(120));
    std::string stem = "a.", tail;
    bool table = false;
    for (uint64_t n = 1 + random.below(40); n > 0; --n) {
      ++number;
      if (random.below(8) == 0) number = static_cast<int64_t>(random.below(120));
      if (random.below(8) == 0) stem = kStems[random.below(std::size(kStems))];
      if (random.below(8) == 0) tail = random.below(2) == 0 ? ".w" : "";
      if (random.below(8) == 0) table = !table;
      const std::string one = stem + std::to_string(number) + tail;
      const std::string other =
          random.below(10) == 0 ? one : stem + std::to_string(number + 50) + tail;
      const std::string space = random.below(6) == 0 ? " " : "";
      names[0].push_back(one);
      names[1].push_back(table ? other : one);
      if (!text.empty()) text += ", ";
      text += "{" + space + "\"tensor\": ";
      text += table ? R"({"group": "tp", "tensors": [")" + one + R"(", ")" + other + R"("]})"
                    : '"' + one + '"';
      if (random.below(12) == 0) text += R"(, "rows": [0, 4])";
      text += "}";
    }
    const Manifest m = with_bind(text);
    for (const int64_t rank : {0, 1}) CHECK(names_of(m, rank) == names[rank]);
    CHECK(print(parsed(print(m))) == print(m));
    for (const int64_t rank : {0, 1}) CHECK(names_of(parsed(print(m)), rank) == names[rank]);
  }
}
