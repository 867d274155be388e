#include "run_session.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>

#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "kern/base/clock.h"
#include "kern/manifest/shard.h"
#include "kern/node/runtime_executor.h"
#include "kern/runtime/local_peers.h"

namespace kern::app {
namespace {

using engine::Item;
using engine::Phase;
using engine::Token;

constexpr uint32_t kSlot = 1;        // slot 0 is never a sequence's
constexpr int64_t kGridTokens = 64;  // chunks are cut on this grid
constexpr int64_t kPageTokensDefault = 64;

/// Collects what an observer sees, only the part that the step's vars cover.
struct Gatherer {
  const manifest::Buffer* buffer = nullptr;
  std::filesystem::path file;
  Array array;
  bool last_only = false;  ///< keep the last step's values alone
};

/// One rank's run.
class Session {
 public:
  Session(const RunPlan& plan, const Log& log, int rank, std::map<std::string, int64_t> members)
      : plan_(plan), log_(log), rank_(rank), members_(std::move(members)) {}

  Result<RunAnswer> run(const std::map<std::string, runtime::PeerGroup*>& peers);

 private:
  Result<void> load(const std::map<std::string, runtime::PeerGroup*>& peers);
  Result<void> observe();
  Result<void> add_gatherer(const std::string& label, const std::string& buffer,
                            std::filesystem::path file, bool last_only);
  void gather(Gatherer& to, ByteSpan bytes) const;
  Result<void> check_inputs();
  struct Step {
    bool emits = false;
    bool is_fed = false;  ///< by the step before
    uint32_t draw = 0;
  };
  Result<void> start(Phase phase, int64_t start, std::span<const Token> tokens, const Step& step);
  Result<std::optional<Token>> finish();
  Result<void> generate(Token token, std::vector<Token>& answer);
  Result<std::optional<Token>> feed_prompt();
  Result<void> place_inputs(int64_t start, int64_t rows);
  Result<void> write_files();
  Result<void> write_state(const StateDump& dump);
  std::vector<uint32_t> pages() const;

