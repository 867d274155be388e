#include "kern/node/join.h"

#include <algorithm>

namespace kern::node {
namespace {

constexpr size_t kAddressBytesMax = 256;
constexpr size_t kMembersMax = 4096;

enum class Tag : uint8_t { member = 1, address = 2, peers = 3, times = 4 };

void put(ByteWriter& w, const engine::ExecutorLimits& l) {
  w.put(l.prefill_rows_max);
  w.put(l.prefill_seqs_max);
  w.put(l.decode_seqs_max);
  w.put(l.context_max);
  w.put(l.page_tokens);
  w.put(l.top_logprobs_max);
  w.put(static_cast<uint8_t>(l.recurrent));
  w.put(l.pages);
  w.put(l.slots);
  w.put(l.host_bytes);
  w.put(l.host_page_bytes);
  w.put(l.host_slot_bytes);
}

engine::ExecutorLimits get_limits(ByteReader& r) {
  engine::ExecutorLimits l;
  l.prefill_rows_max = r.get<int32_t>();
  l.prefill_seqs_max = r.get<int32_t>();
  l.decode_seqs_max = r.get<int32_t>();
  l.context_max = r.get<int32_t>();
  l.page_tokens = r.get<int32_t>();
  l.top_logprobs_max = r.get<int32_t>();
  l.recurrent = r.get<uint8_t>() != 0;
  l.pages = r.get<uint32_t>();
  l.slots = r.get<uint32_t>();
  l.host_bytes = r.get<uint64_t>();
  l.host_page_bytes = r.get<uint64_t>();
  l.host_slot_bytes = r.get<uint64_t>();
  return l;
}

}  // namespace

std::vector<std::byte> encode(const JoinMessage& message) {
  ByteWriter w;
  if (const auto* m = std::get_if<MemberJoin>(&message)) {
    w.put(Tag::member);
    w.put(m->index);
    w.put(m->members);
    put(w, m->limits);
    w.put_text(m->parts_address);
  } else if (const auto* a = std::get_if<EpochAddress>(&message)) {
    w.put(Tag::address);
    w.put(a->epoch);
    w.put_text(a->address);
  } else if (const auto* p = std::get_if<EpochPeers>(&message)) {
    w.put(Tag::peers);
    w.put(p->epoch);
    w.put(static_cast<uint32_t>(p->addresses.size()));
    for (const std::string& address : p->addresses) w.put_text(address);
  } else {
    const auto& t = std::get<MemberTimes>(message);
    w.put(Tag::times);
    w.put(t.busy);
    w.put(t.receiving);
    w.put(t.sending);
    w.put(t.items);
    w.put(t.rows);
  }
  return w.take();
}

Result<JoinMessage> decode_join(ByteSpan bytes) {
  ByteReader r(bytes);
  JoinMessage out;
  switch (r.get<Tag>()) {
    case Tag::member: {
      MemberJoin m;
      m.index = r.get<uint32_t>();
      m.members = r.get<uint32_t>();
      m.limits = get_limits(r);
      m.parts_address = r.get_text(kAddressBytesMax);
      out = std::move(m);
      break;
    }
    case Tag::address: {
      EpochAddress a;
      a.epoch = r.get<engine::Epoch>();
      a.address = r.get_text(kAddressBytesMax);
      out = std::move(a);
      break;
    }
    case Tag::peers: {
      EpochPeers p;
      p.epoch = r.get<engine::Epoch>();
      const auto count = r.get<uint32_t>();
      if (count > kMembersMax) r.fail_read();
      for (uint32_t i = 0; r.ok() && i < count; ++i)
        p.addresses.push_back(r.get_text(kAddressBytesMax));
      out = std::move(p);
      break;
    }
    case Tag::times: {
      MemberTimes t;
      t.busy = r.get<int64_t>();
      t.receiving = r.get<int64_t>();
      t.sending = r.get<int64_t>();
      t.items = r.get<uint64_t>();
      t.rows = r.get<uint64_t>();
      out = t;
      break;
    }
    default:
      r.fail_read();
  }
  KERN_TRY_VOID(r.finish("join"));
  return out;
}

engine::ExecutorLimits tightest(engine::ExecutorLimits a, const engine::ExecutorLimits& b) {
  const auto least = [](auto x, auto y) { return x == 0 ? y : y == 0 ? x : std::min(x, y); };
  a.prefill_rows_max = least(a.prefill_rows_max, b.prefill_rows_max);
  a.prefill_seqs_max = least(a.prefill_seqs_max, b.prefill_seqs_max);
  a.decode_seqs_max = least(a.decode_seqs_max, b.decode_seqs_max);
  a.context_max = least(a.context_max, b.context_max);
  a.top_logprobs_max = std::max(a.top_logprobs_max, b.top_logprobs_max);
  a.recurrent = a.recurrent || b.recurrent;
  a.pages = least(a.pages, b.pages);
  a.slots = least(a.slots, b.slots);
  // What is parked is parked on every member: one without host memory leaves none to the others.
  a.host_bytes = std::min(a.host_bytes, b.host_bytes);
  a.host_page_bytes = std::max(a.host_page_bytes, b.host_page_bytes);
  a.host_slot_bytes = std::max(a.host_slot_bytes, b.host_slot_bytes);
  return a;
}

}  // namespace kern::node
