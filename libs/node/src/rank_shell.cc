#include "rank_shell.h"

#include <utility>

#include "control.h"
#include "kern/transport/mesh.h"

namespace kern::node {
namespace {

/// After the mesh broke: how long a reset from the head may take before this rank leaves by itself.
constexpr TimeNs kResetGrace = 2 * kSecondNs;

std::vector<std::string> names_of(const std::vector<engine::HandoffState>& states) {
  std::vector<std::string> names;
  for (const engine::HandoffState& state : states) names.push_back(state.name);
  return names;
}

}  // namespace

RankShell::RankShell(transport::IoContext& io, const Log& log, RuntimeExecutor& executor,
                     trace::Recorder& recorder, transport::ListenSocket parts,
                     RankShellOptions options)
    : io_(io),
      log_(log),
      options_(std::move(options)),
      states_(describe_states(*options_.manifest)),
      follower_(names_of(states_)),
      broken_timer_(io),
      receiver_(io, receiver_options()),
      device_(executor, recorder) {
  transport::ListenerOptions o;
  o.terms = terms(transport::Purpose::parts);
  o.accepted = [this](transport::Connection c) { receiver_.add(std::move(c)); };
  o.rejected = [this](const Error& e) {
    warn_refused(log_, refusals_, io_.now(), "hand-off connection", e);
  };
  parts_listener_ = std::make_unique<transport::Listener>(io_, std::move(parts), std::move(o));
}

RankShell::~RankShell() {
  *alive_ = false;
  if (options_.mesh != nullptr) options_.mesh->shutdown("the process ends");
}

transport::Terms RankShell::terms(transport::Purpose purpose) const {
  transport::Terms t;
  t.self.role = transport::Role::rank;
  t.self.index = options_.rank;
  t.self.purpose = purpose;
  t.self.plan = options_.model;
  t.key = options_.key;
  t.peer_role = transport::Role::stage;
  return t;
}

transport::PartReceiverOptions RankShell::receiver_options() {
  transport::PartReceiverOptions o;
  o.peer_timeout = options_.peer_timeout;
  o.expect = [this](const transport::PartHead& head, const transport::Identity&) {
    return expect(head);
  };
  o.landed = [this](const transport::PartHead& head, const transport::Identity&) {
    part_done(head, true);
  };
  o.failed = [this](const transport::PartHead& head, const transport::Identity& from,
                    const Error& e) {
    log_.warn("part `{}` of request {} from {}: {}", head.state, head.request, from.name(),
              e.text());
    part_done(head, false);
  };
  o.closed = [this](const transport::Identity& from, const Error& e) {
    log_.debug("hand-off connection of {} ended: {}", from.name(), e.text());
  };
  return o;
}

RankShell::Expecting RankShell::expect(const transport::PartHead& head) {
  const engine::Generation generation(head.generation);
  const auto tokens = follower_.tokens_expected(generation);
  if (!tokens) return transport::Refusal{"no such hand-off is expected here"};
  const engine::PartHeader header{
      engine::RequestId(head.request), generation, head.state, *tokens, head.bytes, head.digest};
  const auto place = follower_.accept(header);
  if (!place) return transport::Refusal{place.error().text()};
  for (const engine::HandoffState& state : states_)
    if (state.name == head.state) return destination(state, head, place->place, place->tokens);
  return transport::Refusal{"this rank has no such state"};
}

/// The state's own memory where this process sees it.
transport::Destination RankShell::destination(const engine::HandoffState& state,
                                              const transport::PartHead& head,
                                              const engine::Place& to, uint32_t tokens) {
  const MutableByteSpan own = options_.runtime->state(state.name);
  if (!own.empty())
    return place_part(state, {own, options_.page_tokens}, to, tokens, options_.rank,
                      options_.ranks);
  Landing landing;
  landing.ranges =
      ranges_of_part(state, options_.page_tokens, to, tokens, options_.rank, options_.ranks);
  int64_t bytes = 0;
  for (const StateRange& range : landing.ranges) bytes += range.size;
  landing.bytes.resize(static_cast<size_t>(bytes));
  Landing& kept = landings_[{head.request, head.generation, head.state}];
  kept = std::move(landing);
  return {kept.bytes};
}

/// A part that has landed goes from host memory into the device's.
Result<void> RankShell::put_down(const transport::PartHead& head) {
  const auto found = landings_.find({head.request, head.generation, head.state});
  if (found == landings_.end()) return {};
  ByteSpan left = found->second.bytes;
  for (const StateRange& range : found->second.ranges) {
    const auto size = static_cast<size_t>(range.size);
    KERN_TRY_VOID(options_.runtime->write_state(head.state, range.offset, left.first(size)));
    left = left.subspan(size);
  }
  return {};
}

void RankShell::part_done(const transport::PartHead& head, bool good) {
  const Result<void> down = good ? put_down(head) : Result<void>();
  landings_.erase({head.request, head.generation, head.state});
  if (!down) return options_.device_lost(down.error());
  const engine::Generation generation(head.generation);
  const auto tokens = follower_.tokens_expected(generation);
  if (!tokens) return;
  follower_.on_part(
      {engine::RequestId(head.request), generation, head.state, *tokens, head.bytes, head.digest},
      good);
  act();
}

void RankShell::on_command(const engine::RankCommand& command) {
  if (const auto* reset = std::get_if<engine::ResetEpoch>(&command)) begin_epoch(reset->epoch);
  follower_.on_command(command);
  if (std::holds_alternative<engine::ResetEpoch>(command)) drop_broken_items();
  act();
}

void RankShell::on_head_lost() {
  if (options_.mesh != nullptr) options_.mesh->shutdown("rank 0 is lost");
  epoch_.reset();
  ready_.reset();
  broken_timer_.cancel();
  follower_.on_head_lost();
  drop_broken_items();
  act();
}

void RankShell::drop_broken_items() {
  for (engine::ItemResult& one : std::exchange(pending_done_, {}))
    follower_.on_item_done(std::move(one));
}

void RankShell::begin_epoch(engine::Epoch epoch) {
  broken_timer_.cancel();
  epoch_ = epoch;
  ready_.reset();
  reported_ = false;
  joined_ = options_.mesh == nullptr;
  if (joined_) return;
  options_.mesh->shutdown("a new epoch begins");
  auto port = transport::listen_on({options_.advertise, 0}, options_.key.has_value());
  if (!port) return options_.broken(port.error().text());
  mesh_port_ = std::move(*port);
  options_.announce({epoch, mesh_port_->address.text()});
}

void RankShell::on_peers(const EpochPeers& peers) {
  if (peers.epoch != epoch_ || !mesh_port_ || peers.addresses.size() != options_.ranks) return;
  transport::MeshOptions o;
  o.rank = static_cast<int>(options_.rank);
  for (const std::string& text : peers.addresses) {
    auto address = transport::Address::parse(text);
    if (!address) return options_.broken(address.error().text());
    o.addresses.push_back(std::move(*address));
  }
  o.key = options_.key;
  o.plan = options_.group;
  o.epoch = peers.epoch;
  o.peer_timeout = options_.peer_timeout;
  auto port = std::make_shared<transport::ListenSocket>(std::move(*mesh_port_));
  mesh_port_.reset();
  device_.post([this, o, port, epoch = peers.epoch] {
    auto mesh = transport::Mesh::join(std::move(*port), o);
    std::string why = mesh ? "" : mesh.error().text();
    if (mesh) options_.mesh->set(std::move(*mesh));
    io_.post([this, alive = alive_, why = std::move(why), epoch] {
      if (!*alive || epoch != epoch_) return;
      if (!why.empty()) return options_.broken(why);
      joined_ = true;
      report_if_ready();
    });
  });
}

void RankShell::report_if_ready() {
  if (!ready_ || reported_ || !joined_) return;
  reported_ = true;
  options_.report(*ready_);
}

void RankShell::act() {
  engine::RankFollower::Actions actions = follower_.take_actions();
  for (const auto& [request, generation] : actions.revoked) {
    receiver_.revoke(request.value(), generation.value());
    std::erase_if(landings_, [&, r = request.value(), g = generation.value()](const auto& landing) {
      return std::get<0>(landing.first) == r && std::get<1>(landing.first) == g;
    });
  }
  for (const engine::RankReport& report : actions.reports) {
    if (const auto* ready = std::get_if<engine::EpochReady>(&report))
      ready_ = *ready;
    else
      options_.report(report);
  }
  report_if_ready();
  for (engine::Item& item : actions.runs) start(std::move(item));
}

void RankShell::start(engine::Item item) {
  const uint64_t id = item.id;
  device_.run(std::move(item), [this, id](Result<engine::ItemResult> result) {
    io_.post([this, alive = alive_, id, result = std::move(result)] {
      if (*alive) finished(id, result);
    });
  });
}

void RankShell::finished(uint64_t id, Result<engine::ItemResult> result) {
  if (result) {
    follower_.on_item_done(std::move(*result));
    return act();
  }
  if (result.error().kind != Kind::peer) return options_.device_lost(result.error());
  log_.warn("step {}: {}", id, result.error().text());
  if ((reported_ && epoch_) || !pending_done_.empty()) {
    // As in a stage: the epoch is over, and the reset that says so is on its way. The step behind a
    // broken one ends with it.
    pending_done_.push_back({id, {}});
    if (!std::exchange(reported_, false)) return;
    ready_.reset();
    broken_timer_.after(kResetGrace, [this, why = result.error().text()] { options_.broken(why); });
    return;
  }
  follower_.on_item_done(engine::ItemResult{id, {}});
  act();
}

}  // namespace kern::node
