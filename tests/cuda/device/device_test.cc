// libs/cuda on a real device. The cubins of probe.cu and multicast.cu lie beside the program.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "kern/base/file.h"
#include "kern/base/sha256.h"
#include "kern/cuda/graph.h"
#include "kern/cuda/launch.h"
#include "kern/cuda/memory.h"
#include "kern/cuda/tensormap.h"
#include "kern/cuda/vmm.h"

using namespace kern;
namespace api = cuda::api;

namespace {

std::string beside(const std::string& name) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const auto bytes = read_file(self.parent_path() / name, size_t{1} << 30);
  if (!bytes) FAIL(bytes.error().text());
  return *bytes;
}

template <class T>
T good(Result<T> result) {
  if (!result) FAIL(result.error().text());
  return std::move(*result);
}
void good(const Result<void>& result) {
  if (!result) FAIL(result.error().text());
}

/// The driver and device 0, one for all cases.
struct Machine {
  Machine()
      : driver(good(cuda::Driver::load())),
        context(good(cuda::Context::open(*driver, 0))),
        stream(good(cuda::Stream::create(*driver))),
        module(good(cuda::Module::load(context, as_bytes(beside("probe.cubin"))))) {}

  cuda::DeviceBuffer room(int64_t bytes) {
    auto buffer = good(cuda::DeviceBuffer::allocate(context, bytes));
    good(stream.fill(buffer.address(), 0xA5, bytes));
    return buffer;
  }
  template <class T>
  std::vector<T> read(api::Pointer from, size_t count) {
    std::vector<T> out(count);
    good(stream.copy_to_host(std::as_writable_bytes(std::span(out)), from));
    good(stream.synchronize());
    return out;
  }

  std::unique_ptr<const cuda::Driver> driver;
  cuda::Context context;
  cuda::Stream stream;
  cuda::Module module;
};

Machine& machine() {
  static Machine one;
  return one;
}

}  // namespace

TEST_CASE("the device says what it is", "[gpu]") {
  const cuda::DeviceInfo& info = machine().context.info();
  WARN(fmt::format(
      "{} sm_{} {} SMs, {:.1f} GiB, {} bytes shared, pci {}, node {}, posix {}, fabric {}",
      info.name, info.sm, info.multiprocessors, static_cast<double>(info.memory_bytes) / (1 << 30),
      info.shared_bytes_max, info.pci, info.numa_node, info.posix_handles, info.fabric_handles));
  CHECK(info.sm >= 90);
  CHECK(good(machine().context.free_bytes()) > 0);
}

TEST_CASE("a kernel out of a cubin, a fatbin and a host library gives the same", "[gpu]") {
  Machine& m = machine();
  for (const char* name : {"probe.cubin", "probe.fatbin", "probe.so"}) {
    INFO(name);
    const auto module = good(cuda::Module::load(m.context, as_bytes(beside(name))));
    const auto function = good(module.find("probe_scale"));
    CHECK(function.params == std::vector<cuda::ParamPlace>{{0, 8}, {8, 8}, {16, 4}, {20, 4}});
    CHECK(function.binary_sm == 90);
    std::vector<float> x(1000);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    auto from = m.room(4000), to = m.room(4000);
    good(m.stream.copy_to_device(from.address(), std::as_bytes(std::span(x))));
    api::Pointer a = from.address(), b = to.address();
    float scale = 3;
    int n = 1000;
    void* params[] = {&a, &b, &scale, &n};
    good(cuda::launch(m.stream, function, {{8, 1, 1}, {128, 1, 1}}, params));
    const auto y = m.read<float>(to.address(), 1000);
    CHECK(y[0] == 0);
    CHECK(y[999] == 2997);
  }
  CHECK(!cuda::Module::load(m.context, as_bytes("no code at all, but some text")));
  CHECK(!m.module.find("probe_nothing"));
}

TEST_CASE("a pack passes by its bytes, and its place is known", "[gpu]") {
  Machine& m = machine();
  const auto function = good(m.module.find("probe_pack"));
  CHECK(function.params == std::vector<cuda::ParamPlace>{{0, 24}, {24, 8}});
  auto out = m.room(64);
  std::array<std::byte, 24> pack{};
  const api::Pointer to = out.address();
  const int32_t first = -7;
  const uint8_t small = 200;
  const float real = 0.5f;
  std::memcpy(pack.data(), &to, 8);
  std::memcpy(pack.data() + 8, &first, 4);
  std::memcpy(pack.data() + 12, &small, 1);
  std::memcpy(pack.data() + 16, &real, 4);
  int64_t wide = int64_t{1} << 40;
  void* params[] = {pack.data(), &wide};
  good(cuda::launch(m.stream, function, {}, params));
  CHECK(m.read<double>(to, 4) == std::vector<double>{-7, 200, 0.5, 1099511627776.0});
}

