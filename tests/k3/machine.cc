#include "machine.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <map>

#include "checkpoint/checkpoint.h"
#include "kern/base/file.h"
#include "kern/base/log.h"
#include "kern/base/prng.h"

namespace k3_test {

using namespace kern;

namespace {

std::string config_text(const std::string& name) {
  const char* carried = std::getenv("KERN_TEST_CONFIGS");
  const std::string folder = carried ? carried : std::string(KERN_SOURCE_DIR) + "/k3/configs";
  auto text = read_file(folder + "/" + name + ".json", size_t{1} << 20);
  if (!text) FAIL(text.error().text());
  return *text;
}

/// Checkpoints of this run; the folder goes when the run ends.
class Checkpoints {
 public:
  Checkpoints()
      : dir_(std::filesystem::temp_directory_path() / ("k3-test-" + std::to_string(getpid()))) {}
  ~Checkpoints() {
    catalogs_.clear();
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }
  const safetensors::Catalog& get(const std::string& name) {
    if (const auto found = catalogs_.find(name); found != catalogs_.end()) return found->second;
    const auto done = k3::write_checkpoint(config_text(name), 1, {}, dir_ / name);
    if (!done) FAIL(done.error().text());
    auto catalog = safetensors::Catalog::open(dir_ / name);
    if (!catalog) FAIL(catalog.error().text());
    return catalogs_.emplace(name, std::move(*catalog)).first->second;
  }

 private:
  std::filesystem::path dir_;
  std::map<std::string, safetensors::Catalog> catalogs_;
};

}  // namespace

k3::Config config_of(const std::string& name) {
  auto config = k3::read_config(config_text(name));
  if (!config) FAIL(config.error().text());
  return *config;
}

const safetensors::Catalog& checkpoint_of(const std::string& name) {
  static Checkpoints checkpoints;
  return checkpoints.get(name);
}

std::filesystem::path modules_of(Device device) {
  const char* carried = std::getenv("KERN_TEST_MODULES");
  const std::filesystem::path root = carried ? carried : KERN_BUILD_DIR "/lib/kern";
  return device == Device::host ? root : root / "cuda";
}

k3::Options options(const std::string& model, Device device) {
  k3::Options options;
  options.model = model;
  options.device = device;
  auto modules = k3::pinned_modules(device, modules_of(device));
  if (!modules) FAIL(modules.error().text());
  options.modules = *modules;
  options.limits.seqs_max = 4;
  options.limits.chunk = 256;
  options.limits.pack = 4;
  options.limits.ctx_max = kPagesEach * 64;
  return options;
}

manifest::Verified verified(Result<manifest::Manifest> manifest) {
  if (!manifest) FAIL(manifest.error().text());
  auto checked = manifest::verify(std::move(*manifest));
  if (!checked) FAIL(manifest::to_text(checked.error()));
  return std::move(*checked);
}

Machine::Machine(manifest::Verified manifest, const safetensors::Catalog& catalog,
                 const Place& place)
    : manifest_(std::move(manifest)), place_(place) {
  runtime::Options options;
  options.module_dirs = {modules_of(manifest_->device)};
  options.capacity = {1 + 4 * kPagesEach, 64, 8};
  if (place.peers != nullptr) options.peers["tp"] = place.peers;
  // Ranks of one process share a context, and making a graph may wait for kernels that wait for us.
  options.eager = place.eager || place.ranks > 1;
  auto runtime = runtime::Runtime::load(manifest_, &catalog, options, Log("test", Level::error));
  if (!runtime) FAIL(runtime.error().text());
  runtime_ = std::move(*runtime);
}

template <class T>
void Machine::put(const std::string& buffer, const std::vector<T>& values) {
  const auto bytes = runtime_->buffer(buffer);
  if (bytes.empty()) return;  // a stage has only the inputs it uses
  REQUIRE(bytes.size() >= values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), values.size() * sizeof(T));
}

void Machine::run(const std::string& program, const std::vector<Feed>& feeds) {
  const auto ranks = static_cast<int32_t>(place_.ranks);
  Tokens token, from, slot, seq_len, lines, snapshot, pages, sums = {0};
  const auto* table = manifest_.buffer("pages");
  const int64_t width = table == nullptr ? 0 : table->shape[1].value;
  for (const Feed& feed : feeds) {
    const auto rows = static_cast<int32_t>(feed.tokens.size());
    token.insert(token.end(), feed.tokens.begin(), feed.tokens.end());
    from.insert(from.end(), feed.tokens.size(), feed.fed_from);
    for (int32_t p = feed.start; p < feed.start + rows; ++p)
      slot.push_back((feed.first_page + p / ranks / 64) * 64 + p / ranks % 64);
    for (int64_t i = 0; i < width; ++i) pages.push_back(feed.first_page + static_cast<int32_t>(i));
    sums.push_back(sums.back() + rows);
    seq_len.push_back(feed.start + rows);
    lines.push_back(feed.slot);
    snapshot.push_back(feed.snapshot);
  }
  const size_t seqs = feeds.size();
  const int32_t rows = sums.back();
  if (const auto* all = manifest_.buffer("cu_seqlens"))
    sums.resize(static_cast<size_t>(all->shape[0].value), rows);
  put("token", token), put("slot", slot), put("seq_len", seq_len), put("lines", lines);
  put("fed_from", from), put("snapshot", snapshot), put("pages", pages), put("cu_seqlens", sums);
  put("temperature", std::vector<float>(seqs, 0)), put("top_p", std::vector<float>(seqs, 1));
  put("top_k", Tokens(seqs, 0)), put("min_p", std::vector<float>(seqs, 0));
  put("seed", std::vector<int64_t>(seqs, 0)), put("draw", Tokens(seqs, 0));
  std::vector<runtime::VarValue> vars;  // a stage has only the vars it uses
  for (const auto& [name, value] :
       {std::pair("tokens", int64_t{rows}), std::pair("seqs", static_cast<int64_t>(seqs))})
    if (manifest_.var(name) != nullptr) vars.push_back({name, value});
  const auto done = runtime_->run(program, vars);
  if (!done) FAIL(done.error().text());
}

std::vector<float> Machine::logits(size_t seq) {
  const size_t vocab = manifest_.buffer("logits")->shape[1].value;
  const auto all = values<float>("logits", (seq + 1) * vocab);
  return {all.end() - static_cast<ptrdiff_t>(vocab), all.end()};
}

std::vector<std::byte> Machine::state(const std::string& name) {
  std::vector<std::byte> bytes(static_cast<size_t>(runtime_->state_bytes(name).value_or(0)));
  const auto done = runtime_->read_state(name, 0, bytes);
  if (!done) FAIL(done.error().text());
  return bytes;
}

void Machine::set_state(const std::string& name, const std::vector<std::byte>& bytes) {
  const auto done = runtime_->write_state(name, 0, bytes);
  if (!done) FAIL(done.error().text());
}

void send_on(Machine& from, Machine& to) {
  for (const std::string name : {"hidden", "bank.0", "bank.1", "bank.2", "bank.3"}) {
    const auto sent = from.runtime().buffer(name), taken = to.runtime().buffer(name);
    if (!sent.empty() && !taken.empty()) std::memcpy(taken.data(), sent.data(), taken.size());
  }
}

Tokens prompt(uint64_t seed, size_t count, int64_t vocab) {
  Prng prng(seed);
  Tokens tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(prng.below(vocab - 256));
  return tokens;
}

}  // namespace k3_test
