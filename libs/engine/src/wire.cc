#include "kern/engine/wire.h"

#include <optional>
#include <string_view>
#include <utility>

#include "wire_item.h"

namespace kern::engine {
namespace wire {
namespace {

// One struct a message: its type, its name in errors, and its fields. `Fields` sees a message
// either const (to write it) or not (to read it), so that both directions list the fields once.

/// Writes the fields it is shown.
struct Writing {
  ByteWriter& out;
  const WireLimits& limits;

  void one(uint64_t value) { out.put(value); }
  void one(uint32_t value) { out.put(value); }
  void one(int32_t value) { out.put(value); }
  void one(TimeNs value) { out.put(value); }
  void one(bool value) { put_bool(out, value); }
  void one(RequestId value) { out.put(value.value()); }
  void one(Generation value) { out.put(value.value()); }
  void one(GroupId value) { out.put(value.value()); }
  void one(const std::string& value) {
    out.put_text(std::string_view(value).substr(0, limits.text_bytes_max));
  }
  template <class T>
  void one(const T& value) {
    put(out, value);
  }
  void tokens(const std::vector<Token>& values) { out.put_vector(values); }
  template <class E>
  void word(E value, E) {
    out.put(value);
  }
  void steps(const std::vector<StepToken>& values) {
    out.put(static_cast<uint32_t>(values.size()));
    for (const StepToken& value : values) {
      one(value.generation);
      one(value.index);
      one(value.emitted);
    }
  }
};

/// Reads the fields it is shown.
struct Reading {
  ByteReader& in;
  const WireLimits& limits;

