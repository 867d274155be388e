#include <fmt/core.h>

#include "command.h"
#include "summary.h"

namespace kern::app {

namespace po = boost::program_options;

namespace {

void print_meta(const manifest::Meta& meta) {
  const std::pair<const char*, const std::string*> lines[] = {
      {"generator", &meta.generator},
      {"version", &meta.version},
      {"config_sha256", &meta.config_sha256},
      {"layout", &meta.layout},
      {"tokenizer", &meta.tokenizer}};
  for (const auto& [name, value] : lines)
    if (!value->empty()) fmt::print("{}: {}\n", name, *value);
}

void print_labels(const manifest::Manifest& m) {
  for (const auto& program : m.programs)
    for (size_t i = 0; i < program.calls.size(); ++i)
      if (!program.calls[i].label.empty())
        fmt::print("{} {} {} ({})\n", program.name, i, program.calls[i].label, program.calls[i].op);
}

}  // namespace

int cmd_show(const Arguments& arguments) {
  std::vector<std::string> files;
  bool canonical = false, labels = false;
  Capacity capacity{1024, 65};
  po::options_description options;
  options.add_options()("manifest", po::value(&files)->required(), "the manifest")(
      "canonical", po::bool_switch(&canonical), "print it in canonical JSON instead")(
      "labels", po::bool_switch(&labels), "print the labelled calls instead")(
      "pages", po::value(&capacity.pages)->default_value(1024)->value_name("N"),
      "pages of every paged state, for the memory line")(
      "slots", po::value(&capacity.slots)->default_value(65)->value_name("N"),
      "slots of every per-sequence state, for the memory line");
  const Usage usage{"kern show [options] MANIFEST",
                    "Prints what a manifest declares: where it comes from, its programs and their "
                    "launches, states,\nwhat crosses its cut, and the memory a rank takes.",
                    "manifest"};
  po::variables_map values;
  if (const auto over = read_options(arguments, usage, options, values)) return *over;
  for (const std::string& file : files) {
    const auto verified = load_manifest(file);
    if (!verified) return verified.error();
    if (canonical) {
      fmt::print("{}", print(**verified));
    } else if (labels) {
      print_labels(**verified);
    } else {
      if ((*verified)->meta) print_meta(*(*verified)->meta);
      fmt::print("{}", summary_of(*verified, capacity));
    }
  }
  return kOk;
}

}  // namespace kern::app
