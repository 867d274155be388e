#include "replay/generate.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>

#include "kern/base/bytes.h"
#include "kern/base/sha256.h"
#include "kern_test/golden.h"

using namespace kern;
using namespace kern::replay;

namespace {

std::string text(const Load& load) {
  std::string out;
  for (const Session& session : generate(load)) out += print(session);
  return out;
}

}  // namespace

TEST_CASE("a kind, a seed and a number of sessions are one text", "[replay][golden]") {
  const std::pair<const char*, LoadKind> kinds[] = {{"system", LoadKind::system},
                                                    {"chat", LoadKind::chat},
                                                    {"agent", LoadKind::agent},
                                                    {"mixed", LoadKind::mixed}};
  for (const auto& [name, kind] : kinds) {
    CHECK(load_kind(name) == kind);
    kern_test::expect_golden(KERN_TEST_DIR, std::string(name) + ".jsonl", text({kind, 1, 3, 2000}));
  }
  CHECK_FALSE(load_kind("Chat"));
  CHECK(text({LoadKind::mixed, 1, 50, 2000}) != text({LoadKind::mixed, 2, 50, 2000}));
}

TEST_CASE("a generated trace reads as what it was printed from", "[replay][trace]") {
  const Load load{LoadKind::mixed, 5, 300, 2000};
  const auto read = parse_trace(text(load));
  REQUIRE(read);
  CHECK(*read == generate(load));
}

TEST_CASE("each kind of load is what its name says", "[replay]") {
  uint64_t long_contexts = 0;
  for (const Session& session : generate({LoadKind::agent, 1, 100, 2000})) {
    CHECK(session.turns.size() >= 10);
    uint64_t tokens = 0;
    for (const SharedPrefix& one : session.shared) tokens += one.tokens;
    for (const Turn& turn : session.turns) tokens += uint64_t{turn.prompt} + turn.answer;
    long_contexts += tokens > 65'536;
  }
  CHECK(long_contexts > 50);
  std::set<std::string> prompts;
  uint64_t first = 0;
  for (const Session& session : generate({LoadKind::system, 1, 1000, 2000})) {
    REQUIRE(session.shared.size() == 1);
    prompts.insert(session.shared[0].name);
    first += session.shared[0].name == "system-0";
    CHECK(session.turns.size() == 1);
  }
  CHECK(prompts.size() > 20);
  CHECK(first > 500);
  for (const Session& session : generate({LoadKind::chat, 1, 100, 2000}))
    for (const Turn& turn : session.turns) CHECK(turn.think_ms >= 10'000);
}
