#include "cuda_device.h"

#include <algorithm>
#include <cstring>

#include "cuda_built_ins.h"
#include "cuda_kernels.h"
#include "cuda_run.h"
#include "cuda_tier.h"
#include "kern/base/assert.h"
#include "kern/cuda/tensormap.h"
#include "kern/cuda/vmm.h"
#include "weight_loader.h"

namespace kern::runtime {
namespace {

template <class T>
struct Holding final : Owned {
  explicit Holding(T held) : value(std::move(held)) {}
  T value;
};

template <class T>
std::unique_ptr<Owned> hold(T value) {
  return std::make_unique<Holding<T>>(std::move(value));
}

std::byte* address_of(cuda::api::Pointer pointer) {
  return reinterpret_cast<std::byte*>(pointer);
}
cuda::api::Pointer pointer_of(const std::byte* address) {
  return reinterpret_cast<cuda::api::Pointer>(address);
}

class CudaDevice final : public Device {
 public:
  CudaDevice(std::unique_ptr<const cuda::Driver> driver, cuda::Context context, cuda::Stream stream,
             CudaKernels kernels, const Options& options, const Log& log)
      : driver_(std::move(driver)),
        context_(std::move(context)),
        stream_(std::move(stream)),
        kernels_(std::move(kernels)),
        built_ins_(context_, stream_, options),
        loader_(context_, options.threads, log),
        graphs_(options.graphs_max),
        eager_(options.eager) {}

  /// Apart from the constructor, because it refers to this object's context.
  Result<void> open_side() {
    KERN_TRY(side, SideCopies::create(context_));
    side_ = std::move(side);
    KERN_TRY(taken, cuda::Event::create(context_.driver()));
    inputs_taken_ = std::move(taken);
    KERN_TRY(here, cuda::Event::create(context_.driver()));
    outputs_here_ = std::move(here);
    return {};
  }

  Result<void> enter() override { return context_.make_current(); }
  bool is_host() const override { return false; }
  std::string describe() const override {
    const double seconds = loader_.seconds();
    const double gigabytes = static_cast<double>(loader_.bytes()) * 1e-9;
    return fmt::format(
        "gpu {} ({}, sm_{}): {} modules, {} entries; {:.2f} GB of weights, {:.1f} GB/s",
        context_.info().ordinal, context_.info().name, context_.info().sm, kernels_.modules(),
        kernels_.entries(), gigabytes, seconds > 0 ? gigabytes / seconds : 0);
  }

  Result<Block> allocate(int64_t bytes, Reach reach) override;
  Result<Staged> allocate_staged(int64_t bytes, int64_t compared_bytes) override;
  Result<Block> bind(const manifest::Buffer& buffer, const WeightPlan& plan, Reach reach) override;
  Result<Block> share(const Block& own, int64_t bytes, PeerGroup* group) override;
  Result<void> copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    return stream_.copy_on_device(pointer_of(to), pointer_of(from), bytes);
  }
  Result<void> zero(std::byte* at, int64_t bytes) override {
    return stream_.fill(pointer_of(at), 0, bytes);
  }
  Result<void> read(MutableByteSpan to, const std::byte* from) override {
    return side_->read(to, pointer_of(from));
  }
  Result<void> write(std::byte* to, ByteSpan from) override {
    return side_->write(pointer_of(to), from);
  }

  Result<std::unique_ptr<TierMemory>> make_tier(int64_t bytes) override {
    return make_cuda_tier(context_, stream_, bytes);
  }

  Result<const void*> kernel(const LaunchSource& source) override {
    KERN_TRY(kernel, kernels_.find(source));
    return static_cast<const void*>(kernel);
  }
  Result<LoweredBuiltIn> built_in(const LaunchSource& source) override {
    return lower_cuda_built_in(source, &built_ins_);
  }
  Result<void> tensormap(const manifest::Tensormap& map, const std::byte* address, int64_t bytes,
                         std::byte* to) override;

