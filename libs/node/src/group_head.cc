#include "group_head.h"

#include <algorithm>
#include <utility>

#include "kern/base/assert.h"

namespace kern::node {

GroupHeadNode::GroupHeadNode(transport::IoContext& io, const Log& log, const DaemonConfig& config,
                             LoadedModel& model, PeerMesh* mesh, transport::ListenSocket parts,
                             trace::Recorder& recorder, std::optional<transport::ClusterKey> key)
    : io_(io),
      log_(log),
      config_(config),
      loaded_(model),
      key_(std::move(key)),
      timer_(io),
      redial_timer_(io) {
  rank_count_ = mesh == nullptr ? 1 : static_cast<uint32_t>(mesh->size());
  ranks_.resize(rank_count_);
  ranks_[0].join = MemberJoin{0, rank_count_, loaded_.limits, parts.address.text()};
  local_ = std::make_unique<RankShell>(io_, log_, *loaded_.executor, recorder, std::move(parts),
                                       shell_options(mesh));
}

GroupHeadNode::~GroupHeadNode() = default;

RankShellOptions GroupHeadNode::shell_options(PeerMesh* mesh) {
  RankShellOptions o;
  o.rank = 0;
  o.ranks = rank_count_;
  o.manifest = loaded_.manifest.get();
  o.runtime = loaded_.runtime.get();
  o.mesh = mesh;
  o.key = key_;
  o.group = loaded_.manifest_digest;
  o.model = loaded_.model;
  o.advertise = config_.advertise;
  o.page_tokens = loaded_.page_tokens;
  o.peer_timeout = config_.peer_timeout_s * kSecondNs;
  o.report = [this](const engine::RankReport& report) {
    head_->on_rank_report(0, report, io_.now());
    pump();
  };
  o.announce = [this](const EpochAddress& address) { mesh_address(0, address); };
  o.broken = [this](const std::string& why) {
    log_.warn("rank 0 leaves its epoch: {}", why);
    if (!head_) return;
    head_->on_rank_lost(0, io_.now());
    head_->on_rank_up(0, io_.now());
    pump();
  };
  o.device_lost = [this](const Error& e) { fatal_(e); };
  return o;
}

Result<void> GroupHeadNode::listen() {
  if (rank_count_ == 1) {
    form();
    pump();
    return {};
  }
  if (config_.listen.empty())
    return fail(Kind::caller, "`--listen` is missing: ranks 1 to {} dial in there",
                rank_count_ - 1);
  KERN_TRY(address, transport::Address::parse(config_.listen));
  KERN_TRY(port, transport::listen_on(address, key_.has_value()));
  transport::ListenerOptions o;
  o.terms.self.role = transport::Role::rank;
  o.terms.self.plan = loaded_.manifest_digest;
  o.terms.peer_role = transport::Role::rank;
  o.terms.key = key_;
  o.terms.admit = [this](const transport::Identity& peer) -> Result<void> {
    if (peer.index == 0 || peer.index >= rank_count_)
      return fail(Kind::peer, "rank {}: this group has ranks 1 to {} beside its head", peer.index,
                  rank_count_ - 1);
    if (ranks_[peer.index].channel) return fail(Kind::peer, "{} is already here", peer.name());
    return {};
  };
  o.accepted = [this](transport::Connection c) { accept_rank(std::move(c)); };
  o.rejected = [this](const Error& e) { warn_refused(log_, refusals_, io_.now(), "rank", e); };
  listener_ = std::make_unique<transport::Listener>(io_, std::move(port), std::move(o));
  return {};
}

// ---- ranks ----

void GroupHeadNode::accept_rank(transport::Connection connection) {
  const uint32_t rank = connection.peer.index;
  if (ranks_[rank].channel) return;  // two proved themselves at once; the first stays
  log_.info("{} dialed in", connection.name());
  ControlHandlers handlers;
  handlers.engine = [this, rank](ByteSpan payload) -> Result<void> {
    KERN_TRY(report, engine::decode_rank_report(payload, {}));
    if (!head_ || !ranks_[rank].join) return fail(Kind::peer, "a report before joining");
    head_->on_rank_report(static_cast<int32_t>(rank), report, io_.now());
    pump();
    return {};
  };
  handlers.join = [this, rank](JoinMessage m) { return rank_message(rank, std::move(m)); };
  handlers.closed = [this, rank](const Error& why) { rank_closed(rank, why); };
  ranks_[rank].channel = open_control(io_, std::move(connection),
                                      config_.peer_timeout_s * kSecondNs, std::move(handlers));
}

Result<void> GroupHeadNode::rank_message(uint32_t rank, JoinMessage message) {
  if (const auto* join = std::get_if<MemberJoin>(&message)) return rank_join(rank, *join);
  if (const auto* address = std::get_if<EpochAddress>(&message)) {
    mesh_address(rank, *address);
    return {};
  }
  if (std::holds_alternative<MemberTimes>(message)) return {};
  return fail(Kind::peer, "rank {} sent a message that only a head sends", rank);
}

Result<void> GroupHeadNode::rank_join(uint32_t rank, const MemberJoin& join) {
  if (join.index != rank || join.members != rank_count_)
    return fail(Kind::peer, "joined as rank {} of {}, expected {} of {}", join.index, join.members,
                rank, rank_count_);
  if (ranks_[rank].join) return fail(Kind::peer, "joined twice");
  const engine::ExecutorLimits& own = loaded_.limits;
  if (join.limits.pages < own.pages || join.limits.slots < own.slots)
    return fail(Kind::peer, "rank {} has {} pages and {} slots, expected at least {} and {}", rank,
                join.limits.pages, join.limits.slots, own.pages, own.slots);
  ranks_[rank].join = join;
  if (head_) {
    head_->set_address(static_cast<int32_t>(rank), join.parts_address);
    head_->on_rank_up(static_cast<int32_t>(rank), io_.now());
  } else {
    form();
  }
  pump();
  return {};
}

void GroupHeadNode::rank_closed(uint32_t rank, const Error& why) {
  log_.warn("rank {} is lost: {}", rank, why.text());
  const bool joined = ranks_[rank].join.has_value();
  ranks_[rank].channel.reset();
  ranks_[rank].join.reset();
  if (head_ && joined) head_->on_rank_lost(static_cast<int32_t>(rank), io_.now());
  pump();
}

/// Gathers the epoch's mesh ports and tells everyone once all are known.
void GroupHeadNode::mesh_address(uint32_t rank, const EpochAddress& address) {
  if (address.epoch < mesh_epoch_) return;
  if (address.epoch > mesh_epoch_) {
    mesh_epoch_ = address.epoch;
    for (Rank& r : ranks_) r.mesh_address.clear();
  }
  ranks_[rank].mesh_address = address.address;
  EpochPeers peers{mesh_epoch_, {}};
  for (const Rank& r : ranks_) {
    if (r.mesh_address.empty()) return;
    peers.addresses.push_back(r.mesh_address);
  }
  for (Rank& r : ranks_)
    if (r.channel) send_join(*r.channel, peers);
  local_->on_peers(peers);
}

/// Makes the engine once every rank has joined; later returns find it made.
void GroupHeadNode::form() {
  engine::GroupHello hello;
  for (const Rank& rank : ranks_) {
    if (!rank.join) return;
    hello.addresses.push_back(rank.join->parts_address);
  }
  hello.ranks = rank_count_;
  hello.page_tokens = static_cast<uint32_t>(loaded_.page_tokens);
  hello.pages = loaded_.limits.pages;
  hello.slots = loaded_.limits.slots;
  hello.seqs_max = static_cast<uint32_t>(loaded_.limits.decode_seqs_max);
  hello.context_max = static_cast<uint32_t>(loaded_.limits.context_max);
  hello.states = describe_states(*loaded_.manifest);
  auto head =
      engine::DecodeGroupHead::create({.hello = std::move(hello), .feeds = loaded_.limits.feeds});
  if (!head) return fatal_(head.error());
  head_ = std::make_unique<engine::DecodeGroupHead>(std::move(*head));
  log_.info("{} ranks are here: {} pages and {} slots each, {} sequences a step", rank_count_,
            loaded_.limits.pages, loaded_.limits.slots, loaded_.limits.decode_seqs_max);
  for (uint32_t r = 0; r < rank_count_; ++r) head_->on_rank_up(static_cast<int32_t>(r), io_.now());
}

// ---- the prefill head ----

void GroupHeadNode::dial_later() {
  dial_waits_ = true;
  redial_timer_.after(std::exchange(pause_, 0), [this] {
    dial_waits_ = false;
    if (head_->joined() && !to_head_ && !dialer_) dial();
  });
}

void GroupHeadNode::dial() {
  auto address = transport::Address::parse(config_.decode);
  if (!address) return fatal_(address.error());
  transport::DialOptions o;
  o.terms.self.role = transport::Role::rank;
  o.terms.self.plan = loaded_.model;
  o.terms.peer_role = transport::Role::stage;
  o.terms.peer_index = 0;
  o.terms.key = key_;
  o.retry_refused = true;  // by a head that was started wrongly, perhaps, and will be again
  o.failed_attempt = [this](const Error& e) {
    if (redial_.is_news(e.text()))
      log_.warn("waiting for the prefill head at {}: {}", config_.decode, e.text());
  };
  o.done = [this](Result<transport::Connection> c) {
    if (!c) return fatal_(c.error());
    head_connected(std::move(*c));
  };
  dialer_ = std::make_unique<transport::Dialer>(io_, *address, std::move(o));
}

void GroupHeadNode::head_connected(transport::Connection connection) {
  log_.info("connected to the prefill head at {}", connection.remote);
  redial_.connected(io_.now());
  ControlHandlers handlers;
  handlers.engine = [this](ByteSpan payload) -> Result<void> {
    KERN_TRY(command, engine::decode_group_command(payload, {}));
    head_->on_head_command(command, io_.now());
    pump();
    return {};
  };
  handlers.join = [](const JoinMessage&) -> Result<void> {
    return fail(Kind::peer, "a prefill head sends no join message to a group");
  };
  handlers.closed = [this](const Error& why) { head_closed(why); };
  to_head_ = open_control(io_, std::move(connection), config_.peer_timeout_s * kSecondNs,
                          std::move(handlers));
  head_->on_head_up(io_.now());
  pump();
}

void GroupHeadNode::head_closed(const Error& why) {
  log_.warn("the prefill head is lost: {}", why.text());
  to_head_.reset();
  pause_ = redial_.pause(io_.now());
  if (config_.exit_with_head) return fatal_({Kind::peer, "the prefill head is lost", {}});
  head_->on_head_lost(io_.now());
  pump();
}

// ---- the engine ----

/// A rank that broke the protocol: its link is closed, and it may join again.
void GroupHeadNode::drop_rank(int32_t rank) {
  log_.error("rank {} answered what it was not asked, or chose another token than the others",
             rank);
  if (rank != 0) {
    if (ranks_[rank].channel) ranks_[rank].channel->close("rank 0 drops this rank");
    return;
  }
  io_.post([this] {
    head_->on_rank_up(0, io_.now());
    pump();
  });
}

bool GroupHeadNode::pump_once() {
  engine::GroupOutput out = head_->take_output();
  if (out.drop_head && to_head_) {
    // Closed here and now: the engine counts this head as gone already.
    to_head_->close("the decode group lost a rank");
    to_head_.reset();
  }
  for (const engine::ToRank& to : out.ranks) {
    if (to.rank == 0)
      local_->on_command(to.command);
    else if (ranks_[to.rank].channel)
      send_engine(*ranks_[to.rank].channel, engine::encode(to.command));
  }
  for (const int32_t rank : out.dropped_ranks) drop_rank(rank);
  for (const engine::GroupReport& report : out.head)
    if (to_head_) send_engine(*to_head_, engine::encode(report));
  return !out.ranks.empty() || !out.head.empty() || !out.dropped_ranks.empty() || out.drop_head;
}

/// Carries out what the engine decided. A call from inside itself is left to the outer loop.
void GroupHeadNode::pump() {
  if (!head_ || pumping_) return;
  pumping_ = true;
  while (pump_once()) {
  }
  pumping_ = false;
  if (head_->joined() && !to_head_ && !dialer_ && !dial_waits_) dial_later();
  // Not destroyed here: this may run inside the dialer's own callback.
  if (dialer_ && (to_head_ || !head_->joined()))
    io_.post([done = std::shared_ptr<transport::Dialer>(std::move(dialer_))] {});
  const TimeNs wake = head_->wake_at();
  if (wake == 0) return timer_.cancel();
  timer_.after(std::max<TimeNs>(wake - io_.now(), 0), [this] {
    head_->tick(io_.now());
    pump();
  });
}

}  // namespace kern::node
