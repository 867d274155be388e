#include <fmt/core.h>

#include <algorithm>

#include "command.h"
#include "kern/manifest/binds.h"
#include "kern/manifest/cut.h"
#include "kern/safetensors/catalog.h"
#include "summary.h"

namespace kern::app {

namespace po = boost::program_options;

namespace {

using manifest::Diagnostics;
using manifest::Verified;

/// What became of one file.
struct Outcome {
  std::string file;
  std::optional<Verified> verified;
  Diagnostics problems;
};

struct Settings {
  std::vector<std::string> files;
  std::string checkpoint;
  Capacity capacity;
  bool json = false;
  bool upgrade = false;
  bool parse_only = false;
};

std::optional<int> read_settings(const Arguments& arguments, Settings& out) {
  po::options_description options;
  options.add_options()("manifest", po::value(&out.files)->required(), "manifests to check")(
      "checkpoint", po::value(&out.checkpoint)->value_name("DIR"),
      "also check every bind against this checkpoint's index")(
      "pages", po::value(&out.capacity.pages)->default_value(1024)->value_name("N"),
      "pages of every paged state, for the memory line")(
      "slots", po::value(&out.capacity.slots)->default_value(65)->value_name("N"),
      "slots of every per-sequence state, for the memory line")(
      "json", po::bool_switch(&out.json), "print one JSON object instead of text")(
      "upgrade", po::bool_switch(&out.upgrade),
      "print the version 7 form of one manifest instead of its summary")(
      "parse-only", po::bool_switch(&out.parse_only),
      "only read: check what the schema of `kern schema` says, and names that stand twice");
  const Usage usage{
      "kern verify [options] MANIFEST…",
      "Checks manifests and prints every problem as `pointer: sentence`, or a one-screen summary.\n"
      "Stages of one cut, in any order and whatever else is named, are also checked together.\n"
      "Exit 0 when all is right, 1 when there are problems, 2 when a file cannot be read.",
      "manifest"};
  po::variables_map values;
  if (const auto over = read_options(arguments, usage, options, values)) return over;
  const char* complaint = nullptr;
  if (out.upgrade && (out.files.size() != 1 || out.json))
    complaint = "--upgrade takes one manifest and no --json";
  if (out.parse_only && (out.upgrade || !out.checkpoint.empty()))
    complaint = "--parse-only takes neither --upgrade nor --checkpoint";
  if (complaint == nullptr) return std::nullopt;
  fmt::print(stderr, "kern verify: {}\n", complaint);
  return kUsage;
}

Outcome look_at(const std::string& file, std::string_view text, const Settings& settings) {
  Outcome outcome{file, {}, {}};
  if (settings.parse_only) {
    if (auto read = manifest::parse(text); !read) outcome.problems = std::move(read.error());
    return outcome;
  }
  auto verified = manifest::load(text);
  if (verified)
    outcome.verified.emplace(std::move(*verified));
  else
    outcome.problems = std::move(verified.error());
  return outcome;
}

void check_checkpoint(const safetensors::Catalog& catalog, Outcome& outcome) {
  if (!outcome.verified) return;
  std::vector<manifest::TensorInfo> tensors;
  tensors.reserve(catalog.tensors().size());
  for (const safetensors::Tensor* tensor : catalog.tensors())
    tensors.push_back({tensor->name, tensor->dtype, tensor->shape});
  outcome.problems = check_binds(*outcome.verified, tensors);
}

/// Problems of the cut that several stages make together, whatever order they were named in and
/// whatever else was. A file that is not right may have been one of them: then nothing is said.
Diagnostics check_together(const std::vector<Outcome>& outcomes) {
  std::vector<const Verified*> stages;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.verified) return {};
    if ((*outcome.verified)->cut) stages.push_back(&*outcome.verified);
  }
  if (stages.size() < 2) return {};
  const auto number = [](const Verified* stage) { return (*stage)->cut->stage; };
  std::stable_sort(stages.begin(), stages.end(),
                   [&](const auto* a, const auto* b) { return number(a) < number(b); });
  return check_cut(stages);
}

