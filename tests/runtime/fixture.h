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

// A weight copied to the output, so that a test sees the bytes that were bound.
inline std::string weight_manifest(const std::string& dtype, int64_t rows, int64_t cols,
                                   const std::string& bind, const std::string& group = "") {
  const std::string topology = group.empty() ? "" : R"("topology": {"groups": {"tp": 2}},)";
  const std::string rank = group.empty() ? R"({"i32": 0})" : R"({"rank": "tp"})";
  const std::string shape = "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]";
  return R"({
    "schema_version": 7, "model": "bind", "uses": ["host"], "device": "host", )" +
         topology + R"("vars": {}, "states": {},
    "buffers": {
      "w": {"dtype": ")" +
         dtype + R"(", "shape": )" + shape + R"(, "kind": "weight", "bind": )" + bind + R"(},
      "t": {"dtype": "i32", "shape": [1], "kind": "input", "domain": {"index_into": "w"}},
      "o": {"dtype": ")" +
         dtype + R"(", "shape": )" + shape + R"(, "kind": "output"}},
    "modules": {"test": {"source": "test.so", "sha256": "@HASH@"}},
    "ops": {"copy": {"params": ["in buffer<)" +
         dtype + R"(>", "in buffer<i32>", "out buffer<)" + dtype + R"(>", "i32", "i32"],
      "impl": {"launches": [{"module": "test", "entry": "test_gather", "block": [1, 1, 1],
        "grid": [1, 1, 1]}]}}},
    "programs": {"main": {"calls": [{"op": "copy", "args": [{"buf": "w"}, {"buf": "t"},
      {"buf": "o"}, {"i32": )" +
         std::to_string(rows * cols) + R"(}, )" + rank + R"(]}]}}
  })";
}

/// Bytes of that weight under synthetic weights of a seed.
inline std::vector<std::byte> loaded_weight(const std::string& dtype, int64_t rows, int64_t cols,
                                            uint64_t seed) {
  auto with = options();
  with.synthetic_weights = seed;
  std::string json = weight_manifest(dtype, rows, cols, R"([{"tensor": "w"}])");
  // the copy counts in floats
  const int64_t each = dtype == "f32" || dtype == "i32" ? 4 : dtype.ends_with("16") ? 2 : 1;
  const std::string width = R"({"i32": )" + std::to_string(rows * cols);
  json.replace(json.find(width), width.size(),
               R"({"i32": )" + std::to_string(rows * cols * each / 4));
  const auto r = loaded(json, with);
  REQUIRE(r->run("main", std::vector<kern::runtime::VarValue>{}));
  const kern::ByteSpan out = r->buffer("o");
  return {out.begin(), out.end()};
}

}  // namespace kern_test
