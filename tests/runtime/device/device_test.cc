// The runtime on a real device, with the kernels of tests/cuda/device/probe.cu beside the program.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <thread>

#include "../fixture.h"
#include "kern/cuda/context.h"
#include "kern/cuda/memory.h"
#include "kern/cuda/stream.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;

namespace {

std::filesystem::path here() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path();
}

std::string hashed(std::string json) {
  const auto bytes = read_file(here() / "probe.cubin", 1 << 24);
  REQUIRE(bytes);
  for (size_t at; (at = json.find("@CUBIN@")) != std::string::npos;)
    json.replace(at, 7, to_hex(sha256(as_bytes(*bytes))));
  return json;
}

std::unique_ptr<runtime::Runtime> load(const std::string& json, runtime::Options with = {},
                                       const safetensors::Catalog* weights = nullptr,
                                       const Log& log = quiet()) {
  with.module_dirs = {here()};
  auto loaded = runtime::Runtime::load(verified(hashed(json)), weights, with, log);
  if (!loaded) FAIL(loaded.error().text());
  return std::move(*loaded);
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// `count` launches, each times two, from `x` through one workspace and another into `y`.
std::string doubling(int count) {
  std::string calls;
  for (int i = 0; i < count; ++i) {
    const std::string from = i == 0 ? "x" : i % 2 == 1 ? "s" : "t";
    const std::string to = i + 1 == count ? "y" : i % 2 == 0 ? "s" : "t";
    calls += std::string(i == 0 ? "" : ",") + R"({"op": "scale", "args": [{"buf": ")" + from +
             R"("}, {"buf": ")" + to + R"("}, {"f32": 2}, {"var": "n"}]})";
  }
  return R"({"schema_version": 7, "model": "doubling", "states": {},
    "vars": {"n": {"max": 4096, "axis": "rows"}, "seqs": {"max": 1, "axis": "groups"}},
    "buffers": {"x": {"dtype": "f32", "shape": ["n"], "kind": "input"},
      "s": {"dtype": "f32", "shape": ["n"], "kind": "workspace"},
      "t": {"dtype": "f32", "shape": ["n"], "kind": "workspace"},
      "y": {"dtype": "f32", "shape": ["n"], "kind": "output"}},
    "modules": {"probe": {"source": "probe.cubin", "sha256": "@CUBIN@"}},
    "ops": {"scale": {"params": ["in buffer<f32>", "out buffer<f32>", "f32", "i32"],
      "impl": {"launches": [{"module": "probe", "entry": "probe_scale", "block": [128, 1, 1],
        "grid": [{"ceil_div": ["n", 128]}, "seqs", 1]}]}}},
    "programs": {"main": {"graph": true, "batch": {"groups": 1, "rows": "n"}, "calls": [)" +
         calls + "]}}}";
}

std::vector<VarValue> vars(int64_t n) {
  return {{"n", n}, {"seqs", 1}};
}

}  // namespace

TEST_CASE("a program of many launches runs, eager and captured, for any vars", "[gpu]") {
  constexpr int kLaunches = 20;
  runtime::Options eager;
  eager.eager = true;
  for (const auto& options : {runtime::Options{}, eager}) {
    const auto r = load(doubling(kLaunches), options);
    for (const int64_t n : {1, 4096, 777, 4096, 777, 777, 1, 4096}) {
      std::vector<float> x(4096);
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i + static_cast<size_t>(n));
      put(r->buffer("x"), x);
      put(r->buffer("y"), std::vector<float>(4096, -1.f));
      REQUIRE(r->run("main", vars(n)));
      const auto y = get<float>(r->buffer("y"), 4096);
      for (size_t i = 0; i < y.size(); ++i)
        CHECK(y[i] == (i < static_cast<size_t>(n) ? std::ldexp(x[i], kLaunches) : -1.f));
    }
  }
}

