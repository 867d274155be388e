#include "backend.h"

#include <fmt/format.h>

#include "kern/base/assert.h"

namespace kern::node {
namespace {

/// Work that has not moved for this long is stuck.
constexpr TimeNs kStuckAfter = 60 * kSecondNs;

double seconds(int64_t ns) {
  return static_cast<double>(ns) / static_cast<double>(kSecondNs);
}

/// Prometheus text, a family at a time.
class Families {
 public:
  void begin(std::string_view name, std::string_view type, std::string_view help) {
    name_ = name;
    text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
  }
  template <class T>
  void sample(std::string_view labels, T value) {
    text_ += labels.empty() ? fmt::format("{} {}\n", name_, value)
                            : fmt::format("{}{{{}}} {}\n", name_, labels, value);
  }
  template <class T>
  void one(std::string_view name, std::string_view type, std::string_view help, T value) {
    begin(name, type, help);
    sample("", value);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string name_, text_;
};

uint64_t in(const engine::Counters& c, engine::RequestState state) {
  return c.requests[static_cast<size_t>(state)];
}

void add_requests(Families& f, const engine::Counters& c) {
  using engine::RequestState;
  f.begin("kern_requests", "gauge", "Requests not ended, by where they stand.");
  f.sample("state=\"queued\"", in(c, RequestState::queued));
  f.sample("state=\"prefilling\"", in(c, RequestState::prefilling));
  f.sample("state=\"landing\"", in(c, RequestState::landing));
  f.sample("state=\"running\"", in(c, RequestState::running));
  f.one("vllm:num_requests_waiting", "gauge", "Requests waiting.", in(c, RequestState::queued));
  f.one("vllm:num_requests_running", "gauge", "Requests being served.",
        in(c, RequestState::prefilling) + in(c, RequestState::landing) +
            in(c, RequestState::running));
  f.begin("kern_failures_total", "counter", "Requests refused or failed, by reason.");
  f.sample("reason=\"too_long\"", c.failed_too_long);
  f.sample("reason=\"queue_full\"", c.failed_queue_full);
  f.sample("reason=\"unavailable\"", c.failed_unavailable);
  f.sample("reason=\"deadline\"", c.failed_deadline);
  f.sample("reason=\"internal\"", c.failed_internal);
}

void add_memory(Families& f, const engine::Counters& c,
                const std::vector<engine::GroupStatus>& groups) {
  f.begin("kern_pages", "gauge", "Pages of state memory, by pool and use.");
  f.sample("pool=\"prompts\",state=\"leased\"", c.pages_used - c.pages_frozen);
  f.sample("pool=\"prompts\",state=\"cached\"", c.pages_frozen);
  f.sample("pool=\"prompts\",state=\"free\"", c.pages_max - c.pages_used);
  for (const engine::GroupStatus& g : groups) {
    f.sample(fmt::format("pool=\"group {}\",state=\"leased\"", g.id), g.pages_max - g.pages_free);
    f.sample(fmt::format("pool=\"group {}\",state=\"free\"", g.id), g.pages_free);
  }
  f.begin("kern_slots", "gauge", "Slots of per-sequence state, by pool and use.");
  for (const engine::GroupStatus& g : groups) {
    f.sample(fmt::format("pool=\"group {}\",state=\"leased\"", g.id), g.slots_max - g.slots_free);
    f.sample(fmt::format("pool=\"group {}\",state=\"free\"", g.id), g.slots_free);
  }
  const double used = c.pages_max == 0 ? 0 : static_cast<double>(c.pages_used) / c.pages_max;
  f.one("vllm:kv_cache_usage_perc", "gauge", "Share of pages leased.", used);
  f.one("kern_prefix_cache_queries", "counter", "Prompt tokens looked up.", c.cache_queries);
  f.one("kern_prefix_cache_hits", "counter", "Prompt tokens found.", c.cache_hits);
  f.one("vllm:prefix_cache_queries", "counter", "Prompt tokens looked up.", c.cache_queries);
  f.one("vllm:prefix_cache_hits", "counter", "Prompt tokens found.", c.cache_hits);
}

void add_host_tier(Families& f, const engine::Counters& c) {
  f.begin("kern_host_bytes", "gauge", "Host memory for parked prefixes, of one stage, by use.");
  f.sample("state=\"used\"", c.host_bytes_used);
  f.sample("state=\"free\"", c.host_bytes_max - c.host_bytes_used);
  f.one("kern_host_prefixes", "gauge", "Prefixes parked in host memory.", c.host_prefixes);
  f.one("kern_host_cache_hits", "counter", "Prompt tokens woken from host memory.",
        c.cache_hits_woken);
  f.begin("kern_prefixes_total", "counter",
          "Cached prefixes that moved or went, by what happened.");
  f.sample("what=\"parked\"", c.prefixes_parked);
  f.sample("what=\"woken\"", c.prefixes_woken);
  f.sample("what=\"dropped\"", c.prefixes_dropped);
  f.begin("kern_host_moved_bytes_total", "counter",
          "Bytes between device and host memory, of the largest stage, by way.");
  f.sample("way=\"park\"", c.bytes_parked);
  f.sample("way=\"wake\"", c.bytes_woken);
}

void add_work(Families& f, const engine::Counters& c, const std::vector<StageTimes>& stages) {
  f.one("kern_items_total", "counter", "Prefill items run.", c.items);
  f.one("kern_decode_steps_total", "counter", "Decode steps whose tokens came back.",
        c.decode_steps);
  f.one("kern_items_in_flight", "gauge", "Items sent and not back.", c.items_in_flight);
  f.one("kern_groups", "gauge", "Decode groups joined.", c.groups);
  f.one("kern_epochs_total", "counter", "Times the pipeline formed.", c.epochs);
  f.begin("kern_handoffs_total", "counter", "Hand-offs, by outcome.");
  f.sample("outcome=\"begun\"", c.handoffs);
  f.sample("outcome=\"failed\"", c.handoffs_failed);
  f.sample("outcome=\"expired\"", c.handoffs_expired);
  f.sample("outcome=\"repeated\"", c.handoffs_again);
  f.one("kern_late_messages_total", "counter", "Messages refused by generation or epoch.",
        c.late_messages);
  f.begin("kern_stage_seconds_total", "counter", "Device thread time, by stage and use.");
  for (const StageTimes& s : stages) {
    f.sample(fmt::format("stage=\"{}\",use=\"busy\"", s.stage), seconds(s.busy));
    f.sample(fmt::format("stage=\"{}\",use=\"receive\"", s.stage), seconds(s.receiving));
    f.sample(fmt::format("stage=\"{}\",use=\"send\"", s.stage), seconds(s.sending));
  }
  f.begin("kern_stage_items_total", "counter", "Items run, by stage.");
  for (const StageTimes& s : stages) f.sample(fmt::format("stage=\"{}\"", s.stage), s.items);
}

void add_phases(Families& f, const RequestPhases::Sums& sums) {
  f.one("kern_phased_requests_total", "counter", "Finished requests that passed every phase.",
        sums.requests);
  f.begin("kern_request_seconds_total", "counter", "Time of those requests, by phase.");
  f.sample("phase=\"queue\"", seconds(sums.queue));
  f.sample("phase=\"prefill\"", seconds(sums.prefill));
  f.sample("phase=\"hand-off\"", seconds(sums.handoff));
  f.sample("phase=\"steps\"", seconds(sums.steps));
}

}  // namespace

serve::Health EngineBackend::health() const {
  const std::string why = not_ready();
  const engine::Counters c = counters();
  serve::Health h;
  h.state = serve::HealthState::ready;
  if (draining_) {
    h.state = serve::HealthState::draining;
    h.reason = "shutting down";
  } else if (!why.empty()) {
    h.state = serve::HealthState::loading;
    h.reason = why;
  } else if (!idle() && now() - c.last_progress > kStuckAfter) {
    h.state = serve::HealthState::stuck;
    h.reason =
        fmt::format("no item or token came back for {:.0f} s", seconds(now() - c.last_progress));
  }
  const std::vector<StageTimes> all = stages();
  size_t here = 0;
  for (const StageTimes& s : all) here += s.here;
  h.details_json = fmt::format(R"({{"stages":{},"stages_here":{},"groups":{},"epochs":{}}})",
                               all.size(), here, c.groups, c.epochs);
  return h;
}

std::string EngineBackend::metrics_text() const {
  Families f;
  const engine::Counters c = counters();
  add_requests(f, c);
  add_memory(f, c, groups());
  add_host_tier(f, c);
  add_work(f, c, stages());
  if (const RequestPhases::Sums* sums = phases(); sums != nullptr) add_phases(f, *sums);
  return f.take();
}

std::vector<serve::StatusTable> EngineBackend::status() const {
  const engine::Counters c = counters();
  std::vector<serve::StatusTable> tables;
  serve::StatusTable requests{"Requests", {"queued", "prefilling", "landing", "running"}, {{}}};
  for (const uint64_t n : c.requests) requests.rows[0].push_back(std::to_string(n));
  tables.push_back(std::move(requests));
  tables.push_back({"Prompt memory",
                    {"pages", "leased", "cached"},
                    {{std::to_string(c.pages_max), std::to_string(c.pages_used),
                      std::to_string(c.pages_frozen)}}});
  constexpr double kGib = 1024.0 * 1024 * 1024;
  if (c.host_bytes_max > 0)
    tables.push_back({"Host memory of a stage",
                      {"GiB", "used", "prefixes", "parked", "woken", "dropped"},
                      {{fmt::format("{:.2f}", static_cast<double>(c.host_bytes_max) / kGib),
                        fmt::format("{:.2f}", static_cast<double>(c.host_bytes_used) / kGib),
                        std::to_string(c.host_prefixes), std::to_string(c.prefixes_parked),
                        std::to_string(c.prefixes_woken), std::to_string(c.prefixes_dropped)}}});
  serve::StatusTable stage_table{
      "Stages", {"stage", "here", "items", "busy s", "receiving s", "sending s"}, {}};
  for (const StageTimes& s : stages())
    stage_table.rows.push_back({std::to_string(s.stage), s.here ? "yes" : "no",
                                std::to_string(s.items), fmt::format("{:.2f}", seconds(s.busy)),
                                fmt::format("{:.2f}", seconds(s.receiving)),
                                fmt::format("{:.2f}", seconds(s.sending))});
  if (!stage_table.rows.empty()) tables.push_back(std::move(stage_table));
  serve::StatusTable group_table{
      "Decode groups", {"group", "ranks", "pages free", "slots free", "hand-offs"}, {}};
  for (const engine::GroupStatus& g : groups())
    group_table.rows.push_back({std::to_string(g.id), std::to_string(g.ranks),
                                fmt::format("{} of {}", g.pages_free, g.pages_max),
                                fmt::format("{} of {}", g.slots_free, g.slots_max),
                                std::to_string(g.handoffs)});
  if (!group_table.rows.empty()) tables.push_back(std::move(group_table));
  return tables;
}

uint64_t EngineBackend::random_seed() {
  uint64_t seed = 0;
  const auto filled = fill_random(std::as_writable_bytes(std::span(&seed, 1)));
  KERN_ASSERT(filled.has_value(), "the system gives no random bytes");
  return seed;
}

void EngineBackend::deliver(engine::RequestEvent event) {
  if (server_ != nullptr) server_->deliver(std::move(event));
}

}  // namespace kern::node