TEST_CASE("shared memory up to the device's most is there when it was allowed", "[gpu]") {
  Machine& m = machine();
  const auto function = good(m.module.find("probe_shared"));
  auto out = m.room(64);
  for (const uint32_t bytes :
       {1024u, 48u * 1024, static_cast<uint32_t>(m.context.info().shared_bytes_max)}) {
    good(cuda::allow(m.context, function, bytes, {1, 1, 1}));
    api::Pointer to = out.address();
    int n = static_cast<int>(bytes);
    void* params[] = {&to, &n};
    cuda::LaunchShape shape{{2, 1, 1}, {32, 1, 1}};
    shape.shared_bytes = bytes;
    good(cuda::launch(m.stream, function, shape, params));
    CHECK(m.read<uint8_t>(to, 2) == std::vector<uint8_t>{42, 42});
  }
}

TEST_CASE("clusters of two and, once allowed, of sixteen", "[gpu]") {
  Machine& m = machine();
  const auto function = good(m.module.find("probe_cluster"));
  auto out = m.room(64 * 4);
  for (const uint32_t size : {2u, 8u, 16u}) {
    good(cuda::allow(m.context, function, 0, {size, 1, 1}));
    api::Pointer to = out.address();
    void* params[] = {&to};
    cuda::LaunchShape shape{{32, 1, 1}, {32, 1, 1}, {size, 1, 1}};
    good(cuda::launch(m.stream, function, shape, params));
    const auto ranks = m.read<int>(to, 32);
    for (size_t i = 0; i < ranks.size(); ++i) CHECK(ranks[i] == static_cast<int>(i % size));
  }
}

TEST_CASE("a launch that waits by itself still comes after the one before", "[gpu]") {
  Machine& m = machine();
  const auto slow = good(m.module.find("probe_slow")), after = good(m.module.find("probe_after"));
  auto out = m.room(4);
  api::Pointer to = out.address();
  int value = 10;
  void* slow_params[] = {&to, &value};
  void* after_params[] = {&to};
  cuda::LaunchShape shape{{1, 1, 1}, {32, 1, 1}};
  const auto pair = [&] {
    shape.pdl = false;
    good(cuda::launch(m.stream, slow, shape, slow_params));
    shape.pdl = true;
    good(cuda::launch(m.stream, after, shape, after_params));
  };
  pair();
  CHECK(m.read<int>(to, 1)[0] == 11);
  // The same captured, and replayed with the value it was captured with.
  good(m.stream.begin_capture());
  pair();
  const auto graph = good(m.stream.end_capture());
  value = 99;
  good(m.stream.fill(to, 0, 4));
  good(graph.upload(m.stream));
  good(graph.launch(m.stream));
  CHECK(m.read<int>(to, 1)[0] == 11);
}

TEST_CASE("a tile through a tensormap, its edge read as nothing", "[gpu]") {
  Machine& m = machine();
  const auto function = good(m.module.find("probe_tile"));
  constexpr int64_t kRows = 10, kCols = 64;
  std::vector<uint16_t> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i + 1);
  auto tensor = m.room(kRows * kCols * 2), out = m.room(32 * 8 * 2);
  good(m.stream.copy_to_device(tensor.address(), std::as_bytes(std::span(values))));
  const int64_t dims[] = {kCols, kRows}, strides[] = {kCols * 2}, box[] = {32, 8};
  api::TensorMap map =
      good(cuda::encode_tensormap(*m.driver, tensor.address(), {"bf16", dims, strides, box}));
  api::Pointer to = out.address();
  int x = 32, y = 8, bytes = 32 * 8 * 2;
  void* params[] = {&map, &to, &x, &y, &bytes};
  CHECK(function.params[0].bytes == 128);
  cuda::LaunchShape shape{{1, 1, 1}, {64, 1, 1}};
  shape.shared_bytes = 1024;
  good(cuda::launch(m.stream, function, shape, params));
  const auto tile = m.read<uint16_t>(to, 32 * 8);
  CHECK(tile[0] == 8 * kCols + 32 + 1);
  CHECK(tile[32 + 31] == 9 * kCols + 63 + 1);
  CHECK(tile[2 * 32] == 0);
  const int64_t odd[] = {130};
  CHECK(!cuda::encode_tensormap(*m.driver, tensor.address(), {"bf16", dims, odd, box}));
}

