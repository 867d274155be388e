#include "gen/generate.h"

#include <algorithm>
#include <limits>
#include <set>

#include "gen/emit.h"
#include "kern/base/file.h"
#include "kern/base/sha256.h"

namespace k3 {

using namespace kern;

namespace {

constexpr size_t kModuleBytesMax = size_t{256} << 20;
constexpr int64_t kRowsMax = int64_t{1} << 20;
constexpr int64_t kRanksMax = 1024;
constexpr const char* kVersion = "1";
const char* const kFamilies[] = {"norm", "act", "kda", "mla", "moe", "head"};

struct Bounds {
  int64_t seqs, ctx, chunk, pack, collective_blocks;
};

Result<int64_t> bound(const char* flag, std::optional<int64_t> given, int64_t usual, int64_t max) {
  const int64_t value = given ? *given : usual;
  if (value < 1 || value > max)
    return fail(Kind::caller, "`{}`: expected 1 to {}, got {}", flag, max, value);
  return value;
}

Result<Bounds> bounds_of(const Config& config, const Limits& limits) {
  const int64_t usual_chunk = config.hidden >= 4096 ? 8192 : 512;
  KERN_TRY(seqs, bound("--max-seqs", limits.seqs_max, 64, kRowsMax));
  KERN_TRY(ctx, bound("--max-ctx", limits.ctx_max, std::min<int64_t>(config.context_max, 131072),
                      config.context_max));
  KERN_TRY(chunk, bound("--chunk", limits.chunk, usual_chunk, kRowsMax));
  KERN_TRY(pack, bound("--pack", limits.pack, std::min<int64_t>(16, chunk), chunk));
  KERN_TRY(blocks, bound("--collective-blocks", limits.collective_blocks, 16, 128));
  return Bounds{seqs, ctx, chunk, pack, blocks};
}

m::Manifest base(const Config& config, const Options& options, const Target& target,
                 const std::string& layout, std::vector<std::string> extensions) {
  m::Manifest manifest;
  manifest.model = options.model;
  manifest.device = target.device();
  manifest.uses = target.extensions();
  manifest.uses.insert(manifest.uses.end(), extensions.begin(), extensions.end());
  if (!options.plain)
    manifest.meta = m::Meta{"k3-gen", kVersion, config.sha256, layout, "tiktoken.model"};
  return manifest;
}

m::Program prompt_program(int64_t groups) {
  m::Program program;
  program.name = "prefill";
  m::Batch batch;
  batch.groups = groups;
  batch.rows = std::string(kTokens);
  program.batch = batch;
  return program;
}

/// A step's vars are as many as there are sequences, so each number of them is a graph; a prompt's
/// come once.
m::Program step_program(int64_t groups, m::Device device) {
  m::Program program;
  program.name = "decode";
  m::Batch batch;
  batch.groups = groups;
  batch.rows = int64_t{1};
  program.batch = batch;
  program.graph = device == m::Device::cuda;
  return program;
}

bool has_series(const m::Manifest& manifest) {
  for (const m::Buffer& buffer : manifest.buffers)
    for (const m::BindSegment& segment : buffer.bind)
      if (segment.series && !segment.series->spelled_out) return true;
  return false;
}

/// With the modules that some launch names, in the order given, and with every extension
/// that is needed listed.
Result<m::Manifest> completed(m::Manifest manifest, const std::vector<m::Module>& modules) {
  if (has_series(manifest)) manifest.uses.emplace_back("series");
  std::sort(manifest.uses.begin(), manifest.uses.end());
  std::set<std::string> used;
  for (const m::Op& op : manifest.ops)
    for (const m::Launch& launch : op.launches)
      if (!launch.module.empty()) used.insert(launch.module);
  for (const m::Module& module : modules)
    if (used.erase(module.name) > 0) manifest.modules.push_back(module);
  if (!used.empty())
    return fail(Kind::kernel_artifact, "module `{}` is needed and not given", *used.begin());
  return manifest;
}

bool has_kda(const Config& config) {
  return std::find(config.is_mla.begin(), config.is_mla.end(), false) != config.is_mla.end();
}

std::unique_ptr<Target> target_of(const Config& config, const Options& options,
                                  const Layout& layout) {
  return options.device == m::Device::host ? host_target(config, layout)
                                           : cuda_target(config, layout, options.plain);
}

Emitter::Rows prompt_rows(bool snapshot) {
  return snapshot ? Emitter::Rows::any_with_snapshots : Emitter::Rows::any;
}

Result<void> check_ranks(const Config& config, int64_t ranks) {
  if (ranks < 1 || ranks > kRanksMax)
    return fail(Kind::caller, "`--ranks`: expected 1 to {}, got {}", kRanksMax, ranks);
  const std::pair<const char*, int64_t> divided[] = {
      {"num_attention_heads", config.heads},
      {"linear_attn_config.num_heads", config.kda_heads},
      {"num_experts", config.experts},
      {"the shared experts' width", config.shared_inter},
      {"intermediate_size", config.dense_layers > 0 ? config.dense_inter : 0},
      {"vocab_size", config.vocab}};
  for (const auto& [what, value] : divided)
    if (value % ranks != 0)
      return fail(Kind::caller, "`--ranks` {}: does not divide {} ({})", ranks, what, value);
  return {};
}

}  // namespace

Result<std::vector<m::Module>> pinned_modules(m::Device device, const std::filesystem::path& dir) {
  std::vector<m::Module> modules;
  const bool host = device == m::Device::host;
  if (host)
    for (const std::string family : kFamilies)
      modules.push_back({family, "kern-host-" + family + ".so", {}});
  std::error_code error;
  if (!host)
    for (const auto& file : std::filesystem::directory_iterator(dir, error))
      if (file.path().extension() == ".cubin")
        modules.push_back({file.path().stem().string(), file.path().filename().string(), {}});
  if (modules.empty())
    return fail(Kind::kernel_artifact,
                "no .cubin in `{}`; ci/build_kernels.py builds them into build/lib/kern/cuda",
                dir.string());
  if (!host)
    std::sort(modules.begin(), modules.end(),
              [](const m::Module& a, const m::Module& b) { return a.name < b.name; });
  for (m::Module& module : modules) {
    auto bytes = read_file(dir / module.source, kModuleBytesMax);
    if (!bytes)
      return fail(Kind::kernel_artifact, "module `{}`: {}", module.name, bytes.error().text());
    module.sha256 = to_hex(sha256(as_bytes(*bytes)));
  }
  return modules;
}

Result<m::Manifest> one_rank(const Config& config, const Options& options) {
  KERN_TRY(bounds, bounds_of(config, options.limits));
  Layout layout;
  layout.spelled_out = options.spelled_out;
  layout.rows_max = std::max(bounds.chunk, bounds.seqs);
  layout.seqs_max = std::max(bounds.pack, bounds.seqs);
  layout.ctx_max = bounds.ctx;
  layout.logits_output = true;
  const bool snapshot = !options.plain && has_kda(config);
  const auto target = target_of(config, options, layout);
  std::vector<std::string> extensions;
  if (snapshot) extensions.emplace_back("snapshot");
  const bool feedback = !options.plain && !options.unfed;
  if (feedback) extensions.emplace_back("feedback");
  Builder builder(base(config, options, *target, "one rank, prefill and decode", extensions));
  Emitter emitter(config, layout, *target, builder);
  emitter.declare(snapshot, feedback);
  builder.program(prompt_program(bounds.pack));
  emitter.program(prompt_rows(snapshot));
  builder.program(step_program(bounds.seqs, options.device));
  emitter.program(Emitter::Rows::one);
  return completed(builder.take(), options.modules);
}

Result<m::Manifest> prefill(const Config& config, const Options& options) {
  KERN_TRY(bounds, bounds_of(config, options.limits));
  Layout layout;
  layout.spelled_out = options.spelled_out;
  layout.rows_max = bounds.chunk;
  layout.seqs_max = bounds.pack;
  layout.ctx_max = bounds.ctx;
  const bool snapshot = !options.plain && has_kda(config);
  const auto target = target_of(config, options, layout);
  Builder builder(
      base(config, options, *target, "prefill",
           snapshot ? std::vector<std::string>{"snapshot"} : std::vector<std::string>{}));
  Emitter emitter(config, layout, *target, builder);
  emitter.declare(snapshot, false);
  builder.program(prompt_program(bounds.pack));
  emitter.program(prompt_rows(snapshot));
  return completed(builder.take(), options.modules);
}

Result<m::Manifest> decode(const Config& config, const Options& options, int64_t ranks) {
  KERN_TRY_VOID(check_ranks(config, ranks));
  KERN_TRY(bounds, bounds_of(config, options.limits));
  Layout layout;
  layout.spelled_out = options.spelled_out;
  layout.ranks = ranks;
  layout.collective_blocks = bounds.collective_blocks;
  layout.rows_max = bounds.seqs;
  layout.seqs_max = bounds.seqs;
  layout.ctx_max = bounds.ctx;
  const auto target = target_of(config, options, layout);
  std::vector<std::string> extensions;
  if (ranks > 1 && options.device == m::Device::host) extensions.emplace_back("collectives");
  const bool feedback = !options.plain && !options.unfed;
  if (feedback) extensions.emplace_back("feedback");
  Builder builder(base(config, options, *target,
                       fmt::format("decode, {} {}", ranks, ranks == 1 ? "rank" : "ranks"),
                       extensions));
  Emitter emitter(config, layout, *target, builder);
  emitter.declare(false, feedback);
  builder.program(step_program(bounds.seqs, options.device));
  emitter.program(Emitter::Rows::one);
  return completed(builder.take(), options.modules);
}

}  // namespace k3
