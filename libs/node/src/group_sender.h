#pragma once
/// Sends one stage's hand-off parts to the ranks of one decode group, on a thread of its own, so
/// that a group that does not take its parts holds up no other's. Thread safety: made, used and
/// destroyed on the IoContext's thread; `sent` runs on the sender's. Ownership: manifest and
/// runtime outlive it. Destruction waits for the send under way, which `leave` cuts short.

#include <functional>
#include <string>

#include "kern/engine/messages.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/runtime.h"
#include "kern/transport/parts.h"
#include "worker.h"

namespace kern::node {

struct GroupSenderOptions {
  const manifest::Verified* manifest = nullptr;
  runtime::Runtime* runtime = nullptr;
  int64_t page_tokens = 64;
  transport::Terms terms;  ///< purpose parts
  TimeNs part_timeout = 10 * kSecondNs;
};

class GroupSender {
 public:
  GroupSender(engine::GroupHello hello, GroupSenderOptions options);
  ~GroupSender();

  /// Sends this stage's part of every state to every rank; `sent` is called once, also after leave.
  void send(const engine::SendState& order, std::function<void(Result<void>)> sent);
  /// The group is gone: what is under way and queued fails at once; then `drained` is called.
  void leave(const std::string& why, std::function<void()> drained);

 private:
  Result<void> send_now(const engine::SendState& order);

  const engine::GroupHello hello_;
  const GroupSenderOptions options_;
  transport::PartSender sender_;
  Worker thread_;  // last: its jobs use the rest
};

}  // namespace kern::node
