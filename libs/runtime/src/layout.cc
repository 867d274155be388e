#include "layout.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "kern/runtime/liveness.h"

namespace kern::runtime {
namespace {

using manifest::Buffer;
using manifest::BufferKind;
using manifest::State;
using manifest::Verified;

// Page tables are below it; what one stage hands to the next is above, and always new.
constexpr int64_t kComparedBytesMax = int64_t{4} << 20;
// A device rounds each allocation up to its own page; twice the largest page in use.
constexpr int64_t kRoundingBytes = int64_t{4} << 20;

/// Adds up what is allocated; nothing once it is more than 63 bits count.
class Sum {
 public:
  void add(int64_t bytes) {
    if (bytes_) bytes_ = checked_add(*bytes_, bytes);
    if (bytes_) bytes_ = checked_add(*bytes_, kRoundingBytes);
    exact_ += bytes_ ? bytes : 0;
  }
  bool fits() const { return bytes_.has_value(); }
  int64_t bytes() const { return exact_; }

 private:
  std::optional<int64_t> bytes_ = 0;
  int64_t exact_ = 0;
};

Result<int64_t> bytes_of_state(const State& state, const Capacity& capacity) {
  std::optional<int64_t> bytes = state.bytes;
  switch (state.size) {
    case State::Size::host:
      return fail(Kind::manifest,
                  "state `{}` is memory of a foreign engine, which this runtime has no address of",
                  state.name);
    case State::Size::fixed:
      break;
    case State::Size::per_seq:
      if (capacity.slots < 1)
        return fail(Kind::caller, "state `{}` needs slots, got a capacity of {}", state.name,
                    capacity.slots);
      bytes = checked_mul(state.bytes, capacity.slots);
      break;
    case State::Size::per_token:
      if (capacity.pages < 1 || capacity.page_tokens < 1)
        return fail(Kind::caller, "state `{}` needs pages, got a capacity of {} pages of {} tokens",
                    state.name, capacity.pages, capacity.page_tokens);
      bytes = checked_mul(capacity.pages, capacity.page_tokens);
      if (bytes) bytes = checked_mul(*bytes, state.bytes);
      break;
  }
  if (!bytes) return fail(Kind::caller, "state `{}`: its capacity overflows 64 bits", state.name);
  return *bytes;
}

/// The capacity's page size must be the one the page tables are declared with.
Result<void> check_page_tokens(const Verified& manifest, const Capacity& capacity) {
  for (const Buffer& buffer : manifest->buffers) {
    if (!buffer.domain || !buffer.domain->stride) continue;
    const State* state = manifest.state(buffer.domain->index_into);
    if (state == nullptr || state->size != State::Size::per_token) continue;
    if (*buffer.domain->stride != capacity.page_tokens)
      return fail(Kind::caller,
                  "page table `{}` counts pages of {} tokens, the capacity pages of {}",
                  buffer.name, *buffer.domain->stride, capacity.page_tokens);
  }
  return {};
}

/// A source is gone before anybody could look; the host maps nothing of other processes.
Result<void> check_peers(const Verified& manifest) {
  for (const Buffer& buffer : manifest->buffers) {
    if (buffer.kind != BufferKind::peer) continue;
    const Buffer* target = manifest.buffer(buffer.of);
    if (target != nullptr && target->kind == BufferKind::source)
      return fail(Kind::manifest, "peer buffer `{}`: source `{}` is freed while weights load",
                  buffer.name, buffer.of);
    const manifest::Group* group = manifest.group(buffer.group);
    KERN_ASSERT(group != nullptr, "group `{}`", buffer.group);
    if (manifest->device == manifest::Device::host && group->size != 1)
      return fail(Kind::manifest,
                  "peer buffer `{}`: the host device maps no memory of the other {} ranks of `{}`",
                  buffer.name, group->size - 1, buffer.group);
  }
  return {};
}

/// What must stand at which calls, and where its place is noted.
struct Claims {
  std::vector<Interval> intervals;
  std::vector<int64_t*> targets;

