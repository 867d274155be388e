#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>

#include "command.h"
#include "kern/base/file.h"
#include "run_session.h"
#include "tokenizer/k3_tokenizer.h"

namespace kern::app {

namespace po = boost::program_options;

namespace {

constexpr size_t kTokensBytesMax = size_t{1} << 30;
constexpr int64_t kTokensMaxDefault = 16;

/// The line as it was given.
struct RunOptions {
  std::string manifest, weights, prompt, tokens, via, logits, cache, device, log_level = "warn";
  std::vector<std::string> modules, inputs, outputs, dumps, states;
  std::vector<engine::Token> stops;
  int threads = 1;
  bool eager = false;
  int64_t tokens_max = -1, chunk = 0;
  engine::Sampling sampling;
};

po::options_description described(RunOptions& o) {
  po::options_description options;
  options.add_options()("manifest", po::value(&o.manifest)->required(), "the manifest")(
      "weights", po::value(&o.weights)->value_name("DIR"), "the checkpoint")(
      "prompt", po::value(&o.prompt)->value_name("TEXT"),
      "text to go on from; the checkpoint holds its tokenizer")(
      "tokens", po::value(&o.tokens)->value_name("FILE"),
      "ids to go on from, separated by white space")(
      "max-tokens", po::value(&o.tokens_max)->value_name("N"),
      "tokens to generate; 16, or none with --logits or --in")(
      "logits", po::value(&o.logits)->value_name("OUT.npy"),
      "write the logits: of every position with --via decode, else of the last")(
      "via", po::value(&o.via)->value_name("decode|prefill"),
      "feed the prompt one token at a time, or in as few items as fit")(
      "chunk", po::value(&o.chunk)->value_name("N"), "rows of a prompt's item at most")(
      "modules", po::value(&o.modules)->value_name("DIR"),
      "where modules lie; ../lib/kern and its folder cuda beside this program when not given")(
      "cache", po::value(&o.cache)->value_name("DIR"), "also look in DIR/blobs/<sha256>")(
      "device", po::value(&o.device)->value_name("host|gpu:N"),
      "where to run; what the manifest is for, on the first GPU, when not given")(
      "threads", po::value(&o.threads)->default_value(1)->value_name("N"),
      "worker threads of a rank")("eager", po::bool_switch(&o.eager),
                                  "on a GPU: launch by launch, nothing is captured")(
      "in", po::value(&o.inputs)->value_name("NAME=FILE.npy"),
      "what the stage before would have sent")("out",
                                               po::value(&o.outputs)->value_name("NAME=FILE.npy"),
                                               "write a buffer as it stands after its last call")(
      "dump", po::value(&o.dumps)->value_name("LABEL/NAME=FILE.npy"),
      "write a buffer as it stands after the calls of a label")(
      "state", po::value(&o.states)->value_name("NAME=FILE.npy"),
      "write the sequence's part of a state, as bytes")(
      "temperature", po::value(&o.sampling.temperature)->default_value(0.f), "0: greedy")(
      "top-p", po::value(&o.sampling.top_p)->default_value(1.f), "")(
      "top-k", po::value(&o.sampling.top_k)->default_value(0), "0: no limit")(
      "seed", po::value(&o.sampling.seed)->default_value(0), "of the draws")(
      "stop-token", po::value(&o.stops)->value_name("ID"), "ends the answer")(
      "log-level", po::value(&o.log_level)->default_value("warn"), "debug info warn error off");
  return options;
}

Result<std::pair<std::string, std::string>> split_pair(const std::string& text,
                                                       std::string_view flag) {
  const size_t at = text.find('=');
  if (at == std::string::npos || at == 0 || at + 1 == text.size())
    return fail(Kind::caller, "--{} `{}`: expected NAME=FILE", flag, text);
  return std::pair(text.substr(0, at), text.substr(at + 1));
}

Result<std::vector<engine::Token>> parse_tokens(const std::string& path) {
  KERN_TRY(text, read_file(path, kTokensBytesMax));
  std::vector<engine::Token> out;
  const char* at = text.data();
  const char* const end = at + text.size();
  constexpr std::string_view kBlank = " \t\r\n";
  while (true) {
    while (at != end && kBlank.find(*at) != std::string_view::npos) ++at;
    if (at == end) return out;
    engine::Token token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    const bool whole = next == end || kBlank.find(*next) != std::string_view::npos;
    if (error != std::errc() || !whole || token < 0)
      return fail(Kind::caller, "`{}`: token {} is not an id", path, out.size());
    out.push_back(token);
    at = next;
  }
}

Result<void> add_files(const RunOptions& o, RunPlan& plan) {
  for (const std::string& text : o.inputs) {
    KERN_TRY(pair, split_pair(text, "in"));
    KERN_TRY(array, read_npy(pair.second));
    plan.inputs.push_back({pair.first, std::move(array)});
  }
  for (const std::string& text : o.outputs) {
    KERN_TRY(pair, split_pair(text, "out"));
    plan.dumps.push_back({"", pair.first, pair.second});
  }
  for (const std::string& text : o.dumps) {
    KERN_TRY(pair, split_pair(text, "dump"));
    const size_t slash = pair.first.find('/');
    if (slash == std::string::npos)
      return fail(Kind::caller, "--dump `{}`: expected LABEL/NAME=FILE", text);
    plan.dumps.push_back({pair.first.substr(0, slash), pair.first.substr(slash + 1), pair.second});
  }
  for (const std::string& text : o.states) {
    KERN_TRY(pair, split_pair(text, "state"));
    plan.states.push_back({pair.first, pair.second});
  }
  plan.logits = o.logits;
  return {};
}

/// The prompt's ids: from the text, the file, or, for a stage that takes no ids, one a row of --in.
Result<std::vector<engine::Token>> prompt_tokens(const RunOptions& o, const RunPlan& plan,
                                                 const text::Tokenizer* tokenizer) {
  if (!o.prompt.empty() && !o.tokens.empty())
    return fail(Kind::caller, "--prompt and --tokens exclude each other");
  if (tokenizer != nullptr) return tokenizer->encode(o.prompt);
  if (!o.tokens.empty()) {
    KERN_TRY(tokens, parse_tokens(o.tokens));
    if (tokens.empty()) return fail(Kind::caller, "`{}` holds no token", o.tokens);
    return tokens;
  }
  if (plan.inputs.empty()) return fail(Kind::caller, "one of --prompt, --tokens, --in is needed");
  const int64_t rows = plan.inputs[0].array.rows();
  if (rows < 1) return fail(Kind::caller, "--in `{}` has no rows", plan.inputs[0].buffer);
  return std::vector<engine::Token>(static_cast<size_t>(rows), 0);
}

Result<RunPlan> plan_of(const RunOptions& o, const text::Tokenizer* tokenizer) {
  RunPlan plan;
  KERN_TRY_VOID(add_files(o, plan));
  KERN_TRY(tokens, prompt_tokens(o, plan, tokenizer));
  plan.tokens = std::move(tokens);
  if (!o.via.empty() && o.via != "decode" && o.via != "prefill")
    return fail(Kind::caller, "--via `{}`: expected decode or prefill", o.via);
  plan.step_by_step = o.via == "decode";
  plan.tokens_max = o.tokens_max >= 0                      ? o.tokens_max
                    : o.logits.empty() && o.inputs.empty() ? kTokensMaxDefault
                                                           : 0;
  if (!o.logits.empty() && plan.tokens_max > 0)
    return fail(Kind::caller, "--logits goes with --max-tokens 0: it tells of the prompt alone");
  plan.threads = o.threads;
  plan.eager = o.eager;
  plan.chunk = o.chunk;
  plan.sampling = o.sampling;
  plan.stop_tokens = o.stops;
  plan.cache_dir = o.cache;
  plan.module_dirs = module_dirs_of(o.modules);
  return plan;
}

void print_answer(const RunPlan& plan, const RunAnswer& answer, const text::Tokenizer* tokenizer) {
  const bool is_mute = answer.tokens.empty() && plan.tokens_max > 0 && plan.stop_tokens.empty();
  if (is_mute)
    fmt::print(stderr,
               "kern run: no token came out, this manifest is one stage; --out saves what "
               "it sends on\n");
  else if (tokenizer != nullptr)
    fmt::print("{}\n", tokenizer->decode(answer.tokens, text::Specials::keep));
  else if (!answer.tokens.empty())
    fmt::print("{}\n", fmt::join(answer.tokens, " "));
  const auto rate = [](size_t count, double seconds) {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  };
  fmt::print(stderr, "kern run: loaded in {:.2f} s; {} prompt tokens at {:.0f} a second",
             answer.load_seconds, plan.tokens.size(),
             rate(plan.tokens.size(), answer.prompt_seconds));
  if (answer.tokens.size() > 1)
    fmt::print(stderr, "; {} more at {:.0f}", answer.tokens.size() - 1,
               rate(answer.tokens.size() - 1, answer.decode_seconds));
  fmt::print(stderr, "\n");
}

Result<void> run_with(const RunOptions& o, const manifest::Verified& manifest) {
  KERN_TRY(level, parse_level(o.log_level));
  std::optional<safetensors::Catalog> weights;
  if (!o.weights.empty()) {
    KERN_TRY(catalog, safetensors::Catalog::open(o.weights));
    weights.emplace(std::move(catalog));
  }
  std::optional<text::Tokenizer> tokenizer;
  if (!o.prompt.empty()) {
    if (o.weights.empty()) return fail(Kind::caller, "--prompt needs the tokenizer of --weights");
    KERN_TRY(read, k3::load_tokenizer(o.weights));
    tokenizer.emplace(std::move(read));
  }
  const text::Tokenizer* speaks = tokenizer ? &*tokenizer : nullptr;
  KERN_TRY(plan, plan_of(o, speaks));
  plan.manifest = &manifest;
  KERN_TRY(gpu, gpu_of(o.device, manifest));
  plan.gpu = gpu;
  plan.weights = weights ? &*weights : nullptr;
  KERN_TRY(answer, run_session(plan, Log("kern run", level)));
  print_answer(plan, answer, speaks);
  return {};
}

}  // namespace

int cmd_run(const Arguments& arguments) {
  RunOptions options;
  const Usage usage{
      "kern run [options] MANIFEST --weights DIR (--prompt TEXT | --tokens FILE)",
      "Runs one sequence through a manifest on this machine: a prompt and its answer, the logits\n"
      "of given tokens, or one stage between .npy files. A manifest of several ranks runs them\n"
      "all, a thread each.",
      "manifest"};
  po::variables_map values;
  if (const auto over = read_options(arguments, usage, described(options), values)) return *over;
  const auto verified = load_manifest(options.manifest);
  if (!verified) return verified.error();
  const auto done = run_with(options, *verified);
  if (done) return kOk;
  fmt::print(stderr, "kern run: {}\n", done.error().text());
  return done.error().kind == Kind::caller ? kUsage : kProblems;
}

}  // namespace kern::app
