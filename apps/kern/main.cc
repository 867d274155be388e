#include <fmt/core.h>

#include <exception>

#include "command.h"

namespace {

constexpr kern::app::Command kCommands[] = {
    {"verify", "check manifests, and a cut or a checkpoint against them", kern::app::cmd_verify},
    {"cut", "slice a manifest into pipeline stages", kern::app::cmd_cut},
    {"show", "print what a manifest declares, or its canonical form", kern::app::cmd_show},
    {"schema", "print the JSON Schema of a manifest", kern::app::cmd_schema},
    {"run", "run one sequence, or one stage between files", kern::app::cmd_run},
    {"serve", "one process, one manifest, the HTTP API", kern::app::cmd_serve},
    {"bench", "how long a program takes at a shape, and where the time goes", kern::app::cmd_bench},
    {"replay", "what the prefix cache finds in a trace of sessions", kern::app::cmd_replay},
};

void print_usage(FILE* out) {
  fmt::print(out, "Usage: kern COMMAND [options]\n\nCommands:\n");
  for (const auto& command : kCommands)
    fmt::print(out, "  {:<8} {}\n", command.name, command.about);
  fmt::print(out, "\n`kern COMMAND --help` tells more; `kern --version`.\n");
}

}  // namespace

int main(int argc, char** argv) {
  const kern::app::Arguments arguments(argv + 1, argv + argc);
  const std::string_view name = arguments.empty() ? std::string_view() : arguments[0];
  if (name == "--help" || name == "-h" || name == "help")
    return print_usage(stdout), kern::app::kOk;
  if (name == "--version") return fmt::print("kern " KERN_VERSION "\n"), kern::app::kOk;
  try {
    for (const auto& command : kCommands)
      if (command.name == name) return command.run({arguments.begin() + 1, arguments.end()});
  } catch (const std::exception& error) {
    fmt::print(stderr, "kern {}: {}\n", name, error.what());
    return kern::app::kUsage;
  }
  if (!name.empty()) fmt::print(stderr, "kern: unknown command `{}`\n", name);
  print_usage(stderr);
  return kern::app::kUsage;
}
