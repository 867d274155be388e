#pragma once
/// What the commands of `kern` share: their shape, their options, their exit codes, reading files.
/// Adding a command: one file `cmd_<name>.cc`, its declaration here, its line in main.cc's table.

#include <boost/program_options.hpp>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/file.h"
#include "kern/manifest/verify.h"

namespace kern::app {

constexpr int kOk = 0;
constexpr int kProblems = 1;  ///< the input was looked at and is not right
constexpr int kUsage = 2;     ///< the command line, or a file that cannot be read

using Arguments = std::vector<std::string>;

struct Command {
  std::string_view name;
  std::string_view about;
  int (*run)(const Arguments& arguments);
};

int cmd_verify(const Arguments& arguments);
int cmd_cut(const Arguments& arguments);
int cmd_show(const Arguments& arguments);
int cmd_schema(const Arguments& arguments);
int cmd_run(const Arguments& arguments);
int cmd_serve(const Arguments& arguments);
int cmd_replay(const Arguments& arguments);
int cmd_bench(const Arguments& arguments);

/// What a command's help says, and how its line is read.
struct Usage {
  std::string line;        ///< "kern verify [options] MANIFEST…"
  std::string about;       ///< a paragraph
  std::string positional;  ///< the option that takes what stands without a name
};

/// Reads the line into `out`. An exit code when the command is already over: after `--help`, or
/// after a complaint about the line.
std::optional<int> read_options(const Arguments& arguments, const Usage& usage,
                                const boost::program_options::options_description& options,
                                boost::program_options::variables_map& out);

/// A manifest file, read and verified; complains on standard error and gives the exit code.
tl::expected<manifest::Verified, int> load_manifest(const std::string& path);

/// A manifest file, mapped; complains on standard error.
std::optional<MappedFile> map_manifest(const std::string& path);
std::string_view text_of(const MappedFile& file);

/// The GPU to run on, by a word of `--device`; 0 for the host, which asks for none. Kind caller
/// when the manifest is for the other kind.
Result<int> gpu_of(const std::string& device, const manifest::Verified& manifest);

/// Where modules lie: what was given, or ../lib/kern beside this program.
std::vector<std::filesystem::path> module_dirs_of(const std::vector<std::string>& given);

/// A JSON string literal.
std::string json_quoted(std::string_view text);

/// "1.50 GiB".
std::string human_bytes(int64_t bytes);

}  // namespace kern::app
