#include "bench.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "kern/base/checked.h"
#include "kern/base/clock.h"
#include "kern/base/prng.h"
#include "kern/manifest/protocol.h"
#include "kern/node/runtime_executor.h"
#include "npy.h"

namespace kern::app {
namespace {

using engine::Item;
using engine::Token;
using manifest::Fill;
using manifest::Protocol;
using manifest::Service;
using manifest::Verified;

constexpr int kWarmRuns = 2;  // a second run captures a graph, a third replays it
constexpr int64_t kPageTokensDefault = 64;

/// The largest token that the manifest takes.
int64_t token_max(const Verified& manifest, const Protocol& protocol) {
  const manifest::Filled* filled = protocol.input(Fill::token);
  const manifest::Buffer* buffer = filled != nullptr ? manifest.buffer(filled->buffer) : nullptr;
  if (buffer == nullptr || !buffer->domain) return 0;
  if (const manifest::Buffer* table = manifest.buffer(buffer->domain->index_into); table != nullptr)
    return table->shape[0].value - 1;
  const auto* max = buffer->domain->max ? std::get_if<int64_t>(&*buffer->domain->max) : nullptr;
  return max != nullptr ? *max : 0;
}

class Bench {
 public:
  Bench(const BenchPlan& plan, Protocol protocol, const Service& service)
      : plan_(plan),
        protocol_(std::move(protocol)),
        service_(service),
        page_tokens_(protocol_.page_tokens > 0 ? protocol_.page_tokens : kPageTokensDefault),
        pages_each_(ceil_div(plan.context, page_tokens_)),
        prng_(plan.synthetic.value_or(0)) {}

  Result<BenchAnswer> run(const Log& log);

 private:
  Result<void> load(const Log& log);
  Result<void> fill_received();
  Item item(int64_t start, int64_t rows_each, int64_t seqs);
  Result<int64_t> compute_context();
  Result<std::vector<double>> time_runs();
  Result<void> time_chain(BenchAnswer& answer);
  Result<std::vector<LaunchShare>> time_launches();
  int64_t rows_each() const { return plan_.rows / plan_.seqs; }
  int64_t start() const { return plan_.context - rows_each(); }
  std::vector<runtime::VarValue> vars() const;

