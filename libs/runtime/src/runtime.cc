#include "kern/runtime/runtime.h"

#include <algorithm>

#include "cuda_device.h"
#include "host_device.h"
#include "host_tier.h"
#include "inputs.h"
#include "kern/base/assert.h"
#include "lower.h"
#include "store.h"
#include "synthetic.h"

namespace kern::runtime {
namespace {

using manifest::Buffer;
using manifest::BufferKind;
using manifest::State;
using manifest::Verified;

/// What is the same on every device: names, vars, checks, and the order of a load.
class LoadedRuntime final : public Runtime {
 public:
  LoadedRuntime(const Verified& manifest, const Options& options, Ranks ranks,
                std::unique_ptr<Device> device, Store store)
      : manifest_(*manifest),
        vars_max_(manifest.vars_max().begin(), manifest.vars_max().end()),
        peers_(options.peers),
        read_back_(options.read_back),
        synthetic_(options.synthetic_weights),
        ranks_(std::move(ranks)),
        device_(std::move(device)),
        store_(std::move(store)) {
    values_.resize(vars_max_.size());
    names_ = NameLookups(manifest_);
    for (size_t i = 0; i < manifest_.buffers.size(); ++i)
      buffer_bytes_.push_back(manifest.bytes_max(i));
  }
  ~LoadedRuntime() override {
    // Nothing is freed under work that is still under way.
    if (device_->enter()) (void)device_->synchronize();
  }

  /// Binds weights, runs derive programs, lowers the rest, runs once programs.
  Result<void> prepare(const Verified& manifest, const safetensors::Catalog* weights);

  MutableByteSpan buffer(std::string_view name) override;
  std::optional<int64_t> state_bytes(std::string_view name) const override;
  Result<void> read_state(std::string_view name, int64_t offset, MutableByteSpan to) override;
  Result<void> write_state(std::string_view name, int64_t offset, ByteSpan from) override;
  MutableByteSpan state(std::string_view name) override;
  Result<void> copy_page(int64_t from, int64_t to) override;
  Result<void> copy_slot(int64_t from, int64_t to) override;
  Result<void> zero_slot(int64_t slot) override;
  HostTier* host_tier() override { return tier_.get(); }
  Result<void> enqueue(std::string_view program, std::span<const VarValue> vars) override;
  Result<void> launch(std::string_view program, std::span<const VarValue> vars) override;
  Result<void> read_back() override;
  Result<void> wait_inputs() override;
  Result<bool> outputs_are_here() override;
  Result<void> wait_outputs() override;
  Result<void> capture(std::string_view program, std::span<const VarValue> vars) override;
  Result<std::vector<LaunchTime>> run_timed(std::string_view program,
                                            std::span<const VarValue> vars) override;
  Result<void> synchronize() override;
  Result<void> observe(std::string_view label, std::string_view buffer, Observer see) override;

  int64_t bytes_total() const { return store_.layout().bytes + weight_bytes_; }
  const Device& device() const { return *device_; }
  Result<void> open_tier(int64_t bytes, const Log& log) {
    KERN_TRY(tier, make_host_tier(manifest_, store_, *device_, bytes, log));
    tier_ = std::move(tier);
    return {};
  }

 private:
  struct NameLookups {
    NameLookups() = default;
    explicit NameLookups(const manifest::Manifest& m)
        : buffers(m.buffers), states(m.states), programs(m.programs), vars(m.vars) {}
    manifest::NameIndex buffers, states, programs, vars;
  };

  LowerContext lower_context(const Verified& manifest) const {
    return {manifest,
            store_.layout(),
            store_.addresses(),
            *device_,
            ranks_,
            peers_,
            read_back_ ? &*read_back_ : nullptr};
  }
  Result<void> bind(const Verified& manifest, size_t index, const safetensors::Catalog* weights);
  Result<void> derive(const Verified& manifest, const safetensors::Catalog* weights);
  Result<void> run_at_bounds(LoweredProgram& program);
  Result<LoweredProgram*> evaluated(std::string_view program, std::span<const VarValue> vars);
  Result<LoweredProgram*> prepared(std::string_view program, std::span<const VarValue> vars);
  Result<void> set_vars(const LoweredProgram& program, std::span<const VarValue> vars);
  Result<void> check_place(std::string_view what, int64_t place, int64_t count) const;
  Result<size_t> state_range(std::string_view name, int64_t offset, size_t bytes) const;
  Result<void> copy_in_states(State::Size size, int64_t from, int64_t to);
  int64_t place_bytes(const State& state) const;

