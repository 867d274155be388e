#include "member.h"

namespace kern::node {

Member::Member(transport::IoContext& io, const Log& log, MemberOptions options)
    : io_(io), log_(log), options_(std::move(options)), redial_timer_(io), times_timer_(io) {}

void Member::dial() {
  transport::DialOptions o;
  o.terms = options_.terms;
  o.terms.peer_index = 0;
  // A head may still hold the connection of a life of this member that has just ended.
  o.retry_refused = true;
  o.failed_attempt = [this](const Error& e) {
    if (redial_.is_news(e.text()))
      log_.warn("waiting for the head at {}: {}", options_.head.text(), e.text());
  };
  o.done = [this](Result<transport::Connection> c) {
    if (!c) return options_.fatal(c.error());
    connected_to(std::move(*c));
  };
  dialer_ = std::make_unique<transport::Dialer>(io_, options_.head, std::move(o));
}

void Member::connected_to(transport::Connection connection) {
  log_.info("joined {}", connection.name());
  redial_.connected(io_.now());
  ControlHandlers handlers;
  handlers.engine = options_.engine;
  handlers.join = [this](const JoinMessage& m) -> Result<void> {
    const auto* peers = std::get_if<EpochPeers>(&m);
    if (peers == nullptr) return fail(Kind::peer, "a head sent a message that only a member sends");
    options_.peers(*peers);
    return {};
  };
  handlers.closed = [this](const Error& why) { lost(why); };
  channel_ = open_control(io_, std::move(connection), options_.peer_timeout, std::move(handlers));
  send_join(*channel_, options_.join);
  report_times();
}

void Member::lost(const Error& why) {
  const TimeNs pause = redial_.pause(io_.now());
  log_.warn("the head is lost: {}", why.text());
  channel_.reset();
  times_timer_.cancel();
  options_.head_lost();
  if (options_.exit_with_head) return options_.fatal({Kind::peer, "the head is lost", {}});
  redial_timer_.after(pause, [this] { dial(); });
}

void Member::rejoin(const std::string& why) {
  if (!channel_) return;
  log_.warn("leaving the head to join again: {}", why);
  channel_->close(why);
}

void Member::report(const std::vector<std::byte>& message) {
  if (channel_) send_engine(*channel_, message);
}

void Member::announce(const EpochAddress& address) {
  if (channel_) send_join(*channel_, address);
}

void Member::report_times() {
  if (!channel_) return;
  const DeviceTimes& t = *options_.times;
  send_join(*channel_, MemberTimes{t.busy, t.receiving, t.sending, t.items, t.rows});
  times_timer_.after(kSecondNs, [this] { report_times(); });
}

}  // namespace kern::node
