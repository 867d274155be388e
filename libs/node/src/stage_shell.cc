#include "stage_shell.h"

#include "control.h"
#include "kern/base/assert.h"
#include "kern/transport/tcp.h"

namespace kern::node {
namespace {

/// After a link broke: how long a reset from the head may take before this stage leaves by itself.
constexpr TimeNs kResetGrace = 2 * kSecondNs;

}  // namespace

StageShell::StageShell(transport::IoContext& io, const Log& log, RuntimeExecutor& executor,
                       trace::Recorder& recorder, StageShellOptions options)
    : io_(io),
      log_(log),
      options_(std::move(options)),
      device_(executor, recorder),
      broken_timer_(io) {}

StageShell::~StageShell() {
  *alive_ = false;
  device_.shutdown_links("the process ends");
}

transport::Terms StageShell::terms(transport::Purpose purpose) const {
  transport::Terms t;
  t.self.role = transport::Role::stage;
  t.self.index = options_.stage;
  t.self.purpose = purpose;
  t.key = options_.key;
  if (purpose == transport::Purpose::parts) {
    t.self.plan = options_.model;
    t.peer_role = transport::Role::rank;
  } else {
    t.self.plan = options_.pipeline;
    t.self.epoch = epoch_.value_or(0);
    t.peer_role = transport::Role::stage;
  }
  return t;
}

void StageShell::on_command(const engine::StageCommand& command) {
  if (const auto* reset = std::get_if<engine::ResetEpoch>(&command)) begin_epoch(reset->epoch);
  follower_.on_command(command);
  if (std::holds_alternative<engine::ResetEpoch>(command)) drop_broken_item();
  act();
}

void StageShell::on_head_lost() {
  device_.shutdown_links("the head is lost");
  listener_.reset();
  dialer_.reset();
  in_.reset();
  out_.reset();
  epoch_.reset();
  ready_.reset();
  broken_timer_.cancel();
  follower_.on_head_lost();
  while (!groups_.empty()) drop_group(groups_.begin()->first);
  drop_broken_item();
  act();
}

void StageShell::drop_broken_item() {
  if (!pending_done_) return;
  follower_.on_item_done(*std::exchange(pending_done_, std::nullopt));
}

void StageShell::begin_epoch(engine::Epoch epoch) {
  device_.shutdown_links("a new epoch begins");
  broken_timer_.cancel();
  dialer_.reset();
  in_.reset();
  out_.reset();
  epoch_ = epoch;
  ready_.reset();
  reported_ = false;
  settle();
  if (options_.stage > 0) listen_for_link();
}

/// On the device thread, so ahead of every item of the epoch that begins.
void StageShell::settle() {
  device_thread_.post([this] {
    const Result<void> settled = device_.settle();
    if (settled) return;
    io_.post([this, alive = alive_, error = settled.error()] {
      if (*alive) options_.device_lost(error);
    });
  });
}

void StageShell::listen_for_link() {
  listener_.reset();
  auto port = transport::listen_on({options_.advertise, 0}, options_.key.has_value());
  if (!port) return leave(port.error().text());
  const EpochAddress address{*epoch_, port->address.text()};
  transport::ListenerOptions o;
  o.terms = terms(transport::Purpose::link);
  o.terms.peer_index = options_.stage - 1;
  o.accepted = [this](transport::Connection c) { link_soon(true, std::move(c)); };
  o.rejected = [this](const Error& e) { warn_refused(log_, refusals_, io_.now(), "data link", e); };
  listener_ = std::make_unique<transport::Listener>(io_, std::move(*port), std::move(o));
  options_.announce(address);
}

void StageShell::on_next(const EpochPeers& peers) {
  if (peers.epoch != epoch_ || peers.addresses.size() != 1) return;
  auto address = transport::Address::parse(peers.addresses[0]);
  if (!address) return leave(address.error().text());
  transport::DialOptions o;
  o.terms = terms(transport::Purpose::link);
  o.terms.peer_index = options_.stage + 1;
  o.give_up_after = 10 * kSecondNs;
  o.done = [this](Result<transport::Connection> c) {
    if (!c) return leave(c.error().text());
    link_soon(false, std::move(*c));
  };
  dialer_ = std::make_unique<transport::Dialer>(io_, *address, std::move(o));
}

/// Outside the callback that brought the connection, whose owner the consequences may destroy.
void StageShell::link_soon(bool inward, transport::Connection connection) {
  auto kept = std::make_shared<transport::Connection>(std::move(connection));
  io_.post([this, alive = alive_, inward, kept, epoch = epoch_] {
    if (*alive && epoch == epoch_) link_up(inward, std::move(*kept));
  });
}

void StageShell::leave(const std::string& why) {
  io_.post([this, alive = alive_, why] {
    if (*alive) options_.broken(why);
  });
}

void StageShell::link_up(bool inward, transport::Connection connection) {
  auto link = std::make_shared<transport::TcpLink>(io_, std::move(connection));
  (inward ? in_ : out_) = std::move(link);
  report_if_ready();
}

void StageShell::report_if_ready() {
  const bool in_ok = options_.stage == 0 || in_ != nullptr;
  const bool out_ok = options_.stage + 1 == options_.stages || out_ != nullptr;
  if (!ready_ || reported_ || !in_ok || !out_ok) return;
  device_.set_links(in_, out_);
  reported_ = true;
  options_.report(*ready_);
}

void StageShell::act() {
  for (;;) {
    engine::StageFollower::Actions actions = follower_.take_actions();
    for (const engine::GroupUp& up : actions.groups_up) add_group(up);
    for (const engine::StageReport& report : actions.reports) {
      if (const auto* ready = std::get_if<engine::EpochReady>(&report))
        ready_ = *ready;
      else
        options_.report(report);
    }
    report_if_ready();
    const bool more = !actions.send.empty();
    for (const engine::SendState& order : actions.send) send_parts(order);
    for (const engine::GroupId group : actions.groups_gone) drop_group(group);
    if (actions.run) start(std::move(*actions.run));
    if (!more) return;
  }
}

void StageShell::start(engine::Item item) {
  device_thread_.post([this, item = std::move(item)] {
    Result<engine::ItemResult> result = device_.run(item);
    io_.post([this, alive = alive_, item, result = std::move(result)] {
      if (*alive) finished(item, result);
    });
  });
}

void StageShell::finished(const engine::Item& item, Result<engine::ItemResult> result) {
  if (result) {
    follower_.on_item_done(std::move(*result));
    return act();
  }
  if (result.error().kind != Kind::peer) return options_.device_lost(result.error());
  log_.warn("item {}: {}", item.id, result.error().text());
  if (reported_ && epoch_) {
    // The item's epoch is over, but nobody has said so yet. The follower stays at `running` until
    // the reset; then the result is of an old epoch and is dropped.
    reported_ = false;
    ready_.reset();
    broken_timer_.after(kResetGrace, [this, why = result.error().text()] { leave(why); });
    pending_done_ = engine::ItemResult{item.id, {}};
    return;
  }
  follower_.on_item_done(engine::ItemResult{item.id, {}});
  act();
}

void StageShell::add_group(const engine::GroupUp& up) {
  GroupSenderOptions o;
  o.manifest = options_.manifest;
  o.runtime = options_.runtime;
  o.page_tokens = options_.page_tokens;
  o.terms = terms(transport::Purpose::parts);
  o.part_timeout = options_.part_timeout;
  drop_group(up.group);
  groups_[up.group] = std::make_unique<GroupSender>(up.hello, std::move(o));
}

/// Its thread may be in the middle of a send: it goes once every send has been answered.
void StageShell::drop_group(engine::GroupId group) {
  auto node = groups_.extract(group);
  if (node.empty()) return;
  const uint64_t departure = ++departures_;
  GroupSender& sender = *(leaving_[departure] = std::move(node.mapped()));
  sender.leave("the group is gone", [this, alive = alive_, departure] {
    io_.post([this, alive, departure] {
      if (*alive) leaving_.erase(departure);
    });
  });
}

void StageShell::send_parts(const engine::SendState& order) {
  const auto group = groups_.find(order.group);
  if (group == groups_.end()) {
    follower_.on_sent(order.generation, false, "the group is not known to this stage");
    return;
  }
  group->second->send(order, [this, generation = order.generation](Result<void> sent) {
    io_.post([this, alive = alive_, generation, sent = std::move(sent)] {
      if (!*alive) return;
      if (!sent) log_.warn("hand-off {}: {}", generation.value(), sent.error().text());
      follower_.on_sent(generation, sent.has_value(), sent ? "" : sent.error().text());
      act();
    });
  });
}

}  // namespace kern::node
