#pragma once
// A hand-written manifest around the test module, a checkpoint of a few tensors, and their Runtime.

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "kern/base/file.h"
#include "kern/base/sha256.h"
#include "kern/runtime/runtime.h"
#include "kern/safetensors/catalog.h"
#include "kern/safetensors/writer.h"

namespace kern_test {

inline const std::filesystem::path kModuleDir = std::filesystem::path(KERN_BUILD_DIR) / "lib/test";

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "kern-runtime-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string module_hash() {
  const auto bytes = kern::read_file(kModuleDir / "test.so", 1 << 24);
  REQUIRE(bytes);
  return kern::to_hex(kern::sha256(kern::as_bytes(*bytes)));
}

/// The manifest with @HASH@ replaced by the test module's.
inline kern::manifest::Verified verified(std::string json) {
  for (size_t at; (at = json.find("@HASH@")) != std::string::npos;)
    json.replace(at, 6, module_hash());
  auto loaded = kern::manifest::load(json);
  if (!loaded) FAIL(kern::manifest::to_text(loaded.error()));
  return std::move(*loaded);
}

inline kern::runtime::Options options(int threads = 1) {
  kern::runtime::Options out;
  out.module_dirs = {kModuleDir};
  out.threads = threads;
  return out;
}

inline kern::Log quiet() {
  return {"test", kern::Level::off};
}

/// Loads, or fails the test with the sentence.
inline std::unique_ptr<kern::runtime::Runtime> loaded(
    const std::string& json, const kern::runtime::Options& with = options(),
    const kern::safetensors::Catalog* weights = nullptr) {
  auto runtime = kern::runtime::Runtime::load(verified(json), weights, with, quiet());
  if (!runtime) FAIL(runtime.error().text());
  return std::move(*runtime);
}

/// The sentence with which load refuses, empty when it does not.
inline std::string refusal(const std::string& json, const kern::runtime::Options& with = options(),
                           const kern::safetensors::Catalog* weights = nullptr) {
  const auto runtime = kern::runtime::Runtime::load(verified(json), weights, with, quiet());
  return runtime ? std::string() : runtime.error().text();
}

template <class T>
void put(kern::MutableByteSpan to, const std::vector<T>& values) {
  REQUIRE(values.size() * sizeof(T) <= to.size());
  std::memcpy(to.data(), values.data(), values.size() * sizeof(T));
}

template <class T>
std::vector<T> get(kern::ByteSpan from, size_t count) {
  REQUIRE(count * sizeof(T) <= from.size());
  std::vector<T> out(count);
  std::memcpy(out.data(), from.data(), count * sizeof(T));
  return out;
}

struct NamedTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

template <class T>
NamedTensor tensor(std::string name, std::string dtype, std::vector<int64_t> shape,
                   const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {std::move(name), std::move(dtype), std::move(shape), std::move(bytes)};
}

inline kern::safetensors::Catalog checkpoint(const TempDir& dir,
                                             const std::vector<NamedTensor>& tensors) {
  std::vector<kern::safetensors::TensorSpec> specs;
  for (const NamedTensor& t : tensors) specs.push_back({t.name, t.dtype, t.shape});
  auto writer = kern::safetensors::Writer::create(dir.path(), specs);
  REQUIRE(writer);
  for (const NamedTensor& t : tensors) REQUIRE(writer->write(t.name, t.bytes));
  REQUIRE(writer->finish());
  auto catalog = kern::safetensors::Catalog::open(dir.path());
  REQUIRE(catalog);
  return std::move(*catalog);
}

}  // namespace kern_test
