#include <fmt/format.h>

#include "kern/node/app.h"
#include "serving/model_text.h"

namespace {

constexpr const char* kUsage =
    "k3-prefill-stage: one stage of the prefill pipeline; which one, the manifest says.\n"
    "Stage 0 is the head: it serves HTTP (--port), stages dial its --listen, decode groups its\n"
    "--decode-listen. Every other stage takes --head.\n\n"
    "  k3-prefill-stage --manifest p/stage0.json --weights ckpt --port 8000 \\\n"
    "      --listen 127.0.0.1:9000 --decode-listen 127.0.0.1:9001\n"
    "  k3-prefill-stage --manifest p/stage1.json --weights ckpt --head 127.0.0.1:9000\n";

}  // namespace

int main(int argc, char** argv) {
  using namespace kern::node;
  const auto parsed = parse_config({Role::prefill_stage, kUsage, "kimi-vendor-rules"}, argc, argv);
  if (!parsed) {
    fmt::print(stderr, "k3-prefill-stage: {}\n", parsed.error().text());
    return 2;
  }
  if (!parsed->help.empty()) {
    fmt::print("{}", parsed->help);
    return 0;
  }
  const DaemonConfig& config = parsed->config;
  return run_prefill_stage(config, [&] { return k3::load_model_text(config.weights); });
}
