#include <fmt/core.h>

#include <boost/algorithm/string.hpp>
#include <cmath>
#include <limits>

#include "command.h"
#include "kern/base/file.h"
#include "replay/generate.h"
#include "replay/replay.h"
#include "replay/report.h"

namespace kern::app {

namespace po = boost::program_options;

namespace {

constexpr size_t kTraceBytesMax = size_t{4} << 30;
constexpr uint64_t kHostBytesMax = 1'000'000'000'000'000'000;

// The line as it was given; what stands here already is the preset.
struct Line {
  std::vector<std::string> traces;
  std::string preset, policies, host, keep, page_bytes, slot_bytes, kind;
  uint32_t pages, slots, page_tokens, row_tokens, grid, park_tokens_min;
  uint64_t prefill_rate;
  double step_ms, cost_per_token, cost_per_pair;
  uint64_t seed;
  uint32_t sessions, every_ms;
  bool answers_elsewhere = false, json = false;
};

// A memory that operators know by name. Bytes are those of the whole model, over all its stages.
struct Preset {
  const char* name;
  const char* page_bytes;
  const char* slot_bytes;
  uint32_t pages, slots, page_tokens;
  double cost_per_token, cost_per_pair;  // FLOP
};
constexpr Preset kPresets[] = {
    // 24 MLA layers of 1,152 bytes a token; 69 KDA layers of 6,512,640 bytes a sequence; 350 GB on
    // the device. 219 TFLOP for 8,192 rows of 12 layers, 61.4 kFLOP a pair and MLA layer.
    {"k3", "1769472", "449372160", 131'072, 256, 64, 2.07e11, 1.47e6},
    {"plain", "1M", "0", 65'536, 0, 64, 1, 0},
};

void describe(po::options_description& options, Line& line, const Preset& preset) {
  const auto text = [](std::string* to, const char* value, const char* what) {
    return po::value(to)->default_value(value)->value_name(what);
  };
  const auto number = [](uint32_t* to, uint32_t value) {
    return po::value(to)->default_value(value)->value_name("N");
  };
  auto add = options.add_options();
  add("trace", po::value(&line.traces), "the trace, one session a line");
  add("preset", text(&line.preset, "plain", "NAME"),
      "where the numbers below come from: k3, plain");
  add("policy", text(&line.policies, "lru", "LIST"), "who goes first: lru, hits, cost");
  add("host-bytes", text(&line.host, "0", "LIST"), "host memory, as in 0,500G,2T; a run for each");
  add("pages", number(&line.pages, preset.pages), "pages on the device");
  add("slots", number(&line.slots, preset.slots), "slots on the device; 0: no recurrent state");
  add("page-tokens", number(&line.page_tokens, preset.page_tokens), "tokens of a page");
  add("page-bytes", text(&line.page_bytes, preset.page_bytes, "BYTES"), "bytes of a page");
  add("slot-bytes", text(&line.slot_bytes, preset.slot_bytes, "BYTES"), "bytes of a slot");
  add("row-tokens", number(&line.row_tokens, 1 << 20), "longest sequence");
  add("keep", text(&line.keep, "prompt", "LIST"),
      "where checkpoints are kept: at the end of shared, prompt, answer");
  add("grid", number(&line.grid, 64), "tokens between places where one may lie");
  add("answers-elsewhere", po::bool_switch(&line.answers_elsewhere),
      "the pool holds prompts only, as a prefill tier's does");
  add("park-tokens-min", number(&line.park_tokens_min, 0), "shorter checkpoints are not parked");
  add("prefill-rate", po::value(&line.prefill_rate)->default_value(8000)->value_name("N"),
      "prompt tokens a second that the pipeline computes");
  add("step-ms", po::value(&line.step_ms)->default_value(25)->value_name("MS"),
      "from a token of an answer to the next");
  add("cost-per-token", po::value(&line.cost_per_token)->default_value(preset.cost_per_token),
      "what `cost` reckons for computing a token …");
  add("cost-per-pair", po::value(&line.cost_per_pair)->default_value(preset.cost_per_pair),
      "… and for each token before it");
  add("json", po::bool_switch(&line.json), "print JSON with every count");
  add("generate", text(&line.kind, "", "KIND"),
      "write a trace instead: system, chat, agent, mixed");
  add("seed", po::value(&line.seed)->default_value(0)->value_name("N"), "of a trace to write");
  add("sessions", number(&line.sessions, 1000), "of a trace to write");
  add("every-ms", number(&line.every_ms, 2000), "mean time between sessions of a trace to write");
}

// --preset decides what the other options are when they are not given.
const Preset* preset_of(const Arguments& arguments) {
  std::string name = "plain";
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--preset" && i + 1 < arguments.size()) name = arguments[i + 1];
    if (arguments[i].starts_with("--preset=")) name = arguments[i].substr(9);
  }
  for (const Preset& preset : kPresets)
    if (preset.name == name) return &preset;
  fmt::print(stderr, "kern replay: `--preset`: expected k3 or plain, got `{}`\n", name);
  return nullptr;
}

// "1769472", "500G", "1.5T", "64Gi".
Result<uint64_t> bytes_of(const std::string& option, const std::string& text) {
  static constexpr std::string_view kUnits = "kMGTP";
  size_t used = 0;
  double value = -1;
  if (!text.empty() && (std::isdigit(static_cast<unsigned char>(text[0])) != 0))
    value = std::stod(text, &used);
  double base = 1000;
  std::string unit = text.substr(used);
  if (unit.size() == 2 && unit[1] == 'i') base = 1024, unit.pop_back();
  const size_t power = unit.empty() ? 0 : kUnits.find(unit) + 1;  // npos + 1 is 0 …
  if (value < 0 || unit.size() > 1 || (power == 0 && !unit.empty()))
    return fail(Kind::caller, "`--{}`: expected bytes as in 500G, 1.5T or 64Gi, got `{}`", option,
                text);
  value *= std::pow(base, static_cast<double>(power));
  if (value > static_cast<double>(kHostBytesMax))
    return fail(Kind::caller, "`--{}`: {} is more than {} bytes", option, text, kHostBytesMax);
  return static_cast<uint64_t>(value);
}

std::vector<std::string> items(const std::string& list) {
  std::vector<std::string> out;
  boost::algorithm::split(out, list, [](char c) { return c == ','; });
  return out;
}

Result<replay::Keep> keep_of(const Line& line) {
  replay::Keep keep{false, false, false};
  for (const std::string& item : items(line.keep)) {
    if (item == "shared")
      keep.shared = true;
    else if (item == "prompt")
      keep.prompt = true;
    else if (item == "answer")
      keep.answer = true;
    else
      return fail(Kind::caller, "`--keep`: expected shared, prompt or answer, got `{}`", item);
  }
  if (keep.answer && line.answers_elsewhere)
    return fail(Kind::caller, "`--keep answer`: with --answers-elsewhere there are none to keep");
  return keep;
}

Result<replay::Setup> setup_of(const Line& line) {
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  replay::Setup setup;
  KERN_TRY(page_bytes, bytes_of("page-bytes", line.page_bytes));
  KERN_TRY(slot_bytes, bytes_of("slot-bytes", line.slot_bytes));
  KERN_TRY(keep, keep_of(line));
  if (line.page_tokens == 0) return fail(Kind::caller, "`--page-tokens`: expected at least 1");
  if (line.row_tokens == 0) return fail(Kind::caller, "`--row-tokens`: expected at least 1");
  if (line.grid == 0) return fail(Kind::caller, "`--grid`: expected at least 1");
  if (line.prefill_rate == 0) return fail(Kind::caller, "`--prefill-rate`: expected at least 1");
  if (line.pages == kMost || line.slots == kMost)
    return fail(Kind::caller, "`--pages`, `--slots`: expected less than {}", kMost);
  if (!(line.step_ms >= 0 && line.step_ms <= 1e6))
    return fail(Kind::caller, "`--step-ms`: expected 0 to 1000000, got {}", line.step_ms);
  if (!(line.cost_per_token >= 0 && line.cost_per_pair >= 0 && line.cost_per_token < 1e30 &&
        line.cost_per_pair < 1e30))
    return fail(Kind::caller, "`--cost-per-token`, `--cost-per-pair`: expected 0 to 1e30");
  setup.geometry = {.page_tokens = line.page_tokens,
                    .pages = line.pages + 1,
                    .slots = line.slots + 1,
                    .recurrent = line.slots > 0,
                    .row_pages_max = (line.row_tokens - 1) / line.page_tokens + 1,
                    .page_bytes = page_bytes,
                    .slot_bytes = slot_bytes};
  setup.cost = {.per_token = line.cost_per_token,
                .per_token_pair = line.cost_per_pair,
                .page_bytes = std::max(1.0, static_cast<double>(page_bytes)),
                .slot_bytes = static_cast<double>(slot_bytes),
                .page_tokens = line.page_tokens};
  setup.keep = keep;
  setup.grid = line.grid;
  setup.answers_elsewhere = line.answers_elsewhere;
  setup.park_tokens_min = line.park_tokens_min;
  setup.prefill_tokens_per_s = line.prefill_rate;
  setup.step_us = static_cast<uint64_t>(std::llround(line.step_ms * 1000));
  return setup;
}

// A setup for each policy and each size of host memory.
Result<std::vector<replay::Setup>> setups_of(const Line& line) {
  KERN_TRY(base, setup_of(line));
  std::vector<replay::Setup> setups;
  for (const std::string& name : items(line.policies)) {
    const auto policy = replay::policy_named(name);
    if (!policy)
      return fail(Kind::caller, "`--policy`: expected lru, hits or cost, got `{}`", name);
    for (const std::string& text : items(line.host)) {
      replay::Setup setup = base;
      setup.policy = *policy;
      KERN_TRY(host_bytes, bytes_of("host-bytes", text));
      setup.geometry.host_bytes = host_bytes;
      if (const std::string why = pool::refusal(setup.geometry); !why.empty())
        return fail(Kind::caller, "no such pool: {}", why);
      setups.push_back(setup);
    }
  }
  return setups;
}

/// The exit code; an error is one of the command line, or a file that cannot be read.
Result<int> generate(const Line& line) {
  const auto kind = replay::load_kind(line.kind);
  if (!kind)
    return fail(Kind::caller, "`--generate`: expected system, chat, agent or mixed, got `{}`",
                line.kind);
  if (line.sessions == 0) return fail(Kind::caller, "`--sessions`: expected at least 1");
  for (const auto& session : replay::generate({*kind, line.seed, line.sessions, line.every_ms}))
    fmt::print("{}", replay::print(session));
  return kOk;
}

Result<int> replay_all(const Line& line) {
  if (line.traces.size() != 1)
    return fail(Kind::caller, "expected one trace, got {}", line.traces.size());
  KERN_TRY(setups, setups_of(line));
  KERN_TRY(text, read_file(line.traces[0], kTraceBytesMax));
  const auto trace = with_context(replay::parse_trace(text), "{}", line.traces[0]);
  if (!trace) {
    fmt::print(stderr, "kern replay: {}\n", trace.error().text());
    return kProblems;
  }
  std::vector<replay::Run> runs;
  for (const replay::Setup& setup : setups) runs.push_back({setup, replay::play(*trace, setup)});
  fmt::print("{}", line.json ? replay::json(*trace, runs) : replay::table(*trace, runs));
  return kOk;
}

}  // namespace

int cmd_replay(const Arguments& arguments) {
  const Preset* preset = preset_of(arguments);
  if (preset == nullptr) return kUsage;
  Line line;
  po::options_description options;
  describe(options, line, *preset);
  const Usage usage{"kern replay [options] TRACE",
                    "Plays a trace of sessions against the page pool, in virtual time, and tells "
                    "what its prefix cache\nwould have found where, for each policy and size of "
                    "host memory. --generate writes a trace.",
                    "trace"};
  po::variables_map values;
  if (const auto over = read_options(arguments, usage, options, values)) return *over;
  if (line.preset != preset->name) {  // an abbreviation, which the look ahead does not know
    fmt::print(stderr, "kern replay: write `--preset {}` in full\n", line.preset);
    return kUsage;
  }
  const Result<int> done = line.kind.empty() ? replay_all(line) : generate(line);
  if (done) return *done;
  fmt::print(stderr, "kern replay: {}\n", done.error().text());
  return kUsage;
}

}  // namespace kern::app
