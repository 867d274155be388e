#include "kern/runtime/runtime.h"

#include <cstring>

#include "inputs.h"
#include "kern/base/assert.h"
#include "lower.h"
#include "machine.h"
#include "modules.h"
#include "store.h"

namespace kern::runtime {
namespace {

using manifest::Buffer;
using manifest::BufferKind;
using manifest::State;
using manifest::Verified;

bool is_addressable(BufferKind kind) {
  return kind == BufferKind::input || kind == BufferKind::output || kind == BufferKind::inout;
}

/// The host device: everything in this process's memory, launches on its worker threads.
class HostRuntime final : public Runtime {
 public:
  HostRuntime(const Verified& manifest, const Options& options, Ranks ranks,
              std::vector<LoadedModule> modules, Store store)
      : manifest_(*manifest),
        vars_max_(manifest.vars_max().begin(), manifest.vars_max().end()),
        peers_(options.peers),
        ranks_(std::move(ranks)),
        modules_(std::move(modules)),
        store_(std::move(store)),
        machine_(options.threads) {
    values_.resize(vars_max_.size());
    names_ = NameLookups(manifest_);
    for (size_t i = 0; i < manifest_.buffers.size(); ++i)
      buffer_bytes_.push_back(manifest.bytes_max(i));
  }

  /// Binds weights, runs derive programs, lowers the rest, runs once programs.
  Result<void> prepare(const Verified& manifest, const safetensors::Catalog* weights,
                       bool in_place);

  MutableByteSpan buffer(std::string_view name) override;
  MutableByteSpan state(std::string_view name) override;
  Result<void> copy_page(int64_t from, int64_t to) override;
  Result<void> copy_slot(int64_t from, int64_t to) override;
  Result<void> zero_slot(int64_t slot) override;
  Result<void> run(std::string_view program, std::span<const VarValue> vars) override;
  Result<void> observe(std::string_view label, std::string_view buffer, Observer see) override;

  int64_t bytes_total() const { return store_.bytes_total() + bound_bytes_; }
  int64_t bytes_in_place() const { return in_place_bytes_; }

 private:
  struct NameLookups {
    NameLookups() = default;
    explicit NameLookups(const manifest::Manifest& m)
        : buffers(m.buffers), states(m.states), programs(m.programs), vars(m.vars) {}
    manifest::NameIndex buffers, states, programs, vars;
  };

  LowerContext lower_context(const Verified& manifest) const {
    return {manifest, store_.layout(), store_.addresses(), find_entry_, ranks_, peers_};
  }
  Result<void> bind(const Verified& manifest, size_t index, const safetensors::Catalog* weights,
                    bool in_place);
  Result<void> derive(const Verified& manifest, const safetensors::Catalog* weights, bool in_place);
  Result<void> run_at_bounds(LoweredProgram& program);
  Result<void> set_vars(const LoweredProgram& program, std::span<const VarValue> vars);
  Result<void> check_place(std::string_view what, int64_t place, int64_t count) const;
  Result<void> start(LoweredProgram& program);