  void one(uint64_t& value) { value = in.get<uint64_t>(); }
  void one(uint32_t& value) { value = in.get<uint32_t>(); }
  void one(int32_t& value) { value = in.get<int32_t>(); }
  void one(TimeNs& value) { value = in.get<TimeNs>(); }
  void one(bool& value) { value = get_bool(in); }
  void one(RequestId& value) { value = RequestId{in.get<uint64_t>()}; }
  void one(Generation& value) { value = Generation{in.get<uint64_t>()}; }
  void one(GroupId& value) { value = GroupId{in.get<uint32_t>()}; }
  void one(std::string& value) { value = in.get_text(limits.text_bytes_max); }
  template <class T>
  void one(T& value) {
    get(in, limits, value);
  }
  void tokens(std::vector<Token>& values) { values = in.get_vector<Token>(limits.stop_tokens_max); }
  template <class E>
  void word(E& value, E last) {
    value = get_enum(in, last);
  }
  void steps(std::vector<StepToken>& values) {
    const size_t count = get_count(in, limits.slices_max, 33);
    values.reserve(count);
    for (size_t i = 0; i < count && in.ok(); ++i) {
      StepToken& value = values.emplace_back();
      one(value.generation);
      one(value.index);
      one(value.emitted);
    }
  }
};

template <class T>
struct Wire;

#define KERN_WIRE(message, type_name)                           \
  template <>                                                   \
  struct Wire<message> {                                        \
    static constexpr MessageType type = MessageType::type_name; \
    static constexpr std::string_view name = #type_name;        \
  };                                                            \
  template <class Io, class M>                                  \
  requires std::is_same_v<std::remove_const_t<M>, message>      \
  void fields([[maybe_unused]] Io& io, [[maybe_unused]] M& m)

KERN_WIRE(ResetEpoch, reset_epoch) {
  io.one(m.epoch);
}
KERN_WIRE(RunItem, run_item) {
  io.one(m.epoch);
  io.one(m.item);
}
KERN_WIRE(SendState, send_state) {
  io.one(m.epoch);
  io.one(m.request);
  io.one(m.generation);
  io.one(m.group);
  io.one(m.after_item);
  io.one(m.tokens);
  io.one(m.from);
  io.one(m.to);
}
KERN_WIRE(CancelSend, cancel_send) {
  io.one(m.generation);
}
KERN_WIRE(GroupUp, group_up) {
  io.one(m.group);
  io.one(m.hello);
}
KERN_WIRE(GroupGone, group_gone) {
  io.one(m.group);
}
KERN_WIRE(EpochReady, epoch_ready) {
  io.one(m.epoch);
}
KERN_WIRE(ItemDone, item_done) {
  io.one(m.epoch);
  io.one(m.result);
}
KERN_WIRE(PartsSent, parts_sent) {
  io.one(m.generation);
  io.one(m.whole);
  io.one(m.why);
}
KERN_WIRE(Ask, ask) {
  io.one(m.request);
  io.one(m.generation);
  io.one(m.prompt_tokens);
  io.one(m.max_tokens);
  io.one(m.sampling);
  io.tokens(m.stop_tokens);
  io.one(m.top_logprobs);
  io.one(m.fill_within);
}
KERN_WIRE(Begin, begin) {
  io.one(m.generation);
  io.one(m.first_token);
}
KERN_WIRE(Abort, abort) {
  io.one(m.generation);
}
KERN_WIRE(GroupHello, group_hello) {
  io.one(m);
}
KERN_WIRE(Granted, granted) {
  io.one(m.generation);
  io.one(m.place);
}
KERN_WIRE(Refused, refused) {
  io.one(m.generation);
  io.word(m.reason, RefusalReason::unready);
}
KERN_WIRE(Landed, landed) {
  io.one(m.generation);
}
KERN_WIRE(StepTokens, step_tokens) {
  io.steps(m.tokens);
}
KERN_WIRE(Ended, ended) {
  io.one(m.generation);
  io.word(m.reason, EndReason::failed);
  io.one(m.why);
}
KERN_WIRE(Released, released) {
  io.one(m.generation);
}
KERN_WIRE(ExpectParts, expect_parts) {
  io.one(m.epoch);
  io.one(m.request);
  io.one(m.generation);
  io.one(m.tokens);
  io.one(m.place);
}
KERN_WIRE(StopExpecting, stop_expecting) {
  io.one(m.generation);
}
KERN_WIRE(RankExpecting, rank_expecting) {
  io.one(m.epoch);
  io.one(m.generation);
}
KERN_WIRE(RankLanded, rank_landed) {
  io.one(m.epoch);
  io.one(m.generation);
  io.one(m.whole);
  io.one(m.why);
}
KERN_WIRE(PartHeader, part_header) {
  io.one(m.request);
  io.one(m.generation);
  io.one(m.state);
  io.one(m.tokens);
  io.one(m.bytes);
  io.one(m.digest);
}
KERN_WIRE(PartTaken, part_taken) {
  io.one(m.generation);
  io.one(m.state);
  io.one(m.whole);
}
#undef KERN_WIRE

template <class M>
std::vector<std::byte> write(const M& message) {
  ByteWriter out;
  const WireLimits limits;
  Writing io{out, limits};
  out.put(Wire<M>::type);
  fields(io, message);
  return out.take();
}

template <class... M>
std::vector<std::byte> write_any(const std::variant<M...>& message) {
  return std::visit([](const auto& one) { return write(one); }, message);
}

template <class M>
Result<M> read(ByteReader& in, const WireLimits& limits) {
  M message;
  Reading io{in, limits};
  fields(io, message);
  KERN_TRY_VOID(in.finish(Wire<M>::name));
  return message;
}

/// Reads whichever message of a variant the type names.
template <class V, size_t I = 0>
Result<V> read_any(MessageType type, ByteReader& in, const WireLimits& limits,
                   std::string_view who) {
  if constexpr (I == std::variant_size_v<V>) {
    return fail(Kind::peer, "{}: message type {} is not one of its kind", who,
                static_cast<uint16_t>(type));
  } else {
    using M = std::variant_alternative_t<I, V>;
    if (Wire<M>::type != type) return read_any<V, I + 1>(type, in, limits, who);
    KERN_TRY(message, read<M>(in, limits));
    return V(std::move(message));
  }
}

template <class V>
Result<V> decode_any(ByteSpan bytes, const WireLimits& limits, std::string_view who) {
  ByteReader in(bytes);
  const auto type = in.get<MessageType>();
  return read_any<V>(type, in, limits, who);
}

}  // namespace
}  // namespace wire

std::vector<std::byte> encode(const StageCommand& message) {
  return wire::write_any(message);
}
std::vector<std::byte> encode(const StageReport& message) {
  return wire::write_any(message);
}
std::vector<std::byte> encode(const GroupCommand& message) {
  return wire::write_any(message);
}
std::vector<std::byte> encode(const GroupReport& message) {
  return wire::write_any(message);
}
std::vector<std::byte> encode(const RankCommand& message) {
  return wire::write_any(message);
}
std::vector<std::byte> encode(const RankReport& message) {
  return wire::write_any(message);
}
std::vector<std::byte> encode(const PartHeader& message) {
  return wire::write(message);
}
std::vector<std::byte> encode(const PartTaken& message) {
  return wire::write(message);
}

Result<StageCommand> decode_stage_command(ByteSpan bytes, const WireLimits& limits) {
  return wire::decode_any<StageCommand>(bytes, limits, "command to a stage");
}
Result<StageReport> decode_stage_report(ByteSpan bytes, const WireLimits& limits) {
  return wire::decode_any<StageReport>(bytes, limits, "report of a stage");
}
Result<GroupCommand> decode_group_command(ByteSpan bytes, const WireLimits& limits) {
  return wire::decode_any<GroupCommand>(bytes, limits, "command to a group");
}
Result<GroupReport> decode_group_report(ByteSpan bytes, const WireLimits& limits) {
  return wire::decode_any<GroupReport>(bytes, limits, "report of a group");
}
Result<RankCommand> decode_rank_command(ByteSpan bytes, const WireLimits& limits) {
  return wire::decode_any<RankCommand>(bytes, limits, "command to a rank");
}
Result<RankReport> decode_rank_report(ByteSpan bytes, const WireLimits& limits) {
  return wire::decode_any<RankReport>(bytes, limits, "report of a rank");
}
Result<PartHeader> decode_part_header(ByteSpan bytes, const WireLimits& limits) {
  KERN_TRY(part, wire::decode_any<std::variant<PartHeader>>(bytes, limits, "part"));
  return std::get<PartHeader>(std::move(part));
}
Result<PartTaken> decode_part_taken(ByteSpan bytes, const WireLimits& limits) {
  KERN_TRY(taken, wire::decode_any<std::variant<PartTaken>>(bytes, limits, "answer to a part"));
  return std::get<PartTaken>(std::move(taken));
}

std::vector<std::byte> encode(const Item& item) {
  ByteWriter out;
  wire::put(out, item);
  return out.take();
}

Result<Item> decode_item(ByteSpan bytes, const WireLimits& limits) {
  ByteReader in(bytes);
  Item item;
  wire::get(in, limits, item);
  KERN_TRY_VOID(in.finish("item"));
  return item;
}

}  // namespace kern::engine
