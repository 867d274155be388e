#include "params.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kern::serve {
namespace {

constexpr double kTemperatureMax = 2.0;
constexpr double kPenaltyMax = 2.0;
constexpr double kTimeoutMax = 1e6;
constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();

void read_sampling(Fields& fields, GenerationParams& params) {
  auto& sampling = params.sampling;
  sampling.temperature =
      static_cast<float>(fields.number("temperature", 1.0, 0.0, kTemperatureMax));
  sampling.top_p = static_cast<float>(fields.number("top_p", 1.0, 0.0, 1.0));
  sampling.min_p = static_cast<float>(fields.number("min_p", 0.0, 0.0, 1.0));
  const auto top_k = fields.integer("top_k", -1, kInt32Max);
  sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k.value_or(0), 0));
  // A nucleus of no mass holds the likeliest token alone.
  if (sampling.top_p <= 0) sampling.temperature = 0, sampling.top_p = 1;
  const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max());
  if (seed) params.seed = static_cast<uint64_t>(*seed);
}

/// Fields that the sampler does not know: refused where ignoring them would change the answer's
/// meaning, reported as ignored where OpenAI's range holds.
void read_unsupported(Fields& fields, GenerationParams& params) {
  for (const auto* name : {"presence_penalty", "frequency_penalty"})
    if (fields.number(name, 0.0, -kPenaltyMax, kPenaltyMax) != 0) params.ignored.push_back(name);
  if (fields.integer("min_tokens", 0, kInt32Max).value_or(0) != 0)
    params.ignored.push_back("min_tokens");
  if (const double penalty = fields.number("repetition_penalty", 1.0, 0.0, 1e9); penalty != 1.0)
    fields.refuse("repetition_penalty",
                  fmt::format("`repetition_penalty` must be 1.0, got {}", penalty));
  if (const auto bias = fields.get("logit_bias"); bias && !bias->fields().empty())
    fields.refuse("logit_bias", "`logit_bias` is not supported, expected none");
  if (const auto suffix = fields.string("suffix"); suffix && !suffix->empty())
    fields.refuse("suffix", "`suffix` is not supported, expected none");
  const auto best_of = fields.integer("best_of", 1, kInt32Max);
  if (best_of && *best_of != params.n)
    fields.refuse("best_of",
                  fmt::format("`best_of` must equal `n`, which is {}, got {}", params.n, *best_of));
}

void add_stop(Fields& fields, const Json& value, const Limits& limits,
              std::vector<std::string>& out) {
  const auto text = value.string();
  if (!text)
    return fields.refuse("stop", fmt::format("`stop` must be a string or a list of strings, got {}",
                                             to_string(value.type())));
  if (text->empty()) return fields.refuse("stop", "`stop` must not hold an empty string");
  if (text->size() > static_cast<size_t>(limits.stop_bytes_max))
    return fields.refuse("stop", fmt::format("a stop string has at most {} bytes, got {}",
                                             limits.stop_bytes_max, text->size()));
  out.emplace_back(*text);
}

void read_stops(Fields& fields, const Limits& limits, const ModelInfo& model,
                GenerationParams& params) {
  if (const auto stop = fields.get("stop")) {
    const auto items = stop->is(JsonType::array) ? stop->items() : std::vector<Json>{*stop};
    if (items.size() > static_cast<size_t>(limits.stop_strings_max))
      fields.refuse("stop", fmt::format("`stop` holds at most {} strings, got {}",
                                        limits.stop_strings_max, items.size()));
    for (const auto& item : items)
      if (!fields.error()) add_stop(fields, item, limits, params.stop);
  }
  if (const auto ids = fields.get("stop_token_ids")) {
    const auto list = ids->integers();
    const bool good = list && list->size() <= static_cast<size_t>(limits.stop_strings_max) &&
                      std::all_of(list->begin(), list->end(),
                                  [&](int32_t id) { return id >= 0 && id < model.vocab; });
    if (!good)
      fields.refuse("stop_token_ids",
                    fmt::format("`stop_token_ids` must be a list of at most {} token ids below {}",
                                limits.stop_strings_max, model.vocab));
    else
      params.stop_token_ids = *list;
  }
}