TEST_CASE("runs that start before the last one was read keep every answer apart", "[gpu]") {
  constexpr int kLaunches = 200, kRuns = 50;
  const auto r = load(doubling(kLaunches));
  constexpr int kSmall = -100;  // of the inputs: neither they nor 200 doublings leave f32's range
  const auto fill = [&](int run) {
    put(r->buffer("x"),
        std::vector<float>(4096, std::ldexp(1.f + static_cast<float>(run), kSmall)));
  };
  fill(0);
  REQUIRE(r->launch("main", vars(4096)));
  REQUIRE(r->read_back());
  for (int run = 0; run < kRuns; ++run) {
    REQUIRE(r->wait_inputs());
    fill(run + 1);
    REQUIRE(r->launch("main", vars(4096)));
    REQUIRE(r->wait_outputs());
    const auto y = get<float>(r->buffer("y"), 4096);
    const float want = std::ldexp(1.f + static_cast<float>(run), kLaunches + kSmall);
    CHECK(std::all_of(y.begin(), y.end(), [&](float v) { return v == want; }));
    REQUIRE(r->read_back());
  }
  REQUIRE(r->synchronize());
}

TEST_CASE("sixty-four graphs of 2,300 launches are captured before they are wanted",
          "[gpu][bench]") {
  runtime::Options options;
  options.graphs_max = 64;
  const auto r = load(doubling(2300), options);
  const auto driver = cuda::Driver::load();
  REQUIRE(driver);
  const auto context = cuda::Context::open(**driver, 0);
  REQUIRE(context);
  const auto before = context->free_bytes();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t n = 1; n <= 64; ++n) REQUIRE(r->capture("main", vars(n)));
  REQUIRE(r->synchronize());
  const double seconds = seconds_since(start);
  const auto after = context->free_bytes();
  REQUIRE((before && after));
  WARN(fmt::format("64 graphs of 2300 launches: {:.2f} s, {:.1f} MiB of the device", seconds,
                   static_cast<double>(*before - *after) / (1 << 20)));
  put(r->buffer("x"), std::vector<float>(4096, 0.f));
  REQUIRE(r->run("main", vars(64)));
}

TEST_CASE("what a step of a thousand launches costs, eager and captured", "[gpu][bench]") {
  for (const bool is_eager : {true, false}) {
    runtime::Options options;
    options.eager = is_eager;
    const auto r = load(doubling(1000), options);
    put(r->buffer("x"), std::vector<float>(4096, 1e-30f));
    for (int i = 0; i < 3; ++i) REQUIRE(r->run("main", vars(256)));
    double best_enqueue = 1, best = 1;
    for (int i = 0; i < 20; ++i) {
      r->buffer("x")[0] = static_cast<std::byte>(i);
      const auto start = std::chrono::steady_clock::now();
      REQUIRE(r->enqueue("main", vars(256)));
      best_enqueue = std::min(best_enqueue, seconds_since(start));
      REQUIRE(r->synchronize());
      best = std::min(best, seconds_since(start));
    }
    WARN(fmt::format("1000 dependent launches {}: enqueued in {:.0f} us, done in {:.0f} us",
                     is_eager ? "eager" : "captured", best_enqueue * 1e6, best * 1e6));
  }
  const auto r = load(doubling(3));
  for (int i = 0; i < 3; ++i) REQUIRE(r->run("main", vars(256)));
  double best = 1;
  for (int i = 0; i < 50; ++i) {
    r->buffer("x")[0] = static_cast<std::byte>(i);
    const auto start = std::chrono::steady_clock::now();
    REQUIRE(r->run("main", vars(256)));
    best = std::min(best, seconds_since(start));
  }
  WARN(fmt::format("three launches, an input in and an output back: {:.1f} us", best * 1e6));
}

