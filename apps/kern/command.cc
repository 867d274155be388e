#include "command.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <iostream>

#include "kern/node/config.h"

namespace kern::app {

namespace po = boost::program_options;

namespace {
constexpr size_t kManifestBytesMax = size_t{1} << 30;
}

std::optional<int> read_options(const Arguments& arguments, const Usage& usage,
                                const po::options_description& options, po::variables_map& out) {
  po::options_description all("Options");
  all.add(options);
  all.add_options()("help,h", "show this help");
  po::positional_options_description positional;
  if (!usage.positional.empty()) positional.add(usage.positional.c_str(), -1);
  try {
    po::store(po::command_line_parser(arguments).options(all).positional(positional).run(), out);
    if (out.count("help") != 0) {
      std::cout << "Usage: " << usage.line << "\n\n" << usage.about << "\n\n" << all;
      return kOk;
    }
    po::notify(out);
  } catch (const po::error& error) {
    fmt::print(stderr, "kern: {}\nusage: {}\n", error.what(), usage.line);
    return kUsage;
  }
  return std::nullopt;
}

std::optional<MappedFile> map_manifest(const std::string& path) {
  auto file = MappedFile::open(path);
  if (file && file->bytes().size() > kManifestBytesMax)
    file = fail(Kind::io, "`{}` has {} bytes, more than {}", path, file->bytes().size(),
                kManifestBytesMax);
  if (!file) {
    fmt::print(stderr, "kern: {}\n", file.error().text());
    return std::nullopt;
  }
#ifdef MADV_POPULATE_READ
  // every page at once costs less than a fault each; an older kernel refuses, and they come so
  ::madvise(const_cast<std::byte*>(file->bytes().data()), file->bytes().size(), MADV_POPULATE_READ);
#endif
  return std::move(*file);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

tl::expected<manifest::Verified, int> load_manifest(const std::string& path) {
  const auto file = map_manifest(path);
  if (!file) return tl::unexpected<int>(kUsage);
  auto verified = manifest::load(text_of(*file));
  if (verified) return std::move(*verified);
  fmt::print(stderr, "kern: {}\n", manifest::to_error(verified.error(), path).text());
  return tl::unexpected<int>(kProblems);
}

Result<int> gpu_of(const std::string& device, const manifest::Verified& manifest) {
  if (device.empty()) return 0;
  KERN_TRY(gpu, node::parse_device(device));
  const bool wants_gpu = manifest->device == manifest::Device::cuda;
  if (wants_gpu != gpu.has_value())
    return fail(Kind::caller, "--device `{}`: the manifest is for {}", device,
                wants_gpu ? "a GPU" : "the host");
  return gpu.value_or(0);
}

std::vector<std::filesystem::path> module_dirs_of(const std::vector<std::string>& given) {
  if (!given.empty()) return {given.begin(), given.end()};
  const auto own = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../lib/kern";
  return {own, own / "cuda"};
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + '"';
}

std::string human_bytes(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

}  // namespace kern::app
