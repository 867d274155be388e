#include "fixture.h"

#include <catch2/catch.hpp>

#include "kern/base/file.h"

namespace kern_test {

using namespace kern::manifest;  // NOLINT: a test

std::string fixture(std::string_view name) {
  const std::string path = std::string(KERN_TEST_DIR "/fixtures/") + std::string(name) + ".json";
  auto text = kern::read_file(path, 1 << 20);
  INFO(path);
  REQUIRE(text);
  return *text;
}

std::string changed(std::string text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  INFO("looking for: " << from);
  REQUIRE(at != std::string::npos);
  REQUIRE(text.find(from, at + 1) == std::string::npos);
  return text.replace(at, from.size(), to);
}

Manifest parsed(std::string_view json) {
  auto manifest = parse(json);
  if (!manifest) FAIL(to_text(manifest.error()));
  return std::move(*manifest);
}

Verified verified(std::string_view json) {
  auto manifest = load(json);
  if (!manifest) FAIL(to_text(manifest.error()));
  return std::move(*manifest);
}

Verified verified(Manifest manifest) {
  auto checked = verify(std::move(manifest));
  if (!checked) FAIL(to_text(checked.error()));
  return std::move(*checked);
}

std::vector<std::string> lines_of(const Diagnostics& diagnostics) {
  std::vector<std::string> lines;
  for (const Diagnostic& d : diagnostics) {
    std::string line = (d.pointer.empty() ? "/" : d.pointer) + ": " + d.sentence;
    const size_t suffix = line.rfind(" (line ");
    if (suffix != std::string::npos && line.ends_with(')')) line.resize(suffix);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace kern_test