TEST_CASE("a tensormap out of a pack reads the tile it names", "[gpu]") {
  const std::string json = R"({
    "schema_version": 7, "model": "tile", "vars": {"y": {"max": 64}}, "states": {},
    "buffers": {"t": {"dtype": "bf16", "shape": [64, 64], "kind": "input"},
                "o": {"dtype": "bf16", "shape": [8, 32], "kind": "output"}},
    "modules": {"probe": {"source": "probe.cubin", "sha256": "@CUBIN@"}},
    "ops": {"tile": {"params": ["in buffer<bf16>", "out buffer<bf16>", "i32"], "impl": {
      "launches": [{"module": "probe", "entry": "probe_tile", "block": [64, 1, 1],
        "grid": [1, 1, 1], "shared_mem": 1024,
        "params": ["bytes<128>", "out buffer<bf16>", "i32", "i32", "i32"],
        "args": [{"pack": {"size": 128, "fields": [{"at": 0, "tensormap": {"param": 0,
          "dtype": "bf16", "dims": [64, 0], "strides": [128], "box": [32, 8]}}]}},
          {"param": 1}, {"i32": 32}, {"param": 2}, {"i32": 512}]}]}}},
    "programs": {"main": {"calls": [
      {"op": "tile", "args": [{"buf": "t"}, {"buf": "o"}, {"var": "y"}]}]}}
  })";
  const auto r = load(json);
  std::vector<uint16_t> t(64 * 64);
  for (size_t i = 0; i < t.size(); ++i) t[i] = static_cast<uint16_t>(i + 1);
  put(r->buffer("t"), t);
  for (const int64_t y : {1, 8, 60}) {
    REQUIRE(r->run("main", std::vector<VarValue>{{"y", y}}));
    const auto o = get<uint16_t>(r->buffer("o"), 8 * 32);
    for (size_t row = 0; row < 8; ++row) {
      const size_t at = static_cast<size_t>(y) + row;
      CHECK(o[row * 32 + 5] == (at < 64 ? t[at * 64 + 37] : 0));
    }
  }
}

TEST_CASE("what it costs to lock mapped pages instead of copying them", "[gpu][bench]") {
  constexpr size_t kBytes = size_t{1} << 30;
  const auto driver = cuda::Driver::load();
  REQUIRE(driver);
  const auto context = cuda::Context::open(**driver, 0);
  REQUIRE(context);
  const std::string path = "/dev/shm/kern-locked";
  REQUIRE(write_file(path, std::vector<std::byte>(kBytes, std::byte{1})));
  const auto mapped = MappedFile::open(path);
  REQUIRE(mapped);
  auto* data = const_cast<std::byte*>(mapped->bytes().data());
  std::string line;
  for (const int threads : {1, 4, 8}) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> workers;
    std::atomic<int> failed{0};
    const size_t each = kBytes / static_cast<size_t>(threads);
    for (int t = 0; t < threads; ++t)
      workers.emplace_back([&, t] {
        (void)context->make_current();
        for (size_t at = 0; at < each; at += size_t{32} << 20) {
          std::byte* piece = data + static_cast<size_t>(t) * each + at;
          // Read-only (8) and portable (1).
          const int status = (**driver)->mem_host_register(piece, size_t{32} << 20, 9);
          if (status != 0) failed = status;
        }
      });
    for (std::thread& worker : workers) worker.join();
    const double locked = seconds_since(start);
    for (size_t at = 0; at < kBytes; at += size_t{32} << 20)
      (void)(**driver)->mem_host_unregister(data + at);
    line +=
        fmt::format(" {} threads {:.1f} GB/s (status {}), unlocking in {:.0f} ms;", threads,
                    kBytes / locked * 1e-9, failed.load(), (seconds_since(start) - locked) * 1e3);
  }
  std::filesystem::remove(path);
  WARN("locking 1 GiB of a mapped file:" + line);
}

/// GB/s of 512 MiB of pinned memory, copied eight times.
double pinned_copy_rate() {
  constexpr int64_t kBytes = int64_t{512} << 20;
  const auto driver = cuda::Driver::load();
  REQUIRE(driver);
  const auto context = cuda::Context::open(**driver, 0);
  REQUIRE(context);
  const auto from = cuda::PinnedBuffer::allocate(*context, kBytes);
  const auto to = cuda::DeviceBuffer::allocate(*context, kBytes);
  const auto stream = cuda::Stream::create(**driver);
  REQUIRE((from && to && stream));
  REQUIRE(stream->copy_to_device(to->address(), from->bytes()));
  REQUIRE(stream->synchronize());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 8; ++i) REQUIRE(stream->copy_to_device(to->address(), from->bytes()));
  REQUIRE(stream->synchronize());
  return 8e-9 * kBytes / seconds_since(start);
}