  manifest::Manifest manifest_;  ///< a copy: the caller's may go after load
  std::vector<int64_t> vars_max_;
  std::map<std::string, PeerGroup*> peers_;
  std::optional<std::set<std::string, std::less<>>> read_back_;
  std::optional<uint64_t> synthetic_;
  Ranks ranks_;
  std::unique_ptr<Device> device_;  ///< outlives what it allocated
  Store store_;
  std::unique_ptr<HostTier> tier_;  ///< waits for its copies, then goes, before the store does
  NameLookups names_;
  std::vector<int64_t> buffer_bytes_;
  std::vector<std::unique_ptr<LoweredProgram>> programs_;  ///< null: ran at load
  std::vector<int64_t> values_;                            ///< of the vars in the run at hand
  const LoweredProgram* launched_ = nullptr;               ///< last, and not brought back yet
  int64_t weight_bytes_ = 0;
};

Result<void> LoadedRuntime::bind(const Verified& manifest, size_t index,
                                 const safetensors::Catalog* weights) {
  const Buffer& buffer = manifest->buffers[index];
  if (weights == nullptr && !synthetic_)
    return fail(Kind::caller, "{} `{}` needs a checkpoint, none was given",
                manifest::to_string(buffer.kind), buffer.name);
  const int64_t bytes = manifest.bytes_max(index);
  std::vector<std::byte> made;  // until it is bound
  if (synthetic_) made = synthetic_block(buffer, bytes, *synthetic_ + index);
  KERN_TRY(plan, synthetic_ ? WeightPlan::repeating(made, bytes)
                            : plan_weight(buffer, bytes, *weights, ranks_));
  KERN_TRY(block, with_context(device_->bind(buffer, plan, store_.reach_of(buffer.name)), "{} `{}`",
                               manifest::to_string(buffer.kind), buffer.name));
  if (buffer.kind == BufferKind::weight) weight_bytes_ += bytes;
  store_.set_bound(index, std::move(block));
  return {};
}

/// Positions of the sources that a call names.
std::vector<size_t> sources_of(const Verified& manifest, const manifest::Call& call) {
  std::vector<size_t> out;
  for (const manifest::CallArg& arg : call.args) {
    const auto* bound = std::get_if<manifest::BufferArg>(&arg);
    if (bound == nullptr) continue;
    const size_t index = *manifest.index().buffers.find(bound->buffer);
    if (manifest->buffers[index].kind == BufferKind::source) out.push_back(index);
  }
  return out;
}

/// Call by call: what a call reads is bound before it and freed after its last reader, so the raw
/// and the derived form of a large weight never stand side by side for long.
Result<void> LoadedRuntime::derive(const Verified& manifest, const safetensors::Catalog* weights) {
  std::map<size_t, std::pair<size_t, size_t>> last_reader;
  for (size_t p = 0; p < manifest->programs.size(); ++p)
    if (manifest->programs[p].derive)
      for (size_t c = 0; c < manifest->programs[p].calls.size(); ++c)
        for (const size_t source : sources_of(manifest, manifest->programs[p].calls[c]))
          last_reader[source] = {p, c};
  std::vector<bool> is_bound(manifest->buffers.size(), false);
  for (size_t p = 0; p < manifest->programs.size(); ++p) {
    if (!manifest->programs[p].derive) continue;
    for (size_t c = 0; c < manifest->programs[p].calls.size(); ++c) {
      const std::vector<size_t> sources = sources_of(manifest, manifest->programs[p].calls[c]);
      for (const size_t source : sources) {
        if (is_bound[source]) continue;
        KERN_TRY_VOID(bind(manifest, source, weights));
        is_bound[source] = true;
      }
      KERN_TRY(program, lower(lower_context(manifest), p, c, c + 1));
      KERN_TRY_VOID(run_at_bounds(program));
      for (const size_t source : sources) {
        if (last_reader[source] != std::pair(p, c) || !is_bound[source]) continue;
        store_.release(source);
        is_bound[source] = false;
      }
    }
  }
  return {};
}

Result<void> LoadedRuntime::run_at_bounds(LoweredProgram& program) {
  KERN_TRY_VOID(device_->reserve(program));
  program.values.evaluate(vars_max_);
  KERN_TRY_VOID(device_->enqueue(program, vars_max_));
  return device_->synchronize();
}

Result<void> LoadedRuntime::prepare(const Verified& manifest, const safetensors::Catalog* weights) {
  for (size_t i = 0; i < manifest->buffers.size(); ++i)
    if (manifest->buffers[i].kind == BufferKind::weight) KERN_TRY_VOID(bind(manifest, i, weights));
  KERN_TRY_VOID(store_.point_peers(manifest, *device_, peers_));
  KERN_TRY_VOID(derive(manifest, weights));
  for (size_t p = 0; p < manifest->programs.size(); ++p) {
    programs_.push_back(nullptr);
    if (manifest->programs[p].derive) continue;
    KERN_TRY(program, lower(lower_context(manifest), p));
    KERN_TRY_VOID(device_->reserve(program));
    if (manifest->programs[p].once)
      KERN_TRY_VOID(run_at_bounds(program));
    else
      programs_.back() = std::make_unique<LoweredProgram>(std::move(program));
  }
  KERN_TRY_VOID(device_->synchronize());
  device_->end_load();
  return {};
}

MutableByteSpan LoadedRuntime::buffer(std::string_view name) {
  const auto index = names_.buffers.find(name);
  std::byte* view = index ? store_.addresses().host_view(*index) : nullptr;
  if (view == nullptr) return {};
  return {view, static_cast<size_t>(buffer_bytes_[*index])};
}

std::optional<int64_t> LoadedRuntime::state_bytes(std::string_view name) const {
  const auto index = names_.states.find(name);
  if (!index) return std::nullopt;
  return store_.state_bytes(*index);
}

MutableByteSpan LoadedRuntime::state(std::string_view name) {
  const auto index = names_.states.find(name);
  if (!index || !device_->is_host()) return {};
  return {store_.state(*index), static_cast<size_t>(store_.state_bytes(*index))};
}

/// Position of the state that has those bytes.
Result<size_t> LoadedRuntime::state_range(std::string_view name, int64_t offset,
                                          size_t bytes) const {
  const auto index = names_.states.find(name);
  if (!index) return fail(Kind::caller, "no state `{}`", name);
  const int64_t size = store_.state_bytes(*index);
  if (offset < 0 || offset > size || bytes > static_cast<size_t>(size - offset))
    return fail(Kind::caller, "{} bytes at {} of state `{}`, which has {}", bytes, offset, name,
                size);
  return *index;
}

Result<void> LoadedRuntime::read_state(std::string_view name, int64_t offset, MutableByteSpan to) {
  KERN_TRY(index, state_range(name, offset, to.size()));
  return device_->read(to, store_.state(index) + offset);
}

Result<void> LoadedRuntime::write_state(std::string_view name, int64_t offset, ByteSpan from) {
  KERN_TRY(index, state_range(name, offset, from.size()));
  return device_->write(store_.state(index) + offset, from);
}

Result<void> LoadedRuntime::check_place(std::string_view what, int64_t place, int64_t count) const {
  if (place < 0 || place >= count)
    return fail(Kind::caller, "{} {} is outside the capacity of {}", what, place, count);
  return {};
}

/// Bytes of one page or one slot.
int64_t LoadedRuntime::place_bytes(const State& state) const {
  return state.size == State::Size::per_token ? state.bytes * store_.capacity().page_tokens
                                              : state.bytes;
}

Result<void> LoadedRuntime::copy_in_states(State::Size size, int64_t from, int64_t to) {
  KERN_TRY_VOID(device_->enter());
  if (from == to) return {};
  for (size_t i = 0; i < manifest_.states.size(); ++i) {
    if (manifest_.states[i].size != size) continue;
    const int64_t bytes = place_bytes(manifest_.states[i]);
    KERN_TRY_VOID(
        device_->copy(store_.state(i) + to * bytes, store_.state(i) + from * bytes, bytes));
  }
  return {};
}

Result<void> LoadedRuntime::copy_page(int64_t from, int64_t to) {
  KERN_TRY_VOID(check_place("page", from, store_.capacity().pages));
  KERN_TRY_VOID(check_place("page", to, store_.capacity().pages));
  return copy_in_states(State::Size::per_token, from, to);
}

Result<void> LoadedRuntime::copy_slot(int64_t from, int64_t to) {
  KERN_TRY_VOID(check_place("slot", from, store_.capacity().slots));
  KERN_TRY_VOID(check_place("slot", to, store_.capacity().slots));
  return copy_in_states(State::Size::per_seq, from, to);
}

Result<void> LoadedRuntime::zero_slot(int64_t slot) {
  KERN_TRY_VOID(check_place("slot", slot, store_.capacity().slots));
  KERN_TRY_VOID(device_->enter());
  for (size_t i = 0; i < manifest_.states.size(); ++i) {
    if (manifest_.states[i].size != State::Size::per_seq) continue;
    const int64_t bytes = place_bytes(manifest_.states[i]);
    KERN_TRY_VOID(device_->zero(store_.state(i) + slot * bytes, bytes));
  }
  return {};
}

Result<void> LoadedRuntime::set_vars(const LoweredProgram& program,
                                     std::span<const VarValue> vars) {
  std::fill(values_.begin(), values_.end(), 0);
  for (const VarValue& var : vars) {
    const auto index = names_.vars.find(var.name);
    if (!index) return fail(Kind::caller, "program `{}`: no var `{}`", program.name, var.name);
    if (var.value < 1 || var.value > vars_max_[*index])
      return fail(Kind::caller, "program `{}`: var `{}` is {}, expected 1 to {}", program.name,
                  var.name, var.value, vars_max_[*index]);
    values_[*index] = var.value;
  }
  for (size_t i = 0; i < values_.size(); ++i)
    if (values_[i] == 0 && program.values.uses(i))
      return fail(Kind::caller, "program `{}`: var `{}` has no value, expected 1 to {}",
                  program.name, manifest_.vars[i].name, vars_max_[i]);
  return {};
}

/// The program with its values evaluated.
Result<LoweredProgram*> LoadedRuntime::evaluated(std::string_view program,
                                                 std::span<const VarValue> vars) {
  const auto index = names_.programs.find(program);
  if (!index) return fail(Kind::caller, "no program `{}`", program);
  LoweredProgram* lowered = programs_[*index].get();
  if (lowered == nullptr) return fail(Kind::caller, "program `{}` runs at load only", program);
  KERN_TRY_VOID(set_vars(*lowered, vars));
  lowered->values.evaluate(values_);
  return lowered;
}

/// The same with its inputs checked, on the device.
Result<LoweredProgram*> LoadedRuntime::prepared(std::string_view program,
                                                std::span<const VarValue> vars) {
  KERN_TRY(lowered, evaluated(program, vars));
  KERN_TRY_VOID(check_inputs(manifest_, *lowered));
  KERN_TRY_VOID(device_->enter());
  return lowered;
}

Result<void> LoadedRuntime::enqueue(std::string_view program, std::span<const VarValue> vars) {
  KERN_TRY(lowered, prepared(program, vars));
  return device_->enqueue(*lowered, values_);
}

Result<void> LoadedRuntime::launch(std::string_view program, std::span<const VarValue> vars) {
  launched_ = nullptr;
  KERN_TRY(lowered, prepared(program, vars));
  KERN_TRY_VOID(device_->launch(*lowered, values_));
  launched_ = lowered;
  return {};
}

Result<void> LoadedRuntime::read_back() {
  if (launched_ == nullptr)
    return fail(Kind::caller, "nothing was launched that has not been brought back");
  KERN_TRY_VOID(device_->enter());
  return device_->read_back(*std::exchange(launched_, nullptr));
}

Result<void> LoadedRuntime::wait_inputs() {
  KERN_TRY_VOID(device_->enter());
  return device_->wait_inputs();
}

Result<bool> LoadedRuntime::outputs_are_here() {
  KERN_TRY_VOID(device_->enter());
  return device_->outputs_are_here();
}

Result<void> LoadedRuntime::wait_outputs() {
  KERN_TRY_VOID(device_->enter());
  return device_->wait_outputs();
}

Result<void> LoadedRuntime::capture(std::string_view program, std::span<const VarValue> vars) {
  if (launched_ != nullptr)
    return fail(Kind::caller,
                "program `{}`: what was launched before its capture has not been "
                "brought back",
                program);
  KERN_TRY(lowered, evaluated(program, vars));
  KERN_TRY_VOID(device_->enter());
  return device_->capture(*lowered, values_);
}

Result<std::vector<LaunchTime>> LoadedRuntime::run_timed(std::string_view program,
                                                         std::span<const VarValue> vars) {
  KERN_TRY(lowered, prepared(program, vars));
  return device_->run_timed(*lowered);
}

Result<void> LoadedRuntime::synchronize() {
  KERN_TRY_VOID(device_->enter());
  return device_->synchronize();
}

/// Position of the last call that names a buffer; the number of calls when none does.
size_t last_call_with(const manifest::Program& program, std::string_view buffer) {
  for (size_t c = program.calls.size(); c-- > 0;)
    for (const manifest::CallArg& arg : program.calls[c].args)
      if (const auto* bound = std::get_if<manifest::BufferArg>(&arg);
          bound != nullptr && bound->buffer == buffer)
        return c;
  return program.calls.size();
}

Result<void> LoadedRuntime::observe(std::string_view label, std::string_view buffer, Observer see) {
  const auto target = names_.buffers.find(buffer);
  if (!target) return fail(Kind::caller, "no buffer `{}`", buffer);
  bool found = false;
  for (size_t p = 0; p < programs_.size(); ++p) {
    if (programs_[p] == nullptr) continue;
    const std::byte* data = store_.addresses().buffer(*target, store_.layout().programs[p]);
    if (data == nullptr) continue;
    const std::vector<manifest::Call>& calls = manifest_.programs[p].calls;
    const size_t last = last_call_with(manifest_.programs[p], buffer);
    for (size_t c = 0; c < calls.size(); ++c) {
      if (label.empty() ? c != last : calls[c].label != label) continue;
      found = true;
      auto& watches = programs_[p]->watches;
      const LoweredProgram::Watch watch{
          static_cast<uint32_t>(c), {data, static_cast<size_t>(buffer_bytes_[*target])}, see};
      watches.insert(std::upper_bound(watches.begin(), watches.end(), watch,
                                      [](const auto& a, const auto& b) { return a.call < b.call; }),
                     watch);
    }
  }
  if (!found)
    return fail(Kind::caller, "no call labelled `{}` stands in a program that uses buffer `{}`",
                label.empty() ? "(any)" : label, buffer);
  return {};
}

/// The rank in every group; a group of one needs no peers.
Result<Ranks> ranks_of(const manifest::Manifest& manifest, const Options& options) {
  Ranks ranks;
  for (const manifest::Group& group : manifest.groups) {
    const auto peers = options.peers.find(group.name);
    if (peers == options.peers.end() || peers->second == nullptr) {
      if (group.size != 1)
        return fail(Kind::caller, "group `{}` has {} ranks, and no peers were given for it",
                    group.name, group.size);
      ranks[group.name] = 0;
      continue;
    }
    if (peers->second->size() != group.size)
      return fail(Kind::caller, "group `{}` has {} ranks, its peers are {}", group.name, group.size,
                  peers->second->size());
    const int rank = peers->second->rank();
    if (rank < 0 || rank >= group.size)
      return fail(Kind::caller, "group `{}`: rank {} is outside its {} ranks", group.name, rank,
                  group.size);
    ranks[group.name] = rank;
  }
  return ranks;
}

}  // namespace

Result<void> Runtime::run(std::string_view program, std::span<const VarValue> vars) {
  KERN_TRY_VOID(enqueue(program, vars));
  return synchronize();
}

Result<std::unique_ptr<Runtime>> Runtime::load(const Verified& manifest,
                                               const safetensors::Catalog* weights,
                                               const Options& options, const Log& log) {
  if (weights != nullptr && options.synthetic_weights)
    return fail(Kind::caller, "a checkpoint and synthetic weights exclude each other");
  KERN_TRY(ranks, ranks_of(*manifest, options));
  KERN_TRY(layout, lay_out(manifest, options.capacity));
  const bool on_host = manifest->device == manifest::Device::host;
  KERN_TRY(device, on_host ? make_host_device(manifest, options)
                           : make_cuda_device(manifest, options, log));
  KERN_TRY(store, Store::create(manifest, std::move(layout), *device));
  auto runtime = std::make_unique<LoadedRuntime>(manifest, options, std::move(ranks),
                                                 std::move(device), std::move(store));
  if (options.host_tier_bytes > 0) KERN_TRY_VOID(runtime->open_tier(options.host_tier_bytes, log));
  KERN_TRY_VOID(runtime->prepare(manifest, weights));
  log.info("{}; {:.1f} MiB of memory", runtime->device().describe(),
           static_cast<double>(runtime->bytes_total()) / (1 << 20));
  return std::unique_ptr<Runtime>(std::move(runtime));
}

}  // namespace kern::runtime
