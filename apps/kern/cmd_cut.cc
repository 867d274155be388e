#include <fmt/core.h>

#include <boost/algorithm/string.hpp>
#include <filesystem>

#include "command.h"
#include "kern/base/file.h"
#include "kern/manifest/cut.h"

namespace kern::app {

namespace po = boost::program_options;

namespace {

int complain(const manifest::Diagnostics& problems, const std::string& what) {
  fmt::print(stderr, "kern: {}\n", manifest::to_error(problems, what).text());
  return kProblems;
}

int write_stages(const std::vector<manifest::Verified>& stages, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    fmt::print(stderr, "kern: folder `{}`: {}\n", folder, error.message());
    return kUsage;
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto path = std::filesystem::path(folder) / fmt::format("stage-{}.json", i);
    const std::string text = print(*stages[i]);
    if (const auto written = write_file(path, as_bytes(text)); !written) {
      fmt::print(stderr, "kern: {}\n", written.error().text());
      return kUsage;
    }
    const auto sent = manifest::sent_buffers(*stages[i]);
    fmt::print("{}: {} buffers, {} states{}{}\n", path.string(), stages[i]->buffers.size(),
               stages[i]->states.size(), sent.empty() ? "" : ", sends ",
               boost::algorithm::join(sent, " "));
  }
  return kOk;
}

}  // namespace

int cmd_cut(const Arguments& arguments) {
  std::vector<std::string> files;
  std::string at, folder;
  po::options_description options;
  options.add_options()("manifest", po::value(&files)->required(), "the manifest to slice")(
      "at", po::value(&at)->required()->value_name("LABEL,..."),
      "labels of the calls at which a new stage starts, in order")(
      "output,o", po::value(&folder)->required()->value_name("DIR"),
      "where to write stage-0.json, stage-1.json, …");
  const Usage usage{"kern cut [options] MANIFEST",
                    "Slices a manifest into pipeline stages: what is produced before a cut and "
                    "read after it\ncrosses; a state stays in one stage. Stages run in order are "
                    "byte-identical to the whole.",
                    "manifest"};
  po::variables_map values;
  if (const auto over = read_options(arguments, usage, options, values)) return *over;
  if (files.size() != 1) {
    fmt::print(stderr, "kern: cut takes one manifest, got {}\n", files.size());
    return kUsage;
  }
  const auto whole = load_manifest(files[0]);
  if (!whole) return whole.error();
  std::vector<std::string> labels;
  boost::algorithm::split(labels, at, [](char c) { return c == ','; });
  auto manifests = manifest::cut(*whole, labels);
  if (!manifests) return complain(manifests.error(), "the cut of " + files[0]);
  std::vector<manifest::Verified> stages;
  for (manifest::Manifest& one : *manifests) {
    auto verified = manifest::verify(std::move(one));
    if (!verified) return complain(verified.error(), fmt::format("stage {}", stages.size()));
    stages.push_back(std::move(*verified));
  }
  std::vector<const manifest::Verified*> pointers;
  for (const auto& stage : stages) pointers.push_back(&stage);
  if (const auto problems = manifest::check_cut(pointers); !problems.empty())
    return complain(problems, "the cut of " + files[0]);
  return write_stages(stages, folder);
}

}  // namespace kern::app