  Result<void> reserve(const LoweredProgram& program) override {
    return kernels_.allow(context_, program);
  }
  Result<void> enqueue(LoweredProgram& program, std::span<const int64_t> vars) override;
  Result<void> launch(LoweredProgram& program, std::span<const int64_t> vars) override;
  Result<void> read_back(const LoweredProgram& program) override;
  Result<void> wait_inputs() override { return inputs_taken_->synchronize(); }
  Result<bool> outputs_are_here() override {
    KERN_TRY_VOID(built_ins_.collectives().look());
    return outputs_here_->is_done();
  }
  Result<void> wait_outputs() override { return built_ins_.collectives().wait(*outputs_here_); }
  Result<void> capture(LoweredProgram& program, std::span<const int64_t> vars) override;
  Result<std::vector<LaunchTime>> run_timed(LoweredProgram& program) override;
  Result<void> synchronize() override {
    KERN_TRY_VOID(loader_.flush(stream_));
    return built_ins_.collectives().synchronize();
  }
  void end_load() override { loader_.end(); }

 private:
  Result<Block> allocate_uncleared(int64_t bytes, Reach reach);
  Result<void> repeat(std::byte* to, const WeightPlan& plan);
  Result<cuda::Graph> recorded(const LoweredProgram& program);
  bool is_captured(const LoweredProgram& program) const {
    return program.graph && !eager_ && program.watches.empty();
  }
  Result<void> upload(LoweredProgram& program);
  Result<void> run_launches(LoweredProgram& program, std::span<const int64_t> vars);
  Result<std::vector<std::byte*>> map_members(const cuda::SharedMemory& own, PeerGroup& group,
                                              std::vector<cuda::SharedMemory>& mapped);

