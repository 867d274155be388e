#include "kern_test/fake_driver.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "kern/base/assert.h"

namespace kern_test {

namespace api = kern::cuda::api;
using api::Status;

namespace {

constexpr size_t kGranularity = size_t{1} << 21;
constexpr Status kIllegalState = 401;

struct FakeGraph {
  std::vector<std::function<void()>> work;
};

}  // namespace

struct FakeDriver::State {
  explicit State(FakeDriver& o) : owner(o) {}

  FakeDriver& owner;
  std::recursive_mutex mutex;
  std::vector<std::string> calls;
  std::map<std::string, std::map<int, Status>> failures;  // name -> countdown -> status
  // handles by number
  uintptr_t next = 1;
  std::map<uintptr_t, std::string> objects;  // what is live, by handle
  std::map<api::Pointer, std::unique_ptr<std::byte[]>> allocations;
  std::map<api::Pointer, size_t> allocation_bytes;
  size_t allocated = 0;
  std::map<uintptr_t, const FakeKernel*> functions;
  std::map<uintptr_t, std::string> function_names;
  std::map<uintptr_t, FakeGraph> graphs;
  std::map<uintptr_t, int> shared;  // handle -> memory file
  uintptr_t capturing = 0;          // the stream
  FakeGraph captured;
  int contexts = 0;