TEST_CASE("weights load as fast as pinned memory is copied, nearly", "[gpu][bench]") {
  // 64 tensors of 64 MiB, each bound four times by thirds of its rows in another order: 16 GiB out
  // of 4, which no cache holds.
  constexpr size_t kTimes = 4, kTensors = 64, kRows = 3 * 1024, kRow = 21845;
  // In memory either way: small pages where the files are shared memory, large ones where a file
  // system has them.
  const std::string place = GENERATE("/dev/shm", "/tmp");
  struct Folder {
    std::filesystem::path path;
    explicit Folder(std::filesystem::path at) : path(std::move(at)) {
      std::filesystem::create_directories(path);
    }
    ~Folder() { std::filesystem::remove_all(path); }
  } folder(place + "/kern-weights");
  std::vector<safetensors::TensorSpec> specs;
  for (size_t i = 0; i < kTensors; ++i)
    specs.push_back({"t" + std::to_string(i), "U8", {kRows, kRow}});
  auto writer = safetensors::Writer::create(folder.path, specs);
  REQUIRE(writer);
  std::vector<std::byte> bytes(kRows * kRow);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + (i >> 13));
  for (const auto& spec : specs) REQUIRE(writer->write(spec.name, bytes));
  REQUIRE(writer->finish());
  const auto weights = safetensors::Catalog::open(folder.path);
  REQUIRE(weights);
  std::string buffers, args;
  for (size_t i = 0; i < kTimes * kTensors; ++i) {
    const std::string tensor = "\"t" + std::to_string(i % kTensors) + "\"";
    const std::string name =
        "\"t" + std::to_string(i % kTensors) + std::string(i / kTensors, 'b') + "\"";
    buffers += name + R"(: {"dtype": "u8", "shape": [3072, 21845], "kind": "weight", "bind": [
      {"tensor": )" +
               tensor + R"(, "rows": [2048, 3072]}, {"tensor": )" + tensor +
               R"(, "rows": [0, 2048]}]},)";
    args += R"({"op": "touch", "args": [{"buf": )" + name + R"(}, {"buf": "o"}, {"f32": 0},
      {"i32": 0}]},)";
  }
  args.pop_back();
  const std::string json = R"({"schema_version": 7, "model": "weights", "vars": {}, "states": {},
    "buffers": {)" + buffers +
                           R"("o": {"dtype": "u8", "shape": [64], "kind": "output"}},
    "modules": {"probe": {"source": "probe.cubin", "sha256": "@CUBIN@"}},
    "ops": {"touch": {"params": ["in buffer<u8>", "out buffer<u8>", "f32", "i32"],
      "impl": {"launches": [{"module": "probe", "entry": "probe_scale", "block": [32, 1, 1],
        "grid": [1, 1, 1]}]}}},
    "programs": {"main": {"calls": [)" +
                           args + "]}}}";
  const double gigabytes = static_cast<double>(kTimes * kTensors * kRows * kRow) * 1e-9;
  std::string line;
  // A machine's first seconds are not its others: every number of threads comes again, a plain copy
  // beside it.
  for (const int threads : {12, 4, 8, 12, 16, 12}) {
    line += fmt::format(" a plain pinned copy {:.1f} GB/s;", pinned_copy_rate());
    runtime::Options options;
    options.threads = threads;
    const auto start = std::chrono::steady_clock::now();
    const auto r = load(json, options, &*weights, Log("load", Level::info));
    line += fmt::format(" {} threads {:.1f} GB/s;", threads, gigabytes / seconds_since(start));
    std::vector<std::byte> seen;
    if (threads != 12) continue;
    REQUIRE(r->observe("", "t5", [&](ByteSpan s) { seen.assign(s.begin(), s.end()); }));
    REQUIRE(r->run("main", std::vector<VarValue>{}));
    const size_t third = 1024 * kRow;
    REQUIRE(seen.size() == 3 * third);
    CHECK(std::memcmp(seen.data(), bytes.data() + 2 * third, third) == 0);
    CHECK(std::memcmp(seen.data() + third, bytes.data(), 2 * third) == 0);
  }
  WARN(fmt::format("{:.2f} GB of weights in {}, the whole load:{}", gigabytes, place, line));
}
