// Ranks of one machine that map each other's memory on a real device. Every rank is a process.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <filesystem>

#include "../../runtime/fixture.h"
#include "kern/node/machine_group.h"

using namespace kern;
using kern::node::MachineGroup;

namespace {

constexpr int kRanks = 4;

std::filesystem::path here() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

std::string manifest_text() {
  std::string json = R"({
    "schema_version": 7, "model": "peers", "vars": {}, "states": {},
    "topology": {"groups": {"tp": 4}},
    "buffers": {
      "x": {"dtype": "u8", "shape": [64], "kind": "carry", "export": true},
      "all": {"dtype": "u64", "shape": [4], "kind": "peer", "of": "x", "group": "tp"},
      "o": {"dtype": "u8", "shape": [4], "kind": "output"}},
    "modules": {"probe": {"source": "probe.cubin", "sha256": "@CUBIN@"}},
    "ops": {
      "mark": {"params": ["out buffer<u8>", "i32"], "impl": {"launches": [
        {"module": "probe", "entry": "probe_mark", "block": [64, 1, 1], "grid": [1, 1, 1]}]}},
      "read": {"params": ["in buffer<u64>", "out buffer<u8>"], "impl": {"launches": [
        {"module": "probe", "entry": "probe_read_peers", "block": [4, 1, 1], "grid": [1, 1, 1]}]}}},
    "programs": {
      "start": {"once": true, "calls": [{"op": "mark", "args": [{"buf": "x"}, {"rank": "tp"}]}]},
      "main": {"calls": [{"op": "read", "args": [{"buf": "all"}, {"buf": "o"}]}]}}
  })";
  const auto bytes = read_file(here() / "probe.cubin", 1 << 24);
  if (!bytes) return "";
  json.replace(json.find("@CUBIN@"), 7, to_hex(sha256(as_bytes(*bytes))));
  return json;
}

/// What a rank reads of all, or what went wrong.
std::string read_all(const std::string& name, int rank) {
  auto group = MachineGroup::join(name, rank, kRanks, 60 * kSecondNs);
  if (!group) return group.error().text();
  auto manifest = manifest::load(manifest_text());
  if (!manifest) return manifest::to_text(manifest.error());
  runtime::Options options;
  options.module_dirs = {here()};
  options.peers = {{"tp", group->get()}};
  auto loaded = runtime::Runtime::load(*manifest, nullptr, options, kern_test::quiet());
  if (!loaded) return loaded.error().text();
  const auto meet = [&] {
    const char ready = 1;
    std::array<char, kRanks> all{};
    return (*group)->all_gather(std::as_bytes(std::span(&ready, 1)),
                                std::as_writable_bytes(std::span(all)));
  };
  if (const auto met = meet(); !met) return met.error().text();
  const auto done = (*loaded)->run("main", std::vector<runtime::VarValue>{});
  if (!done) return done.error().text();
  // Nobody takes memory away while another reads it.
  if (const auto met = meet(); !met) return met.error().text();
  std::string out;
  for (const std::byte each : (*loaded)->buffer("o")) out += static_cast<char>('0' + int(each));
  return out;
}

}  // namespace

TEST_CASE("four processes on one device read each other's memory", "[gpu][peers]") {
  const std::string name = fmt::format("device-test-{}", ::getpid());
  std::vector<pid_t> children;
  for (int rank = 1; rank < kRanks; ++rank) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) ::_exit(read_all(name, rank) == "0123" ? 0 : 1);
    children.push_back(child);
  }
  CHECK(read_all(name, 0) == "0123");
  for (const pid_t child : children) {
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  }
}
