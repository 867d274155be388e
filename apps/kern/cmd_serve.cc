#include <fmt/core.h>

#include "command.h"
#include "kern/node/app.h"
#include "serving/model_text.h"

namespace kern::app {
namespace {

constexpr const char* kUsageText =
    "Usage: kern serve MANIFEST --weights DIR [--port N]\n\n"
    "One process, one manifest with programs for prompts and for decode steps, the HTTP API.\n";

}  // namespace

int cmd_serve(const Arguments& arguments) {
  std::vector<const char*> argv = {"kern serve"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const auto parsed = node::parse_config({node::Role::one_process, kUsageText, "kimi-vendor-rules"},
                                         static_cast<int>(argv.size()), argv.data());
  if (!parsed) {
    fmt::print(stderr, "kern serve: {}\n", parsed.error().text());
    return kUsage;
  }
  if (!parsed->help.empty()) {
    fmt::print("{}", parsed->help);
    return kOk;
  }
  const node::DaemonConfig& config = parsed->config;
  return node::run_one_process(config, [&] { return k3::load_model_text(config.weights); });
}

}  // namespace kern::app
