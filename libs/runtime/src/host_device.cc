#include "host_device.h"

#include <cstring>

#include "built_ins.h"
#include "kern/base/assert.h"
#include "machine.h"
#include "memory.h"
#include "modules.h"

namespace kern::runtime {
namespace {

struct OwnedMemory final : Owned {
  explicit OwnedMemory(Memory m) : memory(std::move(m)) {}
  Memory memory;
};

/// Copies at once, in the order of the calls.
class MemcpyTier final : public TierMemory {
 public:
  explicit MemcpyTier(Memory memory) : memory_(std::move(memory)) {}

  std::byte* data() const override { return memory_.data(); }
  std::string describe() const override { return "beside the states"; }
  Result<uint64_t> start(std::span<const TierCopy> copies) override {
    for (const TierCopy& copy : copies)
      for (int64_t row = 0; row < copy.rows; ++row) {
        std::byte* const device = copy.device + row * copy.device_pitch;
        std::byte* const host = copy.host + row * copy.host_pitch;
        std::memcpy(copy.to_host ? host : device, copy.to_host ? device : host,
                    static_cast<size_t>(copy.row_bytes));
      }
    return ++started_;
  }
  Result<void> await(uint64_t ticket) override {
    KERN_ASSERT(ticket <= started_, "ticket {} of {}", ticket, started_);
    return {};
  }
  Result<uint64_t> done() override { return started_; }
  Result<void> settle() override { return {}; }

 private:
  Memory memory_;
  uint64_t started_ = 0;
};

class HostDevice final : public Device {
 public:
  HostDevice(std::vector<LoadedModule> modules, int threads, bool in_place)
      : modules_(std::move(modules)), in_place_(in_place), machine_(threads) {}

  Result<void> enter() override { return {}; }
  std::string describe() const override {
    return fmt::format("host device: {} modules, {} threads, {}; {:.1f} MiB of weights in place",
                       modules_.size(), machine_.threads(), to_string(machine_.isa()),
                       static_cast<double>(in_place_bytes_) / (1 << 20));
  }
  bool is_host() const override { return true; }

  Result<Block> allocate(int64_t bytes, Reach) override {
    KERN_TRY(memory, Memory::zeroed(bytes));
    std::byte* const address = memory.data();
    return Block{address, std::make_unique<OwnedMemory>(std::move(memory))};
  }
  Result<Staged> allocate_staged(int64_t bytes, int64_t) override {
    KERN_TRY(block, allocate(bytes, Reach::own));
    return Staged{block.address, block.address, std::move(block.owner)};
  }
  Result<Block> bind(const manifest::Buffer& buffer, const WeightPlan& plan, Reach) override;
  Result<Block> share(const Block& own, int64_t, PeerGroup* group) override;
  Result<void> copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memmove(to, from, static_cast<size_t>(bytes));
    return {};
  }
  Result<void> zero(std::byte* at, int64_t bytes) override {
    std::memset(at, 0, static_cast<size_t>(bytes));
    return {};
  }
  Result<void> read(MutableByteSpan to, const std::byte* from) override {
    std::memcpy(to.data(), from, to.size());
    return {};
  }
  Result<void> write(std::byte* to, ByteSpan from) override {
    std::memcpy(to, from.data(), from.size());
    return {};
  }

  Result<std::unique_ptr<TierMemory>> make_tier(int64_t bytes) override {
    KERN_TRY(memory, Memory::zeroed(bytes));
    return std::unique_ptr<TierMemory>(std::make_unique<MemcpyTier>(std::move(memory)));
  }

  Result<const void*> kernel(const LaunchSource& source) override {
    KERN_TRY(entry, modules_[source.module].find(source.launch.entry));
    return reinterpret_cast<const void*>(entry);
  }
  Result<LoweredBuiltIn> built_in(const LaunchSource& source) override {
    return lower_host_built_in(source, &machine_);
  }
  Result<void> tensormap(const manifest::Tensormap&, const std::byte*, int64_t,
                         std::byte*) override {
    return fail(Kind::manifest, "a tensormap needs the cuda device");
  }

  Result<void> reserve(const LoweredProgram& program) override {
    return machine_.reserve(program.shared_bytes_max, program.collective_bytes_max);
  }
  Result<void> enqueue(LoweredProgram& program, std::span<const int64_t>) override {
    for (const PackPatch& patch : program.patches) std::memcpy(patch.at, patch.from, patch.width);
    return machine_.run(program);
  }
  Result<void> launch(LoweredProgram& program, std::span<const int64_t> vars) override {
    return enqueue(program, vars);
  }
  Result<void> read_back(const LoweredProgram&) override { return {}; }
  Result<void> wait_inputs() override { return {}; }
  Result<bool> outputs_are_here() override { return true; }
  Result<void> wait_outputs() override { return {}; }
  Result<void> capture(LoweredProgram&, std::span<const int64_t>) override { return {}; }
  Result<std::vector<LaunchTime>> run_timed(LoweredProgram& program) override {
    for (const PackPatch& patch : program.patches) std::memcpy(patch.at, patch.from, patch.width);
    std::vector<LaunchTime> times;
    KERN_TRY_VOID(machine_.run(program, &times));
    return times;
  }
  Result<void> synchronize() override { return {}; }

 private:
  std::vector<LoadedModule> modules_;
  bool in_place_;
  int64_t in_place_bytes_ = 0;
  Machine machine_;
};

Result<Block> HostDevice::bind(const manifest::Buffer& buffer, const WeightPlan& plan, Reach) {
  if (const std::byte* mapped = in_place_ ? plan.in_place() : nullptr; mapped != nullptr) {
    if (buffer.kind == manifest::BufferKind::weight) in_place_bytes_ += plan.bytes();
    // Weights are read-only by the manifest's own rules, which verify has proved.
    return Block{const_cast<std::byte*>(mapped), nullptr};
  }
  KERN_TRY(block, allocate(plan.bytes(), Reach::own));
  plan.copy(0, {block.address, static_cast<size_t>(plan.bytes())});
  return block;
}

/// A group of one rank: the only member's address is its own.
Result<Block> HostDevice::share(const Block& own, int64_t, PeerGroup* group) {
  KERN_ASSERT(group == nullptr || group->size() == 1, "refused by the layout");
  KERN_TRY(table, allocate(sizeof(own.address), Reach::own));
  std::memcpy(table.address, &own.address, sizeof(own.address));
  return table;
}

}  // namespace

Result<std::unique_ptr<Device>> make_host_device(const manifest::Verified& manifest,
                                                 const Options& options) {
  if (options.threads < 1)
    return fail(Kind::caller, "{} threads, expected at least 1", options.threads);
  const ModuleSearch search{options.module_dirs, options.cache_dir};
  std::vector<LoadedModule> modules;
  for (const manifest::Module& module : manifest->modules) {
    KERN_TRY(loaded, LoadedModule::load(module, search));
    modules.push_back(std::move(loaded));
  }
  return std::unique_ptr<Device>(
      std::make_unique<HostDevice>(std::move(modules), options.threads, options.weights_in_place));
}

}  // namespace kern::runtime
