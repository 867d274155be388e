// Any bytes as what an HTTP client sends, read whole and in pieces: the same requests, and the same
// end, but that a head which is not whole yet may be refused sooner or later. Every whole request
// goes to the API in front of a model that says the prompt again; each gets exactly one answer, or
// one stream that ends, and none is left open.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kern/base/assert.h"
#include "kern/base/log.h"
#include "kern/serve/api.h"
#include "request_reader.h"

using namespace kern;
using namespace kern::serve;

namespace {

Limits small_limits() {
  Limits limits;
  limits.body_bytes_max = 1 << 16;
  limits.header_bytes_max = 8192;
  limits.n_max = 4;
  limits.prompts_max = 4;
  return limits;
}
const Limits kLimits = small_limits();

std::string text_of(const HttpRequest& r) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", r.method, r.target, r.authorization, r.request_id,
                     r.timeout, r.body);
}

struct Seen {
  std::vector<HttpRequest> requests;
  std::vector<std::string> texts;
  bool refused = false;
  bool waits = false;  ///< for the rest of a request
};

/// What a connection makes of the bytes, in pieces of at most `piece`.
Seen seen_in(std::string_view bytes, size_t piece) {
  RequestReader reader(kLimits);
  Seen seen;
  std::string held;
  reader.begin();
  while (!bytes.empty()) {
    const size_t taken = std::min(piece, bytes.size());
    held += bytes.substr(0, taken);
    bytes.remove_prefix(taken);
    for (bool more = false; !more;) {
      switch (reader.read(held)) {
        case RequestReader::Step::more:
          more = true;
          break;
        case RequestReader::Step::head:
          break;
        case RequestReader::Step::whole:
          seen.requests.push_back(reader.take());
          seen.texts.push_back(text_of(seen.requests.back()));
          if (!reader.keep_alive() || seen.requests.size() > 8) return seen;
          reader.begin();
          break;
        case RequestReader::Step::bad:
          seen.refused = true;
          KERN_ASSERT(reader.refusal().status >= 400 && !reader.refusal().body.empty());
          return seen;
      }
    }
  }
  seen.waits = reader.started();
  return seen;
}

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer made = [] {
    static constexpr char kLetters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string model;
    for (unsigned byte = 0; byte < 256; ++byte)
      model += fmt::format("{}{}== {}\n", kLetters[byte >> 2], kLetters[(byte & 3) << 4], byte);
    text::TokenizerSpec spec{.pattern = "[a-z]+|[^a-z]", .special_slots = 8, .specials = {}};
    spec.specials = {{256, "<|end_of_msg|>", true},
                     {257, "<|open|>", false},
                     {258, "<|close|>", false},
                     {259, "<|sep|>", false}};
    auto loaded = text::Tokenizer::load(model, spec);
    KERN_ASSERT(loaded.has_value());
    return std::move(*loaded);
  }();
  return made;
}

/// Says the prompt again, a token each turn.
class Echo final : public Backend {
 public:
  Echo() {
    info_.name = "echo";
    info_.max_model_len = 512;
    info_.stop_tokens = {256};
    info_.vocab = tokenizer().vocab_size();
    info_.top_logprobs_max = 3;
  }
  void submit(engine::Request request) override { queue_.push_back(std::move(request)); }
  void abort(engine::RequestId id) override { aborted_.push_back(id); }
  const ModelInfo& model() const override { return info_; }
  Health health() const override { return {HealthState::ready, {}, {}}; }
  std::string metrics_text() const override { return {}; }
  uint64_t random_seed() override { return 1; }

  /// Answers everything asked so far.
  void answer(Api& api) {
    while (!queue_.empty() || !aborted_.empty()) {
      for (const engine::RequestId id : std::exchange(aborted_, {}))
        api.deliver({id, engine::FinishedEvent{.reason = engine::FinishReason::aborted}});
      for (const engine::Request& request : std::exchange(queue_, {})) answer(api, request);
    }
  }

 private:
  void answer(Api& api, const engine::Request& request) {
    const size_t count =
        std::min({request.prompt.size(), size_t{16}, static_cast<size_t>(request.max_tokens)});
    for (size_t i = 0; i < count; ++i) {
      engine::TokenEvent event{.token = request.prompt[i], .logprob = {}, .top = {}};
      if (request.top_logprobs >= 0) event.logprob = -0.5F;
      for (int32_t t = 0; t < request.top_logprobs; ++t) event.top.push_back({t, -1.0F});
      api.deliver({request.id, std::move(event)});
    }
    api.deliver({request.id, engine::FinishedEvent{.reason = engine::FinishReason::length}});
  }

  ModelInfo info_;
  std::vector<engine::Request> queue_;
  std::vector<engine::RequestId> aborted_;
};

/// Counts how an exchange ends.
class Ear final : public Responder {
 public:
  void reply(HttpResponse response) override {
    KERN_ASSERT(response.status >= 200 && response.status < 600, "status {}", response.status);
    ++ends;
  }
  void begin_stream(std::vector<HttpHeader>) override {
    KERN_ASSERT(!streaming && ends == 0);
    streaming = true;
  }
  void send(std::string_view events) override {
    KERN_ASSERT(streaming && ends == 0 && events.ends_with("\n\n"));
  }
  void end_stream(bool) override {
    KERN_ASSERT(streaming);
    ++ends;
  }
  bool streaming = false;
  int ends = 0;
};

class StillClock final : public Clock {
 public:
  TimeNs now() const override { return kSecondNs; }
};

void ask(const std::vector<HttpRequest>& requests) {
  static const Log log("fuzz", Level::off);
  static const StillClock clock;
  Echo backend;
  ApiOptions options;
  options.limits = kLimits;
  options.style.family = "Fuzz";
  Api api(options, backend, tokenizer(), clock, log);
  for (const HttpRequest& request : requests) {
    Ear ear;
    if (api.refuse_early(request)) continue;
    const ExchangeId exchange = api.handle(request, ear);
    KERN_ASSERT(exchange != 0 || ear.ends == 1, "answered at once, {} times", ear.ends);
    backend.answer(api);
    KERN_ASSERT(ear.ends == 1, "answered {} times", ear.ends);
    KERN_ASSERT(api.open_exchanges() == 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Seen whole = seen_in(bytes, bytes.size() + 1);
  for (const size_t piece : {size_t{1}, size_t{13}}) {
    const Seen pieces = seen_in(bytes, piece);
    KERN_ASSERT(pieces.texts == whole.texts, "pieces of {} bytes make {} requests, the whole {}",
                piece, pieces.texts.size(), whole.texts.size());
    KERN_ASSERT(pieces.refused == whole.refused || pieces.waits || whole.waits,
                "pieces of {} bytes are {}refused, the whole is {}refused", piece,
                pieces.refused ? "" : "not ", whole.refused ? "" : "not ");
  }
  ask(whole.requests);
  return 0;
}
