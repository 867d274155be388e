#include "kern/node/app.h"

#include <unistd.h>

#include <csignal>
#include <ctime>
#include <utility>

#include "group_head.h"
#include "kern/node/machine_group.h"
#include "kern/trace/writer.h"
#include "kern/transport/asio.h"
#include "member.h"
#include "one_process.h"
#include "prefill_head.h"
#include "rank_shell.h"
#include "stage_shell.h"

namespace kern::node {
namespace {

constexpr size_t kTraceEventsMax = 1 << 16;
/// A member that has been without work for this long may leave when it is told to stop.
constexpr TimeNs kQuiet = 300 * kMillisecondNs;
/// Ranks of a GPU group start within this time of each other, and load as long apart at most.
constexpr TimeNs kGroupTimeout = 600 * kSecondNs;
/// How often a rank asks whether all others of its machine's group are there.
constexpr TimeNs kGroupLook = 100 * kMillisecondNs;

/// Weights are read where they lie in their files. One that is cut while it is mapped cannot be
/// read on, and all that a handler may do is say so.
extern "C" void on_bus_error(int) {
  static constexpr char kText[] =
      "error: a mapped file was cut short while in use; a checkpoint must not change in place\n";
  (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(1);
}

/// What every daemon has: a context, a log, spans, signals, an exit code.
class Daemon {
 public:
  Daemon(const DaemonConfig& config, std::string name)
      : config_(config), log_(std::move(name), config.log_level), recorder_(kTraceEventsMax) {
    std::signal(SIGBUS, on_bus_error);
  }

  transport::IoContext& io() { return io_; }
  const Log& log() const { return log_; }
  trace::Recorder& recorder() { return recorder_; }

  void fatal(const Error& error) {
    log_.error("{}: {}", to_string(error.kind), error.text());
    exit_code_ = 1;
    io_.stop();
  }
  std::function<void(const Error&)> on_fatal() {
    return [this](const Error& e) { fatal(e); };
  }
  /// What a process that is told to stop takes for the others' stopping.
  void lost(const Error& error) {
    if (stopping_) return io_.stop();
    fatal(error);
  }

  /// `drain` starts the orderly stop and calls its argument when done. A second signal, or the
  /// drain time, ends the process without waiting.
  Result<void> stop_on_signals(std::function<void(std::function<void()>)> drain) {
    return io_.on_signals({SIGTERM, SIGINT}, [this, drain](int signal) {
      if (std::exchange(stopping_, true)) return io_.stop();
      log_.info("signal {}: draining for at most {} s", signal, config_.drain_s);
      drain_timer_.after(config_.drain_s * kSecondNs, [this] {
        log_.warn("work was left after {} s", config_.drain_s);
        io_.stop();
      });
      drain([this] { io_.stop(); });
    });
  }

  int run() {
    io_.run();
    if (!config_.trace.empty()) {
      const auto events = recorder_.snapshot();
      const auto written = trace::write_chrome_trace(config_.trace, "daemon", events);
      if (!written) log_.error("{}", written.error().text());
    }
    log_.info("exit {}", exit_code_);
    return exit_code_;
  }

 private:
  const DaemonConfig& config_;
  Log log_;
  trace::Recorder recorder_;
  transport::IoContext io_;
  transport::Timer drain_timer_{io_};
  bool stopping_ = false;
  int exit_code_ = 0;
};

/// Runs `body`, and turns its error into a line and exit code 1.
int guarded(Daemon& daemon, const std::function<Result<int>()>& body) {
  const Result<int> code = body();
  if (code) return *code;
  daemon.log().error("{}: {}", to_string(code.error().kind), code.error().text());
  return 1;
}

Result<std::optional<transport::ClusterKey>> read_key(const DaemonConfig& config) {
  if (config.cluster_key_file.empty()) return std::nullopt;
  KERN_TRY(key, transport::ClusterKey::read(config.cluster_key_file));
  return std::optional(std::move(key));
}

serve::ModelInfo model_info(const DaemonConfig& config, const ModelText& text) {
  serve::ModelInfo info;
  info.name = config.model_name.empty() ? text.name : config.model_name;
  info.aliases = text.aliases;
  info.created = std::time(nullptr);
  info.stop_tokens = text.stop_tokens;
  info.vocab = text.tokenizer.vocab_size();
  return info;
}

Result<std::unique_ptr<serve::Server>> start_server(Daemon& daemon, const DaemonConfig& config,
                                                    EngineBackend& backend, const ModelText& text,
                                                    const Clock& clock) {
  serve::ServerOptions options;
  options.host = config.host;
  options.port = static_cast<uint16_t>(config.port);
  options.api_key_file = config.api_key_file;
  options.api.limits = config.limits;
  options.api.style = text.style;
  options.api.version = KERN_VERSION;
  if (config.vendor_rules) options.api.vendor_rules.emplace();
  KERN_TRY(server, serve::Server::start(transport::raw_context(daemon.io()), options, backend,
                                        text.tokenizer, clock, daemon.log()));
  backend.set_server(server.get());
  daemon.log().info("the API is at http://{}:{}", config.host, server->port());
  return server;
}

/// Drains the front, then stops.
Result<void> stop_with_server(Daemon& daemon, serve::Server& server, EngineBackend& backend) {
  return daemon.stop_on_signals([&](std::function<void()> done) {
    backend.set_draining();
    server.drain(std::move(done));
  });
}

/// Stops a member once it has been idle for a moment.
class IdleStop {
 public:
  IdleStop(transport::IoContext& io, std::function<bool()> idle)
      : io_(io), timer_(io), idle_(std::move(idle)) {}
  void start(std::function<void()> done) {
    if (!idle_()) quiet_since_ = 0;
    if (idle_() && quiet_since_ == 0) quiet_since_ = io_.now();
    if (quiet_since_ != 0 && io_.now() - quiet_since_ >= kQuiet) return done();
    timer_.after(kQuiet / 10, [this, done] { start(done); });
  }

 private:
  transport::IoContext& io_;
  transport::Timer timer_;
  std::function<bool()> idle_;
  TimeNs quiet_since_ = 0;
};

Result<int> prefill_head(Daemon& daemon, const DaemonConfig& config, LoadedModel& model,
                         const std::function<Result<ModelText>()>& model_text,
                         std::optional<transport::ClusterKey> key) {
  KERN_TRY(text, model_text());
  const SystemClock clock;
  PrefillHeadNode node(daemon.io(), daemon.log(), config, model, model_info(config, text),
                       daemon.recorder(), std::move(key));
  node.on_fatal(daemon.on_fatal());
  KERN_TRY(server, start_server(daemon, config, node, text, clock));
  KERN_TRY_VOID(node.listen());
  KERN_TRY_VOID(stop_with_server(daemon, *server, node));
  const int code = daemon.run();
  node.set_server(nullptr);
  return code;
}

/// What a member's options have in common, whatever it is a member of.
Result<MemberOptions> member_options(Daemon& daemon, const DaemonConfig& config,
                                     transport::Identity self, MemberJoin join,
                                     const std::optional<transport::ClusterKey>& key) {
  MemberOptions m;
  KERN_TRY(head, transport::Address::parse(config.head));
  m.head = head;
  m.terms.peer_role = self.role;
  m.terms.self = std::move(self);
  m.terms.key = key;
  m.join = std::move(join);
  m.peer_timeout = config.peer_timeout_s * kSecondNs;
  m.exit_with_head = config.exit_with_head;
  m.fatal = daemon.on_fatal();
  return m;
}

/// A shell that follows commands, behind a control channel to its head, until told to stop.
/// `Shell` is StageShell or RankShell; `make` builds it once the member's callbacks stand.
template <class Shell, class Decode, class Make>
Result<int> run_member(Daemon& daemon, MemberOptions m, Decode decode,
                       void (Shell::*on_peers)(const EpochPeers&), Make make) {
  std::unique_ptr<Member> member;
  std::unique_ptr<Shell> shell;
  m.engine = [&](ByteSpan payload) -> Result<void> {
    KERN_TRY(command, decode(payload, engine::WireLimits{}));
    shell->on_command(command);
    return {};
  };
  m.peers = [&](const EpochPeers& peers) { ((*shell).*on_peers)(peers); };
  m.head_lost = [&] { shell->on_head_lost(); };
  shell = make(member);
  m.times = &shell->times();
  member = std::make_unique<Member>(daemon.io(), daemon.log(), std::move(m));
  IdleStop stop(daemon.io(), [&] { return !member->connected() || shell->idle(); });
  KERN_TRY_VOID(daemon.stop_on_signals([&](std::function<void()> done) { stop.start(done); }));
  member->dial();
  return daemon.run();
}

/// The callbacks of a shell whose head is behind a member.
template <class Options>
void report_through(Options& options, std::unique_ptr<Member>& member, Daemon& daemon) {
  options.report = [&](const auto& report) { member->report(engine::encode(report)); };
  options.announce = [&](const EpochAddress& address) { member->announce(address); };
  options.broken = [&](const std::string& why) { member->rejoin(why); };
  options.device_lost = daemon.on_fatal();
}

Result<int> prefill_member(Daemon& daemon, const DaemonConfig& config, LoadedModel& model,
                           std::optional<transport::ClusterKey> key) {
  const manifest::Cut& cut = *(*model.manifest)->cut;
  const auto stage = static_cast<uint32_t>(cut.stage), count = static_cast<uint32_t>(cut.stages);
  transport::Identity self;
  self.role = transport::Role::stage;
  self.index = stage;
  self.plan = model.pipeline;
  KERN_TRY(m, member_options(daemon, config, self, {stage, count, model.limits, ""}, key));
  return run_member<StageShell>(daemon, std::move(m), engine::decode_stage_command,
                                &StageShell::on_next, [&](std::unique_ptr<Member>& member) {
                                  StageShellOptions o;
                                  o.stage = stage;
                                  o.stages = count;
                                  o.manifest = model.manifest.get();
                                  o.runtime = model.runtime.get();
                                  o.key = key;
                                  o.pipeline = model.pipeline;
                                  o.model = model.model;
                                  o.advertise = config.advertise;
                                  o.page_tokens = model.page_tokens;
                                  report_through(o, member, daemon);
                                  return std::make_unique<StageShell>(
                                      daemon.io(), daemon.log(), *model.executor, daemon.recorder(),
                                      std::move(o));
                                });
}

Result<int> decode_head(Daemon& daemon, const DaemonConfig& config, LoadedModel& model,
                        PeerMesh* mesh, transport::ListenSocket parts,
                        std::optional<transport::ClusterKey> key) {
  GroupHeadNode node(daemon.io(), daemon.log(), config, model, mesh, std::move(parts),
                     daemon.recorder(), std::move(key));
  node.on_fatal(daemon.on_fatal());
  IdleStop stop(daemon.io(), [&] { return node.idle(); });
  KERN_TRY_VOID(daemon.stop_on_signals([&](std::function<void()> done) { stop.start(done); }));
  KERN_TRY_VOID(node.listen());
  return daemon.run();
}

Result<int> decode_member(Daemon& daemon, const DaemonConfig& config, LoadedModel& model,
                          PeerMesh* mesh, transport::ListenSocket parts,
                          std::optional<transport::ClusterKey> key) {
  const auto rank = static_cast<uint32_t>(config.rank);
  const auto count = static_cast<uint32_t>(mesh->size());
  transport::Identity self;
  self.role = transport::Role::rank;
  self.index = rank;
  self.plan = model.manifest_digest;
  KERN_TRY(m, member_options(daemon, config, self,
                             {rank, count, model.limits, parts.address.text()}, key));
  return run_member<RankShell>(daemon, std::move(m), engine::decode_rank_command,
                               &RankShell::on_peers, [&](std::unique_ptr<Member>& member) {
                                 RankShellOptions o;
                                 o.rank = rank;
                                 o.ranks = count;
                                 o.manifest = model.manifest.get();
                                 o.runtime = model.runtime.get();
                                 o.mesh = mesh;
                                 o.key = key;
                                 o.group = model.manifest_digest;
                                 o.model = model.model;
                                 o.advertise = config.advertise;
                                 o.page_tokens = model.page_tokens;
                                 o.peer_timeout = config.peer_timeout_s * kSecondNs;
                                 report_through(o, member, daemon);
                                 return std::make_unique<RankShell>(
                                     daemon.io(), daemon.log(), *model.executor, daemon.recorder(),
                                     std::move(parts), std::move(o));
                               });
}

}  // namespace

int run_prefill_stage(const DaemonConfig& config,
                      const std::function<Result<ModelText>()>& model_text) {
  Daemon daemon(config, "prefill-stage");
  return guarded(daemon, [&]() -> Result<int> {
    KERN_TRY(key, read_key(config));
    KERN_TRY(read, read_manifest(config));
    const auto& cut = (*read.manifest)->cut;
    if (!(*read.manifest)->groups.empty())
      return fail(Kind::caller, "`{}` is one rank of {}, and a prefill stage has no ranks",
                  config.manifest.string(), (*read.manifest)->groups[0].size);
    const int64_t stage = cut ? cut->stage : 0;
    if ((stage == 0) != config.head.empty())
      return fail(Kind::caller, "`{}` is stage {}: stage 0 takes --listen, the others take --head",
                  config.manifest.string(), stage);
    KERN_TRY(model, load_model(config, std::move(read), {}, daemon.log()));
    return stage == 0 ? prefill_head(daemon, config, model, model_text, std::move(key))
                      : prefill_member(daemon, config, model, std::move(key));
  });
}

namespace {

/// Where the ranks of a group on one machine meet: the same manifest, and the same head's port.
std::string machine_name(const DaemonConfig& config, const Digest& manifest) {
  constexpr size_t kDigestBytes = 8;
  const std::string& head = config.head.empty() ? config.listen : config.head;
  return fmt::format("{}-{}", to_hex(manifest).substr(0, 2 * kDigestBytes),
                     head.substr(head.rfind(':') + 1));
}

/// Ends a rank whose group has lost another: nothing reaches the memory that was mapped of it, and
/// the process that takes its place maps memory only with ranks that load as it does.
class GroupWatch {
 public:
  GroupWatch(Daemon& daemon, const MachineGroup& group)
      : daemon_(daemon), group_(group), timer_(daemon.io()) {
    look();
  }

