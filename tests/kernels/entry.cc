#include "entry.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>

namespace kern_test {

float widen(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

uint16_t narrow(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

double rounded(double value) {
  return widen(narrow(value));
}

namespace {

float product(const uint16_t* a, const uint16_t* w, int64_t k) {
  float lanes[16] = {};
  for (int64_t i = 0; i < k; ++i) lanes[i % 16] += widen(a[i]) * widen(w[i]);
  for (int half = 8; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
}

void gemm_f32(const uint16_t* a, const uint16_t* w, float* c, int64_t m, int64_t n, int64_t k,
              int64_t c_stride, int64_t a_stride) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) c[i * c_stride + j] = product(a + i * a_stride, w + j * k, k);
}

void gemm_bf16(const uint16_t* a, const uint16_t* w, uint16_t* c, int64_t m, int64_t n, int64_t k,
               int64_t c_stride, int64_t a_stride) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j)
      c[i * c_stride + j] = narrow(product(a + i * a_stride, w + j * k, k));
}

constexpr kern_host_services kServices = {KERN_HOST_ABI, 0, gemm_bf16, gemm_f32};

kern::Dylib open_module(const std::string& family) {
  auto module =
      kern::Dylib::open(std::string(KERN_BUILD_DIR) + "/lib/kern/kern-host-" + family + ".so");
  if (!module) FAIL(module.error().text());
  return std::move(*module);
}

template <class Read>
Difference difference_of(size_t count, const std::vector<double>& want, Read read) {
  REQUIRE(count == want.size());
  double error = 0, size = 0;
  Difference found;
  for (size_t i = 0; i < count; ++i) {
    const double off = read(i) - want[i];
    if (!(std::fabs(off) <= found.largest)) found.largest = std::fabs(off);
    error += off * off;
    size += want[i] * want[i];
  }
  found.relative = std::sqrt(error / size);
  return found;
}

}  // namespace

const kern_host_services* plain_services() {
  return &kServices;
}

Entry::Entry(const std::string& family, const std::string& name) : module_(open_module(family)) {
  entry_ = reinterpret_cast<kern_host_entry>(module_.find(name));
  INFO(name);
  REQUIRE(entry_ != nullptr);
}

Entry& Entry::pointer(const void* address) {
  values_.emplace_back(sizeof address);
  std::memcpy(values_.back().data(), &address, sizeof address);
  return *this;
}

Entry& Entry::i32(int64_t value) {
  const auto narrow_value = static_cast<int32_t>(value);
  values_.emplace_back(sizeof narrow_value);
  std::memcpy(values_.back().data(), &narrow_value, sizeof narrow_value);
  return *this;
}

Entry& Entry::f32(double value) {
  const auto narrow_value = static_cast<float>(value);
  values_.emplace_back(sizeof narrow_value);
  std::memcpy(values_.back().data(), &narrow_value, sizeof narrow_value);
  return *this;
}

void Entry::run(std::vector<uint32_t> grid, size_t shared_bytes) {
  grid.resize(3, 1);
  std::vector<void*> args;
  for (auto& value : values_) args.push_back(value.data());
  std::vector<std::byte> shared(shared_bytes + 64, std::byte{0xFF});
  kern_block block = {};
  std::copy(grid.begin(), grid.end(), block.grid);
  block.shared_bytes = static_cast<uint32_t>(shared_bytes);
  block.shared = shared.data() + (64 - reinterpret_cast<uintptr_t>(shared.data()) % 64) % 64;
  block.services = &kServices;
  for (uint32_t z = grid[2]; z-- > 0;)
    for (uint32_t y = grid[1]; y-- > 0;)
      for (uint32_t x = grid[0]; x-- > 0;) {
        block.index[0] = x, block.index[1] = y, block.index[2] = z;
        entry_(&block, args.data());
      }
}

F32 uniform(kern::Prng& prng, size_t count, double low, double high) {
  F32 values(count);
  for (float& value : values) value = static_cast<float>(low + (high - low) * prng.unit());
  return values;
}

Bf16 normal_bf16(kern::Prng& prng, size_t count, double deviation) {
  Bf16 values(count);
  for (uint16_t& value : values) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += prng.unit();
    value = narrow(sum * deviation);
  }
  return values;
}

Difference difference(const Bf16& got, const std::vector<double>& want) {
  return difference_of(got.size(), want, [&](size_t i) { return double{widen(got[i])}; });
}

Difference difference(const F32& got, const std::vector<double>& want) {
  return difference_of(got.size(), want, [&](size_t i) { return double{got[i]}; });
}

}  // namespace kern_test