  const RunPlan& plan_;
  const Log& log_;
  int rank_;
  std::map<std::string, int64_t> members_;  ///< size of every group
  runtime::Capacity capacity_;
  std::unique_ptr<runtime::Runtime> runtime_;
  std::unique_ptr<node::RuntimeExecutor> executor_;
  std::deque<Gatherer> gatherers_;  ///< observers point into it
  std::vector<std::vector<std::byte>> input_bytes_;
  int64_t rows_ = 0;    ///< of the step at hand
  int64_t length_ = 0;  ///< of the sequence
  uint64_t items_ = 0;
};

double seconds_since(TimeNs start) {
  return static_cast<double>(SystemClock().now() - start) / kSecondNs;
}

int64_t page_tokens_of(const manifest::Verified& manifest) {
  for (const manifest::Buffer& buffer : manifest->buffers) {
    if (!buffer.domain || !buffer.domain->stride) continue;
    const manifest::State* state = manifest.state(buffer.domain->index_into);
    if (state != nullptr && state->size == manifest::State::Size::per_token)
      return *buffer.domain->stride;
  }
  return kPageTokensDefault;
}

Result<void> Session::load(const std::map<std::string, runtime::PeerGroup*>& peers) {
  const int64_t context = static_cast<int64_t>(plan_.tokens.size()) + plan_.tokens_max;
  capacity_.page_tokens = page_tokens_of(*plan_.manifest);
  capacity_.pages = ceil_div(context, capacity_.page_tokens) + 1;
  capacity_.slots = kSlot + 1;
  runtime::Options options;
  options.module_dirs = plan_.module_dirs;
  options.cache_dir = plan_.cache_dir;
  options.capacity = capacity_;
  options.threads = plan_.threads;
  options.gpu = plan_.gpu;
  options.peers = peers;
  options.weights_in_place = true;
  // Ranks of one process share a context, and making a graph may wait for kernels that wait for us.
  options.eager = plan_.eager || peers.size() > 0;
  KERN_TRY(runtime, runtime::Runtime::load(*plan_.manifest, plan_.weights, options, log_));
  runtime_ = std::move(runtime);
  KERN_TRY(executor, node::RuntimeExecutor::create(*plan_.manifest, *runtime_,
                                                   {capacity_, peers, plan_.chunk, 0}));
  executor_ = std::move(executor);
  if (context > executor_->limits().context_max)
    return fail(Kind::caller, "{} tokens, the manifest's sequences end at {}", context,
                executor_->limits().context_max);
  return {};
}

Result<void> Session::add_gatherer(const std::string& label, const std::string& buffer,
                                   std::filesystem::path file, bool last_only) {
  const manifest::Buffer* declared = plan_.manifest->buffer(buffer);
  if (declared == nullptr) return fail(Kind::caller, "the manifest has no buffer `{}`", buffer);
  Gatherer& to = gatherers_.emplace_back();
  to.buffer = declared;
  to.file = std::move(file);
  to.array.descr = npy_descr(declared->dtype);
  to.last_only = last_only;
  return runtime_->observe(label, buffer, [this, &to](ByteSpan bytes) { gather(to, bytes); });
}

/// Extents at the step's vars; the first one runs on from step to step.
void Session::gather(Gatherer& to, ByteSpan bytes) const {
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (const manifest::Dim& dim : to.buffer->shape) {
    const manifest::Var* var = dim.is_var() ? plan_.manifest->var(dim.var) : nullptr;
    int64_t extent = dim.value;
    if (var != nullptr)
      extent = var->axis == manifest::Axis::rows     ? rows_
               : var->axis == manifest::Axis::groups ? 1
                                                     : var->max;
    shape.push_back(extent);
    elements *= extent;
  }
  const auto size = static_cast<size_t>(elements * manifest::size_of(to.buffer->dtype));
  KERN_ASSERT(size <= bytes.size(), "buffer `{}`", to.buffer->name);
  if (to.array.shape.empty() || to.last_only) {
    to.array.bytes.clear();
    to.array.shape = shape;
  } else {
    to.array.shape[0] += shape[0];
  }
  append_as_npy(to.buffer->dtype, bytes.first(size), to.array.bytes);
}

Result<void> Session::observe() {
  if (rank_ != 0) return {};
  for (const Dump& dump : plan_.dumps)
    KERN_TRY_VOID(add_gatherer(dump.label, dump.buffer, dump.file, false));
  if (!plan_.logits.empty())
    KERN_TRY_VOID(
        with_context(add_gatherer("", "logits", plan_.logits, !plan_.step_by_step), "--logits"));
  return {};
}

Result<void> Session::check_inputs() {
  for (const node::Crossing& crossing : executor_->received()) {
    const auto given = std::find_if(plan_.inputs.begin(), plan_.inputs.end(),
                                    [&](const StageInput& i) { return i.buffer == crossing.name; });
    if (given == plan_.inputs.end())
      return fail(Kind::caller, "this stage receives `{}`: give it with --in {}=FILE.npy",
                  crossing.name, crossing.name);
  }
  for (const StageInput& input : plan_.inputs) {
    const auto crossing =
        std::find_if(executor_->received().begin(), executor_->received().end(),
                     [&](const node::Crossing& c) { return c.name == input.buffer; });
    if (crossing == executor_->received().end())
      return fail(Kind::caller, "--in `{}`: this manifest receives no such buffer", input.buffer);
    KERN_TRY(bytes,
             with_context(as_buffer(input.array, plan_.manifest->buffer(input.buffer)->dtype),
                          "--in `{}`", input.buffer));
    const auto rows = static_cast<int64_t>(plan_.tokens.size());
    const size_t want =
        crossing->valid(1, 1).size() * static_cast<size_t>(crossing->bytes_per_row != 0 ? rows : 1);
    if (bytes.size() != want)
      return fail(Kind::caller, "--in `{}`: {} bytes for {} rows, expected {}", input.buffer,
                  bytes.size(), rows, want);
    input_bytes_.push_back(std::move(bytes));
  }
  return {};
}

Result<void> Session::place_inputs(int64_t start, int64_t rows) {
  for (size_t i = 0; i < plan_.inputs.size(); ++i)
    for (const node::Crossing& crossing : executor_->received()) {
      if (crossing.name != plan_.inputs[i].buffer) continue;
      const MutableByteSpan to = crossing.valid(rows, 1);
      const auto from = static_cast<size_t>(start * crossing.bytes_per_row);
      if (from + to.size() > input_bytes_[i].size())
        return fail(Kind::caller, "--in `{}` has no row {}", crossing.name, start);
      std::memcpy(to.data(), input_bytes_[i].data() + from, to.size());
    }
  return {};
}

/// Every page but the first, in order.
std::vector<uint32_t> Session::pages() const {
  std::vector<uint32_t> out;
  for (int64_t page = 1; page < capacity_.pages; ++page) out.push_back(static_cast<uint32_t>(page));
  return out;
}

Result<void> Session::start(Phase phase, int64_t start, std::span<const Token> tokens,
                            const Step& step) {
  Item item;
  item.id = ++items_;
  item.phase = phase;
  if (start == 0 && executor_->limits().recurrent) item.zero_slots = {kSlot};
  engine::Slice& slice = item.slices.emplace_back();
  slice.slot = kSlot;
  slice.start = static_cast<uint32_t>(start);
  slice.pages = pages();
  slice.tokens.assign(tokens.begin(), tokens.end());
  slice.fed_from = step.is_fed ? 0 : -1;
  slice.emits = step.emits;
  slice.sampling = plan_.sampling;
  slice.draw = step.draw;
  rows_ = static_cast<int64_t>(tokens.size());
  length_ = start + rows_;
  KERN_TRY_VOID(place_inputs(start, rows_));
  return executor_->start(item);
}

/// Of the oldest step started.
Result<std::optional<Token>> Session::finish() {
  KERN_TRY(result, executor_->finish());
  if (result.emitted.empty()) return std::optional<Token>();
  if (result.emitted[0].failed)
    return fail(Kind::device, "the row at position {} holds a NaN", length_ - 1);
  return std::optional<Token>(result.emitted[0].token);
}

Result<std::optional<Token>> Session::feed_prompt() {
  const std::span<const Token> tokens = plan_.tokens;
  const bool steps = plan_.step_by_step || executor_->limits().prefill_rows_max == 0;
  if (steps && executor_->limits().decode_seqs_max == 0)
    return fail(Kind::caller, "the manifest has no program that decodes");
  int64_t most = steps ? 1 : executor_->limits().prefill_rows_max;
  if (most > kGridTokens) most -= most % kGridTokens;
  std::optional<Token> token;
  for (size_t at = 0; at < tokens.size();) {
    const size_t rows = std::min<size_t>(static_cast<size_t>(most), tokens.size() - at);
    const bool last = at + rows == tokens.size();
    KERN_TRY_VOID(start(steps ? Phase::decode : Phase::prefill, static_cast<int64_t>(at),
                        tokens.subspan(at, rows), {.emits = last}));
    KERN_TRY(emitted, finish());
    token = emitted;
    at += rows;
  }
  return token;
}

/// The answer from its first token on. Where a step may take the token of the one before, it is
/// started before anybody has read that token; a stop then leaves one step too many, which nobody
/// hears of but a state that is to be written.
Result<void> Session::generate(Token token, std::vector<Token>& answer) {
  const Phase phase = executor_->limits().decode_seqs_max > 0 ? Phase::decode : Phase::prefill;
  const bool goes_ahead = executor_->limits().feeds && plan_.states.empty() &&
                          plan_.dumps.empty() && plan_.logits.empty();
  const auto most = static_cast<size_t>(plan_.tokens_max);
  const auto& stops = plan_.stop_tokens;
  while (std::find(stops.begin(), stops.end(), token) == stops.end()) {
    answer.push_back(token);
    if (answer.size() == most) break;
    if (executor_->started() == 0)
      KERN_TRY_VOID(start(phase, length_, std::span(&token, 1),
                          {.emits = true, .draw = static_cast<uint32_t>(answer.size())}));
    constexpr Token kFed = 0;  // whatever it is
    if (goes_ahead && answer.size() + 1 < most)
      KERN_TRY_VOID(
          start(phase, length_, std::span(&kFed, 1),
                {.emits = true, .is_fed = true, .draw = static_cast<uint32_t>(answer.size() + 1)}));
    KERN_TRY(next, finish());
    if (!next) return {};
    token = *next;
  }
  while (executor_->started() > 0) KERN_TRY_VOID(executor_->finish());
  return {};
}

Result<RunAnswer> Session::run(const std::map<std::string, runtime::PeerGroup*>& peers) {
  const SystemClock clock;
  RunAnswer answer;
  TimeNs start = clock.now();
  KERN_TRY_VOID(load(peers));
  KERN_TRY_VOID(observe());
  KERN_TRY_VOID(check_inputs());
  answer.load_seconds = seconds_since(start);
  start = clock.now();
  KERN_TRY(token, feed_prompt());
  answer.prompt_seconds = seconds_since(start);
  start = clock.now();
  if (token && plan_.tokens_max > 0) KERN_TRY_VOID(generate(*token, answer.tokens));
  answer.decode_seconds = seconds_since(start);
  if (rank_ == 0) KERN_TRY_VOID(write_files());
  return answer;
}

Result<void> Session::write_state(const StateDump& dump) {
  const manifest::State* state = plan_.manifest->state(dump.state);
  if (state == nullptr) return fail(Kind::caller, "the manifest has no state `{}`", dump.state);
  int64_t first = 0, size = *runtime_->state_bytes(dump.state);
  Array array{"|u1", {}, {}};
  if (state->size == manifest::State::Size::per_seq) {
    first = kSlot * state->bytes;
    size = state->bytes;
    array.shape = {size};
  } else if (state->size == manifest::State::Size::per_token) {
    manifest::Member member;
    if (state->shard) member = {rank_, members_.at(state->shard->group)};
    const int64_t rows = manifest::rows_held(length_, member);
    // Pages were handed out in order, so the sequence's rows lie back to back behind page 0.
    first = capacity_.page_tokens * state->bytes;
    size = rows * state->bytes;
    array.shape = {rows, state->bytes};
  } else {
    array.shape = {size};
  }
  array.bytes.resize(static_cast<size_t>(size));
  KERN_TRY_VOID(runtime_->read_state(dump.state, first, array.bytes));
  return write_npy(dump.file, array);
}

Result<void> Session::write_files() {
  for (const Gatherer& gathered : gatherers_) {
    if (gathered.array.shape.empty())
      return fail(Kind::caller, "`{}`: no call that ran showed buffer `{}`", gathered.file.string(),
                  gathered.buffer->name);
    KERN_TRY_VOID(write_npy(gathered.file, gathered.array));
  }
  for (const StateDump& dump : plan_.states) KERN_TRY_VOID(write_state(dump));
  return {};
}

}  // namespace

Result<RunAnswer> run_session(const RunPlan& plan, const Log& log) {
  const std::vector<manifest::Group>& groups = (*plan.manifest)->groups;
  if (groups.size() > 1)
    return fail(Kind::caller, "the manifest has {} groups, `kern run` runs the ranks of one",
                groups.size());
  const int ranks = groups.empty() ? 1 : static_cast<int>(groups[0].size);
  std::map<std::string, int64_t> members;
  for (const manifest::Group& group : groups) members[group.name] = group.size;
  runtime::LocalGroup group(ranks);
  std::vector<Result<RunAnswer>> answers(static_cast<size_t>(ranks), RunAnswer{});
  const auto run_rank = [&](int rank) {
    std::map<std::string, runtime::PeerGroup*> peers;
    if (!groups.empty()) peers[groups[0].name] = &group.member(rank);
    Session session(plan, log, rank, members);
    auto answer = session.run(peers);
    // A rank that is done has made every call the others wait for; one that failed has not.
    if (!answer) group.leave(rank);
    answers[static_cast<size_t>(rank)] = std::move(answer);
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < ranks; ++rank) others.emplace_back(run_rank, rank);
  run_rank(0);
  for (std::thread& other : others) other.join();
  // The rank that failed first speaks; the others only tell that it has left.
  for (int rank = 0; rank < ranks; ++rank) {
    auto& answer = answers[static_cast<size_t>(rank)];
    if (!answer && answer.error().kind != Kind::peer)
      return ranks == 1 ? std::move(answer) : with_context(std::move(answer), "rank {}", rank);
  }
  return std::move(answers[0]);
}

}  // namespace kern::app
