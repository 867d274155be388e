#include "command.h"

#include <fmt/core.h>

#include <iostream>

#include "kern/base/file.h"

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

std::optional<std::string> read_manifest(const std::string& path) {
  auto text = read_file(path, kManifestBytesMax);
  if (text) return std::move(*text);
  fmt::print(stderr, "kern: {}\n", text.error().text());
  return std::nullopt;
}

tl::expected<manifest::Verified, int> load_manifest(const std::string& path) {
  const auto text = read_manifest(path);
  if (!text) return tl::unexpected<int>(kUsage);
  auto verified = manifest::load(*text);
  if (verified) return std::move(*verified);
  fmt::print(stderr, "kern: {}\n", manifest::to_error(verified.error(), path).text());
  return tl::unexpected<int>(kProblems);
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
