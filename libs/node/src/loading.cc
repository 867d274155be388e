#include "loading.h"

#include <algorithm>
#include <set>
#include <thread>

#include "kern/base/checked.h"
#include "kern/base/clock.h"
#include "kern/base/file.h"
#include "kern/engine/prefill.h"
#include "kern/manifest/protocol.h"
#include "kern/runtime/host_tier.h"
#include "kern/safetensors/catalog.h"

namespace kern::node {
namespace {

constexpr size_t kManifestBytesMax = size_t{1} << 30;
/// Without --capacity: room for so many sequences of full length.
constexpr int64_t kFullContexts = 8;
/// Without --slots: so many per sequence of an item, for cached prefixes and hand-offs under way.
constexpr int64_t kSlotsPerSeq = 4;

/// Threads that copy weights to a GPU, where --threads says less: so many keep its link busy.
constexpr int kLoadThreads = 12;

int load_threads(int threads) {
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(threads, std::clamp(processors, 1, kLoadThreads));
}

/// What a process reads of a program: the tokens and what goes with them, and what it sends on.
std::set<std::string, std::less<>> read_back_of(const manifest::Protocol& protocol) {
  std::set<std::string, std::less<>> names;
  for (const manifest::Filled& filled : protocol.outputs) names.insert(filled.buffer);
  for (const std::string& name : protocol.sent) names.insert(name);
  return names;
}

/// This build's own modules lie beside its programs.
std::filesystem::path own_modules() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return self.parent_path().parent_path() / "lib" / "kern";
}

int64_t ranks_of(const manifest::Manifest& m) {
  for (const manifest::State& s : m.states)
    if (s.shard && s.shard->by == manifest::Shard::By::position)
      for (const manifest::Group& g : m.groups)
        if (g.name == s.shard->group) return g.size;
  return 1;
}

runtime::Capacity capacity_of(const DaemonConfig& config, const manifest::Manifest& m,
                              const manifest::Protocol& protocol) {
  runtime::Capacity c;
  c.page_tokens = protocol.page_tokens > 0 ? protocol.page_tokens : engine::kGridTokens;
  int64_t seqs = 1, row_pages = 0;
  for (const manifest::Service& s : protocol.services) seqs = std::max(seqs, s.groups_max);
  for (const manifest::PageTable& t : protocol.page_tables)
    row_pages = std::max(row_pages, t.width);
  if (config.max_seqs > 0) seqs = std::min<int64_t>(seqs, config.max_seqs);
  const int64_t pages = config.capacity_tokens > 0
                            ? ceil_div(config.capacity_tokens, ranks_of(m) * c.page_tokens)
                            : kFullContexts * row_pages;
  c.pages = 1 + pages;
  c.slots = 1 + (config.slots > 0 ? config.slots : kSlotsPerSeq * seqs);
  return c;
}

/// One a number of sequences of every program that may be captured, and at least what a runtime
/// keeps by itself.
size_t graphs_of(const manifest::Protocol& protocol) {
  int64_t graphs = 0;
  for (const manifest::Service& s : protocol.services)
    if (s.graph) graphs += s.groups_max;
  return std::max(runtime::Options{}.graphs_max, static_cast<size_t>(graphs));
}

}  // namespace

Result<ReadManifest> read_manifest(const DaemonConfig& config) {
  KERN_TRY(text, read_file(config.manifest, kManifestBytesMax));
  ReadManifest out;
  out.digest = sha256(as_bytes(text));
  auto verified = manifest::load(text);
  if (!verified)
    return tl::unexpected(manifest::to_error(verified.error(), config.manifest.string()));
  const bool wants_gpu = (*verified)->device == manifest::Device::cuda;
  if (wants_gpu != config.gpu.has_value())
    return fail(Kind::caller, "`{}` is for {}: start it with --device {}", config.manifest.string(),
                wants_gpu ? "a GPU" : "the host", wants_gpu ? "gpu:N" : "host");
  out.manifest = std::make_unique<manifest::Verified>(std::move(*verified));
  return out;
}

Result<LoadedModel> load_model(const DaemonConfig& config, ReadManifest read,
                               std::map<std::string, runtime::PeerGroup*> peers, const Log& log) {
  LoadedModel out;
  out.manifest = std::move(read.manifest);
  out.manifest_digest = read.digest;
  const manifest::Manifest& m = **out.manifest;
  out.model = sha256(as_bytes(m.meta ? m.meta->config_sha256 : m.model));
  out.pipeline = m.cut ? sha256(as_bytes(m.cut->id)) : read.digest;

  auto protocol = manifest::Protocol::check(*out.manifest);
  if (!protocol)
    return tl::unexpected(manifest::to_error(protocol.error(), config.manifest.string()));
  runtime::Options options;
  options.module_dirs = config.module_dirs;
  if (options.module_dirs.empty())
    options.module_dirs.push_back(config.gpu ? own_modules() / "cuda" : own_modules());
  options.capacity = capacity_of(config, m, *protocol);
  options.host_tier_bytes = config.host_tier_bytes;
  options.threads = config.gpu ? load_threads(config.threads) : config.threads;
  options.gpu = config.gpu.value_or(0);
  options.multicast_is_off = config.multicast_is_off;
  options.read_back = read_back_of(*protocol);
  options.graphs_max = graphs_of(*protocol);
  options.peers = peers;
  KERN_TRY(weights, safetensors::Catalog::open(config.weights));
  out.weights = std::make_unique<safetensors::Catalog>(std::move(weights));
  options.weights_in_place = true;
  KERN_TRY(runtime, runtime::Runtime::load(*out.manifest, out.weights.get(), options, log));
  out.runtime = std::move(runtime);
  out.page_tokens = options.capacity.page_tokens;

  ExecutorOptions executor_options;
  executor_options.capacity = options.capacity;
  executor_options.peers = std::move(peers);
  executor_options.rows_max = config.chunk;
  executor_options.seqs_max = config.max_seqs;
  KERN_TRY(executor, RuntimeExecutor::create(*out.manifest, *out.runtime, executor_options));
  out.executor = std::move(executor);
  out.limits = out.executor->limits();
  const SystemClock clock;
  const TimeNs start = clock.now();
  KERN_TRY(steps, out.executor->capture_steps());
  if (steps > 0 && config.gpu)
    log.info("{} steps captured in {:.2f} s", steps,
             static_cast<double>(clock.now() - start) / kSecondNs);
  if (const runtime::HostTier* tier = out.runtime->host_tier(); tier != nullptr) {
    out.limits.host_bytes = static_cast<uint64_t>(tier->size().bytes);
    out.limits.host_page_bytes = static_cast<uint64_t>(tier->size().page_bytes);
    out.limits.host_slot_bytes = static_cast<uint64_t>(tier->size().slot_bytes);
  }
  // A stage without paged state, or without recurrent state, sets no bound on that memory.
  if (protocol->page_tables.empty()) out.limits.pages = 0;
  if (protocol->line_tables.empty()) out.limits.slots = 0;
  return out;
}

}  // namespace kern::node
