#include "kern/safetensors/shard.h"

#include <algorithm>
#include <tuple>

#include "json.h"
#include "kern/base/assert.h"

namespace kern::safetensors {
namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the format's own limit

/// The header's JSON, once its length is known to lie inside the file.
Result<std::string_view> header_of(ByteSpan file) {
  uint64_t length = 0;
  if (file.size() < sizeof(length))
    return fail(Kind::weight_artifact,
                "the file has {} bytes, expected at least 8 for its header length", file.size());
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > file.size() - sizeof(length))
    return fail(Kind::weight_artifact, "the header says {} bytes, but only {} follow its length",
                length, file.size() - sizeof(length));
  if (length > kHeaderBytesMax)
    return fail(Kind::weight_artifact, "the header says {} bytes, expected at most {}", length,
                kHeaderBytesMax);
  return as_text(file.subspan(sizeof(length), length));
}

Result<void> check_entry(const HeaderEntry& entry, uint64_t data_bytes) {
  if (!bits_of(entry.dtype))
    return fail(Kind::weight_artifact, "tensor `{}`: unknown dtype `{}`", entry.name, entry.dtype);
  const std::optional<int64_t> size = bytes_of_tensor(entry.dtype, entry.shape);
  if (!size)
    return fail(Kind::weight_artifact,
                "tensor `{}`: {} of shape [{}] has no size in whole bytes below 2^60", entry.name,
                entry.dtype, fmt::join(entry.shape, ", "));
  if (entry.begin > entry.end)
    return fail(Kind::weight_artifact, "tensor `{}`: data_offsets [{}, {}] run backwards",
                entry.name, entry.begin, entry.end);
  if (entry.end > data_bytes)
    return fail(Kind::weight_artifact,
                "tensor `{}`: ends at byte {}, but the file holds {} bytes of data (truncated?)",
                entry.name, entry.end, data_bytes);
  if (entry.end - entry.begin != static_cast<uint64_t>(*size))
    return fail(Kind::weight_artifact, "tensor `{}`: {} of shape [{}] takes {} bytes, got {}",
                entry.name, entry.dtype, fmt::join(entry.shape, ", "), *size,
                entry.end - entry.begin);
  return {};
}

/// Entries sorted by place must follow each other from 0 to the end of the data.
Result<void> check_cover(const std::vector<HeaderEntry>& entries, uint64_t data_bytes) {
  uint64_t at = 0;
  const HeaderEntry* before = nullptr;
  for (const HeaderEntry& entry : entries) {
    const std::string where =
        before == nullptr ? "at 0" : fmt::format("at {} where tensor `{}` ends", at, before->name);
    if (entry.begin < at)
      return fail(Kind::weight_artifact,
                  "tensor `{}`: begins at byte {}, expected {} (they overlap)", entry.name,
                  entry.begin, where);
    if (entry.begin > at)
      return fail(Kind::weight_artifact, "tensor `{}`: begins at byte {}, expected {} (a gap)",
                  entry.name, entry.begin, where);
    at = entry.end;
    before = &entry;
  }
  if (at != data_bytes)
    return fail(Kind::weight_artifact, "{} bytes of data follow the last tensor{}", data_bytes - at,
                before == nullptr ? std::string() : fmt::format(" `{}`", before->name));
  return {};
}

Result<std::vector<Tensor>> tensors_of(ByteSpan file) {
  KERN_TRY(json, header_of(file));
  KERN_TRY(entries, parse_header(json));
  const ByteSpan data = file.subspan(sizeof(uint64_t) + json.size());
  for (const HeaderEntry& entry : entries) KERN_TRY_VOID(check_entry(entry, data.size()));
  std::sort(entries.begin(), entries.end(), [](const HeaderEntry& a, const HeaderEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  KERN_TRY_VOID(check_cover(entries, data.size()));
  std::vector<Tensor> tensors;
  tensors.reserve(entries.size());
  for (HeaderEntry& entry : entries) {
    KERN_ASSERT(entry.begin <= entry.end && entry.end <= data.size());
    tensors.push_back({std::move(entry.name), std::move(entry.dtype), std::move(entry.shape),
                       data.subspan(entry.begin, entry.end - entry.begin)});
  }
  return tensors;
}

}  // namespace

Result<Shard> Shard::open(const std::filesystem::path& path) {
  KERN_TRY(file, MappedFile::open(path));
  Shard shard(path, std::move(file));
  KERN_TRY(tensors, with_context(tensors_of(shard.file_.bytes()), "`{}`", path.string()));
  shard.tensors_ = std::move(tensors);
  return shard;
}

}  // namespace kern::safetensors