  manifest::Manifest manifest_;  ///< a copy: the caller's may go after load
  std::vector<int64_t> vars_max_;
  std::map<std::string, PeerGroup*> peers_;
  Ranks ranks_;
  std::vector<LoadedModule> modules_;
  FindEntry find_entry_ = [this](size_t module, const std::string& entry) {
    return modules_[module].find(entry);
  };
  Store store_;
  Machine machine_;
  NameLookups names_;
  std::vector<int64_t> buffer_bytes_;
  std::vector<std::unique_ptr<LoweredProgram>> programs_;  ///< null: ran at load
  std::vector<int64_t> values_;                            ///< of the vars in the run at hand
  int64_t bound_bytes_ = 0, in_place_bytes_ = 0;
};

Result<void> HostRuntime::bind(const Verified& manifest, size_t index,
                               const safetensors::Catalog* weights, bool in_place) {
  const Buffer& buffer = manifest->buffers[index];
  if (weights == nullptr)
    return fail(Kind::caller, "{} `{}` needs a checkpoint, none was given",
                manifest::to_string(buffer.kind), buffer.name);
  const int64_t bytes = manifest.bytes_max(index);
  KERN_TRY(bound, bind_weight(buffer, bytes, *weights, ranks_, in_place));
  if (buffer.kind == BufferKind::weight)
    (bound.owned.data() == nullptr ? in_place_bytes_ : bound_bytes_) += bytes;
  store_.set_bound(index, std::move(bound));
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
Result<void> HostRuntime::derive(const Verified& manifest, const safetensors::Catalog* weights,
                                 bool in_place) {
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
        KERN_TRY_VOID(bind(manifest, source, weights, in_place));
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

Result<void> HostRuntime::run_at_bounds(LoweredProgram& program) {
  values_ = vars_max_;
  KERN_TRY_VOID(machine_.reserve(program.shared_bytes_max, program.collective_bytes_max));
  return start(program);
}

Result<void> HostRuntime::prepare(const Verified& manifest, const safetensors::Catalog* weights,
                                  bool in_place) {
  for (size_t i = 0; i < manifest->buffers.size(); ++i)
    if (manifest->buffers[i].kind == BufferKind::weight)
      KERN_TRY_VOID(bind(manifest, i, weights, in_place));
  store_.point_peers(manifest);
  KERN_TRY_VOID(derive(manifest, weights, in_place));
  int64_t shared = 0, collective = 0;
  for (size_t p = 0; p < manifest->programs.size(); ++p) {
    programs_.push_back(nullptr);
    if (manifest->programs[p].derive) continue;
    KERN_TRY(program, lower(lower_context(manifest), p));
    shared = std::max(shared, program.shared_bytes_max);
    collective = std::max(collective, program.collective_bytes_max);
    if (manifest->programs[p].once)
      KERN_TRY_VOID(run_at_bounds(program));
    else
      programs_.back() = std::make_unique<LoweredProgram>(std::move(program));
  }
  return machine_.reserve(shared, collective);
}

MutableByteSpan HostRuntime::buffer(std::string_view name) {
  const auto index = names_.buffers.find(name);
  if (!index || !is_addressable(manifest_.buffers[*index].kind)) return {};
  return {store_.buffer(*index, {}), static_cast<size_t>(buffer_bytes_[*index])};
}

MutableByteSpan HostRuntime::state(std::string_view name) {
  const auto index = names_.states.find(name);
  if (!index) return {};
  return {store_.state(*index), static_cast<size_t>(store_.state_bytes(*index))};
}

Result<void> HostRuntime::check_place(std::string_view what, int64_t place, int64_t count) const {
  if (place < 0 || place >= count)
    return fail(Kind::caller, "{} {} is outside the capacity of {}", what, place, count);
  return {};
}

Result<void> HostRuntime::copy_page(int64_t from, int64_t to) {
  const Capacity& capacity = store_.capacity();
  KERN_TRY_VOID(check_place("page", from, capacity.pages));
  KERN_TRY_VOID(check_place("page", to, capacity.pages));
  for (size_t i = 0; i < manifest_.states.size(); ++i) {
    if (manifest_.states[i].size != State::Size::per_token) continue;
    const int64_t bytes = manifest_.states[i].bytes * capacity.page_tokens;
    std::memmove(store_.state(i) + to * bytes, store_.state(i) + from * bytes,
                 static_cast<size_t>(bytes));
  }
  return {};
}

Result<void> HostRuntime::copy_slot(int64_t from, int64_t to) {
  const Capacity& capacity = store_.capacity();
  KERN_TRY_VOID(check_place("slot", from, capacity.slots));
  KERN_TRY_VOID(check_place("slot", to, capacity.slots));
  for (size_t i = 0; i < manifest_.states.size(); ++i) {
    if (manifest_.states[i].size != State::Size::per_seq) continue;
    const int64_t bytes = manifest_.states[i].bytes;
    std::memmove(store_.state(i) + to * bytes, store_.state(i) + from * bytes,
                 static_cast<size_t>(bytes));
  }
  return {};
}

Result<void> HostRuntime::zero_slot(int64_t slot) {
  KERN_TRY_VOID(check_place("slot", slot, store_.capacity().slots));
  for (size_t i = 0; i < manifest_.states.size(); ++i) {
    if (manifest_.states[i].size != State::Size::per_seq) continue;
    const int64_t bytes = manifest_.states[i].bytes;
    std::memset(store_.state(i) + slot * bytes, 0, static_cast<size_t>(bytes));
  }
  return {};
}

Result<void> HostRuntime::set_vars(const LoweredProgram& program, std::span<const VarValue> vars) {
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

Result<void> HostRuntime::start(LoweredProgram& program) {
  program.values.evaluate(values_);
  KERN_TRY_VOID(check_inputs(manifest_, program));
  for (const PackPatch& patch : program.patches) std::memcpy(patch.at, patch.from, patch.width);
  return machine_.run(program);
}

Result<void> HostRuntime::run(std::string_view program, std::span<const VarValue> vars) {
  const auto index = names_.programs.find(program);
  if (!index) return fail(Kind::caller, "no program `{}`", program);
  LoweredProgram* lowered = programs_[*index].get();
  if (lowered == nullptr) return fail(Kind::caller, "program `{}` runs at load only", program);
  KERN_TRY_VOID(set_vars(*lowered, vars));
  return start(*lowered);
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

Result<void> HostRuntime::observe(std::string_view label, std::string_view buffer, Observer see) {
  const auto target = names_.buffers.find(buffer);
  if (!target) return fail(Kind::caller, "no buffer `{}`", buffer);
  bool found = false;
  for (size_t p = 0; p < programs_.size(); ++p) {
    if (programs_[p] == nullptr) continue;
    const std::byte* data = store_.buffer(*target, store_.places(p));
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

Result<std::unique_ptr<Runtime>> Runtime::load(const Verified& manifest,
                                               const safetensors::Catalog* weights,
                                               const Options& options, const Log& log) {
  KERN_TRY_VOID(check_device(manifest));
  if (options.threads < 1)
    return fail(Kind::caller, "{} threads, expected at least 1", options.threads);
  KERN_TRY(ranks, ranks_of(*manifest, options));
  const ModuleSearch search{options.module_dirs, options.cache_dir};
  std::vector<LoadedModule> modules;
  for (const manifest::Module& module : manifest->modules) {
    KERN_TRY(loaded, LoadedModule::load(module, search));
    modules.push_back(std::move(loaded));
  }
  KERN_TRY(layout, lay_out(manifest, options.capacity));
  KERN_TRY(store, Store::create(manifest, std::move(layout)));
  auto runtime = std::make_unique<HostRuntime>(manifest, options, std::move(ranks),
                                               std::move(modules), std::move(store));
  KERN_TRY_VOID(runtime->prepare(manifest, weights, options.weights_in_place));
  log.info("host device: {} modules, {} threads, {}; {:.1f} MiB of memory, {:.1f} MiB in place",
           manifest->modules.size(), options.threads, to_string(supported_isas().back()),
           static_cast<double>(runtime->bytes_total()) / (1 << 20),
           static_cast<double>(runtime->bytes_in_place()) / (1 << 20));
  return std::unique_ptr<Runtime>(std::move(runtime));
}

}  // namespace kern::runtime
