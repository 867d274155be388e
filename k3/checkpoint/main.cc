// k3-checkpoint: writes a deterministic random checkpoint of any config. See k3/README.md.

#include <cmath>
#include <cstdio>
#include <map>
#include <string>

#include "checkpoint/checkpoint.h"
#include "kern/base/file.h"

namespace {

using namespace kern;

constexpr const char* kUsage =
    "usage: k3-checkpoint --config FILE -o DIR [--seed S] [--router-bias-spread 2]\n"
    "       [--router-gain 0.7] [--output-gain 0.5] [--residual-query 0.4] [--head-gain 2]\n"
    "writes a random checkpoint in the release's form; the same seed (0) gives the same bytes\n"
    "  --router-bias-spread  biases are uniform in +- this\n"
    "  --router-gain         standard deviation of the router's logits\n"
    "  --output-gain         of projections back into the residual stream\n"
    "  --residual-query      standard deviation of a mix's scores\n"
    "  --head-gain           standard deviation of the logits\n";

template <class T, class Parse>
Result<T> parsed(const std::string& name, const std::string& text, const char* expected,
                 Parse parse) {
  char* end = nullptr;
  errno = 0;
  const T value = parse(text.c_str(), &end);
  const bool negative = !text.empty() && text[0] == '-' && std::is_unsigned_v<T>;
  if (errno != 0 || text.empty() || *end != '\0' || negative || !std::isfinite(double(value)))
    return fail(Kind::caller, "`{}`: expected {}, got {}", name, expected, text);
  return value;
}

Result<void> run(int argc, char** argv) {
  std::string config, out;
  uint64_t seed = 0;
  k3::Shape shape;
  const std::map<std::string, double*> numbers = {
      {"--router-bias-spread", &shape.router_bias_spread},
      {"--router-gain", &shape.router_gain},
      {"--output-gain", &shape.output_gain},
      {"--residual-query", &shape.residual_query},
      {"--head-gain", &shape.head_gain}};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const bool known = name == "--config" || name == "-o" || name == "--out" || name == "--seed" ||
                       numbers.count(name) != 0;
    if (!known) return fail(Kind::caller, "`{}`: unknown flag (see --help)", name);
    if (i + 1 == argc) return fail(Kind::caller, "`{}`: expected a value", name);
    const std::string text = argv[i + 1];
    if (name == "--config") {
      config = text;
    } else if (name == "-o" || name == "--out") {
      out = text;
    } else if (name == "--seed") {
      KERN_TRY(read, parsed<uint64_t>(name, text, "an integer", [](const char* s, char** end) {
                 return std::strtoull(s, end, 10);
               }));
      seed = read;
    } else {
      KERN_TRY(read, parsed<double>(name, text, "a number",
                                    [](const char* s, char** end) { return std::strtod(s, end); }));
      *numbers.at(name) = read;
    }
  }
  if (config.empty()) return fail(Kind::caller, "`--config` is missing (see --help)");
  if (out.empty()) return fail(Kind::caller, "`-o` is missing (see --help)");
  KERN_TRY(json, read_file(config, size_t{16} << 20));
  return k3::write_checkpoint(json, seed, shape, out);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string first = argc < 2 ? "" : argv[1];
  if (argc < 2 || first == "--help" || first == "-h") {
    std::fputs(kUsage, argc < 2 ? stderr : stdout);
    return argc < 2 ? 2 : 0;
  }
  const auto done = run(argc, argv);
  if (done) return 0;
  std::fprintf(stderr, "k3-checkpoint: %s\n", done.error().text().c_str());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "k3-checkpoint: %s\n", error.what());
  return 1;
}