std::string json_of(const Diagnostics& problems) {
  std::string out = "[";
  for (const auto& d : problems)
    out += fmt::format("{}{{\"pointer\": {}, \"sentence\": {}}}", out.size() > 1 ? ", " : "",
                       json_quoted(d.pointer), json_quoted(d.sentence));
  return out + "]";
}

std::string json_of(const Outcome& outcome, const Settings& settings) {
  std::string out =
      fmt::format("{{\"file\": {}, \"ok\": {}, \"problems\": {}", json_quoted(outcome.file),
                  outcome.problems.empty(), json_of(outcome.problems));
  if (outcome.verified) {
    const auto& m = *outcome.verified;
    const CheckpointBytes checkpoint = checkpoint_bytes(m);
    out += fmt::format(
        ", \"model\": {}, \"buffers\": {}, \"ops\": {}, \"programs\": {}, \"states\": {}, "
        "\"bytes\": {{\"weights\": {}, \"host_weights\": {}, \"sources\": {}",
        json_quoted(m->model), m->buffers.size(), m->ops.size(), m->programs.size(),
        m->states.size(), checkpoint.weights, checkpoint.host_weights, checkpoint.sources);
    const auto plan = plan_of(m, settings.capacity);
    out += plan ? fmt::format(", \"buffers\": {}, \"arena\": {}, \"states\": {}}}",
                              plan->buffer_bytes, plan->arena_bytes, plan->state_bytes)
                : fmt::format("}}, \"does_not_load\": {}", json_quoted(plan.error().text()));
  }
  return out + "}";
}

void print_text(const std::vector<Outcome>& outcomes, const Diagnostics& together,
                const Settings& settings) {
  for (const Outcome& outcome : outcomes) {
    if (outcomes.size() > 1) fmt::print("{}:\n", outcome.file);
    if (outcome.problems.empty() && settings.upgrade)
      fmt::print("{}", print(**outcome.verified));
    else if (outcome.problems.empty() && settings.parse_only)
      fmt::print("well-formed\n");
    else if (outcome.problems.empty())
      fmt::print("{}", summary_of(*outcome.verified, settings.capacity));
    else
      fmt::print("{}", to_text(outcome.problems));
  }
  if (!together.empty()) fmt::print("the cut:\n{}", to_text(together));
}

void print_json(const std::vector<Outcome>& outcomes, const Diagnostics& together,
                const Settings& settings) {
  std::string files;
  for (const Outcome& outcome : outcomes)
    files += fmt::format("{}{}", files.empty() ? "" : ", ", json_of(outcome, settings));
  fmt::print("{{\"files\": [{}], \"cut\": {}}}\n", files, json_of(together));
}

}  // namespace

int cmd_verify(const Arguments& arguments) {
  Settings settings;
  if (const auto over = read_settings(arguments, settings)) return *over;
  std::vector<Outcome> outcomes;
  for (const std::string& file : settings.files) {
    const auto mapped = map_manifest(file);
    if (!mapped) return kUsage;
    outcomes.push_back(look_at(file, text_of(*mapped), settings));
  }
  if (!settings.checkpoint.empty()) {
    const auto catalog = safetensors::Catalog::open(settings.checkpoint);
    if (!catalog) {
      fmt::print(stderr, "kern: {}\n", catalog.error().text());
      return kUsage;
    }
    for (Outcome& outcome : outcomes) check_checkpoint(*catalog, outcome);
  }
  const Diagnostics together = check_together(outcomes);
  if (settings.json)
    print_json(outcomes, together, settings);
  else
    print_text(outcomes, together, settings);
  bool ok = together.empty();
  for (const Outcome& outcome : outcomes) ok = ok && outcome.problems.empty();
  return ok ? kOk : kProblems;
}

}  // namespace kern::app
