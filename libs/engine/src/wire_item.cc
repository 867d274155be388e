#include "wire_item.h"

#include <type_traits>

namespace kern::engine::wire {
namespace {

static_assert(sizeof(Copy) == 8 && std::is_trivially_copyable_v<Copy>);
static_assert(sizeof(Move) == 12 && std::is_trivially_copyable_v<Move>);
static_assert(sizeof(Token) == 4 && sizeof(float) == 4);
static_assert(sizeof(TokenLogprob) == 8 && std::is_trivially_copyable_v<TokenLogprob>);
static_assert(sizeof(HandoffState::Segment) == 16);

constexpr size_t kSliceBytesMin = 69;
constexpr size_t kEmittedBytesMin = 21;
constexpr size_t kStateBytesMin = 18;

/// Reads a counted list, one element at a time, and stops at the first that does not read.
template <class T>
void get_list(ByteReader& in, const WireLimits& limits, size_t count_max, size_t bytes_each,
              std::vector<T>& values) {
  const size_t count = get_count(in, count_max, bytes_each);
  values.reserve(count);
  for (size_t i = 0; i < count && in.ok(); ++i) get(in, limits, values.emplace_back());
}

template <class T>
void put_list(ByteWriter& out, const std::vector<T>& values) {
  out.put(static_cast<uint32_t>(values.size()));
  for (const T& value : values) put(out, value);
}

}  // namespace

void put(ByteWriter& out, const Slice& value) {
  out.put(value.request.value());
  out.put(value.slot);
  out.put(value.snapshot_slot);
  out.put(value.start);
  out.put_vector(value.pages);
  out.put_vector(value.tokens);
  out.put(value.fed_from);
  put_bool(out, value.emits);
  put(out, value.sampling);
  out.put(value.draw);
  out.put(value.top_logprobs);
}

void get(ByteReader& in, const WireLimits& limits, Slice& value) {
  value.request = RequestId{in.get<uint64_t>()};
  value.slot = in.get<uint32_t>();
  value.snapshot_slot = in.get<uint32_t>();
  value.start = in.get<uint32_t>();
  value.pages = in.get_vector<uint32_t>(limits.pages_max);
  value.tokens = in.get_vector<Token>(limits.tokens_max);
  value.fed_from = in.get<int32_t>();
  value.emits = get_bool(in);
  get(in, limits, value.sampling);
  value.draw = in.get<uint32_t>();
  value.top_logprobs = in.get<int32_t>();
  if (value.tokens.empty() || value.fed_from < -1) in.fail_read();
}

void put(ByteWriter& out, const HandoffState& value) {
  out.put_text(value.name);
  put_bool(out, value.paged);
  out.put(value.bytes);
  out.put(value.shard);
  out.put_vector(value.segments);
}

void get(ByteReader& in, const WireLimits& limits, HandoffState& value) {
  value.name = in.get_text(limits.text_bytes_max);
  value.paged = get_bool(in);
  value.bytes = in.get<int64_t>();
  value.shard = get_enum(in, HandoffState::Shard::heads);
  value.segments = in.get_vector<HandoffState::Segment>(limits.segments_max);
}

bool get_bool(ByteReader& in) {
  const auto value = in.get<uint8_t>();
  if (value > 1) in.fail_read();
  return value == 1;
}

size_t get_count(ByteReader& in, size_t count_max, size_t bytes_each) {
  const auto count = in.get<uint32_t>();
  if (count > count_max || count > in.left() / bytes_each) in.fail_read();
  return in.ok() ? count : 0;
}

void put(ByteWriter& out, const Sampling& value) {
  out.put(value.temperature);
  out.put(value.top_p);
  out.put(value.top_k);
  out.put(value.min_p);
  out.put(value.seed);
}

void get(ByteReader& in, const WireLimits&, Sampling& value) {
  value.temperature = in.get<float>();
  value.top_p = in.get<float>();
  value.top_k = in.get<int32_t>();
  value.min_p = in.get<float>();
  value.seed = in.get<uint64_t>();
}

void put(ByteWriter& out, const Place& value) {
  out.put(value.slot);
  out.put_vector(value.pages);
}

void get(ByteReader& in, const WireLimits& limits, Place& value) {
  value.slot = in.get<uint32_t>();
  value.pages = in.get_vector<uint32_t>(limits.pages_max);
}

void put(ByteWriter& out, const Emitted& value) {
  out.put(value.request.value());
  out.put(value.token);
  put_bool(out, value.failed);
  out.put(value.logprob);
  out.put_vector(value.top);
}

void get(ByteReader& in, const WireLimits& limits, Emitted& value) {
  value.request = RequestId{in.get<uint64_t>()};
  value.token = in.get<Token>();
  value.failed = get_bool(in);
  value.logprob = in.get<float>();
  value.top = in.get_vector<TokenLogprob>(limits.top_logprobs_max);
}

void put(ByteWriter& out, const Item& value) {
  out.put(value.id);
  out.put(value.phase);
  out.put_vector(value.moves);
  out.put(value.after_moves);
  out.put_vector(value.zero_slots);
  out.put_vector(value.page_copies);
  out.put_vector(value.slot_copies);
  put_list(out, value.slices);
}

void get(ByteReader& in, const WireLimits& limits, Item& value) {
  value.id = in.get<uint64_t>();
  value.phase = get_enum(in, Phase::decode);
  value.moves = in.get_vector<Move>(limits.copies_max);
  for (const Move& move : value.moves)
    if (move.what > Move::What::wake_slot) in.fail_read();
  value.after_moves = in.get<uint64_t>();
  value.zero_slots = in.get_vector<uint32_t>(limits.copies_max);
  value.page_copies = in.get_vector<Copy>(limits.copies_max);
  value.slot_copies = in.get_vector<Copy>(limits.copies_max);
  get_list(in, limits, limits.slices_max, kSliceBytesMin, value.slices);
}

void put(ByteWriter& out, const ItemResult& value) {
  out.put(value.id);
  out.put(value.moved);
  put_list(out, value.emitted);
}

void get(ByteReader& in, const WireLimits& limits, ItemResult& value) {
  value.id = in.get<uint64_t>();
  value.moved = in.get<uint64_t>();
  get_list(in, limits, limits.slices_max, kEmittedBytesMin, value.emitted);
}

void put(ByteWriter& out, const GroupHello& value) {
  out.put(value.ranks);
  out.put(value.page_tokens);
  out.put(value.pages);
  out.put(value.slots);
  out.put(value.seqs_max);
  out.put(value.context_max);
  out.put(static_cast<uint32_t>(value.addresses.size()));
  for (const std::string& address : value.addresses) out.put_text(address);
  put_list(out, value.states);
}

void get(ByteReader& in, const WireLimits& limits, GroupHello& value) {
  value.ranks = in.get<uint32_t>();
  value.page_tokens = in.get<uint32_t>();
  value.pages = in.get<uint32_t>();
  value.slots = in.get<uint32_t>();
  value.seqs_max = in.get<uint32_t>();
  value.context_max = in.get<uint32_t>();
  const size_t addresses = get_count(in, limits.ranks_max, sizeof(uint32_t));
  for (size_t i = 0; i < addresses && in.ok(); ++i)
    value.addresses.push_back(in.get_text(limits.text_bytes_max));
  get_list(in, limits, limits.states_max, kStateBytesMin, value.states);
}

}  // namespace kern::engine::wire
