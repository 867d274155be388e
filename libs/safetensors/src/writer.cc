#include "kern/safetensors/writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "json.h"
#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "kern/base/file.h"
#include "kern/safetensors/shard.h"

namespace kern::safetensors {
namespace {

constexpr size_t kDataAlignment = 64;

struct Placed {
  const TensorSpec* spec;
  int64_t bytes;
  int64_t begin = 0;  ///< within the shard's data
};

struct Slot {
  size_t shard = 0;
  int64_t at = 0;  ///< in the file
  int64_t bytes = 0;
  int64_t written = 0;
};

Result<void> write_at(int fd, ByteSpan bytes, int64_t at, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(Kind::io, "`{}`: {}", path, std::strerror(errno));
    bytes = bytes.subspan(static_cast<size_t>(n));
    at += n;
  }
  return {};
}

/// Splits the specs into shards in their order, then sorts each shard and gives every tensor its
/// place.
Result<std::vector<std::vector<Placed>>> lay_out(std::span<const TensorSpec> specs,
                                                 int64_t shard_bytes_max) {
  std::vector<std::vector<Placed>> shards(1);
  std::map<std::string_view, bool> seen;
  int64_t held = 0;
  for (const TensorSpec& spec : specs) {
    if (spec.name.empty() || spec.name == "__metadata__" || !seen.emplace(spec.name, true).second)
      return fail(Kind::caller, "tensor `{}`: its name is empty, reserved or used before",
                  spec.name);
    const std::optional<int64_t> bytes = bytes_of_tensor(spec.dtype, spec.shape);
    if (!bytes)
      return fail(Kind::caller, "tensor `{}`: `{}` of shape [{}] has no size in whole bytes",
                  spec.name, spec.dtype, fmt::join(spec.shape, ", "));
    const std::optional<int64_t> together = checked_add(held, *bytes);
    const bool full = !together || *together > shard_bytes_max;
    if (!shards.back().empty() && (spec.starts_shard || full)) {
      shards.emplace_back();
      held = 0;
    }
    shards.back().push_back({&spec, *bytes});
    held += *bytes;
  }
  for (std::vector<Placed>& shard : shards) {
    std::sort(shard.begin(), shard.end(), [](const Placed& a, const Placed& b) {
      const int64_t wide_a = *bits_of(a.spec->dtype), wide_b = *bits_of(b.spec->dtype);
      return wide_a != wide_b ? wide_a > wide_b : a.spec->name < b.spec->name;
    });
    int64_t at = 0;
    for (Placed& tensor : shard) {
      tensor.begin = at;
      at += tensor.bytes;
    }
  }
  return shards;
}

/// Length and JSON, padded with blanks so that the data begins aligned.
std::string header_bytes(const std::vector<Placed>& shard) {
  std::string json = R"({"__metadata__":{"format":"pt"})";
  for (const Placed& tensor : shard) {
    json += ',';
    append_json_string(json, tensor.spec->name);
    json +=
        fmt::format(R"(:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", tensor.spec->dtype,
                    fmt::join(tensor.spec->shape, ","), tensor.begin, tensor.begin + tensor.bytes);
  }
  json += '}';
  json.resize(round_up(json.size() + sizeof(uint64_t), kDataAlignment) - sizeof(uint64_t), ' ');
  const uint64_t length = json.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + json;
}

std::string shard_name(size_t index, size_t count) {
  return count == 1 ? "model.safetensors"
                    : fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

}  // namespace

struct Writer::State {
  struct File {
    std::string name;
    int fd = -1;
  };

  std::filesystem::path dir;
  std::vector<File> files;
  std::map<std::string, Slot, std::less<>> slots;
  int64_t bytes_total = 0;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    for (const File& file : files) {
      if (file.fd < 0) continue;
      ::close(file.fd);
      ::unlink(partial(file.name).c_str());
    }
  }

  std::string partial(const std::string& name) const {
    return (dir / (name + ".partial")).string();
  }

  Result<void> create_shard(const std::vector<Placed>& shard, std::string name) {
    const std::string path = partial(name);
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return fail(Kind::io, "`{}`: {}", path, std::strerror(errno));
    files.push_back({std::move(name), fd});
    const std::string header = header_bytes(shard);
    KERN_TRY_VOID(write_at(fd, as_bytes(header), 0, path));
    int64_t end = static_cast<int64_t>(header.size());
    for (const Placed& tensor : shard) {
      KERN_ASSERT(end == static_cast<int64_t>(header.size()) + tensor.begin);
      slots.emplace(tensor.spec->name, Slot{files.size() - 1, end, tensor.bytes});
      end += tensor.bytes;
      bytes_total += tensor.bytes;
    }
    if (::ftruncate(fd, end) != 0) return fail(Kind::io, "`{}`: {}", path, std::strerror(errno));
    return {};
  }

  std::string index_json() const {
    std::string out = fmt::format(
        "{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{", bytes_total);
    const char* before = "\n    ";
    for (const auto& [name, slot] : slots) {
      out += std::exchange(before, ",\n    ");
      append_json_string(out, name);
      out += ": ";
      append_json_string(out, files[slot.shard].name);
    }
    return out + "\n  }\n}\n";
  }
};

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() = default;

Result<Writer> Writer::create(const std::filesystem::path& dir, std::span<const TensorSpec> specs,
                              const WriterOptions& options) {
  KERN_TRY(shards, lay_out(specs, options.shard_bytes_max));
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return fail(Kind::io, "`{}`: {}", dir.string(), error.message());
  auto state = std::make_unique<State>();
  state->dir = dir;
  for (size_t i = 0; i < shards.size(); ++i)
    KERN_TRY_VOID(state->create_shard(shards[i], shard_name(i, shards.size())));
  return Writer(std::move(state));
}

Result<void> Writer::write(std::string_view name, ByteSpan bytes, int64_t offset_bytes) {
  const auto at = state_->slots.find(name);
  if (at == state_->slots.end()) return fail(Kind::caller, "tensor `{}` was not announced", name);
  Slot& slot = at->second;
  const auto size = static_cast<int64_t>(bytes.size());
  if (offset_bytes < 0 || size > slot.bytes || offset_bytes > slot.bytes - size)
    return fail(Kind::caller, "tensor `{}`: bytes [{}, {}) lie outside its {}", name, offset_bytes,
                offset_bytes + size, slot.bytes);
  const State::File& file = state_->files[slot.shard];
  KERN_ASSERT(file.fd >= 0, "written after finish");
  KERN_TRY_VOID(write_at(file.fd, bytes, slot.at + offset_bytes, state_->partial(file.name)));
  slot.written += size;
  return {};
}

Result<void> Writer::finish() {
  for (const auto& [name, slot] : state_->slots)
    if (slot.written != slot.bytes)
      return fail(Kind::caller, "tensor `{}`: {} bytes written, expected {}", name, slot.written,
                  slot.bytes);
  for (State::File& file : state_->files) {
    const std::string partial = state_->partial(file.name);
    if (::close(std::exchange(file.fd, -1)) != 0)
      return fail(Kind::io, "`{}`: {}", partial, std::strerror(errno));
    std::error_code error;
    std::filesystem::rename(partial, state_->dir / file.name, error);
    if (error) return fail(Kind::io, "`{}`: {}", partial, error.message());
  }
  const std::filesystem::path index = state_->dir / "model.safetensors.index.json";
  if (state_->files.size() > 1) return write_file(index, as_bytes(state_->index_json()));
  std::error_code ignored;
  std::filesystem::remove(index, ignored);  // of an earlier checkpoint in the same folder
  return {};
}

}  // namespace kern::safetensors