 private:
  void look() {
    if (const std::optional<int> rank = group_.gone())
      return daemon_.lost({Kind::peer,
                           fmt::format("rank {} has left the group, and its memory with it: the "
                                       "ranks of a GPU group end and start together",
                                       *rank),
                           {}});
    timer_.after(kGroupLook, [this] { look(); });
  }

  Daemon& daemon_;
  const MachineGroup& group_;
  transport::Timer timer_;
};

}  // namespace

int run_decode_rank(const DaemonConfig& config) {
  Daemon daemon(config, fmt::format("decode-rank {}", config.rank));
  return guarded(daemon, [&]() -> Result<int> {
    KERN_TRY(key, read_key(config));
    KERN_TRY(read, read_manifest(config));
    const auto& groups = (*read.manifest)->groups;
    if (groups.size() > 1)
      return fail(Kind::caller, "`{}` has {} groups, expected one or none",
                  config.manifest.string(), groups.size());
    if (const auto& cut = (*read.manifest)->cut)
      return fail(Kind::caller, "`{}` is stage {} of {} of a prefill pipeline, expected a rank",
                  config.manifest.string(), cut->stage, cut->stages);
    const int ranks = groups.empty() ? 1 : static_cast<int>(groups[0].size);
    if (config.rank >= ranks)
      return fail(Kind::caller, "`--rank {}`: the manifest has ranks 0 to {}", config.rank,
                  ranks - 1);
    std::optional<PeerMesh> mesh;
    std::unique_ptr<MachineGroup> machine;
    std::map<std::string, runtime::PeerGroup*> peers;
    if (ranks > 1) peers[groups[0].name] = &mesh.emplace(config.rank, ranks);
    if (ranks > 1 && config.gpu) {
      // GPUs reach each other through memory that is mapped while they load.
      KERN_TRY(joined, MachineGroup::join(machine_name(config, read.digest), config.rank, ranks,
                                          kGroupTimeout));
      machine = std::move(joined);
      peers[groups[0].name] = machine.get();
    }
    KERN_TRY(model, load_model(config, std::move(read), peers, daemon.log()));
    KERN_TRY(parts, transport::listen_on({config.advertise, 0}, key.has_value()));
    std::optional<GroupWatch> watch;
    if (machine) watch.emplace(daemon, *machine);
    PeerMesh* const joined = mesh ? &*mesh : nullptr;
    return config.rank == 0
               ? decode_head(daemon, config, model, joined, std::move(parts), std::move(key))
               : decode_member(daemon, config, model, joined, std::move(parts), std::move(key));
  });
}

int run_one_process(const DaemonConfig& config,
                    const std::function<Result<ModelText>()>& model_text) {
  Daemon daemon(config, "serve");
  return guarded(daemon, [&]() -> Result<int> {
    KERN_TRY(read, read_manifest(config));
    KERN_TRY(model, load_model(config, std::move(read), {}, daemon.log()));
    KERN_TRY(text, model_text());
    const SystemClock clock;
    KERN_TRY(node, OneProcessNode::create(daemon.io(), daemon.log(), config, model,
                                          model_info(config, text), daemon.recorder()));
    node->on_fatal(daemon.on_fatal());
    KERN_TRY(server, start_server(daemon, config, *node, text, clock));
    KERN_TRY_VOID(stop_with_server(daemon, *server, *node));
    const int code = daemon.run();
    node->set_server(nullptr);
    return code;
  });
}

}  // namespace kern::node
