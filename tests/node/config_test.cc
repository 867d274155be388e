#include "kern/node/config.h"

#include <catch2/catch.hpp>

using namespace kern;
using node::Role;

namespace {

Result<node::ParsedConfig> parse(Role role, std::vector<const char*> flags) {
  flags.insert(flags.begin(), "program");
  return node::parse_config({role, "usage\n", "vendor-rules"}, static_cast<int>(flags.size()),
                            flags.data());
}

std::string refusal(Role role, const std::vector<const char*>& flags) {
  const auto parsed = parse(role, flags);
  return parsed ? "accepted" : parsed.error().text();
}

}  // namespace

TEST_CASE("a head and a member are told apart by their flags", "[node][config]") {
  const auto head = parse(Role::prefill_stage, {"--manifest", "m", "--weights", "w", "--listen",
                                                "127.0.0.1:1", "--port", "80"});
  REQUIRE(head);
  CHECK(head->config.listen == "127.0.0.1:1");
  CHECK(head->config.port == 80);
  CHECK(parse(Role::prefill_stage, {"--manifest", "m", "--weights", "w", "--head", "h:1"}));
  CHECK(refusal(Role::prefill_stage, {"--manifest", "m", "--weights", "w"}) ==
        "give `--listen` to stage 0, or `--head` to another stage");
  CHECK(refusal(Role::decode_rank, {"--manifest", "m", "--weights", "w", "--rank", "1"}) ==
        "`--head` is missing: rank 0's --listen address");
  CHECK(refusal(Role::decode_rank, {"--manifest", "m", "--weights", "w"}) ==
        "`--decode` is missing: the prefill head's --decode-listen address");
}

TEST_CASE("an alias means the same flag", "[node][config]") {
  const auto parsed =
      parse(Role::one_process, {"m", "--weights", "w", "--kernels", "a", "--modules", "b"});
  REQUIRE(parsed);
  CHECK(parsed->config.manifest == "m");
  CHECK(parsed->config.module_dirs.size() == 2);
}

TEST_CASE("a value out of its range is refused with the range", "[node][config]") {
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--port", "70000"}) ==
        "`--port`: expected 0 to 65535, got 70000");
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--chunk", "33"}) ==
        "`--chunk`: expected 0 or at least 64, got 33");
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--log-level", "loud"}) ==
        "log level `loud`: expected debug, info, warn, error or off");
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--host-gib", "-2"}) ==
        "`--host-gib`: expected 0 to 1048576, got -2");
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--host-turn", "-1"}) ==
        "`--host-turn`: expected 0 to 1073741824, got -1");
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--device", "tpu"}) ==
        "`--device tpu`: expected host or gpu:N");
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--device", "gpu:two"}) ==
        "`--device gpu:two`: expected host or gpu:N");
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--gpu", "-1"}) ==
        "`--device gpu:-1`: expected host or gpu:N");
  const auto on_gpu = parse(Role::one_process, {"m", "--weights", "w", "--gpu", "3"});
  REQUIRE(on_gpu);
  CHECK(on_gpu->config.gpu == 3);
  const auto on_host = parse(Role::one_process, {"m", "--weights", "w"});
  REQUIRE(on_host);
  CHECK(!on_host->config.gpu.has_value());
}

TEST_CASE("every limit of the HTTP API is a flag with a range", "[node][config]") {
  const auto parsed = parse(Role::one_process, {"m", "--weights", "w", "--max-body-bytes", "1000",
                                                "--max-n=3", "--idle-timeout-ms", "5"});
  REQUIRE(parsed);
  CHECK(parsed->config.limits.body_bytes_max == 1000);
  CHECK(parsed->config.limits.n_max == 3);
  CHECK(parsed->config.limits.idle_timeout_ms == 5);
  CHECK(parsed->config.limits.json_depth_max == serve::Limits().json_depth_max);
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--max-n", "0"}) ==
        "`--max-n`: expected 1 to 1000000, got 0");
}

TEST_CASE("an unknown flag and a missing one are refused", "[node][config]") {
  CHECK(refusal(Role::one_process, {"m", "--weights", "w", "--nonsense"}).find("nonsense") !=
        std::string::npos);
  CHECK(refusal(Role::one_process, {"--weights", "w"}) == "`--manifest` is missing");
  CHECK(refusal(Role::one_process, {"m"}) == "`--weights` is missing");
}

TEST_CASE("every program tells its version", "[node][config]") {
  for (const Role role : {Role::one_process, Role::prefill_stage, Role::decode_rank}) {
    const auto told = parse(role, {"--version"});
    REQUIRE(told);
    CHECK_THAT(told->help, Catch::StartsWith("kern "));
    CHECK_THAT(told->help, Catch::Contains("."));
  }
}

TEST_CASE("help names every flag of the role and no other's", "[node][config]") {
  const auto help = parse(Role::decode_rank, {"--help"});
  REQUIRE(help);
  for (const char* flag : {"--rank", "--decode", "--listen", "--head", "--cluster-key-file",
                           "--capacity", "--drain-seconds"})
    CHECK(help->help.find(flag) != std::string::npos);
  CHECK(help->help.find("--api-key-file") == std::string::npos);
}

TEST_CASE("host memory for parked prefixes is given in GiB, and a decode rank parks none",
          "[node][config]") {
  const auto parsed =
      parse(Role::one_process, {"m", "--weights", "w", "--host-gib", "0.5", "--host-turn", "2048"});
  REQUIRE(parsed);
  CHECK(parsed->config.host_tier_bytes == 1 << 29);
  CHECK(parsed->config.park_tokens_min == 2048);
  CHECK(refusal(Role::decode_rank, {"--manifest", "m", "--weights", "w", "--host-gib", "1"})
            .find("host-gib") != std::string::npos);
}