  Status note(const std::string& name, const std::string& detail = "") {
    calls.push_back(detail.empty() ? name : name + " " + detail);
    auto& plan = failures[name];
    std::map<int, Status> rest;
    Status status = api::kSuccess;
    for (const auto& [left, answer] : plan) {
      if (left == 1)
        status = answer;
      else
        rest[left - 1] = answer;
    }
    plan = std::move(rest);
    return status;
  }
  uintptr_t make(const std::string& what) {
    objects[next] = what;
    return next++;
  }
  Status drop(uintptr_t handle) {
    return objects.erase(handle) == 1 ? api::kSuccess : api::kInvalidValue;
  }
  // Does it now, or when the graph that is being captured is launched.
  void enqueue(api::Stream stream, std::function<void()> work) {
    if (capturing != 0 && reinterpret_cast<uintptr_t>(stream) == capturing)
      captured.work.push_back(std::move(work));
    else
      work();
  }
};

namespace {

FakeDriver* current = nullptr;

/// The state, and nobody else's until it goes: tests run devices on several threads.
class Locked {
 public:
  explicit Locked(FakeDriver::State& s) : lock_(s.mutex), state_(s) {}
  FakeDriver::State* operator->() const { return &state_; }

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  FakeDriver::State& state_;
};

Locked state() {
  KERN_ASSERT(current != nullptr, "no fake driver stands");
  return Locked(current->state());
}

template <class Handle>
uintptr_t number(Handle handle) {
  return reinterpret_cast<uintptr_t>(handle);
}
template <class Handle>
Handle handle_of(uintptr_t number) {
  return reinterpret_cast<Handle>(number);
}

#define FAKE_NOTE(...) \
  if (const Status noted = state()->note(__VA_ARGS__); noted != api::kSuccess) return noted

// ---- device and context ----

Status device_attribute(int* value, int attribute, api::Device) {
  switch (attribute) {
    case api::kCapabilityMajor:
      *value = current->sm / 10;
      break;
    case api::kCapabilityMinor:
      *value = current->sm % 10;
      break;
    case api::kMultiprocessorCount:
      *value = 132;
      break;
    case api::kSharedBytesMaxOptIn:
      *value = 232448;
      break;
    case api::kPciDomainId:
      *value = 0xFFFF;  // no device of this machine
      break;
    case api::kPosixHandles:
      *value = current->posix_handles;
      break;
    default:
      *value = 0;
  }
  return api::kSuccess;
}

void fill_device(api::Table& t) {
  t.init = [](unsigned) { return state()->note("cuInit"); };
  t.driver_get_version = [](int* version) {
    *version = 13000;
    return api::kSuccess;
  };
  t.get_error_name = [](Status status, const char** text) {
    *text = status == api::kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
    return api::kSuccess;
  };
  t.get_error_string = [](Status status, const char** text) {
    *text = status == api::kOutOfMemory ? "out of memory" : "as the test asked";
    return api::kSuccess;
  };
  t.device_get = [](api::Device* device, int ordinal) {
    *device = ordinal;
    return state()->note("cuDeviceGet", std::to_string(ordinal));
  };
  t.device_get_count = [](int* count) {
    *count = 1;
    return state()->note("cuDeviceGetCount");
  };
  t.device_get_name = [](char* name, int length, api::Device) {
    std::strncpy(name, "a device of this process", static_cast<size_t>(length) - 1);
    return api::kSuccess;
  };
  t.device_get_attribute = device_attribute;
  t.device_total_mem = [](size_t* bytes, api::Device) {
    *bytes = current->memory_bytes;
    return api::kSuccess;
  };
  t.primary_ctx_retain = [](api::Context* context, api::Device) {
    FAKE_NOTE("cuDevicePrimaryCtxRetain");
    ++state()->contexts;
    *context = handle_of<api::Context>(1);
    return api::kSuccess;
  };
  t.primary_ctx_release = [](api::Device) {
    --state()->contexts;
    return state()->note("cuDevicePrimaryCtxRelease");
  };
  t.ctx_set_current = [](api::Context) { return state()->note("cuCtxSetCurrent"); };
  t.ctx_synchronize = [] { return state()->note("cuCtxSynchronize"); };
}

// ---- streams, events, graphs ----

std::string on(api::Stream stream) {
  return "stream " + std::to_string(number(stream));
}

void fill_streams(api::Table& t) {
  t.stream_create = [](api::Stream* stream, unsigned) {
    FAKE_NOTE("cuStreamCreate");
    *stream = handle_of<api::Stream>(state()->make("stream"));
    return api::kSuccess;
  };
  t.stream_destroy = [](api::Stream stream) {
    FAKE_NOTE("cuStreamDestroy", on(stream));
    return state()->drop(number(stream));
  };
  t.stream_synchronize = [](api::Stream stream) {
    return state()->note("cuStreamSynchronize", on(stream));
  };
  t.stream_query = [](api::Stream stream) { return state()->note("cuStreamQuery", on(stream)); };
  t.stream_wait_event = [](api::Stream stream, api::Event event, unsigned) {
    return state()->note("cuStreamWaitEvent",
                         on(stream) + " event " + std::to_string(number(event)));
  };
  t.stream_begin_capture = [](api::Stream stream, unsigned) {
    FAKE_NOTE("cuStreamBeginCapture", on(stream));
    if (state()->capturing != 0) return kIllegalState;
    state()->capturing = number(stream);
    state()->captured = {};
    return api::kSuccess;
  };
  t.stream_end_capture = [](api::Stream stream, api::Graph* graph) {
    const Status noted = state()->note("cuStreamEndCapture", on(stream));
    if (state()->capturing != number(stream)) return kIllegalState;
    state()->capturing = 0;
    if (noted != api::kSuccess) return noted;
    const uintptr_t made = state()->make("graph");
    state()->graphs[made] = std::move(state()->captured);
    *graph = handle_of<api::Graph>(made);
    return api::kSuccess;
  };
  t.event_create = [](api::Event* event, unsigned) {
    FAKE_NOTE("cuEventCreate");
    *event = handle_of<api::Event>(state()->make("event"));
    return api::kSuccess;
  };
  t.event_destroy = [](api::Event event) { return state()->drop(number(event)); };
  t.event_record = [](api::Event event, api::Stream stream) {
    return state()->note("cuEventRecord",
                         "event " + std::to_string(number(event)) + " " + on(stream));
  };
  t.event_query = [](api::Event) { return state()->note("cuEventQuery"); };
  t.event_synchronize = [](api::Event event) {
    return state()->note("cuEventSynchronize", "event " + std::to_string(number(event)));
  };
  t.event_elapsed_time = [](float* milliseconds, api::Event, api::Event) {
    *milliseconds = current->milliseconds();
    return api::kSuccess;
  };
  t.graph_instantiate = [](api::GraphExec* exec, api::Graph graph, unsigned long long) {
    FAKE_NOTE("cuGraphInstantiate");
    const uintptr_t made = state()->make("graph exec");
    state()->graphs[made] = state()->graphs[number(graph)];
    *exec = handle_of<api::GraphExec>(made);
    return api::kSuccess;
  };
  t.graph_launch = [](api::GraphExec exec, api::Stream stream) {
    FAKE_NOTE("cuGraphLaunch", on(stream));
    for (const auto& work : state()->graphs[number(exec)].work) work();
    return api::kSuccess;
  };
  t.graph_upload = [](api::GraphExec, api::Stream) { return state()->note("cuGraphUpload"); };
  t.graph_destroy = [](api::Graph graph) { return state()->drop(number(graph)); };
  t.graph_exec_destroy = [](api::GraphExec exec) { return state()->drop(number(exec)); };
}

// ---- memory ----

template <class T>
T* at(api::Pointer address) {
  return reinterpret_cast<T*>(address);
}

Status allocate(api::Pointer* address, size_t bytes) {
  FAKE_NOTE("cuMemAlloc", std::to_string(bytes));
  const Locked s = state();
  if (s->allocated + bytes > current->memory_bytes) return api::kOutOfMemory;
  auto memory = std::make_unique<std::byte[]>(bytes + 256);
  // Poison: a device's fresh memory is not zero.
  std::memset(memory.get(), 0xA5, bytes + 256);
  *address = (reinterpret_cast<api::Pointer>(memory.get()) + 255) / 256 * 256;
  s->allocations[*address] = std::move(memory);
  s->allocation_bytes[*address] = bytes;
  s->allocated += bytes;
  return api::kSuccess;
}

Status release(api::Pointer address) {
  const Locked s = state();
  const auto found = s->allocation_bytes.find(address);
  if (found == s->allocation_bytes.end()) return api::kInvalidValue;
  FAKE_NOTE("cuMemFree", std::to_string(found->second));
  s->allocated -= found->second;
  s->allocation_bytes.erase(found);
  s->allocations.erase(address);
  return api::kSuccess;
}

std::string bytes_on(size_t bytes, api::Stream stream) {
  return std::to_string(bytes) + " " + on(stream);
}

void fill_memory(api::Table& t) {
  t.mem_get_info = [](size_t* free, size_t* total) {
    *total = current->memory_bytes;
    *free = *total - state()->allocated;
    return api::kSuccess;
  };
  t.mem_alloc = allocate;
  t.mem_free = release;
  t.mem_host_register = [](void* data, size_t bytes, unsigned) {
    FAKE_NOTE("cuMemHostRegister", std::to_string(bytes));
    state()->objects[number(data)] = "pinned memory";
    return api::kSuccess;
  };
  t.mem_host_unregister = [](void* data) {
    FAKE_NOTE("cuMemHostUnregister");
    return state()->drop(number(data));
  };
  t.mem_host_get_device_pointer = [](api::Pointer* address, void* data, unsigned) {
    *address = number(data);
    return api::kSuccess;
  };
  t.memcpy_h_to_d_async = [](api::Pointer to, const void* from, size_t bytes, api::Stream stream) {
    FAKE_NOTE("cuMemcpyHtoDAsync", bytes_on(bytes, stream));
    state()->enqueue(stream, [=] { std::memmove(at<void>(to), from, bytes); });
    return api::kSuccess;
  };
  t.memcpy_d_to_h_async = [](void* to, api::Pointer from, size_t bytes, api::Stream stream) {
    FAKE_NOTE("cuMemcpyDtoHAsync", bytes_on(bytes, stream));
    state()->enqueue(stream, [=] { std::memmove(to, at<void>(from), bytes); });
    return api::kSuccess;
  };
  t.memcpy_d_to_d_async = [](api::Pointer to, api::Pointer from, size_t bytes, api::Stream stream) {
    FAKE_NOTE("cuMemcpyDtoDAsync", bytes_on(bytes, stream));
    state()->enqueue(stream, [=] { std::memmove(at<void>(to), at<void>(from), bytes); });
    return api::kSuccess;
  };
  t.memcpy_2d_async = [](const api::RowsCopy* rows, api::Stream stream) {
    const bool to_host = rows->to.memory == api::kMemoryHost;
    FAKE_NOTE("cuMemcpy2DAsync", (to_host ? "to host " : "to device ") +
                                     std::to_string(rows->row_bytes) + " x " +
                                     std::to_string(rows->rows) + " " + on(stream));
    if (rows->from.pitch < rows->row_bytes || rows->to.pitch < rows->row_bytes)
      return api::kInvalidValue;
    const auto base = [](const api::RowsPlace& place) {
      auto* const start = place.memory == api::kMemoryHost ? static_cast<char*>(place.host)
                                                           : at<char>(place.device);
      return start + place.y * place.pitch + place.x_bytes;
    };
    state()->enqueue(stream, [copy = *rows, base] {
      for (size_t row = 0; row < copy.rows; ++row)
        std::memmove(base(copy.to) + row * copy.to.pitch, base(copy.from) + row * copy.from.pitch,
                     copy.row_bytes);
    });
    return api::kSuccess;
  };
  t.memset_d8_async = [](api::Pointer to, unsigned char value, size_t bytes, api::Stream stream) {
    FAKE_NOTE("cuMemsetD8Async", bytes_on(bytes, stream));
    state()->enqueue(stream, [=] { std::memset(at<void>(to), value, bytes); });
    return api::kSuccess;
  };
}

void fill_vmm(api::Table& t) {
  t.mem_get_allocation_granularity = [](size_t* bytes, const api::AllocationProperties*, int) {
    *bytes = kGranularity;
    return api::kSuccess;
  };
  t.mem_create = [](api::MemoryHandle* handle, size_t bytes, const api::AllocationProperties* of,
                    unsigned long long) {
    FAKE_NOTE("cuMemCreate", std::to_string(bytes));
    if (bytes % kGranularity != 0 || of->location.type != api::kLocationDevice)
      return api::kInvalidValue;
    const int fd = ::memfd_create("fake device memory", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return api::kOutOfMemory;
    *handle = state()->make("shared memory");
    state()->shared[*handle] = fd;
    return api::kSuccess;
  };
  t.mem_release = [](api::MemoryHandle handle) {
    FAKE_NOTE("cuMemRelease");
    ::close(state()->shared[handle]);
    state()->shared.erase(handle);
    return state()->drop(handle);
  };
  t.mem_address_reserve = [](api::Pointer* address, size_t bytes, size_t, api::Pointer,
                             unsigned long long) {
    FAKE_NOTE("cuMemAddressReserve", std::to_string(bytes));
    void* place = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *address = number(place);
    state()->objects[*address] = "address range";
    return api::kSuccess;
  };
  t.mem_address_free = [](api::Pointer address, size_t bytes) {
    FAKE_NOTE("cuMemAddressFree");
    ::munmap(at<void>(address), bytes);
    return state()->drop(address);
  };
  t.mem_map = [](api::Pointer address, size_t bytes, size_t offset, api::MemoryHandle handle,
                 unsigned long long) {
    FAKE_NOTE("cuMemMap", std::to_string(bytes));
    const int fd = state()->shared[handle];
    void* place = ::mmap(at<void>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd,
                         static_cast<off_t>(offset));
    return place == MAP_FAILED ? api::kInvalidValue : api::kSuccess;
  };
  t.mem_unmap = [](api::Pointer address, size_t bytes) {
    FAKE_NOTE("cuMemUnmap");
    ::mmap(at<void>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return api::kSuccess;
  };
  t.mem_set_access = [](api::Pointer address, size_t bytes, const api::AccessDescription* access,
                        size_t) {
    FAKE_NOTE("cuMemSetAccess");
    if (access->flags != api::kAccessReadWrite) return api::kInvalidValue;
    ::mprotect(at<void>(address), bytes, PROT_READ | PROT_WRITE);
    return api::kSuccess;
  };
  t.mem_export = [](void* handle, api::MemoryHandle memory, int type, unsigned long long) {
    FAKE_NOTE("cuMemExportToShareableHandle");
    if (type != api::kHandlePosixFd) return api::kInvalidValue;
    *static_cast<int*>(handle) = ::dup(state()->shared[memory]);
    return api::kSuccess;
  };
  t.mem_import = [](api::MemoryHandle* memory, void* handle, int type) {
    FAKE_NOTE("cuMemImportFromShareableHandle");
    if (type != api::kHandlePosixFd) return api::kInvalidValue;
    *memory = state()->make("shared memory");
    state()->shared[*memory] = ::dup(static_cast<int>(number(handle)));
    return api::kSuccess;
  };
}

// ---- code ----

std::string three(const unsigned (&of)[3]) {
  return std::to_string(of[0]) + "," + std::to_string(of[1]) + "," + std::to_string(of[2]);
}

std::string describe(const api::LaunchConfig& config, const std::string& name) {
  std::string text = name + " grid " + three(config.grid) + " block " + three(config.block);
  if (config.shared_bytes != 0) text += " shared " + std::to_string(config.shared_bytes);
  for (unsigned i = 0; i < config.attribute_count; ++i) {
    const api::LaunchAttribute& attribute = config.attributes[i];
    if (attribute.id == api::kClusterDimension)
      text += " cluster " + three(attribute.value.cluster);
    if (attribute.id == api::kProgrammaticSerialization) text += " pdl";
    if (attribute.id == api::kCooperative) text += " cooperative";
  }
  return text + " " + on(config.stream);
}

Status launch(const api::LaunchConfig* config, api::Function function, void** params, void**) {
  const Locked s = state();
  FAKE_NOTE("cuLaunchKernelEx", describe(*config, s->function_names[number(function)]));
  for (int axis = 0; axis < 3; ++axis)
    if (config->grid[axis] == 0 || config->block[axis] == 0) return api::kInvalidValue;
  const FakeKernel* kernel = s->functions[number(function)];
  // A launch reads its arguments now, whenever it runs.
  struct Held {
    std::vector<std::vector<std::byte>> values;
    std::vector<void*> pointers;
  };
  auto held = std::make_shared<Held>();
  for (size_t i = 0; i < kernel->param_bytes.size(); ++i) {
    const auto* from = static_cast<const std::byte*>(params[i]);
    held->values.emplace_back(from, from + kernel->param_bytes[i]);
  }
  for (auto& value : held->values) held->pointers.push_back(value.data());
  s->enqueue(config->stream, [held, kernel, shape = *config] {
    api::LaunchConfig bare = shape;
    bare.attributes = nullptr;
    bare.attribute_count = 0;
    kernel->run(bare, held->pointers.data());
  });
  return api::kSuccess;
}

Status param_info(api::Function function, size_t index, size_t* offset, size_t* bytes) {
  const FakeKernel* kernel = state()->functions[number(function)];
  if (index >= kernel->param_bytes.size()) return api::kInvalidValue;
  size_t place = 0;
  for (size_t i = 0;; ++i) {
    const size_t size = kernel->param_bytes[i];
    const size_t alignment = size >= 8 ? 8 : size;
    place = (place + alignment - 1) / alignment * alignment;
    if (i == index) {
      *offset = place;
      *bytes = size;
      return api::kSuccess;
    }
    place += size;
  }
}

void fill_code(api::Table& t) {
  t.module_load_data = [](api::Module* module, const void*) {
    FAKE_NOTE("cuModuleLoadData");
    *module = handle_of<api::Module>(state()->make("module"));
    return api::kSuccess;
  };
  t.module_unload = [](api::Module module) { return state()->drop(number(module)); };
  t.module_get_function = [](api::Function* function, api::Module, const char* name) {
    FAKE_NOTE("cuModuleGetFunction", name);
    const auto kernel = current->kernels.find(name);
    if (kernel == current->kernels.end()) return api::kNotFound;
    const uintptr_t made = state()->next++;
    state()->functions[made] = &kernel->second;
    state()->function_names[made] = name;
    *function = handle_of<api::Function>(made);
    return api::kSuccess;
  };
  t.module_get_global = [](api::Pointer*, size_t*, api::Module, const char*) {
    return api::kNotFound;
  };
  t.func_get_attribute = [](int* value, int attribute, api::Function) {
    *value = attribute == api::kMaxThreads ? 1024 : attribute == api::kBinaryVersion ? 90 : 0;
    return api::kSuccess;
  };
  t.func_set_attribute = [](api::Function function, int attribute, int value) {
    return state()->note("cuFuncSetAttribute", state()->function_names[number(function)] + " " +
                                                   std::to_string(attribute) + " = " +
                                                   std::to_string(value));
  };
  t.func_get_param_info = param_info;
  t.launch_kernel_ex = launch;
  t.tensor_map_encode_tiled = [](api::TensorMap* map, int dtype, uint32_t rank, void* address,
                                 const uint64_t* dims, const uint64_t* strides, const uint32_t* box,
                                 const uint32_t*, int, int swizzle, int l2, int oob) {
    FAKE_NOTE("cuTensorMapEncodeTiled");
    // What a test may read back: the first words are the address and the outermost extent.
    *map = {};
    map->opaque[0] = number(address);
    map->opaque[1] = dims[rank - 1];
    map->opaque[2] = rank > 1 ? strides[rank - 2] : 0;
    map->opaque[3] = box[0];
    map->opaque[4] = static_cast<uint64_t>(dtype * 1000 + swizzle * 100 + l2 * 10 + oob);
    return api::kSuccess;
  };
}

}  // namespace

FakeDriver::FakeDriver() : state_(std::make_unique<State>(*this)) {
  KERN_ASSERT(current == nullptr, "one fake driver at a time");
  current = this;
  api::Table table{};
  fill_device(table);
  fill_streams(table);
  fill_memory(table);
  fill_vmm(table);
  fill_code(table);
  driver_ = std::make_unique<const kern::cuda::Driver>(table);
}

FakeDriver::~FakeDriver() {
  current = nullptr;
}

std::vector<std::string> FakeDriver::take_calls() {
  return std::exchange(state_->calls, {});
}

std::vector<std::string> FakeDriver::calls_of(const std::string& name) const {
  std::vector<std::string> out;
  for (const std::string& call : state_->calls)
    if (call.starts_with(name)) out.push_back(call);
  return out;
}

void FakeDriver::fail(const std::string& name, Status status, int nth) {
  state_->failures[name][nth] = status;
}

Status FakeDriver::note(const std::string& name, const std::string& detail) {
  return Locked(*state_)->note(name, detail);
}

std::vector<std::string> FakeDriver::live() const {
  std::vector<std::string> out;
  for (const auto& [handle, what] : state_->objects) out.push_back(what);
  for (const auto& [address, bytes] : state_->allocation_bytes)
    out.push_back("memory " + std::to_string(bytes));
  if (state_->contexts != 0) out.push_back("context");
  return out;
}

std::string fake_cubin(const std::string& code) {
  const std::string names = std::string(1, '\0') + ".text.k" + '\0' + ".shstrtab" + '\0';
  Elf64_Ehdr header = {};
  Elf64_Shdr sections[3] = {};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_OSABI] = 0x41;
  header.e_machine = 190;
  header.e_flags = 90 << 8;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shstrndx = 2;
  header.e_shoff = sizeof(header);
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_PROGBITS;
  sections[1].sh_flags = SHF_ALLOC | SHF_EXECINSTR;
  sections[1].sh_offset = sizeof(header) + sizeof(sections);
  sections[1].sh_size = code.size();
  sections[2].sh_name = 9;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = sections[1].sh_offset + code.size();
  sections[2].sh_size = names.size();
  std::string out(reinterpret_cast<const char*>(&header), sizeof(header));
  out.append(reinterpret_cast<const char*>(sections), sizeof(sections));
  return out + code + names;
}

}  // namespace kern_test
