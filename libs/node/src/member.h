#pragma once
/// A stage or rank that is not a head: dials its head, follows it, and dials again when it is lost.
/// Thread safety: everything on the IoContext's thread.

#include <functional>
#include <memory>
#include <optional>

#include "control.h"
#include "kern/node/config.h"
#include "loading.h"
#include "stage_device.h"

namespace kern::node {

struct MemberOptions {
  transport::Address head;
  transport::Terms terms;  ///< purpose control
  MemberJoin join;
  TimeNs peer_timeout = 10 * kSecondNs;
  bool exit_with_head = false;
  std::function<Result<void>(ByteSpan)> engine;  ///< a command of the head
  std::function<void(const EpochPeers&)> peers;
  std::function<void()> head_lost;
  std::function<void(const Error&)> fatal;
  const DeviceTimes* times = nullptr;  ///< reported every second
};

class Member {
 public:
  Member(transport::IoContext& io, const Log& log, MemberOptions options);

  /// Starts dialing, for ever.
  void dial();
  void report(const std::vector<std::byte>& message);
  void announce(const EpochAddress& address);
  /// Leaves the head, says why, and comes back at once.
  void rejoin(const std::string& why);
  bool connected() const { return channel_ != nullptr; }

 private:
  void connected_to(transport::Connection connection);
  void lost(const Error& why);
  void report_times();

  transport::IoContext& io_;
  const Log& log_;
  MemberOptions options_;
  std::unique_ptr<transport::Dialer> dialer_;
  std::unique_ptr<transport::Channel> channel_;
  Redial redial_;
  transport::Timer redial_timer_;
  transport::Timer times_timer_;
};

}  // namespace kern::node
