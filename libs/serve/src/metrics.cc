#include "metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "kern/base/assert.h"

namespace kern::serve {
namespace {

void family(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
  fmt::format_to(std::back_inserter(out), "# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void single(std::string& out, std::string_view name, std::string_view type, std::string_view help,
            std::string_view labels, uint64_t value) {
  family(out, name, type, help);
  if (labels.empty())
    fmt::format_to(std::back_inserter(out), "{} {}\n", name, value);
  else
    fmt::format_to(std::back_inserter(out), "{}{{{}}} {}\n", name, labels, value);
}

/// A label value with its escapes.
std::string label(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\n')
      out += "\\n";
    else if (c == '"' || c == '\\')
      out += '\\', out += c;
    else
      out += c;
  }
  return out;
}

void print_connections(std::string& out, const Api::ConnectionCounts& counts) {
  const auto counter = [&](std::string_view name, std::string_view help, uint64_t value) {
    single(out, name, "counter", help, "", value);
  };
  single(out, "kern_http_connections_open", "gauge", "Connections open now.", "", counts.open);
  counter("kern_http_connections_accepted_total", "Connections accepted.", counts.accepted);
  counter("kern_http_connections_refused_total", "Connections over the limit.", counts.refused);
  counter("kern_http_disconnects_total", "Clients gone before their answer was whole.",
          counts.disconnects);
  counter("kern_http_slow_readers_cut_total", "Streams cut for unread bytes.",
          counts.slow_readers_cut);
  counter("kern_http_timeouts_total", "Connections closed by a time-out.", counts.timeouts);
  counter("kern_http_malformed_total", "Requests that were not HTTP.", counts.malformed);
}

}  // namespace

void DurationHistogram::add(TimeNs duration) {
  KERN_ASSERT(duration >= 0, "a duration of {} ns", duration);
  const double seconds = static_cast<double>(duration) / static_cast<double>(kSecondNs);
  const auto* const at = std::lower_bound(kBoundsSeconds.begin(), kBoundsSeconds.end(), seconds);
  ++counts_[static_cast<size_t>(at - kBoundsSeconds.begin())];
  ++count_;
  sum_ += duration;
}

void DurationHistogram::print(std::string& out, std::string_view name,
                              std::string_view labels) const {
  auto end = std::back_inserter(out);
  uint64_t below = 0;
  for (size_t i = 0; i < kBoundsSeconds.size(); ++i) {
    below += counts_[i];
    fmt::format_to(end, "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, kBoundsSeconds[i], below);
  }
  fmt::format_to(end, "{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, count_);
  fmt::format_to(end, "{}_sum{{{}}} {}\n", name, labels,
                 static_cast<double>(sum_) / static_cast<double>(kSecondNs));
  fmt::format_to(end, "{}_count{{{}}} {}\n", name, labels, count_);
}

std::string_view to_string(Ended ended) {
  switch (ended) {
    case Ended::stop:
      return "stop";
    case Ended::length:
      return "length";
    case Ended::tool_calls:
      return "tool_calls";
    case Ended::abort:
      return "abort";
    case Ended::error:
      return "error";
  }
  return "error";
}

std::string HttpMetrics::print(const std::string& model,
                               const Api::ConnectionCounts& connections) const {
  std::string out;
  const std::string labels = fmt::format("model_name=\"{}\"", label(model));
  family(out, "kern_http_requests_total", "counter", "Requests answered, by route and status.");
  for (const auto& [key, count] : requests)
    fmt::format_to(std::back_inserter(out),
                   "kern_http_requests_total{{route=\"{}\",status=\"{}\"}} {}\n", label(key.first),
                   key.second, count);
  single(out, "kern_http_answers_open", "gauge", "Answers asked for and not ended.", "",
         answers_open);
  print_connections(out, connections);
  for (const std::string prefix : {"kern_", "vllm:"}) {
    single(out, prefix + "prompt_tokens_total", "counter", "Prompt tokens of answered requests.",
           labels, prompt_tokens);
    single(out, prefix + "generation_tokens_total", "counter", "Tokens generated.", labels,
           generation_tokens);
    const std::string success = prefix + "request_success_total";
    family(out, success, "counter", "Answers ended, by how.");
    for (size_t i = 0; i < kEndedKinds; ++i)
      fmt::format_to(std::back_inserter(out), "{}{{{},finished_reason=\"{}\"}} {}\n", success,
                     labels, to_string(static_cast<Ended>(i)), ended[i]);
    const auto histogram = [&](std::string_view name, std::string_view help,
                               const DurationHistogram& values) {
      family(out, prefix + std::string(name), "histogram", help);
      values.print(out, prefix + std::string(name), labels);
    };
    histogram("time_to_first_token_seconds", "From request to first token.", first_token);
    histogram("inter_token_latency_seconds", "Between tokens of one answer.", between_tokens);
    histogram("e2e_request_latency_seconds", "From request to the end of its answer.", end_to_end);
  }
  single(out, "kern_prompt_tokens_cached_total", "counter", "Prompt tokens found in the cache.",
         labels, cached_tokens);
  return out;
}

}  // namespace kern::serve
