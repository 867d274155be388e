#include "kern/node/machine_group.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <thread>

#include "../runtime/fixture.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using kern::node::MachineGroup;
using kern_test::param;

namespace {

std::string unique_name() {
  static int number = 0;
  return fmt::format("test-{}-{}", ::getpid(), ++number);
}

/// Every rank on a thread of its own; what each returned, empty for good.
std::vector<std::string> on_ranks(int size,
                                  const std::function<Result<void>(MachineGroup&)>& body) {
  const std::string name = unique_name();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto group = MachineGroup::join(name, rank, size, 20 * kSecondNs);
      Result<void> done;
      if (group)
        done = body(**group);
      else
        done = tl::unexpected(group.error());
      if (!done) errors[static_cast<size_t>(rank)] = done.error().text();
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

const std::vector<std::string> kAllGood(4);

}  // namespace

TEST_CASE("ranks of one machine gather and exchange blocks in rank order", "[node][group]") {
  CHECK(on_ranks(4, [](MachineGroup& group) -> Result<void> {
          for (uint32_t round = 0; round < 3; ++round) {
            const uint32_t mine = static_cast<uint32_t>(group.rank()) + 10 * round;
            std::array<uint32_t, 4> all{};
            KERN_TRY_VOID(group.all_gather(std::as_bytes(std::span(&mine, 1)),
                                           std::as_writable_bytes(std::span(all))));
            for (uint32_t rank = 0; rank < 4; ++rank)
              if (all[rank] != rank + 10 * round) return fail(Kind::peer, "gathered {}", all[rank]);
            std::array<uint32_t, 4> send{}, got{};
            for (uint32_t to = 0; to < 4; ++to) send[to] = 100 * mine + to;
            KERN_TRY_VOID(group.all_to_all(std::as_bytes(std::span(send)),
                                           std::as_writable_bytes(std::span(got))));
            for (uint32_t from = 0; from < 4; ++from)
              if (got[from] != 100 * (from + 10 * round) + static_cast<uint32_t>(group.rank()))
                return fail(Kind::peer, "exchanged {}", got[from]);
          }
          return {};
        }) == kAllGood);
}

TEST_CASE("a descriptor reaches every rank and is the same file", "[node][group]") {
  CHECK(on_ranks(4, [](MachineGroup& group) -> Result<void> {
          std::array<int, 2> pipe{};
          if (::pipe(pipe.data()) != 0) return fail(Kind::io, "no pipe");
          Descriptor read_end(pipe[0]), write_end(pipe[1]);
          const char self = static_cast<char>('a' + group.rank());
          // Everybody hands out the end to write to, and is written to by all.
          KERN_TRY(ends, group.all_gather_descriptors(std::move(write_end)));
          for (const Descriptor& end : ends)
            if (::write(end.get(), &self, 1) != 1) return fail(Kind::io, "not written");
          std::array<char, 4> seen{};
          for (char& each : seen)
            if (::read(read_end.get(), &each, 1) != 1) return fail(Kind::io, "not read");
          std::sort(seen.begin(), seen.end());
          if (std::string(seen.begin(), seen.end()) != "abcd") return fail(Kind::peer, "other");
          return {};
        }) == kAllGood);
}

TEST_CASE("a rank that leaves, or does not come, is kind peer and named", "[node][group]") {
  const auto errors = on_ranks(4, [](MachineGroup& group) -> Result<void> {
    if (group.rank() == 2) return {};
    std::array<uint32_t, 4> all{};
    const uint32_t mine = 1;
    return group.all_gather(std::as_bytes(std::span(&mine, 1)),
                            std::as_writable_bytes(std::span(all)));
  });
  CHECK(errors[0] == "rank 2 has left");
  CHECK(errors[1] == "rank 0 has left");
  CHECK(errors[2].empty());
  const std::string name = unique_name();
  const auto alone = MachineGroup::join(name, 0, 2, 30 * kMillisecondNs);
  REQUIRE(!alone);
  CHECK(alone.error().kind == Kind::peer);
  CHECK(alone.error().text() == "group `" + name + "`: 1 of 2 ranks have not come");
  const auto nobody = MachineGroup::join(name, 1, 2, 30 * kMillisecondNs);
  REQUIRE(!nobody);
  CHECK(nobody.error().text() == "group `" + name + "`: rank 0 has not come");
}

TEST_CASE("a rank that has left is seen without waiting by rank 0, and rank 0 then by all",
          "[node][group]") {
  CHECK(on_ranks(4, [](MachineGroup& group) -> Result<void> {
          if (const auto rank = group.gone()) return fail(Kind::peer, "{} is there", *rank);
          char mine = 0;
          std::array<char, 4> all{};
          KERN_TRY_VOID(group.all_gather(std::as_bytes(std::span(&mine, 1)),
                                         std::as_writable_bytes(std::span(all))));
          if (group.rank() == 2) return {};
          const SystemClock clock;
          const TimeNs end = clock.now() + 20 * kSecondNs;
          std::optional<int> rank;
          while (!(rank = group.gone()) && clock.now() < end) std::this_thread::yield();
          const int expected = group.rank() == 0 ? 2 : 0;
          if (rank != expected) return fail(Kind::peer, "saw {}", rank.value_or(-1));
          return {};
        }) == kAllGood);
}

TEST_CASE("members that disagree about the size do not form a group", "[node][group]") {
  const std::string name = unique_name();
  std::thread other([&] { (void)MachineGroup::join(name, 1, 3, kSecondNs); });
  const auto group = MachineGroup::join(name, 0, 2, 5 * kSecondNs);
  other.join();
  REQUIRE(!group);
  CHECK(group.error().text() ==
        "group `" + name + "`: rank 1 of 3 came, expected ranks 1 to 1 of 2");
}

namespace {

// Each rank marks its own exported memory once, then reads everybody's.
const std::string kPeers = R"({
  "schema_version": 7, "model": "peers", "vars": {}, "states": {},
  "topology": {"groups": {"tp": 2}},
  "buffers": {
    "x": {"dtype": "u8", "shape": [64], "kind": "carry", "export": true},
    "all": {"dtype": "u64", "shape": [2], "kind": "peer", "of": "x", "group": "tp"},
    "o": {"dtype": "u8", "shape": [64], "kind": "output"}},
  "modules": {"test": {"source": "test.cubin", "sha256": "@CUBIN@"}},
  "ops": {
    "mark": {"params": ["out buffer<u8>", "i32"], "impl": {"launches": [
      {"module": "test", "entry": "mark", "block": [1, 1, 1], "grid": [1, 1, 1]}]}},
    "read": {"params": ["in buffer<u64>", "in buffer<u8>", "out buffer<u8>"], "impl": {"launches": [
      {"module": "test", "entry": "read", "block": [1, 1, 1], "grid": [1, 1, 1]}]}}},
  "programs": {
    "start": {"once": true, "calls": [{"op": "mark", "args": [{"buf": "x"}, {"rank": "tp"}]}]},
    "main": {"calls": [{"op": "read", "args": [{"buf": "all"}, {"buf": "x"}, {"buf": "o"}]}]}}
})";

