#include "report.h"

#include <fmt/format.h>

namespace kern::replay {

namespace {

double share(uint64_t part, const ByTier& whole) {
  const uint64_t all = whole.device + whole.host + whole.miss;
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

// "1.50 TB": powers of ten, as memory and links are sold and geometries are given.
std::string human(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.95 && unit < 5; ++unit) value /= 1000;  // which would print as 1000.0
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string trace_line(const Trace& trace) {
  uint64_t turns = 0, prompt = 0, answer = 0;
  for (const Session& session : trace) {
    turns += session.turns.size();
    for (const SharedPrefix& one : session.shared) prompt += one.tokens;
    for (const Turn& turn : session.turns) prompt += turn.prompt, answer += turn.answer;
  }
  return fmt::format(
      "{} session{}, {} request{}; {} tokens said to the model, {} by it, not counting "
      "repetitions\n",
      trace.size(), trace.size() == 1 ? "" : "s", turns, turns == 1 ? "" : "s", prompt, answer);
}

std::string row(const Run& run) {
  const Outcome& out = run.outcome;
  const uint64_t requests = out.requests.device + out.requests.host + out.requests.miss;
  const double wait_s =
      requests == 0 ? 0 : static_cast<double>(out.wait_us) * 1e-6 / static_cast<double>(requests);
  return fmt::format(
      "{:<6} {:>9}  {:>5.1f} {:>5.1f} {:>5.1f}  {:>5.1f} {:>5.1f} {:>5.1f}  {:>9} {:>9} {:>9}  "
      "{:>7} {:>7}  {:>7} {:>8.1f} {:>7}  {:>8} {:>6} {:>9}\n",
      to_string(run.setup.policy), human(run.setup.geometry.host_bytes),
      100 * share(out.tokens.device, out.tokens), 100 * share(out.tokens.host, out.tokens),
      100 * share(out.tokens.miss, out.tokens), 100 * share(out.requests.device, out.requests),
      100 * share(out.requests.host, out.requests), 100 * share(out.requests.miss, out.requests),
      human(out.bytes_parked), human(out.bytes_woken), human(out.bytes_copied), out.parked,
      out.dropped + out.host_dropped, out.waited, wait_s, out.exceeded_pool + out.exceeded_row,
      out.pages_peak, out.slots_peak, human(out.host_bytes_peak));
}

std::string setup_json(const Setup& setup) {
  const pool::Geometry& g = setup.geometry;
  return fmt::format(
      "\"policy\":\"{}\",\"pages\":{},\"page_tokens\":{},\"page_bytes\":{},\"recurrent\":{},"
      "\"slots\":{},\"slot_bytes\":{},\"host_bytes\":{},\"row_pages_max\":{},\"grid\":{},"
      "\"keep_shared\":{},\"keep_prompt\":{},\"keep_answer\":{},\"answers_elsewhere\":{},"
      "\"park_tokens_min\":{},\"prefill_tokens_per_s\":{},\"step_us\":{}",
      to_string(setup.policy), g.pages - 1, g.page_tokens, g.page_bytes, g.recurrent,
      g.recurrent ? g.slots - 1 : 0, g.slot_bytes, g.host_bytes, g.row_pages_max, setup.grid,
      setup.keep.shared, setup.keep.prompt, setup.keep.answer, setup.answers_elsewhere,
      setup.park_tokens_min, setup.prefill_tokens_per_s, setup.step_us);
}

std::string tiers_json(const char* name, const ByTier& by) {
  return fmt::format("\"{}\":{{\"device\":{},\"host\":{},\"miss\":{},\"hit_rate\":{:.6f}}}", name,
                     by.device, by.host, by.miss, share(by.device + by.host, by));
}

std::string outcome_json(const Outcome& o) {
  return fmt::format(
      "{},{},\"bytes\":{{\"parked\":{},\"woken\":{},\"copied\":{}}},"
      "\"checkpoints\":{{\"kept\":{},\"not_kept\":{},\"parked\":{},\"dropped\":{},"
      "\"host_dropped\":{}}},"
      "\"refusals\":{{\"busy\":{},\"exceeds_pool\":{},\"exceeds_row\":{},\"turns_abandoned\":{}}},"
      "\"wait_us\":{},\"wait_us_max\":{},"
      "\"peaks\":{{\"pages\":{},\"pages_leased\":{},\"slots\":{},\"slots_leased\":{},"
      "\"host_bytes\":{}}},\"end_us\":{}",
      tiers_json("tokens", o.tokens), tiers_json("requests", o.requests), o.bytes_parked,
      o.bytes_woken, o.bytes_copied, o.kept, o.not_kept, o.parked, o.dropped, o.host_dropped,
      o.waited, o.exceeded_pool, o.exceeded_row, o.abandoned, o.wait_us, o.wait_us_max,
      o.pages_peak, o.pages_leased_peak, o.slots_peak, o.slots_leased_peak, o.host_bytes_peak,
      o.end_us);
}

}  // namespace

std::string table(const Trace& trace, const std::vector<Run>& runs) {
  std::string out = trace_line(trace);
  out += fmt::format("\n{:<6} {:>9}  {:>17}  {:>17}  {:>29}  {:>15}  {:>24}  {:>25}\n", "", "",
                     "% of tokens in", "% of requests in", "bytes", "evicted", "requests", "peak");
  out += fmt::format(
      "{:<6} {:>9}  {:>5} {:>5} {:>5}  {:>5} {:>5} {:>5}  {:>9} {:>9} {:>9}  {:>7} {:>7}  {:>7} "
      "{:>8} {:>7}  {:>8} {:>6} {:>9}\n",
      "policy", "host", "dev.", "host", "miss", "dev.", "host", "miss", "parked", "woken", "copied",
      "parked", "dropped", "waited", "mean s", "refused", "pages", "slots", "host");
  for (const Run& run : runs) out += row(run);
  return out;
}

std::string json(const Trace& trace, const std::vector<Run>& runs) {
  uint64_t turns = 0;
  for (const Session& session : trace) turns += session.turns.size();
  std::string out = fmt::format("{{\"sessions\":{},\"turns\":{},\"runs\":[", trace.size(), turns);
  for (const Run& run : runs)
    out += fmt::format("{}\n{{{},{}}}", out.back() == '}' ? "," : "", setup_json(run.setup),
                       outcome_json(run.outcome));
  return out + "\n]}\n";
}

}  // namespace kern::replay
