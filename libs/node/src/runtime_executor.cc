#include "kern/node/runtime_executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>

#include "executor_moves.h"
#include "input_filler.h"
#include "kern/base/assert.h"
#include "kern/base/checked.h"

namespace kern::node {
namespace {

using engine::ExecutorLimits;
using engine::Item;
using engine::ItemResult;
using engine::Phase;
using engine::Slice;
using manifest::Along;
using manifest::Fill;
using manifest::Protocol;
using manifest::Service;
using manifest::Verified;

/// The member's place in the group that divides the paged states; all of them must agree.
Result<PositionShard> position_shard(const Verified& manifest, const ExecutorOptions& options) {
  PositionShard out;
  bool first = true;
  for (const manifest::State& state : manifest->states) {
    if (state.size != manifest::State::Size::per_token) continue;
    PositionShard mine;
    if (state.shard && state.shard->by == manifest::Shard::By::position) {
      mine.members = manifest.group(state.shard->group)->size;
      const auto peers = options.peers.find(state.shard->group);
      if (peers != options.peers.end() && peers->second != nullptr)
        mine.member = peers->second->rank();
      else if (mine.members != 1)
        return fail(Kind::caller, "group `{}` of state `{}`: no peers were given",
                    state.shard->group, state.name);
    }
    if (!first && mine.members != out.members)
      return fail(Kind::manifest, "state `{}` is divided by {}, other paged states by {}",
                  state.name, mine.members, out.members);
    out = mine;
    first = false;
  }
  return out;
}

int64_t clamped(int64_t bound, int64_t wanted) {
  return wanted == 0 ? bound : std::min(bound, wanted);
}

int32_t to_int32(int64_t value) {
  return static_cast<int32_t>(std::min<int64_t>(value, std::numeric_limits<int32_t>::max()));
}

Result<ExecutorLimits> limits_of(const Verified& manifest, const Protocol& protocol,
                                 const ExecutorOptions& options, int64_t members) {
  ExecutorLimits limits;
  for (const Service& service : protocol.services) {
    const int64_t seqs = clamped(service.groups_max, options.seqs_max);
    if (!service.rows_each) {
      limits.prefill_rows_max =
          std::max(limits.prefill_rows_max, to_int32(clamped(service.rows_max, options.rows_max)));
      limits.prefill_seqs_max = std::max(limits.prefill_seqs_max, to_int32(seqs));
    } else if (*service.rows_each == 1) {
      limits.decode_seqs_max = std::max(limits.decode_seqs_max, to_int32(seqs));
    }
  }
  if (limits.prefill_rows_max == 0 && limits.decode_seqs_max == 0)
    return fail(Kind::manifest, "manifest `{}` has no program that serves sequences",
                manifest->model);
  limits.page_tokens =
      to_int32(protocol.page_tokens != 0 ? protocol.page_tokens
                                         : std::max<int64_t>(options.capacity.page_tokens, 1));
  int64_t context = std::numeric_limits<int32_t>::max();
  for (const manifest::PageTable& table : protocol.page_tables)
    context = std::min(context, table.width * table.page_tokens * members);
  for (const Service& service : protocol.services)
    if (const manifest::Var* var = manifest.var(service.context_var); var != nullptr)
      context = std::min(context, var->max);
  limits.context_max = to_int32(context);
  if (const manifest::Filled* top = protocol.output(Fill::top_tokens); top != nullptr)
    limits.top_logprobs_max = to_int32(top->width);
  limits.feeds = protocol.input(Fill::fed_from) != nullptr;
  limits.recurrent = std::any_of(
      manifest->states.begin(), manifest->states.end(),
      [](const manifest::State& s) { return s.size == manifest::State::Size::per_seq; });
  limits.pages = static_cast<uint32_t>(options.capacity.pages);
  limits.slots = static_cast<uint32_t>(options.capacity.slots);
  return limits;
}

std::vector<Crossing> crossings_of(const Verified& manifest, const Protocol& protocol,
                                   const std::vector<std::string>& names,
                                   runtime::Runtime& runtime) {
  std::vector<Crossing> out;
  for (const std::string& name : names) {
    const manifest::Buffer* buffer = manifest.buffer(name);
    KERN_ASSERT(buffer != nullptr, "buffer `{}`", name);
    Crossing crossing{name, runtime.buffer(name), 0, 0};
    KERN_ASSERT(!crossing.bytes.empty(), "buffer `{}`", name);
    if (buffer->shape[0].is_var()) {
      const auto each =
          static_cast<int64_t>(crossing.bytes.size()) / manifest.var(buffer->shape[0].var)->max;
      if (buffer->shape[0].var == protocol.rows_var) crossing.bytes_per_row = each;
      if (buffer->shape[0].var == protocol.groups_var) crossing.bytes_per_seq = each;
    }
    out.push_back(std::move(crossing));
  }
  return out;
}

template <class T>
T read_at(const std::byte* data, int64_t at) {
  T value;
  std::memcpy(&value, data + at * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t read_integer(const RoleBuffer& from, int64_t at) {
  return from.dtype == manifest::Dtype::i32 ? read_at<int32_t>(from.data, at)
                                            : read_at<int64_t>(from.data, at);
}

}  // namespace

MutableByteSpan Crossing::valid(int64_t rows, int64_t seqs) const {
  if (bytes_per_row == 0 && bytes_per_seq == 0) return bytes;
  const auto size = static_cast<size_t>(rows * bytes_per_row + seqs * bytes_per_seq);
  KERN_ASSERT(size <= bytes.size(), "`{}`: {} of {} bytes", name, size, bytes.size());
  return bytes.first(size);
}

int64_t rows_of(const Item& item) {
  int64_t rows = 0;
  for (const Slice& slice : item.slices) rows += static_cast<int64_t>(slice.tokens.size());
  return rows;
}

struct RuntimeExecutor::State {
  State(runtime::Runtime& r, Protocol p, InputFiller f)
      : runtime(r), protocol(std::move(p)), filler(std::move(f)), moves(r.host_tier()) {}

  runtime::Runtime& runtime;
  Protocol protocol;
  InputFiller filler;
  ExecutorMoves moves;
  ExecutorLimits limits;
  std::vector<Crossing> received, sent;
  std::vector<RoleBuffer> outputs;

  const RoleBuffer* output(Fill fill) const {
    for (const RoleBuffer& out : outputs)
      if (out.fill == fill) return &out;
    return nullptr;
  }
  /// Of an item that was started, what its result is made of.
  struct Started {
    uint64_t id = 0;
    std::string program;
    struct Row {
      engine::RequestId request;
      int32_t top_logprobs = -1;
      bool emits = false;
    };
    std::vector<Row> rows;  ///< by slice
    /// Once its outputs were read, which is before a later item may overwrite them.
    std::optional<Result<ItemResult>> result;
  };
  std::deque<Started> started;
  int64_t step_rows = 0;  ///< of the last step started: whose tokens the next one may take

  const Service* service_for(const Item& item) const {
    const auto seqs = static_cast<int64_t>(item.slices.size());
    return item.phase == Phase::prefill ? protocol.for_prompts(seqs, rows_of(item))
                                        : protocol.choose(seqs, 1);
  }
  Result<void> check(const Item& item) const;
  Result<void> prepare_states(const Item& item);
  Result<void> check_fed(const Item& item) const;
  Result<void> launch(const Service& service, const Item& item);
  Result<ItemResult> collect(const Started& one) const;
  /// Whether an item's outputs are, or will be, in their buffers and nobody has read them.
  bool outputs_wait() const { return !started.empty() && !started.front().result; }
  engine::Emitted emitted(const Started::Row& row, int64_t group) const;
};

Result<void> RuntimeExecutor::State::check(const Item& item) const {
  const auto seqs = static_cast<int64_t>(item.slices.size());
  const int64_t rows = rows_of(item);
  const bool prefill = item.phase == Phase::prefill;
  const int64_t seqs_max = prefill ? limits.prefill_seqs_max : limits.decode_seqs_max;
  if (seqs < 1 || seqs > seqs_max)
    return fail(Kind::caller, "item {}: {} sequences, expected 1 to {}", item.id, seqs, seqs_max);
  if (prefill && rows > limits.prefill_rows_max)
    return fail(Kind::caller, "item {}: {} rows, expected at most {}", item.id, rows,
                limits.prefill_rows_max);
  if (!prefill && rows != seqs)
    return fail(Kind::caller, "item {}: {} rows for {} sequences of a decode step", item.id, rows,
                seqs);
  KERN_TRY_VOID(check_fed(item));
  return filler.check(item);
}

Result<void> RuntimeExecutor::State::check_fed(const Item& item) const {
  for (const Slice& slice : item.slices) {
    if (slice.fed_from < 0) continue;
    if (!limits.feeds || item.phase != Phase::decode)
      return fail(Kind::caller, "item {}: request {} is fed a token of the step before, which {}",
                  item.id, slice.request.value(),
                  limits.feeds ? "a prompt is not" : "this manifest does not keep");
    if (slice.fed_from >= step_rows)
      return fail(Kind::caller, "item {}: request {} is fed by row {} of a step of {}", item.id,
                  slice.request.value(), slice.fed_from, step_rows);
  }
  return {};
}

Result<void> RuntimeExecutor::State::prepare_states(const Item& item) {
  for (const uint32_t slot : item.zero_slots) KERN_TRY_VOID(runtime.zero_slot(slot));
  for (const engine::Copy& copy : item.page_copies)
    KERN_TRY_VOID(runtime.copy_page(copy.from, copy.to));
  for (const engine::Copy& copy : item.slot_copies)
    KERN_TRY_VOID(runtime.copy_slot(copy.from, copy.to));
  return {};
}

Result<void> RuntimeExecutor::State::launch(const Service& service, const Item& item) {
  int64_t context = 0;
  for (const Slice& slice : item.slices)
    context = std::max(context, int64_t{slice.start} + static_cast<int64_t>(slice.tokens.size()));
  std::array<runtime::VarValue, 3> vars;
  size_t count = 0;
  const auto set = [&](const std::string& name, int64_t value) {
    if (!name.empty()) vars[count++] = {name, value};
  };
  set(protocol.rows_var, rows_of(item));
  set(protocol.groups_var, static_cast<int64_t>(item.slices.size()));
  set(service.context_var, context);
  return runtime.launch(service.program, std::span(vars).first(count));
}

engine::Emitted RuntimeExecutor::State::emitted(const Started::Row& row, int64_t group) const {
  engine::Emitted out;
  out.request = row.request;
  const RoleBuffer* tokens = output(Fill::tokens);
  const int64_t token = read_integer(*tokens, (group + 1) * tokens->width - 1);
  out.failed = token < 0;
  out.token = out.failed ? 0 : static_cast<engine::Token>(token);
  if (const RoleBuffer* logprob = output(Fill::logprob); logprob != nullptr)
    out.logprob = read_at<float>(logprob->data, (group + 1) * logprob->width - 1);
  const RoleBuffer* top = output(Fill::top_tokens);
  const RoleBuffer* top_logprobs = output(Fill::top_logprobs);
  if (top == nullptr || top_logprobs == nullptr || out.failed) return out;
  const int64_t wanted = std::min<int64_t>(row.top_logprobs, top->width);
  for (int64_t i = 0; i < wanted; ++i)
    out.top.push_back({static_cast<engine::Token>(read_integer(*top, group * top->width + i)),
                       read_at<float>(top_logprobs->data, group * top_logprobs->width + i)});
  return out;
}

RuntimeExecutor::RuntimeExecutor(std::unique_ptr<State> state) : state_(std::move(state)) {}
RuntimeExecutor::~RuntimeExecutor() = default;

Result<std::unique_ptr<RuntimeExecutor>> RuntimeExecutor::create(const Verified& manifest,
                                                                 runtime::Runtime& runtime,
                                                                 const ExecutorOptions& options) {
  auto checked = Protocol::check(manifest);
  if (!checked) return tl::unexpected<Error>(manifest::to_error(checked.error(), manifest->model));
  Protocol& protocol = *checked;
  KERN_TRY(shard, position_shard(manifest, options));
  KERN_TRY(limits, limits_of(manifest, protocol, options, shard.members));
  KERN_TRY(filler, InputFiller::create(manifest, protocol, runtime, shard));
  auto state = std::make_unique<State>(runtime, std::move(protocol), std::move(filler));
  state->limits = limits;
  state->received = crossings_of(manifest, state->protocol, state->protocol.received, runtime);
  state->sent = crossings_of(manifest, state->protocol, state->protocol.sent, runtime);
  for (const manifest::Filled& filled : state->protocol.outputs) {
    const MutableByteSpan bytes = runtime.buffer(filled.buffer);
    KERN_ASSERT(!bytes.empty(), "output `{}`", filled.buffer);
    state->outputs.push_back({filled.fill, filled.dtype, filled.along, filled.width, bytes.data()});
  }
  return std::make_unique<RuntimeExecutor>(std::move(state));
}

const ExecutorLimits& RuntimeExecutor::limits() const {
  return state_->limits;
}
std::span<const Crossing> RuntimeExecutor::received() const {
  return state_->received;
}
std::span<const Crossing> RuntimeExecutor::sent() const {
  return state_->sent;
}

Result<void> RuntimeExecutor::start_moves(const Item& item) {
  return state_->moves.start(item);
}
Result<void> RuntimeExecutor::settle() {
  return state_->moves.settle();
}

Result<ItemResult> RuntimeExecutor::run(const Item& item) {
  KERN_ASSERT(state_->started.empty(), "item {} runs beside {} others", item.id,
              state_->started.size());
  KERN_TRY_VOID(start(item));
  return finish();
}

size_t RuntimeExecutor::started() const {
  return state_->started.size();
}

Result<void> RuntimeExecutor::start(const Item& item) {
  State& self = *state_;
  KERN_ASSERT(self.started.size() < kStartedMax, "item {} is one too many", item.id);
  KERN_TRY_VOID(self.check(item));
  const Service* service = self.service_for(item);
  if (service == nullptr)
    return fail(Kind::caller, "item {}: no program takes {} sequences of {} rows", item.id,
                item.slices.size(), rows_of(item));
  KERN_TRY_VOID(self.moves.start(item));
  KERN_TRY_VOID(self.moves.await(item));
  KERN_TRY_VOID(self.prepare_states(item));
  KERN_TRY_VOID(self.runtime.wait_inputs());
  self.filler.fill(item);
  // Also where it fails for a peer: what was planned behind it then fails for the same reason.
  if (item.phase == Phase::decode) self.step_rows = rows_of(item);
  // On the host what follows would overwrite them.
  if (self.outputs_wait() && self.runtime.outputs_are_here().value_or(false))
    self.started.front().result = self.collect(self.started.front());
  KERN_TRY_VOID(self.launch(*service, item));
  // Where outputs of an older item are still unread, `finish` brings these back once they are read.
  if (!self.outputs_wait()) KERN_TRY_VOID(self.runtime.read_back());
  State::Started& one = self.started.emplace_back();
  one.id = item.id;
  one.program = service->program;
  for (const Slice& slice : item.slices)
    one.rows.push_back({slice.request, slice.top_logprobs, slice.emits});
  return {};
}

Result<bool> RuntimeExecutor::is_done() {
  if (!state_->outputs_wait()) return true;
  return state_->runtime.outputs_are_here();
}

Result<ItemResult> RuntimeExecutor::finish() {
  State& self = *state_;
  KERN_ASSERT(!self.started.empty(), "nothing was started");
  State::Started one = std::move(self.started.front());
  self.started.pop_front();
  if (!one.result) {
    KERN_TRY_VOID(self.runtime.wait_outputs());
    KERN_TRY(collected, self.collect(one));
    one.result = std::move(collected);
    if (!self.started.empty()) KERN_TRY_VOID(self.runtime.read_back());
  }
  KERN_TRY(result, std::move(*one.result));
  KERN_TRY(moved, self.moves.moved());
  result.moved = moved;
  return result;
}

/// What the outputs that stand in their buffers say of an item.
Result<ItemResult> RuntimeExecutor::State::collect(const Started& one) const {
  if (const RoleBuffer* error = output(Fill::error); error != nullptr)
    if (const int64_t word = read_integer(*error, 0); word != 0)
      return fail(Kind::device, "item {}: program `{}` reports error {}", one.id, one.program,
                  word);
  ItemResult result;
  result.id = one.id;
  if (output(Fill::tokens) != nullptr)
    for (size_t g = 0; g < one.rows.size(); ++g)
      if (one.rows[g].emits)
        result.emitted.push_back(emitted(one.rows[g], static_cast<int64_t>(g)));
  return result;
}

Result<int64_t> RuntimeExecutor::capture_steps() {
  State& self = *state_;
  int64_t captured = 0;
  for (int64_t seqs = 1; seqs <= self.limits.decode_seqs_max; ++seqs) {
    const Service* service = self.protocol.choose(seqs, 1);
    if (service == nullptr || !service->rows_each || !service->graph ||
        !service->context_var.empty())
      continue;
    const runtime::VarValue vars[] = {{self.protocol.rows_var, seqs},
                                      {self.protocol.groups_var, seqs}};
    KERN_TRY_VOID(self.runtime.capture(service->program, vars));
    ++captured;
  }
  return captured;
}

}  // namespace kern::node