  std::unique_ptr<const cuda::Driver> driver_;  ///< null: the caller's
  cuda::Context context_;
  cuda::Stream stream_;
  std::unique_ptr<SideCopies> side_;
  std::optional<cuda::Event> inputs_taken_, outputs_here_;  ///< of the last launch, and read_back
  CudaKernels kernels_;
  CudaBuiltInRoom built_ins_;
  WeightLoader loader_;
  Staging staging_;
  GraphCache graphs_;  ///< goes before the communicators it was captured over
  std::map<const std::byte*, const cuda::SharedMemory*> shared_;  ///< by address
  bool eager_;
};

// ---- memory ----

Result<Block> CudaDevice::allocate_uncleared(int64_t bytes, Reach reach) {
  if (reach == Reach::own) {
    KERN_TRY(buffer, cuda::DeviceBuffer::allocate(context_, bytes));
    std::byte* const address = address_of(buffer.address());
    return Block{address, hold(std::move(buffer))};
  }
  KERN_TRY(memory, cuda::SharedMemory::create(context_, bytes));
  std::byte* const address = address_of(memory.address());
  auto held = std::make_unique<Holding<cuda::SharedMemory>>(std::move(memory));
  shared_[address] = &held->value;
  return Block{address, std::move(held)};
}

Result<Block> CudaDevice::allocate(int64_t bytes, Reach reach) {
  KERN_TRY(block, allocate_uncleared(bytes, reach));
  KERN_TRY_VOID(stream_.fill(pointer_of(block.address), 0, bytes));
  return block;
}

Result<Staged> CudaDevice::allocate_staged(int64_t bytes, int64_t compared_bytes) {
  KERN_TRY(host, cuda::PinnedBuffer::allocate(context_, bytes));
  KERN_TRY(device, cuda::DeviceBuffer::allocate(context_, bytes));
  KERN_TRY_VOID(stream_.fill(device.address(), 0, bytes));
  staging_ = Staging(std::move(host), std::move(device), compared_bytes);
  return Staged{staging_.host(), staging_.device(), nullptr};
}

Result<Block> CudaDevice::bind(const manifest::Buffer& buffer, const WeightPlan& plan,
                               Reach reach) {
  if (buffer.placed_on_host) {
    KERN_TRY(pinned, cuda::PinnedBuffer::allocate(context_, plan.bytes()));
    plan.copy(0, pinned.bytes());
    KERN_TRY(address, pinned.device_address());
    return Block{address_of(address), hold(std::move(pinned))};
  }
  KERN_TRY(block, allocate_uncleared(plan.bytes(), reach));
  if (plan.repeated().empty())
    loader_.add(pointer_of(block.address), plan);
  else
    KERN_TRY_VOID(repeat(block.address, plan));
  return block;
}

/// What repeats goes over the link once; then what is there is doubled.
Result<void> CudaDevice::repeat(std::byte* to, const WeightPlan& plan) {
  KERN_TRY_VOID(write(to, plan.repeated()));
  for (auto done = static_cast<int64_t>(plan.repeated().size()); done < plan.bytes();) {
    const int64_t more = std::min(done, plan.bytes() - done);
    KERN_TRY_VOID(copy(to + done, to, more));
    done += more;
  }
  return {};
}

/// The addresses of the others' memory, their descriptors gathered and mapped.
Result<std::vector<std::byte*>> CudaDevice::map_members(const cuda::SharedMemory& own,
                                                        PeerGroup& group,
                                                        std::vector<cuda::SharedMemory>& mapped) {
  const auto size = static_cast<size_t>(group.size());
  const int64_t bytes = own.bytes();
  std::vector<int64_t> all_bytes(size);
  KERN_TRY_VOID(group.all_gather(bytes_of(std::span(&bytes, 1)),
                                 std::as_writable_bytes(std::span(all_bytes))));
  KERN_TRY(mine, own.export_fd());
  KERN_TRY(descriptors, group.all_gather_descriptors(std::move(mine)));
  KERN_ASSERT(descriptors.size() == size, "{} of {}", descriptors.size(), size);
  std::vector<std::byte*> addresses;
  for (size_t member = 0; member < size; ++member) {
    if (static_cast<int>(member) == group.rank()) {
      addresses.push_back(address_of(own.address()));
      continue;
    }
    KERN_TRY(memory, with_context(cuda::SharedMemory::import(context_, descriptors[member],
                                                             all_bytes[member]),
                                  "memory of rank {}", member));
    addresses.push_back(address_of(memory.address()));
    mapped.push_back(std::move(memory));
  }
  return addresses;
}

Result<Block> CudaDevice::share(const Block& own, int64_t bytes, PeerGroup* group) {
  KERN_ASSERT(bytes >= 0, "{} bytes", bytes);
  struct Table {
    std::vector<cuda::SharedMemory> mapped;
    cuda::DeviceBuffer addresses;
  } table;
  std::vector<std::byte*> addresses{own.address};
  if (group != nullptr && group->size() > 1) {
    const auto shared = shared_.find(own.address);
    KERN_ASSERT(shared != shared_.end(), "memory that peers reach was allocated so");
    KERN_TRY(all, map_members(*shared->second, *group, table.mapped));
    addresses = std::move(all);
  }
  const auto size = static_cast<int64_t>(addresses.size() * sizeof(std::byte*));
  KERN_TRY(room, cuda::DeviceBuffer::allocate(context_, size));
  table.addresses = std::move(room);
  std::byte* const at = address_of(table.addresses.address());
  KERN_TRY_VOID(write(at, bytes_of(std::span<std::byte* const>(addresses))));
  return Block{at, hold(std::move(table))};
}

// ---- lowering ----

Result<void> CudaDevice::tensormap(const manifest::Tensormap& map, const std::byte* address,
                                   int64_t bytes, std::byte* to) {
  std::vector<int64_t> dims = map.dims;
  KERN_ASSERT(!dims.empty(), "verify has seen its dims");
  // The outermost extent may be left to what is bound.
  if (dims.back() == 0) {
    const int64_t row = map.strides.empty() ? 1 : map.strides.back();
    KERN_ASSERT(row > 0, "verify has seen its strides");
    dims.back() = bytes / row;
  }
  KERN_TRY(encoded, cuda::encode_tensormap(context_.driver(), pointer_of(address),
                                           {map.dtype, dims, map.strides, map.box, map.swizzle,
                                            map.l2_promotion, map.oob_nan}));
  std::memcpy(to, &encoded, sizeof(encoded));
  return {};
}

// ---- running ----

/// Records the launches at the present values.
Result<cuda::Graph> CudaDevice::recorded(const LoweredProgram& program) {
  KERN_TRY_VOID(stream_.begin_capture());
  const auto enqueued = enqueue_launches(stream_, program);
  auto captured = stream_.end_capture();  // also after a failure, so that the stream goes on
  KERN_TRY_VOID(enqueued);
  return captured;
}

Result<void> CudaDevice::run_launches(LoweredProgram& program, std::span<const int64_t> vars) {
  if (!is_captured(program)) return enqueue_launches(stream_, program);
  GraphCache::Key key(&program, {vars.begin(), vars.end()});
  bool wants = false;
  const cuda::Graph* graph = graphs_.find(key, wants);
  if (graph == nullptr && !wants) return enqueue_launches(stream_, program);
  if (graph == nullptr) {
    KERN_TRY(captured, recorded(program));
    graph = &graphs_.keep(std::move(key), std::move(captured));
  }
  return with_context(graph->launch(stream_), "program `{}`", program.name);
}

void apply_patches(const LoweredProgram& program) {
  for (const PackPatch& patch : program.patches) std::memcpy(patch.at, patch.from, patch.width);
}

/// Its image goes to the device too, so that the first replay costs what later ones do.
Result<void> CudaDevice::capture(LoweredProgram& program, std::span<const int64_t> vars) {
  // NCCL connects at its first use, which should not be a recording.
  if (!is_captured(program) || built_ins_.collectives().has_groups()) return {};
  GraphCache::Key key(&program, {vars.begin(), vars.end()});
  bool wants = false;
  if (graphs_.find(key, wants) != nullptr) return {};
  apply_patches(program);
  KERN_TRY(captured, recorded(program));
  return graphs_.keep(std::move(key), std::move(captured)).upload(stream_);
}

/// All that launches need beside their own code.
Result<void> CudaDevice::upload(LoweredProgram& program) {
  KERN_TRY_VOID(loader_.flush(stream_));
  apply_patches(program);
  return staging_.upload(stream_, program);
}

Result<void> CudaDevice::enqueue(LoweredProgram& program, std::span<const int64_t> vars) {
  KERN_TRY_VOID(upload(program));
  KERN_TRY_VOID(run_launches(program, vars));
  return staging_.download(stream_, program);
}

Result<void> CudaDevice::launch(LoweredProgram& program, std::span<const int64_t> vars) {
  KERN_TRY_VOID(upload(program));
  KERN_TRY_VOID(stream_.record(*inputs_taken_));
  return run_launches(program, vars);
}

Result<void> CudaDevice::read_back(const LoweredProgram& program) {
  KERN_TRY_VOID(staging_.download(stream_, program));
  return stream_.record(*outputs_here_);
}

Result<std::vector<LaunchTime>> CudaDevice::run_timed(LoweredProgram& program) {
  KERN_TRY(marks, LaunchMarks::create(context_.driver(), program));
  KERN_TRY_VOID(upload(program));
  KERN_TRY_VOID(enqueue_launches(stream_, program, &marks));
  KERN_TRY_VOID(staging_.download(stream_, program));
  KERN_TRY_VOID(built_ins_.collectives().synchronize());
  return marks.read();
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(const manifest::Verified& manifest,
                                                 const Options& options, const Log& log) {
  if (options.threads < 1)
    return fail(Kind::caller, "{} threads, expected at least 1", options.threads);
  std::unique_ptr<const cuda::Driver> own;
  if (options.driver == nullptr) {
    KERN_TRY(loaded, with_context(cuda::Driver::load(), "manifest `{}` is for the cuda device",
                                  manifest->model));
    own = std::move(loaded);
  }
  const cuda::Driver& driver = own ? *own : *options.driver;
  KERN_TRY(context, cuda::Context::open(driver, options.gpu));
  KERN_TRY(stream, cuda::Stream::create(driver));
  KERN_TRY(kernels, CudaKernels::load(manifest, options, context));
  auto device = std::make_unique<CudaDevice>(std::move(own), std::move(context), std::move(stream),
                                             std::move(kernels), options, log);
  KERN_TRY_VOID(device->open_side());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace kern::runtime