void read_stream(Fields& fields, GenerationParams& params) {
  params.stream = fields.boolean("stream", false);
  const auto options = fields.get("stream_options");
  if (!options) return;
  if (!options->is(JsonType::object))
    return fields.refuse("stream_options", fmt::format("`stream_options` must be an object, got {}",
                                                       to_string(options->type())));
  const auto usage = options->get("include_usage");
  if (usage && !usage->boolean())
    fields.refuse("stream_options.include_usage",
                  fmt::format("`stream_options.include_usage` must be a boolean, got {}",
                              to_string(usage->type())));
  params.include_usage = usage && usage->boolean().value_or(false);
}

void check_vendor_rules(Fields& fields, const VendorRules& rules, const GenerationParams& params) {
  if (params.sampling.temperature > static_cast<float>(rules.temperature_max))
    fields.refuse("temperature", fmt::format("`temperature` must lie within [0, {}], got {}",
                                             rules.temperature_max, params.sampling.temperature));
  const auto top_p = fields.get("top_p");
  if (top_p && std::abs(top_p->number().value_or(-1) - rules.top_p) > 1e-9)
    fields.refuse("top_p", fmt::format("`top_p` must be {} or absent", rules.top_p));
  for (const auto* name : {"presence_penalty", "frequency_penalty"})
    if (fields.number(name, 0.0, -kPenaltyMax, kPenaltyMax) != 0)
      fields.refuse(name, fmt::format("`{}` must be 0 or absent", name));
  if (params.n != 1) fields.refuse("n", fmt::format("`n` must be 1 or absent, got {}", params.n));
}

GenerationParams read_shared(Fields& fields, const ApiOptions& options, const ModelInfo& model) {
  GenerationParams params;
  const Limits& limits = options.limits;
  params.n = static_cast<int32_t>(fields.integer("n", 1, limits.n_max).value_or(1));
  read_sampling(fields, params);
  read_unsupported(fields, params);
  read_stops(fields, limits, model, params);
  read_stream(fields, params);
  params.ignore_eos = fields.boolean("ignore_eos", false);
  params.skip_special_tokens = fields.boolean("skip_special_tokens", true);
  params.priority = static_cast<int32_t>(
      fields.integer("priority", std::numeric_limits<int32_t>::min(), kInt32Max).value_or(0));
  params.timeout_s = fields.number("timeout", 0.0, 0.0, kTimeoutMax);
  if (options.vendor_rules) check_vendor_rules(fields, *options.vendor_rules, params);
  return params;
}

/// Also of numbers that no token id is as large as.
bool are_integers(const std::vector<Json>& items) {
  return std::all_of(items.begin(), items.end(),
                     [](const Json& item) { return item.is(JsonType::integer); });
}

int64_t logprobs_limit(const ApiOptions& options, const ModelInfo& model) {
  return std::min<int64_t>(options.limits.top_logprobs_max, model.top_logprobs_max);
}

void read_prompts(Fields& fields, const Limits& limits, const ModelInfo& model,
                  std::vector<Prompt>& out) {
  const auto value = fields.get("prompt");
  if (!value) return fields.refuse("prompt", "`prompt` is missing");
  const auto items = value->is(JsonType::array) ? value->items() : std::vector<Json>{};
  const bool is_list = !items.empty() && !items[0].is(JsonType::integer);
  if (!is_list) {
    if (const auto prompt = read_prompt(fields, *value, model)) out.push_back(*prompt);
    return;
  }
  if (items.size() > static_cast<size_t>(limits.prompts_max))
    return fields.refuse("prompt", fmt::format("`prompt` holds at most {} prompts, got {}",
                                               limits.prompts_max, items.size()));
  for (const auto& item : items) {
    if (item.type() != items[0].type())
      return fields.refuse("prompt", "`prompt` must hold strings alone or lists of ids alone");
    const auto prompt = read_prompt(fields, item, model);
    if (!prompt) return;
    out.push_back(*prompt);
  }
}

}  // namespace