  void add(int64_t bytes, int64_t call, int64_t* target) {
    intervals.push_back({bytes, call, call});
    targets.push_back(target);
  }
};

/// Liveness over the calls.
Result<ProgramPlaces> plan_program(const Verified& manifest, const manifest::Program& program) {
  ProgramPlaces places;
  places.buffers.assign(manifest->buffers.size(), -1);
  places.scratch.resize(program.calls.size());
  Claims claims;
  std::vector<int64_t> claim_of(manifest->buffers.size(), -1);
  for (size_t call = 0; call < program.calls.size(); ++call) {
    const auto now = static_cast<int64_t>(call);
    for (const manifest::CallArg& arg : program.calls[call].args) {
      const auto* bound = std::get_if<manifest::BufferArg>(&arg);
      if (bound == nullptr) continue;
      const auto index = manifest.index().buffers.find(bound->buffer);
      KERN_ASSERT(index.has_value(), "buffer `{}`", bound->buffer);
      if (!is_short_lived(manifest->buffers[*index])) continue;
      if (claim_of[*index] < 0) {
        claim_of[*index] = static_cast<int64_t>(claims.intervals.size());
        claims.add(manifest.bytes_max(*index), now, &places.buffers[*index]);
      }
      claims.intervals[static_cast<size_t>(claim_of[*index])].last_call = now;
    }
    const manifest::Op* op = manifest.op(program.calls[call].op);
    KERN_ASSERT(op != nullptr, "op `{}`", program.calls[call].op);
    places.scratch[call].assign(op->scratch.size(), -1);
    for (size_t i = 0; i < op->scratch.size(); ++i) {
      const auto bytes =
          manifest::bytes_of(op->scratch[i].dtype, op->scratch[i].shape, manifest.at_bounds());
      KERN_ASSERT(bytes.has_value(), "scratch `{}`", op->scratch[i].name);
      claims.add(*bytes, now, &places.scratch[call][i]);
    }
  }
  Sum sum;
  for (const Interval& interval : claims.intervals) sum.add(interval.bytes);
  if (!sum.fits())
    return fail(Kind::manifest, "program `{}`: its workspaces and scratch overflow 64 bits",
                program.name);
  const ArenaPlan plan = plan_arena(claims.intervals);
  for (size_t i = 0; i < claims.targets.size(); ++i) *claims.targets[i] = plan.offsets[i];
  places.bytes = plan.bytes;
  return places;
}

}  // namespace

bool is_short_lived(const Buffer& buffer) {
  return buffer.kind == BufferKind::workspace && !buffer.exported;
}

bool is_compared(const Buffer& buffer, int64_t bytes_max) {
  return buffer.kind == BufferKind::input && bytes_max <= kComparedBytesMax;
}

bool is_staged(const Buffer& buffer) {
  return buffer.kind == BufferKind::input || buffer.kind == BufferKind::output ||
         buffer.kind == BufferKind::inout;
}

bool has_own_memory(const Buffer& buffer) {
  return is_staged(buffer) || buffer.kind == BufferKind::carry || buffer.kind == BufferKind::peer ||
         (buffer.kind == BufferKind::workspace && buffer.exported);
}

Result<Layout> lay_out(const Verified& manifest, const Capacity& capacity) {
  Layout layout;
  layout.capacity = capacity;
  KERN_TRY_VOID(check_page_tokens(manifest, capacity));
  KERN_TRY_VOID(check_peers(manifest));
  Sum sum;
  for (const State& state : manifest->states) {
    KERN_TRY(bytes, bytes_of_state(state, capacity));
    layout.state_bytes.push_back(bytes);
    sum.add(bytes);
  }
  Sum with_weights;
  for (size_t i = 0; i < manifest->buffers.size(); ++i) {
    with_weights.add(manifest.bytes_max(i));
    if (has_own_memory(manifest->buffers[i])) sum.add(manifest.bytes_max(i));
  }
  for (const manifest::Program& program : manifest->programs) {
    KERN_TRY(places, plan_program(manifest, program));
    layout.arena_bytes = std::max(layout.arena_bytes, places.bytes);
    layout.programs.push_back(std::move(places));
  }
  sum.add(layout.arena_bytes);
  with_weights.add(sum.bytes());
  if (!sum.fits() || !with_weights.fits())
    return fail(Kind::manifest, "its states, buffers and weights together overflow 64 bits");
  layout.bytes = sum.bytes();
  return layout;
}

}  // namespace kern::runtime
