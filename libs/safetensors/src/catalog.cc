#include "kern/safetensors/catalog.h"

#include <algorithm>
#include <map>

#include "json.h"
#include "kern/base/assert.h"

namespace kern::safetensors {
namespace {

constexpr size_t kIndexBytesMax = 1'000'000'000;
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSingleName = "model.safetensors";

bool by_name(const Tensor* a, const Tensor* b) {
  return a->name < b->name;
}

const Tensor* find_in(std::span<const Tensor* const> sorted, std::string_view name) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), name,
                                   [](const Tensor* t, std::string_view n) { return t->name < n; });
  return at != sorted.end() && (*at)->name == name ? *at : nullptr;
}

std::vector<const Tensor*> sorted_tensors(const Shard& shard) {
  std::vector<const Tensor*> out;
  out.reserve(shard.tensors().size());
  for (const Tensor& tensor : shard.tensors()) out.push_back(&tensor);
  std::sort(out.begin(), out.end(), by_name);
  return out;
}

Result<std::vector<Shard>> open_shards(
    const std::filesystem::path& dir,
    const std::map<std::string, std::vector<std::string>>& files) {
  std::vector<Shard> shards;
  shards.reserve(files.size());
  for (const auto& [file, names] : files) {
    std::error_code ignored;
    if (!std::filesystem::exists(dir / file, ignored))
      return fail(Kind::weight_artifact, "shard `{}` of tensor `{}` is missing", file,
                  names.front());
    KERN_TRY(shard, Shard::open(dir / file));
    shards.push_back(std::move(shard));
  }
  return shards;
}

}  // namespace

Result<Catalog> Catalog::open(const std::filesystem::path& path) {
  std::error_code ignored;
  Catalog catalog(path);
  std::filesystem::path single = path;
  if (std::filesystem::is_directory(path, ignored)) {
    const std::filesystem::path index = path / kIndexName;
    if (std::filesystem::exists(index, ignored)) {
      KERN_TRY(json, read_file(index, kIndexBytesMax));
      KERN_TRY(rows, with_context(parse_index(json), "`{}`", index.string()));
      std::map<std::string, std::vector<std::string>> files;
      for (auto& [name, file] : rows) files[file].push_back(std::move(name));
      KERN_TRY(shards, with_context(open_shards(path, files), "`{}`", index.string()));
      catalog.shards_ = std::move(shards);
      auto shard = catalog.shards_.begin();
      for (const auto& [file, names] : files) {
        const std::vector<const Tensor*> held = sorted_tensors(*shard++);
        for (const std::string& name : names) {
          const Tensor* tensor = find_in(held, name);
          if (tensor == nullptr)
            return fail(Kind::weight_artifact, "`{}`: tensor `{}` is not in its shard `{}`",
                        index.string(), name, file);
          catalog.by_name_.push_back(tensor);
        }
      }
      std::sort(catalog.by_name_.begin(), catalog.by_name_.end(), by_name);
      return catalog;
    }
    single = path / kSingleName;
    if (!std::filesystem::exists(single, ignored))
      return fail(Kind::weight_artifact, "`{}` holds neither `{}` nor `{}`", path.string(),
                  kIndexName, kSingleName);
  }
  KERN_TRY(shard, Shard::open(single));
  catalog.shards_.push_back(std::move(shard));
  catalog.by_name_ = sorted_tensors(catalog.shards_.front());
  KERN_ASSERT(catalog.by_name_.size() == catalog.shards_.front().tensors().size());
  return catalog;
}

const Tensor* Catalog::find(std::string_view name) const {
  return find_in(by_name_, name);
}

Result<const Tensor*> Catalog::get(std::string_view name) const {
  const Tensor* tensor = find(name);
  if (tensor == nullptr)
    return fail(Kind::weight_artifact, "checkpoint `{}` has no tensor `{}`", path_.string(), name);
  return tensor;
}

}  // namespace kern::safetensors
