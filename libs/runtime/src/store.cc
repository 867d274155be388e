#include "store.h"

#include <algorithm>
#include <cstring>
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

bool has_own_memory(const Buffer& buffer) {
  return buffer.kind == BufferKind::input || buffer.kind == BufferKind::output ||
         buffer.kind == BufferKind::inout || buffer.kind == BufferKind::carry ||
         (buffer.kind == BufferKind::workspace && buffer.exported);
}

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

}  // namespace

bool is_short_lived(const Buffer& buffer) {
  return buffer.kind == BufferKind::workspace && !buffer.exported;
}

ProgramPlaces plan_program(const Verified& manifest, const manifest::Program& program) {
  ProgramPlaces places;
  places.buffers.assign(manifest->buffers.size(), -1);
  std::vector<Interval> intervals;
  std::vector<int64_t*> targets;
  std::vector<int64_t> interval_of(manifest->buffers.size(), -1);
  places.scratch.resize(program.calls.size());
  for (size_t call = 0; call < program.calls.size(); ++call) {
    const auto now = static_cast<int64_t>(call);
    for (const manifest::CallArg& arg : program.calls[call].args) {
      const auto* bound = std::get_if<manifest::BufferArg>(&arg);
      if (bound == nullptr) continue;
      const auto index = manifest.index().buffers.find(bound->buffer);
      KERN_ASSERT(index.has_value(), "buffer `{}`", bound->buffer);
      if (!is_short_lived(manifest->buffers[*index])) continue;
      if (interval_of[*index] < 0) {
        interval_of[*index] = static_cast<int64_t>(intervals.size());
        intervals.push_back({manifest.bytes_max(*index), now, now});
        targets.push_back(&places.buffers[*index]);
      }
      intervals[static_cast<size_t>(interval_of[*index])].last_call = now;
    }
    const manifest::Op* op = manifest.op(program.calls[call].op);
    KERN_ASSERT(op != nullptr, "op `{}`", program.calls[call].op);
    places.scratch[call].assign(op->scratch.size(), -1);
    for (size_t i = 0; i < op->scratch.size(); ++i) {
      const auto bytes =
          manifest::bytes_of(op->scratch[i].dtype, op->scratch[i].shape, manifest.at_bounds());
      KERN_ASSERT(bytes.has_value(), "scratch `{}`", op->scratch[i].name);
      intervals.push_back({*bytes, now, now});
      targets.push_back(&places.scratch[call][i]);
    }
  }
  const ArenaPlan plan = plan_arena(intervals);
  for (size_t i = 0; i < targets.size(); ++i) *targets[i] = plan.offsets[i];
  places.bytes = plan.bytes;
  return places;
}

Result<Store> Store::create(const Verified& manifest, const Capacity& capacity) {
  Store store;
  store.capacity_ = capacity;
  KERN_TRY_VOID(check_page_tokens(manifest, capacity));
  KERN_TRY_VOID(store.allocate_states(manifest));
  KERN_TRY_VOID(store.allocate_buffers(manifest));
  for (const manifest::Program& program : manifest->programs) {
    store.places_.push_back(plan_program(manifest, program));
    store.arena_bytes_ = std::max(store.arena_bytes_, store.places_.back().bytes);
  }
  KERN_TRY(arena, Memory::zeroed(store.arena_bytes_));
  store.arena_ = std::move(arena);
  store.bytes_total_ += store.arena_bytes_;
  return store;
}

Result<void> Store::allocate_states(const Verified& manifest) {
  for (const State& state : manifest->states) {
    KERN_TRY(bytes, bytes_of_state(state, capacity_));
    KERN_TRY(memory, with_context(Memory::zeroed(bytes), "state `{}`", state.name));
    states_.push_back(std::move(memory));
    state_bytes_.push_back(bytes);
    bytes_total_ += bytes;
  }
  return {};
}

Result<void> Store::allocate_buffers(const Verified& manifest) {
  const std::vector<Buffer>& buffers = manifest->buffers;
  owned_.resize(buffers.size());
  fixed_.assign(buffers.size(), nullptr);
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (!has_own_memory(buffers[i])) continue;
    const int64_t bytes = manifest.bytes_max(i);
    KERN_TRY(memory, with_context(Memory::zeroed(bytes), "buffer `{}`", buffers[i].name));
    owned_[i] = std::move(memory);
    fixed_[i] = owned_[i].data();
    bytes_total_ += bytes;
  }
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].kind == BufferKind::peer) KERN_TRY_VOID(allocate_peer(manifest, i));
  return {};
}

Result<void> Store::allocate_peer(const Verified& manifest, size_t index) {
  const Buffer& peer = manifest->buffers[index];
  const manifest::Group* group = manifest.group(peer.group);
  KERN_ASSERT(group != nullptr, "group `{}`", peer.group);
  if (group->size != 1)
    return fail(Kind::manifest,
                "peer buffer `{}`: the host device maps no memory of the other {} ranks of `{}`",
                peer.name, group->size - 1, peer.group);
  KERN_TRY(memory, Memory::zeroed(sizeof(uint64_t)));
  const std::byte* target = nullptr;
  if (const auto of = manifest.index().buffers.find(peer.of)) target = fixed_[*of];
  if (const auto of = manifest.index().states.find(peer.of)) target = states_[*of].data();
  KERN_ASSERT(target != nullptr, "peer buffer `{}` of `{}`", peer.name, peer.of);
  std::memcpy(memory.data(), &target, sizeof(target));
  owned_[index] = std::move(memory);
  fixed_[index] = owned_[index].data();
  return {};
}

std::byte* Store::buffer(size_t index, const ProgramPlaces& places) const {
  if (fixed_[index] != nullptr) return fixed_[index];
  const int64_t offset = places.buffers[index];
  return offset < 0 ? nullptr : arena_.data() + offset;
}

void Store::set_bound(size_t index, BoundBytes bytes) {
  KERN_ASSERT(bytes.data != nullptr, "buffer #{}", index);
  owned_[index] = std::move(bytes.owned);
  // Weights are read-only by the manifest's own rules, which verify has proved.
  fixed_[index] = const_cast<std::byte*>(bytes.data);
}

void Store::release(size_t index) {
  owned_[index] = Memory();
  fixed_[index] = nullptr;
}

}  // namespace kern::runtime