std::optional<Prompt> read_prompt(Fields& fields, const Json& value, const ModelInfo& model) {
  if (const auto text = value.string()) return Prompt(std::string(*text));
  const auto ids = value.integers();
  if (!ids && value.is(JsonType::array) && are_integers(value.items())) {
    fields.refuse("prompt", fmt::format("a token id is not within [0, {})", model.vocab));
    return std::nullopt;
  }
  if (!ids) {
    fields.refuse("prompt", fmt::format("`prompt` must be a string, a list of strings, a list of "
                                        "token ids or a list of such lists, got {}",
                                        to_string(value.type())));
    return std::nullopt;
  }
  for (const int32_t id : *ids)
    if (id < 0 || id >= model.vocab) {
      fields.refuse("prompt", fmt::format("token id {} is not within [0, {})", id, model.vocab));
      return std::nullopt;
    }
  return Prompt(*ids);
}

std::optional<ApiError> check_model(Fields& fields, const ModelInfo& model) {
  const auto name = fields.string("model");
  if (fields.error()) return fields.error();
  if (!name || *name == model.name) return std::nullopt;
  if (std::find(model.aliases.begin(), model.aliases.end(), *name) != model.aliases.end())
    return std::nullopt;
  return ApiError{.status = 404,
                  .message = fmt::format("the model `{}` does not exist, this server has `{}`",
                                         *name, model.name),
                  .param = "model",
                  .code = "model_not_found"};
}

Outcome<CompletionParams> read_completion(Fields& fields, const ApiOptions& options,
                                          const ModelInfo& model) {
  CompletionParams params;
  if (auto error = check_model(fields, model)) return tl::unexpected(*error);
  params.shared = read_shared(fields, options, model);
  params.echo = fields.boolean("echo", false);
  // Clients write false where they mean null.
  const auto logprobs = fields.get("logprobs");
  if (logprobs && logprobs->boolean() != false)
    params.shared.top_logprobs = static_cast<int32_t>(
        fields.integer("logprobs", 0, logprobs_limit(options, model)).value_or(-1));
  const auto max_tokens = fields.integer("max_tokens", params.echo ? 0 : 1, kInt32Max);
  if (max_tokens) params.shared.max_tokens = static_cast<int32_t>(*max_tokens);
  read_prompts(fields, options.limits, model, params.prompts);
  if (fields.error()) return tl::unexpected(*fields.error());
  return params;
}

Outcome<GenerationParams> read_chat(Fields& fields, const ApiOptions& options,
                                    const ModelInfo& model) {
  if (auto error = check_model(fields, model)) return tl::unexpected(*error);
  GenerationParams params = read_shared(fields, options, model);
  const bool logprobs = fields.boolean("logprobs", false);
  const auto top = fields.integer("top_logprobs", 0, logprobs_limit(options, model));
  if (top && *top > 0 && !logprobs)
    fields.refuse("top_logprobs", "`top_logprobs` needs `logprobs` to be true");
  if (logprobs) params.top_logprobs = static_cast<int32_t>(top.value_or(0));
  auto max_tokens = fields.integer("max_completion_tokens", 1, kInt32Max);
  const auto older = fields.integer("max_tokens", 1, kInt32Max);
  if (max_tokens) params.max_tokens_field = "max_completion_tokens";
  if (!max_tokens) max_tokens = older;
  if (max_tokens) params.max_tokens = static_cast<int32_t>(*max_tokens);
  if (fields.get("functions"))
    fields.refuse("functions", "`functions` is not supported, expected `tools`");
  if (fields.error()) return tl::unexpected(*fields.error());
  return params;
}

}  // namespace kern::serve
