#include <fmt/format.h>
#include <stdlib.h>

#include "kern/node/app.h"

namespace {

constexpr const char* kUsage =
    "k3-decode-rank: one rank of a decode group.\n"
    "Rank 0 is the group's head: ranks dial its --listen, and it dials the prefill head's\n"
    "--decode-listen. Every other rank takes --head.\n\n"
    "  k3-decode-rank --manifest d.json --weights ckpt --rank 0 \\\n"
    "      --listen 127.0.0.1:9002 --decode 127.0.0.1:9001\n"
    "  k3-decode-rank --manifest d.json --weights ckpt --rank 1 --head 127.0.0.1:9002\n";

}  // namespace

int main(int argc, char** argv) {
  using namespace kern::node;
  // Before any thread: NCCL, where a manifest asks for it, never copies by multicast.
  const bool multicast_is_off = ::setenv("NCCL_NVLS_ENABLE", "0", 1) == 0;
  auto parsed = parse_config({Role::decode_rank, kUsage, ""}, argc, argv);
  if (!parsed) {
    fmt::print(stderr, "k3-decode-rank: {}\n", parsed.error().text());
    return 2;
  }
  if (!parsed->help.empty()) {
    fmt::print("{}", parsed->help);
    return 0;
  }
  parsed->config.multicast_is_off = multicast_is_off;
  return run_decode_rank(parsed->config);
}
