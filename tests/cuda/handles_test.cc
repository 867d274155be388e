// Owning handles: what they enqueue, and that they give back what they took, also half-way.
#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>

#include "kern/cuda/graph.h"
#include "kern/cuda/launch.h"
#include "kern/cuda/memory.h"
#include "kern/cuda/tensormap.h"
#include "kern/cuda/vmm.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using kern_test::FakeDriver;
namespace api = cuda::api;

namespace {

/// A fake device, its context and a stream.
struct Device {
  Device()
      : context(*cuda::Context::open(fake.driver(), 0)),
        stream(*cuda::Stream::create(fake.driver())) {
    fake.take_calls();
  }
  FakeDriver fake;
  cuda::Context context;
  cuda::Stream stream;
};

template <class T>
std::string sentence(const Result<T>& result) {
  return result ? "" : result.error().text();
}

/// y[i] = a * x[i] on one block.
kern_test::FakeKernel scale() {
  return {{8, 8, 4, 4}, [](const api::LaunchConfig&, void* const* params) {
            const auto* x = *static_cast<const float* const*>(params[0]);
            auto* y = *static_cast<float* const*>(params[1]);
            const float a = *static_cast<const float*>(params[2]);
            const int n = *static_cast<const int*>(params[3]);
            for (int i = 0; i < n; ++i) y[i] = a * x[i];
          }};
}

}  // namespace

TEST_CASE("a launch carries its shape, its attributes and its arguments", "[cuda][launch]") {
  Device d;
  d.fake.kernels["scale"] = scale();
  const auto module = cuda::Module::load(d.context, as_bytes(kern_test::fake_cubin()));
  REQUIRE(module);
  const auto function = module->find("scale");
  REQUIRE(function);
  CHECK(function->params == std::vector<cuda::ParamPlace>{{0, 8}, {8, 8}, {16, 4}, {20, 4}});
  CHECK(sentence(module->find("other")) == "no entry `other`");

  const auto x = cuda::DeviceBuffer::allocate(d.context, 16);
  const auto y = cuda::DeviceBuffer::allocate(d.context, 16);
  REQUIRE((x && y));
  const float values[4] = {1, 2, 3, 4};
  float out[4] = {};
  REQUIRE(d.stream.copy_to_device(x->address(), std::as_bytes(std::span(values))));
  api::Pointer from = x->address(), to = y->address();
  float a = 2;
  int n = 4;
  void* params[] = {&from, &to, &a, &n};
  cuda::LaunchShape shape;
  shape.grid = {2, 1, 1};
  shape.block = {32, 1, 1};
  shape.cluster = {2, 1, 1};
  shape.shared_bytes = 64;
  shape.pdl = true;
  d.fake.take_calls();
  REQUIRE(cuda::launch(d.stream, *function, shape, params));
  CHECK(d.fake.take_calls() ==
        std::vector<std::string>{"cuLaunchKernelEx scale grid 2,1,1 block 32,1,1 shared 64 cluster "
                                 "2,1,1 pdl stream 1"});
  REQUIRE(d.stream.copy_to_host(std::as_writable_bytes(std::span(out)), y->address()));
  REQUIRE(d.stream.synchronize());
  CHECK(out[3] == 8);
}

TEST_CASE("shared memory beyond the default is asked for, beyond the device's refused",
          "[cuda][launch]") {
  Device d;
  d.fake.kernels["scale"] = scale();
  const auto module = cuda::Module::load(d.context, as_bytes(kern_test::fake_cubin()));
  const auto function = module->find("scale");
  d.fake.take_calls();
  CHECK(cuda::allow(d.context, *function, 1024, {1, 1, 1}));
  CHECK(d.fake.take_calls().empty());
  CHECK(cuda::allow(d.context, *function, 200 * 1024, {16, 1, 1}));
  CHECK(d.fake.take_calls() == std::vector<std::string>{"cuFuncSetAttribute scale 8 = 204800",
                                                        "cuFuncSetAttribute scale 14 = 1"});
  CHECK(sentence(cuda::allow(d.context, *function, 300 * 1024, {1, 1, 1})) ==
        "entry `scale` asks for 307200 bytes of shared memory a block, device 0 has 232448 beside "
        "its 0 static ones");
}

TEST_CASE("a captured graph does its work when it is launched, each time", "[cuda][graph]") {
  Device d;
  const auto memory = cuda::DeviceBuffer::allocate(d.context, 8);
  REQUIRE(memory);
  const auto* bytes = reinterpret_cast<const uint8_t*>(memory->address());
  REQUIRE(d.stream.fill(memory->address(), 1, 8));
  REQUIRE(d.stream.begin_capture());
  REQUIRE(d.stream.fill(memory->address(), 7, 8));
  const auto graph = d.stream.end_capture();
  REQUIRE(graph);
  CHECK(bytes[3] == 1);
  REQUIRE(graph->launch(d.stream));
  CHECK(bytes[3] == 7);
  REQUIRE(d.stream.fill(memory->address(), 2, 8));
  REQUIRE(graph->launch(d.stream));
  CHECK(bytes[3] == 7);
}