TEST_CASE("memory of one process mapped twice is one memory", "[gpu]") {
  Machine& m = machine();
  const auto own = good(cuda::SharedMemory::create(m.context, 3 << 20));
  const auto fd = good(own.export_fd());
  const auto other = good(cuda::SharedMemory::import(m.context, fd, 3 << 20));
  CHECK(own.address() != other.address());
  good(m.stream.fill(own.address(), 0x5C, 3 << 20));
  CHECK(m.read<uint8_t>(other.address() + (3 << 20) - 1, 1)[0] == 0x5C);
}

namespace {

constexpr int64_t kFabricBytes = 3 << 20;
const char* const kFabricVariable = "KERN_TEST_FABRIC_HANDLE";

/// Another process of this program that runs one hidden case; its exit status.
int run_other(const std::string& tag, const char* variable, const std::string& value) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {  // nothing of CUDA is touched before exec
    ::setenv(variable, value.c_str(), 1);
    ::execl(self.c_str(), self.c_str(), tag.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("memory crosses to another process by fabric handle", "[gpu]") {
  Machine& m = machine();
  if (!m.context.info().fabric_handles) {
    const auto refused = cuda::SharedMemory::create(m.context, kFabricBytes, cuda::Share::fabric);
    REQUIRE(!refused);
    WARN("SKIPPED: " << refused.error().text());
    return;
  }
  auto made = cuda::SharedMemory::create(m.context, kFabricBytes, cuda::Share::fabric);
  if (!made && made.error().text().find("NOT_PERMITTED") != std::string::npos) {
    WARN("SKIPPED: the device has fabric handles, this system opens no channel: "
         << made.error().text());
    return;
  }
  const auto own = good(std::move(made));
  good(m.stream.fill(own.address(), 0x5C, kFabricBytes));
  good(m.stream.synchronize());
  const api::FabricHandle handle = good(own.export_fabric());
  const std::string text =
      to_hex(as_bytes(std::string_view(reinterpret_cast<const char*>(&handle), sizeof(handle))));
  CHECK(run_other("[fabric-other]", kFabricVariable, text) == 0);
  CHECK(m.read<uint8_t>(own.address() + kFabricBytes - 1, 1)[0] == 0xC5);
}

TEST_CASE("the other process of a fabric handle", "[.fabric-other]") {
  const char* text = std::getenv(kFabricVariable);
  REQUIRE(text != nullptr);
  api::FabricHandle handle = {};
  REQUIRE(std::strlen(text) == 2 * sizeof(handle));
  for (size_t i = 0; i < sizeof(handle); ++i)
    reinterpret_cast<unsigned char*>(&handle)[i] =
        static_cast<unsigned char>(std::stoi(std::string(text + 2 * i, 2), nullptr, 16));
  Machine& m = machine();
  const auto mapped = good(cuda::SharedMemory::import(m.context, handle, kFabricBytes));
  CHECK(m.read<uint8_t>(mapped.address() + kFabricBytes - 1, 1)[0] == 0x5C);
  good(m.stream.fill(mapped.address(), 0xC5, kFabricBytes));
  good(m.stream.synchronize());
}

TEST_CASE("pinned memory copies at the link's rate", "[gpu][bench]") {
  Machine& m = machine();
  constexpr int64_t kBytes = int64_t{512} << 20;
  const auto pinned = good(cuda::PinnedBuffer::allocate(m.context, kBytes));
  auto room = m.room(kBytes);
  const auto first = good(cuda::Event::create(*m.driver, cuda::Event::Timing::on));
  const auto last = good(cuda::Event::create(*m.driver, cuda::Event::Timing::on));
  double best_in = 1e9, best_out = 1e9;
  for (int i = 0; i < 4; ++i) {
    good(m.stream.record(first));
    good(m.stream.copy_to_device(room.address(), pinned.bytes()));
    good(m.stream.record(last));
    good(last.synchronize());
    best_in = std::min(best_in, good(last.milliseconds_since(first)));
    good(m.stream.record(first));
    good(m.stream.copy_to_host(pinned.bytes(), room.address()));
    good(m.stream.record(last));
    good(last.synchronize());
    best_out = std::min(best_out, good(last.milliseconds_since(first)));
  }
  WARN(fmt::format("pinned on node {}: to the device {:.1f} GB/s, back {:.1f} GB/s", pinned.node(),
                   kBytes / best_in * 1e-6, kBytes / best_out * 1e-6));
  CHECK(best_in > 0);
}
