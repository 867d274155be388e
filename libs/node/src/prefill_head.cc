#include "prefill_head.h"

#include <chrono>

#include "kern/base/assert.h"

namespace kern::node {
namespace {

/// Microseconds of the wall clock: above every generation of a head that was started before.
uint64_t generation_now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Result<void> as_void(Result<engine::GroupId> id) {
  if (!id) return fail(id.error().kind, "{}", id.error().text());
  return {};
}

}  // namespace

PrefillHeadNode::PrefillHeadNode(transport::IoContext& io, const Log& log,
                                 const DaemonConfig& config, LoadedModel& model,
                                 serve::ModelInfo info, trace::Recorder& recorder,
                                 std::optional<transport::ClusterKey> key)
    : EngineBackend(std::move(info)),
      io_(io),
      log_(log),
      config_(config),
      loaded_(model),
      key_(std::move(key)),
      timer_(io) {
  const auto& cut = (*loaded_.manifest)->cut;
  stage_count_ = cut ? static_cast<uint32_t>(cut->stages) : 1;
  stages_.resize(stage_count_);
  stages_[0].join = MemberJoin{0, stage_count_, loaded_.limits, ""};
  local_ = std::make_unique<StageShell>(io_, log_, *loaded_.executor, recorder, shell_options());
}

PrefillHeadNode::~PrefillHeadNode() = default;

StageShellOptions PrefillHeadNode::shell_options() {
  StageShellOptions o;
  o.stage = 0;
  o.stages = stage_count_;
  o.manifest = loaded_.manifest.get();
  o.runtime = loaded_.runtime.get();
  o.key = key_;
  o.pipeline = loaded_.pipeline;
  o.model = loaded_.model;
  o.advertise = config_.advertise;
  o.page_tokens = loaded_.page_tokens;
  o.report = [this](const engine::StageReport& report) {
    head_->on_stage_report(0, report, io_.now());
    pump();
  };
  o.announce = [](const EpochAddress&) {};
  o.broken = [this](const std::string& why) {
    log_.warn("stage 0 leaves its epoch: {}", why);
    if (!head_) return;
    head_->on_stage_lost(0, io_.now());
    head_->on_stage_up(0, io_.now());
    pump();
  };
  o.device_lost = [this](const Error& e) { fatal_(e); };
  return o;
}

transport::Terms PrefillHeadNode::control_terms(transport::Role peer, const Digest& plan) const {
  transport::Terms t;
  t.self.role = transport::Role::stage;
  t.self.purpose = transport::Purpose::control;
  t.self.plan = plan;
  t.key = key_;
  t.peer_role = peer;
  return t;
}

Result<void> PrefillHeadNode::listen() {
  KERN_TRY(address, transport::Address::parse(config_.listen));
  KERN_TRY(port, transport::listen_on(address, key_.has_value()));
  transport::ListenerOptions o;
  o.terms = control_terms(transport::Role::stage, loaded_.pipeline);
  o.terms.admit = [this](const transport::Identity& peer) -> Result<void> {
    if (peer.index == 0 || peer.index >= stage_count_)
      return fail(Kind::peer, "stage {}: this pipeline has stages 1 to {} beside its head",
                  peer.index, stage_count_ - 1);
    if (stages_[peer.index].channel) return fail(Kind::peer, "{} is already here", peer.name());
    return {};
  };
  o.accepted = [this](transport::Connection c) { accept_stage(std::move(c)); };
  o.rejected = [this](const Error& e) { warn_refused(log_, refusals_, io_.now(), "stage", e); };
  stage_listener_ = std::make_unique<transport::Listener>(io_, std::move(port), std::move(o));
  if (config_.decode_listen.empty()) return {};

  KERN_TRY(group_address, transport::Address::parse(config_.decode_listen));
  KERN_TRY(group_port, transport::listen_on(group_address, key_.has_value()));
  transport::ListenerOptions g;
  g.terms = control_terms(transport::Role::rank, loaded_.model);
  g.terms.peer_index = 0;
  g.accepted = [this](transport::Connection c) { accept_group(std::move(c)); };
  g.rejected = [this](const Error& e) {
    warn_refused(log_, group_refusals_, io_.now(), "decode group", e);
  };
  group_listener_ = std::make_unique<transport::Listener>(io_, std::move(group_port), std::move(g));
  if (stage_count_ == 1) form();
  return {};
}

// ---- stages ----

void PrefillHeadNode::accept_stage(transport::Connection connection) {
  const uint32_t stage = connection.peer.index;
  if (stages_[stage].channel) return;  // two proved themselves at once; the first stays
  log_.info("{} dialed in", connection.name());
  ControlHandlers handlers;
  handlers.engine = [this, stage](ByteSpan payload) -> Result<void> {
    KERN_TRY(report, engine::decode_stage_report(payload, {}));
    if (!head_ || !stages_[stage].join) return fail(Kind::peer, "a report before joining");
    head_->on_stage_report(static_cast<int32_t>(stage), report, io_.now());
    pump();
    return {};
  };
  handlers.join = [this, stage](JoinMessage m) { return stage_message(stage, std::move(m)); };
  handlers.closed = [this, stage](const Error& why) { stage_closed(stage, why); };
  stages_[stage].channel = open_control(io_, std::move(connection),
                                        config_.peer_timeout_s * kSecondNs, std::move(handlers));
}

Result<void> PrefillHeadNode::stage_message(uint32_t stage, JoinMessage message) {
  if (const auto* join = std::get_if<MemberJoin>(&message)) return stage_join(stage, *join);
  if (const auto* times = std::get_if<MemberTimes>(&message)) {
    stages_[stage].times = *times;
    return {};
  }
  if (const auto* address = std::get_if<EpochAddress>(&message)) {
    next_address(stage, *address);
    return {};
  }
  return fail(Kind::peer, "stage {} sent a message that only a head sends", stage);
}

Result<void> PrefillHeadNode::stage_join(uint32_t stage, const MemberJoin& join) {
  if (join.index != stage || join.members != stage_count_)
    return fail(Kind::peer, "joined as stage {} of {}, expected {} of {}", join.index, join.members,
                stage, stage_count_);
  if (stages_[stage].join) return fail(Kind::peer, "joined twice");
  const engine::ExecutorLimits both = tightest(limits_, join.limits);
  if (head_ &&
      (both.pages < limits_.pages || both.slots < limits_.slots ||
       both.prefill_rows_max < limits_.prefill_rows_max || both.context_max < limits_.context_max))
    return fail(Kind::peer,
                "stage {} allows {} pages, {} slots and {} rows, expected at least {}, {} and {}",
                stage, join.limits.pages, join.limits.slots, join.limits.prefill_rows_max,
                limits_.pages, limits_.slots, limits_.prefill_rows_max);
  if (head_ && limits_.host_bytes > 0 &&
      (both.host_bytes < limits_.host_bytes || both.host_page_bytes > limits_.host_page_bytes ||
       both.host_slot_bytes > limits_.host_slot_bytes))
    return fail(Kind::peer,
                "stage {} has {} bytes of host memory for pages of {} and slots of {}, expected "
                "at least {} for pages of {} and slots of {}",
                stage, join.limits.host_bytes, join.limits.host_page_bytes,
                join.limits.host_slot_bytes, limits_.host_bytes, limits_.host_page_bytes,
                limits_.host_slot_bytes);
  stages_[stage].join = join;
  if (head_)
    head_->on_stage_up(static_cast<int32_t>(stage), io_.now());
  else
    form();
  pump();
  return {};
}

void PrefillHeadNode::stage_closed(uint32_t stage, const Error& why) {
  log_.warn("stage {} is lost: {}", stage, why.text());
  const bool joined = stages_[stage].join.has_value();
  stages_[stage].channel.reset();
  stages_[stage].join.reset();
  if (head_ && joined) head_->on_stage_lost(static_cast<int32_t>(stage), io_.now());
  pump();
}

void PrefillHeadNode::next_address(uint32_t stage, const EpochAddress& address) {
  const EpochPeers peers{address.epoch, {address.address}};
  if (stage == 1)
    local_->on_next(peers);
  else if (stages_[stage - 1].channel)
    send_join(*stages_[stage - 1].channel, peers);
}

/// Makes the engine once every stage has joined.
void PrefillHeadNode::form() {
  engine::ExecutorLimits limits = stages_[0].join->limits;
  for (const Stage& stage : stages_) {
    if (!stage.join) return;
    limits = tightest(limits, stage.join->limits);
  }
  limits.page_tokens = static_cast<int32_t>(loaded_.page_tokens);
  engine::HeadOptions o;
  o.stages = static_cast<int32_t>(stage_count_);
  o.limits = limits;
  o.queue_max = config_.queue_max;
  o.park_tokens_min = static_cast<uint32_t>(config_.park_tokens_min);
  o.wait_for_pipeline = 3 * config_.peer_timeout_s * kSecondNs;
  o.first_generation = generation_now();
  auto head = engine::PrefillHead::create(o);
  if (!head) return fatal_(head.error());
  head_ = std::make_unique<engine::PrefillHead>(std::move(*head));
  limits_ = limits;
  model_.max_model_len = limits.context_max;
  model_.top_logprobs_max = limits.top_logprobs_max;
  log_.info("{} stages are here: {} pages, {} slots, {} rows an item, context {}", stage_count_,
            limits.pages, limits.slots, limits.prefill_rows_max, limits.context_max);
  if (limits.host_bytes > 0)
    log_.info("prefixes of at least {} tokens are parked in {:.2f} GiB of host memory a stage",
              config_.park_tokens_min, static_cast<double>(limits.host_bytes) / (1 << 30));
  else if (config_.host_tier_bytes > 0)
    log_.warn("nothing is parked: a stage has no host memory for it (--host-gib)");
  for (uint32_t s = 0; s < stage_count_; ++s)
    head_->on_stage_up(static_cast<int32_t>(s), io_.now());
  for (auto& [key, group] : groups_) {
    if (!group.hello) continue;
    const auto introduced = introduce(group);
    if (!introduced) group.channel->close(introduced.error().text());
  }
}

// ---- decode groups ----

void PrefillHeadNode::accept_group(transport::Connection connection) {
  const uint64_t key = ++groups_seen_;
  log_.info("decode group {} dialed in from {}", key, connection.remote);
  ControlHandlers handlers;
  handlers.engine = [this, key](ByteSpan payload) { return group_report(key, payload); };
  handlers.join = [](const JoinMessage&) -> Result<void> {
    return fail(Kind::peer, "a group's head sends no join message");
  };
  handlers.closed = [this, key](const Error& why) { group_closed(key, why); };
  groups_[key].channel = open_control(io_, std::move(connection),
                                      config_.peer_timeout_s * kSecondNs, std::move(handlers));
}

Result<void> PrefillHeadNode::group_report(uint64_t key, ByteSpan payload) {
  KERN_TRY(report, engine::decode_group_report(payload, {}));
  Group& group = groups_[key];
  if (const auto* hello = std::get_if<engine::GroupHello>(&report)) {
    if (group.id || group.hello) return fail(Kind::peer, "said hello twice");
    group.hello = *hello;
    const auto introduced = head_ ? introduce(group) : Result<void>();
    pump();
    return introduced;
  }
  if (!group.id) return fail(Kind::peer, "a report before hello");
  phases_.heard(report, io_.now());
  head_->on_group_report(*group.id, report, io_.now());
  pump();
  return {};
}

Result<void> PrefillHeadNode::introduce(Group& group) {
  auto id = head_->on_group_up(std::move(*group.hello), io_.now());
  group.hello.reset();
  if (id) {
    group.id = *id;
    log_.info("decode group {} serves", id->value());
  }
  return as_void(std::move(id));
}

void PrefillHeadNode::group_closed(uint64_t key, const Error& why) {
  log_.warn("decode group {} is lost: {}", key, why.text());
  const auto node = groups_.extract(key);
  if (head_ && node.mapped().id) head_->on_group_lost(*node.mapped().id, io_.now());
  pump();
}

void PrefillHeadNode::drop_group(engine::GroupId id) {
  for (auto& [key, group] : groups_)
    if (group.id == id) return group.channel->close("the head drops this group");
}

// ---- the engine ----

void PrefillHeadNode::submit(engine::Request request) {
  if (!head_) {
    return deliver(
        {request.id, engine::FailedEvent{engine::FailureKind::unavailable, not_ready()}});
  }
  phases_.submitted(request.id, io_.now());
  head_->submit(std::move(request), io_.now());
  pump();
}

void PrefillHeadNode::abort(engine::RequestId id) {
  if (!head_) return;
  head_->abort(id, io_.now());
  pump();
}

void PrefillHeadNode::send_stage(int32_t stage, const engine::StageCommand& command) {
  if (stage == 0) return local_->on_command(command);
  KERN_ASSERT(stage < static_cast<int32_t>(stages_.size()), "stage {}", stage);
  if (stages_[stage].channel) send_engine(*stages_[stage].channel, engine::encode(command));
}

void PrefillHeadNode::send_group(engine::GroupId id, const engine::GroupCommand& command) {
  for (auto& [key, group] : groups_)
    if (group.id == id) return send_engine(*group.channel, engine::encode(command));
}

/// A stage that broke the protocol: its link is closed, and it may join again.
void PrefillHeadNode::drop_stage(int32_t stage) {
  log_.error("stage {} answered what it was not asked", stage);
  if (stage != 0) {
    if (stages_[stage].channel) stages_[stage].channel->close("the head drops this stage");
    return;
  }
  io_.post([this] {
    head_->on_stage_up(0, io_.now());
    pump();
  });
}

bool PrefillHeadNode::pump_once() {
  engine::HeadOutput out = head_->take_output();
  for (const engine::ToStage& to : out.stages) {
    if (to.stage == 0) phases_.sent(to.command, io_.now());
    send_stage(to.stage, to.command);
  }
  for (const engine::ToGroup& to : out.groups) send_group(to.group, to.command);
  for (const engine::GroupId group : out.dropped_groups) drop_group(group);
  for (const int32_t stage : out.dropped_stages) drop_stage(stage);
  const bool any = !out.stages.empty() || !out.groups.empty() || !out.events.empty();
  for (engine::RequestEvent& event : out.events) {
    phases_.told(event, io_.now());
    deliver(std::move(event));
  }
  return any;
}

/// Carries out what the engine decided. A call from inside itself is left to the outer loop.
void PrefillHeadNode::pump() {
  if (!head_ || pumping_) return;
  pumping_ = true;
  while (pump_once()) {
  }
  pumping_ = false;
  model_.max_model_len = static_cast<int32_t>(head_->context_max());
  const TimeNs wake = head_->wake_at();
  if (wake == 0) return timer_.cancel();
  timer_.after(std::max<TimeNs>(wake - io_.now(), 0), [this] {
    head_->tick(io_.now());
    pump();
  });
}

// ---- what is told ----

engine::Counters PrefillHeadNode::counters() const {
  return head_ ? head_->counters() : engine::Counters{};
}

std::vector<engine::GroupStatus> PrefillHeadNode::groups() const {
  return head_ ? head_->groups() : std::vector<engine::GroupStatus>{};
}

std::vector<StageTimes> PrefillHeadNode::stages() const {
  std::vector<StageTimes> out;
  for (uint32_t s = 0; s < stage_count_; ++s) {
    const MemberTimes& t = stages_[s].times;
    out.push_back(
        {s, stages_[s].join.has_value(), t.busy, t.receiving, t.sending, t.items, t.rows});
  }
  const DeviceTimes& own = local_->times();
  out[0] = {0, true, own.busy, own.receiving, own.sending, own.items, own.rows};
  return out;
}

std::string PrefillHeadNode::not_ready() const {
  std::string missing;
  for (uint32_t s = 1; s < stage_count_; ++s)
    if (!stages_[s].join) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", s);
  if (!missing.empty()) return fmt::format("waiting for stages {}", missing);
  if (!head_) return "the pipeline is forming";
  if (head_->groups().empty()) return "waiting for a decode group";
  if (!head_->ready()) return "the pipeline is forming";
  return "";
}

}  // namespace kern::node
