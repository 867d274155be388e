// k3-gen: writes manifests of the model. See k3/README.md.

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "gen/generate.h"
#include "kern/base/file.h"
#include "kern/manifest/verify.h"

namespace {

using namespace kern;
using k3::Config;

constexpr const char* kUsage =
    "usage: k3-gen one-rank --config FILE -o ONE.json\n"
    "       k3-gen prefill  --config FILE (--stages N | --cut-at LAYER,...) -o DIR\n"
    "       k3-gen prefill  --config FILE -o WHOLE.json\n"
    "       k3-gen decode   --config FILE --ranks R -o D.json\n"
    "each takes [--device host|cuda] [--plain] [--unfed] [--modules DIR] [--model LABEL]\n"
    "           [--binds series|plain]\n"
    "           [--max-seqs N] [--max-ctx N] [--chunk N] [--pack N] [--layers N]\n"
    "layers are counted from 0; a stage starts before each layer of --cut-at\n"
    "  --plain     device cuda, no extension of version 7: greedy, NCCL, no snapshots\n"
    "  --unfed     no step takes the last one's tokens by itself: to be cut by `kern cut`\n"
    "  --modules   folder of the kernels to pin (default: this build's own)\n"
    "  --model     the manifest's label (default: the config's name, or its folder's)\n"
    "  --collective-blocks  of a collective of decode on cuda (default 16; 2 where eight ranks "
    "share\n"
    "              one GPU)\n"
    "  --max-seqs  sequences of a decode step    --max-ctx  positions of one sequence\n"
    "  --chunk     rows of a prefill call        --pack     sequences of a prefill call\n"
    "  --layers    the first N layers alone, and the head: to measure, not to answer\n"
    "  --binds     experts as series (the default), or plain: a segment each, as version 7 has "
    "it\n";

using Flags = std::map<std::string, std::string>;

/// Every flag says something to its command, and no two say the same.
Result<void> check_command(const std::string& command, const Flags& flags) {
  const auto given = [&](const char* name) { return flags.count(name) != 0; };
  if (command != "one-rank" && command != "prefill" && command != "decode")
    return fail(Kind::caller, "`{}`: expected one-rank, prefill or decode", command);
  for (const char* cut : {"--stages", "--cut-at"})
    if (given(cut) && command != "prefill")
      return fail(Kind::caller, "`{}`: only prefill is cut into stages", cut);
  if (given("--stages") && given("--cut-at"))
    return fail(Kind::caller, "`--stages`: not together with --cut-at");
  if (given("--ranks") && command != "decode")
    return fail(Kind::caller, "`--ranks`: only decode has ranks");
  return {};
}

Result<Flags> parse_flags(int argc, char** argv) {
  static constexpr const char* kKnown[] = {
      "--config",   "--device",  "-o",      "--out",   "--modules",           "--model",
      "--max-seqs", "--max-ctx", "--chunk", "--pack",  "--collective-blocks", "--stages",
      "--cut-at",   "--ranks",   "--binds", "--layers"};
  Flags flags;
  for (int i = 2; i < argc; i += 2) {
    std::string name = argv[i];
    if (name == "--plain" || name == "--unfed") {
      if (!flags.emplace(name, "").second) return fail(Kind::caller, "`{}`: given twice", name);
      --i;
      continue;
    }
    if (std::find(std::begin(kKnown), std::end(kKnown), name) == std::end(kKnown))
      return fail(Kind::caller, "`{}`: unknown flag (see --help)", name);
    if (i + 1 == argc) return fail(Kind::caller, "`{}`: expected a value", name);
    if (name == "--out") name = "-o";
    if (!flags.emplace(name, argv[i + 1]).second)
      return fail(Kind::caller, "`{}`: given twice", name);
  }
  KERN_TRY_VOID(check_command(argv[1], flags));
  for (const char* needed : {"--config", "-o"})
    if (flags.count(needed) == 0) return fail(Kind::caller, "`{}` is missing (see --help)", needed);
  const auto device = flags.find("--device");
  if (device != flags.end() && device->second != "host" && device->second != "cuda")
    return fail(Kind::caller, "`--device`: expected host or cuda, got {}", device->second);
  if (flags.count("--plain") != 0 && (device == flags.end() || device->second != "cuda"))
    return fail(Kind::caller, "`--plain`: only with --device cuda");
  return flags;
}

Result<std::optional<int64_t>> number(const Flags& flags, const std::string& name) {
  const auto found = flags.find(name);
  if (found == flags.end()) return std::optional<int64_t>();
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(found->second.c_str(), &end, 10);
  if (errno != 0 || found->second.empty() || *end != '\0')
    return fail(Kind::caller, "`{}`: expected an integer, got {}", name, found->second);
  return std::optional<int64_t>(value);
}

Result<std::vector<int64_t>> numbers(const std::string& name, const std::string& list) {
  std::vector<int64_t> values;
  for (size_t from = 0; from <= list.size();) {
    const size_t comma = std::min(list.find(',', from), list.size());
    KERN_TRY(value, number({{name, list.substr(from, comma - from)}}, name));
    values.push_back(*value);
    from = comma + 1;
  }
  return values;
}

/// The file's stem, or its folder's name when the file is a checkpoint's config.json.
std::string label_of(const std::filesystem::path& config) {
  const std::filesystem::path path = std::filesystem::absolute(config);
  return path.filename() == "config.json" ? path.parent_path().filename().string()
                                          : path.stem().string();
}

Result<k3::Options> options_of(const Flags& flags) {
  k3::Options options;
  const auto given = [&](const char* name) { return flags.count(name) != 0; };
  options.model = given("--model") ? flags.at("--model") : label_of(flags.at("--config"));
  options.plain = given("--plain");
  options.unfed = given("--unfed");
  const std::string usual = options.plain ? "plain" : "series";
  const std::string binds = given("--binds") ? flags.at("--binds") : usual;
  if (binds != "series" && binds != "plain")
    return fail(Kind::caller, "`--binds`: expected series or plain, got {}", binds);
  if (options.plain && binds != "plain")
    return fail(Kind::caller, "`--binds` {}: not together with --plain", binds);
  options.spelled_out = binds == "plain";
  const bool cuda = given("--device") && flags.at("--device") == "cuda";
  options.device = cuda ? manifest::Device::cuda : manifest::Device::host;
  std::filesystem::path modules =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../lib/kern";
  if (cuda) modules /= "cuda";
  if (given("--modules")) modules = flags.at("--modules");
  KERN_TRY(pinned, k3::pinned_modules(options.device, modules));
  options.modules = std::move(pinned);
  KERN_TRY(seqs, number(flags, "--max-seqs"));
  KERN_TRY(ctx, number(flags, "--max-ctx"));
  KERN_TRY(chunk, number(flags, "--chunk"));
  KERN_TRY(pack, number(flags, "--pack"));
  KERN_TRY(blocks, number(flags, "--collective-blocks"));
  options.limits = {seqs, ctx, chunk, pack, blocks};
  return options;
}

/// Verifies, then writes: no manifest leaves that a runtime would refuse.
Result<void> save(const manifest::Manifest& manifest, const std::filesystem::path& path) {
  auto verified = manifest::verify(manifest);
  if (!verified)
    return tl::unexpected<Error>(manifest::to_error(verified.error(), path.filename().string()));
  return write_file(path, as_bytes(manifest::print(**verified)));
}

Result<void> save_stages(const Config& config, const k3::Options& options, const Flags& flags) {
  KERN_TRY(whole, k3::prefill(config, options));
  std::vector<int64_t> layers;
  if (flags.count("--cut-at") != 0) {
    KERN_TRY(given, numbers("--cut-at", flags.at("--cut-at")));
    layers = std::move(given);
  } else if (flags.count("--stages") != 0) {
    KERN_TRY(count, number(flags, "--stages"));
    KERN_TRY(even, k3::even_cuts(config, *count));
    layers = std::move(even);
  } else {
    return save(whole, flags.at("-o"));
  }
  KERN_TRY(cut, k3::stages(whole, layers));
  for (size_t s = 0; s < cut.size(); ++s)
    KERN_TRY_VOID(
        save(cut[s], std::filesystem::path(flags.at("-o")) / fmt::format("stage{}.json", s)));
  return {};
}

Result<void> run(const std::string& command, const Flags& flags) {
  KERN_TRY(text, read_file(flags.at("--config"), size_t{16} << 20));
  KERN_TRY(config, k3::read_config(text));
  KERN_TRY(layers, number(flags, "--layers"));
  if (layers) KERN_TRY_VOID(with_context(k3::keep_layers(config, *layers), "`--layers`"));
  KERN_TRY(options, options_of(flags));
  if (command == "prefill") {
    const std::string& out = flags.at("-o");
    std::error_code error;
    if (flags.count("--stages") + flags.count("--cut-at") > 0)
      std::filesystem::create_directories(out, error);
    if (error) return fail(Kind::io, "`{}`: {}", out, error.message());
    return save_stages(config, options, flags);
  }
  if (command == "one-rank") {
    KERN_TRY(whole, k3::one_rank(config, options));
    return save(whole, flags.at("-o"));
  }
  KERN_TRY(ranks, number(flags, "--ranks"));
  if (!ranks) return fail(Kind::caller, "`--ranks` is missing (see --help)");
  KERN_TRY(rank, k3::decode(config, options, *ranks));
  return save(rank, flags.at("-o"));
}

}  // namespace

int main(int argc, char** argv) try {
  const auto asks = [](const std::string& word) { return word == "--help" || word == "-h"; };
  if (argc < 2 || std::any_of(argv + 1, argv + argc, asks)) {
    std::fputs(kUsage, argc < 2 ? stderr : stdout);
    return argc < 2 ? 2 : 0;
  }
  const auto flags = parse_flags(argc, argv);
  const auto done =
      flags ? run(argv[1], *flags) : Result<void>(tl::unexpected<Error>(flags.error()));
  if (done) return 0;
  std::fprintf(stderr, "k3-gen: %s\n", done.error().text().c_str());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "k3-gen: %s\n", error.what());
  return 1;
}