  const BenchPlan& plan_;
  Protocol protocol_;
  const Service service_;
  int64_t page_tokens_, pages_each_;
  Prng prng_;
  std::unique_ptr<runtime::Runtime> runtime_;
  std::unique_ptr<node::RuntimeExecutor> executor_;
  uint64_t items_ = 0;
};

Result<void> Bench::load(const Log& log) {
  runtime::Options options;
  options.module_dirs = plan_.module_dirs;
  options.cache_dir = plan_.cache_dir;
  options.capacity = {plan_.seqs * pages_each_ + 1, page_tokens_, plan_.seqs + 1};
  options.threads = plan_.threads;
  options.gpu = plan_.gpu;
  options.synthetic_weights = plan_.synthetic;
  options.eager = plan_.eager;
  options.weights_in_place = true;
  // What a server brings back, and no more.
  options.read_back.emplace(protocol_.sent.begin(), protocol_.sent.end());
  for (const manifest::Filled& output : protocol_.outputs) options.read_back->insert(output.buffer);
  KERN_TRY(runtime, runtime::Runtime::load(*plan_.manifest, plan_.weights, options, log));
  runtime_ = std::move(runtime);
  KERN_TRY(executor,
           node::RuntimeExecutor::create(*plan_.manifest, *runtime_, {options.capacity, {}, 0, 0}));
  executor_ = std::move(executor);
  if (plan_.context > executor_->limits().context_max)
    return fail(Kind::caller, "a context of {}, the manifest's sequences end at {}", plan_.context,
                executor_->limits().context_max);
  return {};
}

/// What the stage before would have sent: uniform between -1 and 1.
Result<void> Bench::fill_received() {
  for (const node::Crossing& crossing : executor_->received()) {
    const manifest::Dtype dtype = plan_.manifest->buffer(crossing.name)->dtype;
    const auto count = static_cast<int64_t>(crossing.bytes.size()) / manifest::size_of(dtype);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = static_cast<float>(2 * prng_.unit() - 1);
    Array array{"<f4", {count}, {}};
    const ByteSpan raw = bytes_of(std::span<const float>(values));
    array.bytes.assign(raw.begin(), raw.end());
    KERN_TRY(bytes, with_context(as_buffer(array, dtype), "received `{}`", crossing.name));
    std::copy(bytes.begin(), bytes.end(), crossing.bytes.begin());
  }
  return {};
}

/// Sequence s has slot s + 1 and the pages behind those of the sequences before it.
Item Bench::item(int64_t start, int64_t rows_each, int64_t seqs) {
  const auto tokens = static_cast<uint64_t>(token_max(*plan_.manifest, protocol_)) + 1;
  Item item;
  item.id = ++items_;
  item.phase = service_.rows_each ? engine::Phase::decode : engine::Phase::prefill;
  for (int64_t s = 0; s < seqs; ++s) {
    engine::Slice& slice = item.slices.emplace_back();
    slice.slot = static_cast<uint32_t>(s + 1);
    slice.start = static_cast<uint32_t>(start);
    slice.pages.resize(static_cast<size_t>(pages_each_));
    std::iota(slice.pages.begin(), slice.pages.end(), static_cast<uint32_t>(1 + s * pages_each_));
    for (int64_t row = 0; row < rows_each; ++row)
      slice.tokens.push_back(static_cast<Token>(prng_.below(tokens)));
    slice.emits = service_.emits;
    if (start == 0 && executor_->limits().recurrent) item.zero_slots.push_back(slice.slot);
  }
  return item;
}

/// One sequence's first page, by this program; every other page and slot is a copy of it, so that
/// no row attends to memory nobody wrote. Gives the positions computed.
Result<int64_t> Bench::compute_context() {
  const int64_t rows = std::min(start(), page_tokens_);
  const int64_t most = service_.rows_each ? 1 : std::min(rows, service_.rows_max);
  for (int64_t at = 0; at < rows; at += most)
    KERN_TRY_VOID(executor_->run(item(at, std::min(most, rows - at), 1)));
  if (rows == 0) return rows;
  if (protocol_.page_tokens > 0)
    for (int64_t page = 2; page <= plan_.seqs * pages_each_; ++page)
      KERN_TRY_VOID(runtime_->copy_page(1, page));
  if (executor_->limits().recurrent)
    for (int64_t slot = 2; slot <= plan_.seqs; ++slot) KERN_TRY_VOID(runtime_->copy_slot(1, slot));
  return rows;
}

std::vector<runtime::VarValue> Bench::vars() const {
  std::vector<runtime::VarValue> out;
  const std::pair<const std::string&, int64_t> all[] = {{protocol_.rows_var, plan_.rows},
                                                        {protocol_.groups_var, plan_.seqs},
                                                        {service_.context_var, plan_.context}};
  for (const auto& [name, value] : all)
    if (!name.empty()) out.push_back({name, value});
  return out;
}

Result<std::vector<double>> Bench::time_runs() {
  const SystemClock clock;
  const std::vector<runtime::VarValue> values = vars();
  std::vector<double> times;
  for (int64_t i = -kWarmRuns; i < plan_.repeat; ++i) {
    const TimeNs start = clock.now();
    KERN_TRY_VOID(runtime_->run(plan_.program, values));
    if (i >= 0) times.push_back(static_cast<double>(clock.now() - start) / kMillisecondNs);
  }
  return times;
}

/// As a server steps: a step is filled and started while the one before it is under way. All at the
/// same position, so that each is as long as the next.
Result<void> Bench::time_chain(BenchAnswer& answer) {
  if (!executor_->limits().feeds || !service_.rows_each || start() == 0) return {};
  const SystemClock clock;
  Item fed = item(start(), 1, plan_.seqs);
  KERN_TRY_VOID(executor_->start(fed));
  for (size_t s = 0; s < fed.slices.size(); ++s) fed.slices[s].fed_from = static_cast<int32_t>(s);
  TimeNs last = clock.now();
  for (int64_t i = -kWarmRuns; i < plan_.repeat; ++i) {
    ++fed.id;
    TimeNs at = clock.now();
    KERN_TRY_VOID(executor_->start(fed));
    TimeNs host = clock.now() - at;
    for (bool done = false; !done;) {
      KERN_TRY(is, executor_->is_done());
      done = is;
    }
    at = clock.now();
    KERN_TRY_VOID(executor_->finish());
    const TimeNs now = clock.now();
    host += now - at;
    if (i >= 0) {
      answer.chained.push_back(static_cast<double>(now - last) / kMillisecondNs);
      answer.chained_host.push_back(static_cast<double>(host) / kMillisecondNs);
    }
    last = now;
  }
  KERN_TRY_VOID(executor_->finish());
  return {};
}

/// The median of each launch, then summed by op and entry.
Result<std::vector<LaunchShare>> Bench::time_launches() {
  const std::vector<runtime::VarValue> values = vars();
  std::map<std::pair<size_t, size_t>, std::vector<double>> times;  // by call and launch
  for (int64_t i = 0; i < plan_.repeat; ++i) {
    KERN_TRY(launches, runtime_->run_timed(plan_.program, values));
    for (const runtime::LaunchTime& one : launches)
      times[{one.call, one.launch}].push_back(one.milliseconds);
  }
  const manifest::Program& program = *plan_.manifest->program(plan_.program);
  std::map<std::pair<std::string, std::string>, LaunchShare> by_entry;
  for (auto& [place, each] : times) {
    const manifest::Op& op = *plan_.manifest->op(program.calls[place.first].op);
    const std::string& entry = op.launches[place.second].entry;
    LaunchShare& share = by_entry[{op.name, entry}];
    share.op = op.name;
    share.entry = entry;
    share.launches += 1;
    share.milliseconds += median_of(std::move(each));
  }
  std::vector<LaunchShare> out;
  for (auto& [name, share] : by_entry) out.push_back(std::move(share));
  std::stable_sort(out.begin(), out.end(), [](const LaunchShare& a, const LaunchShare& b) {
    return a.milliseconds > b.milliseconds;
  });
  return out;
}

Result<BenchAnswer> Bench::run(const Log& log) {
  const SystemClock clock;
  const TimeNs begin = clock.now();
  BenchAnswer answer;
  KERN_TRY_VOID(load(log));
  answer.load_seconds = static_cast<double>(clock.now() - begin) / kSecondNs;
  KERN_TRY_VOID(fill_received());
  KERN_TRY(computed, compute_context());
  answer.computed = computed;
  // Leaves its inputs in the buffers, where the timed runs find them.
  KERN_TRY(first, executor_->run(item(start(), rows_each(), plan_.seqs)));
  for (size_t s = 0; s < first.emitted.size(); ++s) {
    if (first.emitted[s].failed) return fail(Kind::device, "sequence {} holds a NaN", s);
    answer.tokens.push_back(first.emitted[s].token);
  }
  KERN_TRY(runs, time_runs());
  answer.runs = std::move(runs);
  KERN_TRY_VOID(time_chain(answer));
  if (plan_.by_op) {
    KERN_TRY(shares, time_launches());
    answer.shares = std::move(shares);
  }
  return answer;
}

/// Whether the program takes the shape.
Result<void> check_shape(const BenchPlan& plan, const Service& service) {
  if (plan.seqs < 1 || plan.seqs > service.groups_max)
    return fail(Kind::caller, "program `{}`: {} sequences, expected 1 to {}", plan.program,
                plan.seqs, service.groups_max);
  if (plan.rows < 1 || plan.rows > service.rows_max || plan.rows % plan.seqs != 0)
    return fail(Kind::caller, "program `{}`: {} rows, expected 1 to {}, a multiple of {} sequences",
                plan.program, plan.rows, service.rows_max, plan.seqs);
  const int64_t each = plan.rows / plan.seqs;
  if (service.rows_each && (*service.rows_each != 1 || each != 1))
    return fail(Kind::caller, "program `{}`: {} rows a sequence, expected {}; 1 can be timed",
                plan.program, each, *service.rows_each);
  if (plan.context < each)
    return fail(Kind::caller, "a context of {}, expected at least its {} rows", plan.context, each);
  if (plan.repeat < 1) return fail(Kind::caller, "{} runs, expected at least 1", plan.repeat);
  return {};
}

}  // namespace

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double BenchAnswer::median() const {
  return median_of(runs);
}
double BenchAnswer::least() const {
  return runs.empty() ? 0 : *std::min_element(runs.begin(), runs.end());
}
double BenchAnswer::launches_total() const {
  double total = 0;
  for (const LaunchShare& share : shares) total += share.milliseconds;
  return total;
}

Result<BenchAnswer> run_bench(const BenchPlan& plan, const Log& log) {
  for (const manifest::Group& group : (*plan.manifest)->groups)
    if (group.size != 1)
      return fail(Kind::caller, "group `{}` has {} ranks, `kern bench` runs one", group.name,
                  group.size);
  auto protocol = Protocol::check(*plan.manifest);
  if (!protocol)
    return tl::unexpected<Error>(manifest::to_error(protocol.error(), (*plan.manifest)->model));
  const auto service = std::find_if(protocol->services.begin(), protocol->services.end(),
                                    [&](const Service& s) { return s.program == plan.program; });
  if (service == protocol->services.end())
    return fail(Kind::caller, "no program `{}` serves sequences", plan.program);
  const Service chosen = *service;
  KERN_TRY_VOID(check_shape(plan, chosen));
  const Service* runs = chosen.rows_each ? protocol->choose(plan.seqs, 1)
                                         : protocol->for_prompts(plan.seqs, plan.rows);
  if (runs == nullptr || runs->program != plan.program)
    return fail(Kind::caller, "program `{}`: {} rows of {} sequences are run by `{}`", plan.program,
                plan.rows, plan.seqs, runs == nullptr ? "none" : runs->program);
  return Bench(plan, std::move(*protocol), chosen).run(log);
}

}  // namespace kern::app