/// Loads as one rank and says what it reads of the two; empty when something failed.
std::string read_all(const std::string& json, const std::filesystem::path& dir,
                     const std::string& name, int rank) {
  kern_test::FakeDriver fake;
  fake.kernels["mark"] = {{8, 4}, [](const cuda::api::LaunchConfig&, void* const* params) {
                            std::memset(param<void*>(params, 0), 'p' + param<int>(params, 1), 64);
                          }};
  fake.kernels["read"] = {{8, 8, 8}, [](const cuda::api::LaunchConfig&, void* const* params) {
                            const auto* all = param<const char* const*>(params, 0);
                            for (int i = 0; i < 2; ++i) param<char*>(params, 2)[i] = all[i][63];
                          }};
  auto group = MachineGroup::join(name, rank, 2, 20 * kSecondNs);
  auto manifest = manifest::load(json);
  if (!group || !manifest) return "";
  runtime::Options options;
  options.module_dirs = {dir};
  options.driver = &fake.driver();
  options.peers = {{"tp", group->get()}};
  auto loaded = runtime::Runtime::load(*manifest, nullptr, options, kern_test::quiet());
  // All have marked theirs before anybody reads.
  const char ready = 1;
  std::array<char, 2> all{};
  if (!loaded || !(*group)->all_gather(std::as_bytes(std::span(&ready, 1)),
                                       std::as_writable_bytes(std::span(all))))
    return "";
  if (!(*loaded)->run("main", std::vector<runtime::VarValue>{})) return "";
  const auto out = (*loaded)->buffer("o");
  return {reinterpret_cast<const char*>(out.data()), 2};
}

}  // namespace

TEST_CASE("two processes map each other's device memory and read what the other wrote",
          "[node][group][peers]") {
  kern_test::TempDir dir;
  const std::string cubin = kern_test::fake_cubin();
  REQUIRE(write_file(dir / "test.cubin", as_bytes(cubin)));
  std::string json = kPeers;
  json.replace(json.find("@CUBIN@"), 7, to_hex(sha256(as_bytes(cubin))));
  const std::string name = unique_name();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(read_all(json, dir.path(), name, 1) == "pq" ? 0 : 1);
  CHECK(read_all(json, dir.path(), name, 0) == "pq");
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}
