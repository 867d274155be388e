#include <catch2/catch.hpp>
#include <filesystem>
#include <set>
#include <sstream>

#include "fixture.h"
#include "kern/base/file.h"

using namespace kern_test;

namespace {

/// One change of the base manifest and everything the library says about it.
///   # a sentence that is true
///   - what stands once in base.json
///   + what replaces it
///   = pointer: sentence
struct Case {
  std::string name;
  std::vector<std::pair<std::string, std::string>> changes;
  std::vector<std::string> said;
};

std::string with_breaks(std::string text) {
  for (size_t at; (at = text.find("\\n")) != std::string::npos;) text.replace(at, 2, "\n");
  return text;
}

std::vector<Case> read_cases(const std::filesystem::path& path) {
  const auto text = kern::read_file(path, 1 << 20);
  REQUIRE(text);
  std::istringstream in(*text);
  std::vector<Case> cases;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    const std::string rest = line.size() > 2 ? line.substr(2) : "";
    switch (line[0]) {
      case '#':
        cases.push_back({rest, {}, {}});
        break;
      case '-':
        cases.back().changes.emplace_back(with_breaks(rest), "");
        break;
      case '+':
        cases.back().changes.back().second = with_breaks(rest);
        break;
      case '=':
        cases.back().said.push_back(rest);
        break;
      default:
        FAIL(path << ": a line starts with none of # - + =: " << line);
    }
  }
  return cases;
}

std::vector<Case> all_cases() {
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(KERN_TEST_DIR "/rules"))
    paths.insert(entry.path());
  std::vector<Case> cases;
  for (const auto& path : paths)
    for (Case& one : read_cases(path)) cases.push_back(std::move(one));
  return cases;
}

}  // namespace

TEST_CASE("the base manifest breaks no rule", "[manifest][rules]") {
  CHECK(kern::manifest::load(fixture("base")));
}

TEST_CASE("every listed change of the base manifest is refused in the listed words",
          "[manifest][rules]") {
  const std::string base = fixture("base");
  const auto cases = all_cases();
  REQUIRE(cases.size() > 200);
  for (const Case& one : cases) {
    INFO(one.name);
    std::string text = base;
    for (const auto& [from, to] : one.changes) text = changed(std::move(text), from, to);
    const auto result = kern::manifest::load(text);
    REQUIRE_FALSE(result);
    CHECK(lines_of(result.error()) == one.said);
  }
}

TEST_CASE("no two cases of the rules have one name", "[manifest][rules]") {
  std::set<std::string> names;
  for (const Case& one : all_cases()) {
    INFO(one.name);
    CHECK(names.insert(one.name).second);
  }
}
