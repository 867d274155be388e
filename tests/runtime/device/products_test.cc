// Products of the runtime's kind through cuBLASLt on a real device: right, and the same bits for a
// row whatever rows came with it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "kern/base/prng.h"
#include "kern/cuda/blas.h"

using namespace kern;

namespace {

template <class T>
T good(Result<T> result) {
  if (!result) FAIL(result.error().text());
  return std::move(*result);
}
void good(const Result<void>& result) {
  if (!result) FAIL(result.error().text());
}

struct Machine {
  Machine()
      : driver(good(cuda::Driver::load())),
        context(good(cuda::Context::open(*driver, 0))),
        stream(good(cuda::Stream::create(*driver))),
        blas(good(cuda::Blas::load(context))) {}
  std::unique_ptr<const cuda::Driver> driver;
  cuda::Context context;
  cuda::Stream stream;
  std::unique_ptr<cuda::Blas> blas;
};

Machine& machine() {
  static Machine one;
  return one;
}

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
float to_float(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

std::vector<uint16_t> random_bf16(size_t count, uint64_t seed) {
  Prng prng(seed);
  std::vector<uint16_t> out(count);
  for (uint16_t& each : out) each = to_bf16(static_cast<float>(prng.unit() * 2 - 1));
  return out;
}

cuda::DeviceBuffer on_device(const std::vector<uint16_t>& values) {
  auto buffer = good(
      cuda::DeviceBuffer::allocate(machine().context, static_cast<int64_t>(values.size() * 2)));
  good(machine().stream.copy_to_device(buffer.address(), std::as_bytes(std::span(values))));
  good(machine().stream.synchronize());
  return buffer;
}

template <class T>
std::vector<T> read(cuda::api::Pointer from, size_t count) {
  std::vector<T> out(count);
  good(machine().stream.copy_to_host(std::as_writable_bytes(std::span(out)), from));
  good(machine().stream.synchronize());
  return out;
}

struct Shape {
  const char* what;
  int64_t n, k;
};

// Of a rank of eight, and of one that holds all: what the model multiplies.
constexpr Shape kShapes[] = {
    {"kda in", 6284, 7168},     {"out", 7168, 1536},       {"mla in", 3584, 7168},
    {"q_b", 2304, 1536},        {"latent up", 7168, 3584}, {"shared up", 1536, 7168},
    {"shared down", 7168, 768}, {"router", 896, 7168},     {"head", 20480, 7168},
    {"odd n", 1000, 512},       {"whole o", 7168, 12288},
};

constexpr int64_t kRows = 4096;

struct Operands {
  explicit Operands(const Shape& shape)
      : a_values(random_bf16(static_cast<size_t>(kRows * shape.k), 1)),
        w_values(random_bf16(static_cast<size_t>(shape.n * shape.k), 2)),
        a(on_device(a_values)),
        w(on_device(w_values)),
        c(good(cuda::DeviceBuffer::allocate(machine().context, kRows * shape.n * 4))) {}

  std::vector<uint16_t> a_values, w_values;
  cuda::DeviceBuffer a, w, c;
};

cuda::MatmulOptions tuned(int64_t m_max) {
  return {.m_max = m_max, .tune_on = &machine().stream, .context = &machine().context};
}

cuda::Product product_of(const Shape& shape) {
  return {.n = shape.n, .k = shape.k, .c_stride = shape.n, .a_stride = shape.k};
}

/// Median of the time of one product of m rows, in microseconds.
double microseconds(cuda::Matmul& matmul, const Operands& on, int64_t m) {
  const auto first = good(cuda::Event::create(*machine().driver, cuda::Event::Timing::on));
  const auto last = good(cuda::Event::create(*machine().driver, cuda::Event::Timing::on));
  constexpr int kEach = 5;
  std::vector<double> times;
  for (int repeat = 0; repeat < 7; ++repeat) {
    good(machine().stream.record(first));
    for (int i = 0; i < kEach; ++i)
      good(matmul.run(machine().stream, m, on.a.address(), on.w.address(), on.c.address()));
    good(machine().stream.record(last));
    good(last.synchronize());
    times.push_back(good(last.milliseconds_since(first)) * 1e3 / kEach);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

std::vector<uint16_t> product(cuda::Matmul& matmul, const Operands& on, const Shape& shape,
                              int64_t first, int64_t m) {
  const auto from = on.a.address() + static_cast<uint64_t>(first * shape.k * 2);
  good(machine().stream.fill(on.c.address(), 0xA5, m * shape.n * 2));
  good(matmul.run(machine().stream, m, from, on.w.address(), on.c.address()));
  return read<uint16_t>(on.c.address(), static_cast<size_t>(m * shape.n));
}

}  // namespace

TEST_CASE("a row of a product has the same bits whatever rows came with it", "[gpu][products]") {
  WARN(fmt::format("cuBLASLt {}", machine().blas->version()));
  for (const Shape& shape : kShapes) {
    INFO(shape.what);
    const Operands on(shape);
    auto matmul = good(cuda::Matmul::plan(*machine().blas, product_of(shape), tuned(kRows)));
    const auto whole = product(matmul, on, shape, 0, kRows);
    // Against a plain sum.
    for (const int64_t row : {int64_t{0}, int64_t{77}, kRows - 1})
      for (const int64_t column : {int64_t{0}, shape.n / 2, shape.n - 1}) {
        double sum = 0;
        for (int64_t i = 0; i < shape.k; ++i)
          sum += static_cast<double>(to_float(on.a_values[row * shape.k + i])) *
                 static_cast<double>(to_float(on.w_values[column * shape.k + i]));
        CHECK(std::abs(to_float(whole[row * shape.n + column]) - sum) <
              0.01 * std::abs(sum) + 0.05);
      }
    int wrong = 0;
    for (const int64_t m : {1,  2,  3,   4,   7,   8,   9,   15,  16,  17,   31,   33,   63,
                            64, 65, 100, 127, 129, 192, 255, 257, 500, 1000, 1025, 2047, 3000})
      for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{77}, kRows - m}) {
        const auto part = product(matmul, on, shape, first, m);
        wrong += std::memcmp(part.data(), whole.data() + first * shape.n, part.size() * 2) != 0;
      }
    CHECK(wrong == 0);
  }
}

TEST_CASE("strides, f32 and accumulation", "[gpu][products]") {
  const Shape shape{"small", 256, 512};
  const Operands on(shape);
  cuda::Product plain = product_of(shape);
  auto bf16 = good(cuda::Matmul::plan(*machine().blas, plain, {.m_max = 100}));
  const auto want = product(bf16, on, shape, 0, 60);
  cuda::Product wide = plain;
  wide.c_is_f32 = true;
  auto f32 = good(cuda::Matmul::plan(*machine().blas, wide, {.m_max = 100}));
  good(f32.run(machine().stream, 60, on.a.address(), on.w.address(), on.c.address()));
  const auto sums = read<float>(on.c.address(), 60 * 256);
  for (size_t i = 0; i < sums.size(); ++i)
    CHECK(std::abs(sums[i] - to_float(want[i])) <= std::abs(sums[i]) / 256 + 1e-6f);
  // Every other row of A, into every third row of C.
  cuda::Product strided = plain;
  strided.a_stride = 2 * shape.k;
  strided.c_stride = 3 * shape.n;
  auto sparse = good(cuda::Matmul::plan(*machine().blas, strided, {.m_max = 100}));
  good(machine().stream.fill(on.c.address(), 0, 90 * 256 * 2));
  good(sparse.run(machine().stream, 30, on.a.address(), on.w.address(), on.c.address()));
  const auto out = read<uint16_t>(on.c.address(), 90 * 256);
  int wrong = 0;
  for (size_t row = 0; row < 30; ++row)
    for (size_t i = 0; i < 256; ++i)
      wrong +=
          out[3 * row * 256 + i] != want[2 * row * 256 + i] || out[(3 * row + 1) * 256 + i] != 0;
  CHECK(wrong == 0);
  cuda::Product more = plain;
  more.accumulates = true;
  auto twice = good(cuda::Matmul::plan(*machine().blas, more, {.m_max = 100}));
  good(machine().stream.fill(on.c.address(), 0, 60 * 256 * 2));
  good(twice.run(machine().stream, 60, on.a.address(), on.w.address(), on.c.address()));
  good(twice.run(machine().stream, 60, on.a.address(), on.w.address(), on.c.address()));
  const auto doubled = read<uint16_t>(on.c.address(), 60 * 256);
  for (size_t i = 0; i < doubled.size(); ++i)
    CHECK(std::abs(to_float(doubled[i]) - 2 * sums[i]) <= std::abs(sums[i]) / 40 + 1e-5f);
}

TEST_CASE("what classes of row counts gain, and what the choice takes", "[gpu][products][bench]") {
  for (const Shape& shape : kShapes) {
    const Operands on(shape);
    const auto start = std::chrono::steady_clock::now();
    auto classes = good(cuda::Matmul::plan(*machine().blas, product_of(shape), tuned(kRows)));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    auto base = good(cuda::Matmul::plan(*machine().blas, product_of(shape), {.m_max = kRows}));
    std::string line =
        fmt::format("{} {}x{}, chosen in {:.2f} s:", shape.what, shape.n, shape.k, seconds);
    for (const int64_t m : {1, 16, 64, 256, 1024, 4096})
      line += fmt::format(" m {} {:.1f} us (base {:.1f});", m, microseconds(classes, on, m),
                          microseconds(base, on, m));
    WARN(line + " " + classes.describe());
  }
}
