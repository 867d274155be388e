/// launch-bench --cubins DIR PLAN: times launches that a plan describes, each in replays of a graph
/// over as many sets of operands as the plan says, and prints a line of JSON a row.
/// kernels_table.py writes the plan out of manifests and reads the lines.
/// Exit: 0; 2 a bad plan or option; 3 the device failed, whose row is told in the last line.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "kern/base/file.h"
#include "kern/base/prng.h"
#include "kern/cuda/blas.h"
#include "kern/cuda/event.h"
#include "kern/cuda/graph.h"
#include "kern/cuda/launch.h"
#include "kern/cuda/module.h"
#include "kern/cuda/tensormap.h"
#include "launch_plan.h"

namespace {

using namespace kern::cuda;
using kern::Result;
using namespace launch_bench;

constexpr int64_t kPatternBytes = (int64_t{6} << 20) + 64;
constexpr size_t kFileBytesMax = 64 << 20;
constexpr int kReplays = 15, kReplaysOfLong = 5;
constexpr int kLaunchesMin = 64;  // a graph holds at least so many of a short row
constexpr double kLongUs = 2000;  // of one pass over the sets

std::string at_hand;  // the row that a failure is told of

[[noreturn]] void stop(int status, const std::string& why) {
  std::string quoted;
  for (const char c : why) quoted += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  std::printf("{\"row\": \"%s\", \"error\": \"%s\"}\n", at_hand.c_str(), quoted.c_str());
  std::fflush(stdout);
  std::_Exit(status);
}
template <class T>
T must(Result<T> result) {
  if (!result) stop(3, result.error().text());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

template <class T>
T value(const std::string& text) {
  auto read = number<T>(text);
  if (!read) stop(2, read.error().text());
  return *read;
}
std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> out;
  for (const std::string& part : split(text, ',')) out.push_back(value<int64_t>(part));
  return out;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// ---- the device ----

struct Gpu {
  std::unique_ptr<const Driver> driver = must(Driver::load());
  Context context = must(Context::open(*driver, 0));
  std::vector<Stream> streams;  // one a rank
  std::string cubins;
  std::map<std::string, Module> modules;
  std::map<std::string, Function> functions;
  std::unique_ptr<Blas> blas;
  std::map<std::pair<Product, int64_t>, Matmul> matmuls;

  const Stream& stream(size_t rank = 0) {
    while (streams.size() <= rank) streams.push_back(must(Stream::create(*driver)));
    return streams[rank];
  }
  void wait() {
    for (const Stream& each : streams) must(each.synchronize());
  }
  const Function& function(const std::string& module, const std::string& entry) {
    const std::string name = module + ":" + entry;
    if (const auto found = functions.find(name); found != functions.end()) return found->second;
    if (!modules.contains(module)) {
      const std::string image =
          must(kern::read_file(cubins + "/" + module + ".cubin", kFileBytesMax));
      modules.emplace(module, must(Module::load(context, kern::as_bytes(image))));
    }
    return functions.emplace(name, must(modules.at(module).find(entry))).first->second;
  }
  Matmul& matmul(const Product& product, int64_t rows_max) {
    if (blas == nullptr) blas = must(Blas::load(context));
    const auto key = std::pair{product, rows_max};
    if (const auto found = matmuls.find(key); found != matmuls.end()) return found->second;
    return matmuls
        .emplace(key,
                 must(Matmul::plan(*blas, product,
                                   {.m_max = rows_max, .tune_on = &stream(), .context = &context})))
        .first->second;
  }
  /// A block again and again.
  DeviceBuffer repeated(kern::ByteSpan block, int64_t bytes) {
    auto buffer = must(DeviceBuffer::allocate(context, bytes));
    int64_t done = std::min<int64_t>(bytes, block.size());
    must(stream().copy_to_device(buffer.address(), block.first(done)));
    for (; done < bytes; done += std::min(done, bytes - done))
      must(stream().copy_on_device(buffer.address() + done, buffer.address(),
                                   std::min(done, bytes - done)));
    wait();
    return buffer;
  }
};

std::vector<std::byte> pattern(const std::string& fill) {
  kern::Prng prng(17);
  std::vector<std::byte> bytes(kPatternBytes);
  const auto put = [&](auto make) {
    using T = decltype(make());
    for (int64_t at = 0; at < kPatternBytes; at += sizeof(T)) {
      const T value = make();
      std::memcpy(&bytes[at], &value, sizeof(T));
    }
  };
  // About normal: the sum of three uniform numbers, of variance 1.
  const auto real = [&] {
    return static_cast<float>(2 * (prng.unit() + prng.unit() + prng.unit() - 1.5));
  };
  if (fill.starts_with("f32")) {
    const float spread = fill == "f32" ? 1 : value<float>(fill.substr(4));
    put([&] { return spread * real(); });
  } else if (fill == "bf16") {
    put([&] {
      const float value = real();
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      return static_cast<uint16_t>(bits >> 16);
    });
  } else if (fill.starts_with("bytes:")) {
    const auto bounds = split(fill, ':');
    const int low = value<int>(bounds.at(1)), high = value<int>(bounds.at(2));
    put([&] { return static_cast<uint8_t>(low + prng.below(high - low + 1)); });
  } else if (fill != "zero") {
    stop(2, "`" + fill + "`: no such fill");
  }
  return bytes;
}

// ---- a row of the plan ----

/// A row's memory of one rank and set.
using Memory = std::map<std::string, const DeviceBuffer*>;

class Runner {
 public:
  Runner(Gpu& gpu, const Row& row) : gpu_(gpu), row_(row) { allocate(); }

  /// Microseconds a launch.
  std::pair<double, double> time() {
    make_arguments();
    for (size_t rank = 0; rank < row_.ranks; ++rank)
      for (size_t set = 0; set < row_.sets; ++set)
        for (const LaunchLine& line : row_.prepare) launch(line, rank, set);
    gpu_.wait();
    const double once = pass();
    const double pass_us = std::min(once, pass());
    const auto rounds =
        pass_us > kLongUs ? 1 : std::max<size_t>(1, (kLaunchesMin + row_.sets - 1) / row_.sets);
    std::vector<Graph> graphs;
    for (size_t rank = 0; rank < row_.ranks; ++rank) {
      must(gpu_.stream(rank).begin_capture());
      for (size_t round = 0; round < rounds; ++round)
        for (size_t set = 0; set < row_.sets; ++set) step(rank, set);
      graphs.push_back(must(gpu_.stream(rank).end_capture()));
      must(graphs.back().upload(gpu_.stream(rank)));
    }
    std::vector<double> times;
    const int replays = pass_us > kLongUs ? kReplaysOfLong : kReplays;
    for (int replay = -2; replay < replays; ++replay) {
      const double us = timed([&] {
        for (size_t rank = 0; rank < row_.ranks; ++rank)
          must(graphs[rank].launch(gpu_.stream(rank)));
      });
      if (replay >= 0) times.push_back(us / (rounds * row_.sets));
    }
    return {median(times), *std::min_element(times.begin(), times.end())};
  }

 private:
  void allocate() {
    for (size_t rank = 0; rank < row_.ranks; ++rank) {
      memory_.emplace_back(row_.sets);
      for (const BufferLine& line : row_.buffers)
        for (size_t set = 0; set < row_.sets; ++set)
          memory_[rank][set][line.name] =
              line.shared && set > 0 ? memory_[rank][0][line.name] : &made(line, set);
    }
  }
  const DeviceBuffer& made(const BufferLine& line, size_t set) {
    if (line.fill.starts_with("file:")) {
      const auto words = split(line.fill, ':');
      const std::string all = must(kern::read_file(words.at(1), kFileBytesMax));
      const int64_t variants = value<int64_t>(words.at(2));
      if (static_cast<int64_t>(all.size()) != variants * line.bytes)
        stop(2, "`" + words[1] + "` does not hold its variants");
      held_.push_back(gpu_.repeated(
          kern::as_bytes(all).subspan(set % variants * line.bytes, line.bytes), line.bytes));
    } else {
      if (!patterns_.contains(line.fill)) patterns_[line.fill] = pattern(line.fill);
      held_.push_back(gpu_.repeated(patterns_[line.fill], line.bytes));
    }
    return held_.back();
  }
  api::Pointer address(const std::string& name, size_t rank, size_t set) {
    const auto found = memory_[rank][set].find(name);
    if (found == memory_[rank][set].end()) stop(2, "no buffer `" + name + "`");
    return found->second->address();
  }
  /// "NAME:OFFSET"
  api::Pointer place(const std::string& text, size_t rank, size_t set) {
    const auto words = split(text, ':');
    return address(words.at(0), rank, set) + value<int64_t>(words.at(1));
  }
  /// A parameter's bytes, at most a tensormap's.
  void argument(const std::string& text, size_t rank, size_t set, api::TensorMap& to) {
    const auto put = [&](auto value) { std::memcpy(&to, &value, sizeof(value)); };
    const std::string rest = text.size() > 2 ? text.substr(2) : "";
    switch (text[0]) {
      case 'b':
        return put(place(rest, rank, set));
      case 'i':
        return put(value<int32_t>(rest));
      case 'l':
        return put(value<int64_t>(rest));
      case 'f':
        return put(value<float>(rest));
      case 'r':
        return put(static_cast<int32_t>(rank));
      case 'p': {
        std::vector<api::Pointer> all;
        for (size_t other = 0; other < row_.ranks; ++other)
          all.push_back(address(rest, other, set));
        held_.push_back(
            gpu_.repeated(kern::bytes_of(std::span<const api::Pointer>(all)), all.size() * 8));
        return put(held_.back().address());
      }
      case 't': {
        const auto words = split(rest, ':');
        std::vector<int64_t> dims = numbers(words.at(2));
        const std::vector<int64_t> strides = numbers(words.at(3)), box = numbers(words.at(4));
        if (dims.back() == 0)
          dims.back() = memory_[rank][set].at(words[0])->bytes() / strides.back();
        to = must(encode_tensormap(*gpu_.driver, address(words[0], rank, set),
                                   {.dtype = words.at(1),
                                    .dims = dims,
                                    .strides = strides,
                                    .box = box,
                                    .swizzle = value<int64_t>(words.at(5)),
                                    .l2_promotion = value<int64_t>(words.at(6))}));
        return;
      }
      default:
        stop(2, "`" + text + "`: no such argument");
    }
  }
  /// Arguments are made once, since what they point at does not move, and all of them before any
  /// launch: to make one can wait for the device, where a rank's kernel may wait for another
  /// rank's.
  void make_arguments() {
    for (const auto* lines : {&row_.prepare, &row_.launches})
      for (const LaunchLine& line : *lines) {
        const Function& entry = gpu_.function(line.module, line.entry);
        if (entry.params.size() != line.args.size())
          stop(2, line.entry + " takes " + std::to_string(entry.params.size()) +
                      " parameters, got " + std::to_string(line.args.size()));
        must(allow(gpu_.context, entry, line.shape.shared_bytes, line.shape.cluster));
        for (size_t rank = 0; rank < row_.ranks; ++rank)
          for (size_t set = 0; set < row_.sets; ++set) {
            auto& values = arguments_[{&line, rank, set}];
            values.resize(line.args.size());
            for (size_t i = 0; i < values.size(); ++i) argument(line.args[i], rank, set, values[i]);
          }
      }
  }
  void launch(const LaunchLine& line, size_t rank, size_t set) {
    const Function& entry = gpu_.function(line.module, line.entry);
    std::vector<void*> params;
    for (api::TensorMap& value : arguments_.at({&line, rank, set})) params.push_back(&value);
    must(kern::with_context(kern::cuda::launch(gpu_.stream(rank), entry, line.shape, params.data()),
                            "{}", line.entry));
  }
  void step(size_t rank, size_t set) {
    for (const LaunchLine& line : row_.launches) launch(line, rank, set);
    for (const ProductLine& line : row_.products)
      must(gpu_.matmul(line.product, line.rows_max)
               .run(gpu_.stream(rank), line.rows, place(line.a, rank, set),
                    place(line.w, rank, set), place(line.c, rank, set)));
  }
  /// Every set once, launch by launch: loads what must be loaded before a capture.
  double pass() {
    return timed([&] {
      for (size_t set = 0; set < row_.sets; ++set)
        for (size_t rank = 0; rank < row_.ranks; ++rank) step(rank, set);
    });
  }
  /// From the first rank's start to the end of all.
  template <class Work>
  double timed(const Work& work) {
    const auto first = must(Event::create(*gpu_.driver, Event::Timing::on)),
               last = must(Event::create(*gpu_.driver, Event::Timing::on));
    must(gpu_.stream().record(first));
    work();
    for (size_t rank = 1; rank < row_.ranks; ++rank) {
      const auto done = must(Event::create(*gpu_.driver));
      must(gpu_.stream(rank).record(done));
      must(gpu_.stream().wait(done));
    }
    must(gpu_.stream().record(last));
    gpu_.wait();
    return must(last.milliseconds_since(first)) * 1000;
  }

  Gpu& gpu_;
  const Row& row_;
  std::deque<DeviceBuffer> held_;
  std::vector<std::vector<Memory>> memory_;  // by rank and set
  std::map<std::tuple<const LaunchLine*, size_t, size_t>, std::vector<api::TensorMap>> arguments_;
  static std::map<std::string, std::vector<std::byte>> patterns_;
};
std::map<std::string, std::vector<std::byte>> Runner::patterns_;

// ---- what the machine gives ----

void measure_machine(Gpu& gpu) {
  const int64_t bytes = int64_t{4} << 30, side = 8192;
  const auto from = must(DeviceBuffer::allocate(gpu.context, bytes)),
             to = must(DeviceBuffer::allocate(gpu.context, bytes));
  const auto timed = [&](int repeats, auto work) {
    std::vector<double> ms;
    for (int i = -3; i < repeats; ++i) {
      const auto first = must(Event::create(*gpu.driver, Event::Timing::on)),
                 last = must(Event::create(*gpu.driver, Event::Timing::on));
      must(gpu.stream().record(first));
      work();
      must(gpu.stream().record(last));
      gpu.wait();
      if (i >= 0) ms.push_back(must(last.milliseconds_since(first)));
    }
    return median(ms) / 1000;
  };
  const double copied =
      timed(15, [&] { must(gpu.stream().copy_on_device(to.address(), from.address(), bytes)); });
  const auto random = pattern("bf16");
  const auto a = gpu.repeated(random, side * side * 2), w = gpu.repeated(random, side * side * 2);
  Matmul& product = gpu.matmul({.n = side, .k = side, .c_stride = side, .a_stride = side}, side);
  const double multiplied = timed(
      15, [&] { must(product.run(gpu.stream(), side, a.address(), w.address(), to.address())); });
  // A launch that finds no rows to copy, in a graph of many.
  Row row{.id = "empty", .sets = 1};
  row.buffers = {{"rows", 256, true, "zero"}};
  row.launches = {{"norm-stream",
                   "kern_copy_rows",
                   {.block = {32, 1, 1}},
                   {"b:rows:0", "b:rows:0", "i:8", "i:0"}}};
  const double empty = Runner(gpu, row).time().first;
  const DeviceInfo& info = gpu.context.info();
  std::printf(
      "{\"machine\": \"%s, %d multiprocessors\", \"bytes_per_second\": %.4g, \"flops\": %.4g, "
      "\"empty_launch_us\": %.3f}\n",
      info.name.c_str(), info.multiprocessors, 2.0 * bytes / copied,
      2.0 * side * side * side / multiplied, empty);
  std::fflush(stdout);
}

void run_plan(Gpu& gpu, const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    at_hand = row.id;
    if (row.id == "machine") {
      measure_machine(gpu);
      continue;
    }
    const auto [us, best] = Runner(gpu, row).time();
    std::printf("{\"row\": \"%s\", \"us\": %.3f, \"best_us\": %.3f, \"sets\": %zu}\n",
                row.id.c_str(), us, best, row.sets);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 || std::strcmp(argv[1], "--cubins") != 0) {
    std::printf("usage: launch-bench --cubins DIR PLAN\n");
    return 2;
  }
  std::ifstream plan(argv[3]);
  if (!plan) stop(2, std::string("`") + argv[3] + "` cannot be read");
  const auto rows = read_plan(plan);
  if (!rows) stop(2, rows.error().text());
  Gpu gpu;
  gpu.cubins = argv[2];
  run_plan(gpu, *rows);
  return 0;
}
