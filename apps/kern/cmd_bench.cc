#include <fmt/core.h>
#include <fmt/ranges.h>

#include "bench.h"
#include "command.h"
#include "kern/base/file.h"

namespace kern::app {

namespace po = boost::program_options;

namespace {

/// The line as it was given.
struct BenchOptions {
  std::string manifest, weights, cache, device, json, log_level = "warn";
  std::vector<std::string> modules;
  BenchPlan plan;
};

po::options_description described(BenchOptions& o) {
  po::options_description options;
  options.add_options()("manifest", po::value(&o.manifest)->required(), "the manifest")(
      "program", po::value(&o.plan.program)->required()->value_name("NAME"), "the program to time")(
      "rows", po::value(&o.plan.rows)->value_name("N"),
      "rows of a run, over all its sequences; one each when not given")(
      "seqs", po::value(&o.plan.seqs)->default_value(1)->value_name("N"), "sequences of a run")(
      "context", po::value(&o.plan.context)->value_name("N"),
      "positions of each sequence after a run; its rows when not given")(
      "repeat", po::value(&o.plan.repeat)->default_value(10)->value_name("N"), "timed runs")(
      "by-op", po::bool_switch(&o.plan.by_op), "also time each launch, and print them by op")(
      "eager", po::bool_switch(&o.plan.eager), "launch by launch, nothing is captured")(
      "json", po::value(&o.json)->value_name("FILE"), "write all that was measured")(
      "weights", po::value(&o.weights)->value_name("DIR"), "the checkpoint")(
      "synthetic", po::value<uint64_t>()->value_name("SEED")->notifier([&o](uint64_t seed) {
        o.plan.synthetic = seed;
      }),
      "no checkpoint: pseudo-random weights")(
      "modules", po::value(&o.modules)->value_name("DIR"),
      "where modules lie; ../lib/kern and its folder cuda beside this program when not given")(
      "cache", po::value(&o.cache)->value_name("DIR"), "also look in DIR/blobs/<sha256>")(
      "device", po::value(&o.device)->value_name("host|gpu:N"),
      "where to run; what the manifest is for, on the first GPU, when not given")(
      "threads", po::value(&o.plan.threads)->default_value(1)->value_name("N"), "worker threads")(
      "log-level", po::value(&o.log_level)->default_value("warn"), "debug info warn error off");
  return options;
}

double rows_per_second(const BenchPlan& plan, const BenchAnswer& answer) {
  return answer.median() > 0 ? static_cast<double>(plan.rows) * 1e3 / answer.median() : 0;
}

void print_answer(const BenchPlan& plan, const BenchAnswer& answer) {
  fmt::print("loaded in {:.2f} s", answer.load_seconds);
  if (answer.computed > 0)
    fmt::print("; contexts are {} computed positions, repeated", answer.computed);
  fmt::print(
      "\n{}: {} rows, {} sequences of {} positions: median {:.3f} ms of {} runs, least {:.3f}; "
      "{:.0f} rows a second\n",
      plan.program, plan.rows, plan.seqs, plan.context, answer.median(), answer.runs.size(),
      answer.least(), rows_per_second(plan, answer));
  if (!answer.chained.empty())
    fmt::print(
        "step after step, each fed by the last: {:.3f} ms a step, the host works {:.0f} us\n",
        median_of(answer.chained), 1e3 * median_of(answer.chained_host));
  if (!plan.by_op) return;
  const double total = answer.launches_total();
  fmt::print("launch by launch {:.3f} ms, {:+.1f}% beside a run: what reading the clock costs\n",
             total, answer.median() > 0 ? 100 * (total / answer.median() - 1) : 0);
  fmt::print("{:>10}  {:>6}  {:>8}  op, entry\n", "ms", "share", "launches");
  for (const LaunchShare& share : answer.shares)
    fmt::print("{:>10.3f}  {:>5.1f}%  {:>8}  {}, {}\n", share.milliseconds,
               total > 0 ? 100 * share.milliseconds / total : 0, share.launches, share.op,
               share.entry);
}

std::string json_of(const BenchPlan& plan, const BenchAnswer& answer) {
  std::string out = fmt::format(
      "{{\"model\": {}, \"program\": {}, \"rows\": {}, \"seqs\": {}, \"context\": {}, "
      "\"computed_context\": {}, \"load_seconds\": {:.3f},\n \"median_ms\": {:.4f}, "
      "\"least_ms\": {:.4f}, \"rows_per_second\": {:.1f}, \"runs_ms\": [{:.4f}], "
      "\"tokens\": [{}]",
      json_quoted((*plan.manifest)->model), json_quoted(plan.program), plan.rows, plan.seqs,
      plan.context, answer.computed, answer.load_seconds, answer.median(), answer.least(),
      rows_per_second(plan, answer), fmt::join(answer.runs, ", "), fmt::join(answer.tokens, ", "));
  if (!answer.chained.empty())
    out += fmt::format(",\n \"chained_ms\": {:.4f}, \"chained_host_ms\": {:.4f}",
                       median_of(answer.chained), median_of(answer.chained_host));
  if (plan.by_op) {
    out += fmt::format(",\n \"by_launch_ms\": {:.4f}, \"by_op\": [", answer.launches_total());
    for (const LaunchShare& share : answer.shares)
      out += fmt::format("{}\n  {{\"op\": {}, \"entry\": {}, \"launches\": {}, \"ms\": {:.4f}}}",
                         &share == answer.shares.data() ? "" : ",", json_quoted(share.op),
                         json_quoted(share.entry), share.launches, share.milliseconds);
    out += "]";
  }
  return out + "}\n";
}

Result<void> bench_with(BenchOptions& o, const manifest::Verified& manifest) {
  KERN_TRY(level, parse_level(o.log_level));
  std::optional<safetensors::Catalog> weights;
  if (!o.weights.empty()) {
    KERN_TRY(catalog, safetensors::Catalog::open(o.weights));
    weights.emplace(std::move(catalog));
  }
  BenchPlan& plan = o.plan;
  plan.manifest = &manifest;
  plan.weights = weights ? &*weights : nullptr;
  KERN_TRY(gpu, gpu_of(o.device, manifest));
  plan.gpu = gpu;
  plan.cache_dir = o.cache;
  plan.module_dirs = module_dirs_of(o.modules);
  if (plan.rows == 0) plan.rows = plan.seqs;
  if (plan.context == 0 && plan.seqs > 0) plan.context = plan.rows / plan.seqs;
  KERN_TRY(answer, run_bench(plan, Log("kern bench", level)));
  print_answer(plan, answer);
  if (o.json.empty()) return {};
  return write_file(o.json, as_bytes(json_of(plan, answer)));
}

}  // namespace

int cmd_bench(const Arguments& arguments) {
  BenchOptions options;
  const Usage usage{
      "kern bench [options] MANIFEST --program NAME (--weights DIR | --synthetic SEED)",
      "Times a program at one shape, from the first input to the last output, on this machine: "
      "random\ntokens, every sequence with pages and a slot of its own. A context longer than the "
      "run's rows is\none page that the program computed, repeated.",
      "manifest"};
  po::variables_map values;
  if (const auto over = read_options(arguments, usage, described(options), values)) return *over;
  const auto verified = load_manifest(options.manifest);
  if (!verified) return verified.error();
  const auto done = bench_with(options, *verified);
  if (done) return kOk;
  fmt::print(stderr, "kern bench: {}\n", done.error().text());
  return done.error().kind == Kind::caller ? kUsage : kProblems;
}

}  // namespace kern::app