TEST_CASE("what was taken is given back, whichever call fails", "[cuda][unwind]") {
  const auto live_after = [](const std::string& name, int nth) {
    Device d;
    {
      d.fake.fail(name, 999, nth);
      const auto stream = cuda::Stream::create(d.fake.driver());
      const auto event = cuda::Event::create(d.fake.driver());
      const auto memory = cuda::DeviceBuffer::allocate(d.context, 64);
      const auto pinned = cuda::PinnedBuffer::allocate(d.context, 64);
      const auto shared = cuda::SharedMemory::create(d.context, 100);
      if (shared) {
        const auto fd = shared->export_fd();
        if (fd) CHECK((cuda::SharedMemory::import(d.context, *fd, 100) || true));
      }
      if (stream && stream->begin_capture()) CHECK((stream->end_capture() || true));
      const auto module = cuda::Module::load(d.context, as_bytes(kern_test::fake_cubin()));
    }
    return d.fake.live();
  };
  // The device's own stream and context are all that stands.
  const std::vector<std::string> own = {"stream", "context"};
  CHECK(live_after("none", 1) == own);
  for (const char* name :
       {"cuStreamCreate", "cuEventCreate", "cuMemAlloc", "cuMemHostRegister", "cuMemCreate",
        "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemImportFromShareableHandle",
        "cuStreamEndCapture", "cuGraphInstantiate", "cuModuleLoadData"})
    for (const int nth : {1, 2}) {
      INFO(name << " " << nth);
      CHECK(live_after(name, nth) == own);
    }
}

TEST_CASE("an allocation that does not fit says how much was asked and how much is free",
          "[cuda][memory]") {
  Device d;
  d.fake.memory_bytes = 4096;
  const auto memory = cuda::DeviceBuffer::allocate(d.context, 1000);
  CHECK(sentence(cuda::DeviceBuffer::allocate(d.context, 5000)) ==
        "5000 bytes of device memory, 3096 are free: cuMemAlloc: out of memory "
        "(CUDA_ERROR_OUT_OF_MEMORY, 2)");
}

TEST_CASE("pinned memory is zeroed, and the device sees it", "[cuda][memory]") {
  Device d;
  const auto pinned = cuda::PinnedBuffer::allocate(d.context, 5000);
  REQUIRE(pinned);
  CHECK(pinned->bytes().size() == 5000);
  CHECK(pinned->bytes()[4999] == std::byte{0});
  CHECK(pinned->node() == -1);
  CHECK(pinned->device_address());
  CHECK(d.fake.calls_of("cuMemHostRegister") == std::vector<std::string>{"cuMemHostRegister 8192"});
}

TEST_CASE("large pinned memory begins where a large page does, and is given back whole",
          "[cuda][memory]") {
  Device d;
  for (const int64_t bytes : {int64_t{2} << 20, (int64_t{5} << 20) + 1}) {
    auto pinned = cuda::PinnedBuffer::allocate(d.context, bytes);
    REQUIRE(pinned);
    CHECK(reinterpret_cast<uintptr_t>(pinned->data()) % (size_t{2} << 20) == 0);
    CHECK(pinned->bytes()[static_cast<size_t>(bytes) - 1] == std::byte{0});
    std::byte* const begin = pinned->data();
    *pinned = cuda::PinnedBuffer();
    unsigned char resident = 0;
    CHECK(::mincore(begin, 1, &resident) == -1);  // nothing is mapped there
  }
}

TEST_CASE("memory exported by descriptor is the same memory where it is imported", "[cuda][vmm]") {
  Device d;
  const auto own = cuda::SharedMemory::create(d.context, 100);
  REQUIRE(own);
  CHECK(own->mapped_bytes() == 2 << 20);
  const auto fd = own->export_fd();
  REQUIRE(fd);
  const auto other = cuda::SharedMemory::import(d.context, *fd, 100);
  REQUIRE(other);
  CHECK(own->address() != other->address());
  REQUIRE(d.stream.fill(own->address(), 0x5C, 100));
  CHECK(reinterpret_cast<const uint8_t*>(other->address())[99] == 0x5C);
}

TEST_CASE("a device that exports no descriptors says so", "[cuda][vmm]") {
  FakeDriver fake;
  fake.posix_handles = false;
  const auto context = cuda::Context::open(fake.driver(), 0);
  CHECK(sentence(cuda::SharedMemory::create(*context, 100)) ==
        "device 0 (a device of this process) shares no memory by file descriptor");
  CHECK(sentence(cuda::SharedMemory::create(*context, 100, cuda::Share::fabric)) ==
        "device 0 (a device of this process) shares no memory by fabric handle");
}

TEST_CASE("a tensormap's words become the driver's numbers, and a refusal tells the whole shape",
          "[cuda][tensormap]") {
  Device d;
  const int64_t dims[] = {64, 128}, strides[] = {256}, box[] = {64, 8};
  cuda::TensormapShape shape{"bf16", dims, strides, box, 128, 256, true};
  const auto map = cuda::encode_tensormap(d.fake.driver(), 0x1000, shape);
  REQUIRE(map);
  CHECK(map->opaque[0] == 0x1000);
  CHECK(map->opaque[1] == 128);
  CHECK(map->opaque[4] == 9331);
  d.fake.fail("cuTensorMapEncodeTiled", 1);
  const auto refused = cuda::encode_tensormap(d.fake.driver(), 0x1000, shape);
  REQUIRE(!refused);
  CHECK(refused.error().kind == Kind::manifest);
  CHECK(refused.error().message ==
        "the driver refuses a tensormap of `bf16` at 0x1000: dims [64, 128], strides [256], box "
        "[64, 8], swizzle 128: cuTensorMapEncodeTiled: as the test asked (CUDA_ERROR_FAKE, 1)");
}
