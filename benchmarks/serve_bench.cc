// What the front costs on its one thread, without sockets: parsing and rendering a request, and one
// token of a stream on its way to the client's bytes. One line an entry: the median over the
// repetitions of nanoseconds an operation; `null` is a virtual call, the floor of every other line.
// `--once`: one short repetition, to see that it runs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "kern/serve/api.h"
#include "kern/text/tokenizer.h"

namespace {

using namespace kern;

constexpr int kStreams = 64;

struct Timing {
  int repetitions = 7;
  int operations = 20'000;
};

template <class Operation>
void measure(const Timing& timing, const char* name, int operations, Operation&& operation) {
  operations = std::min(operations, timing.operations);
  std::vector<double> ns;
  for (int r = 0; r < timing.repetitions; ++r) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < operations; ++i) operation(i);
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    ns.push_back(spent.count() / operations);
  }
  std::nth_element(ns.begin(), ns.begin() + static_cast<std::ptrdiff_t>(ns.size() / 2), ns.end());
  std::printf("%-52s %12.1f ns\n", name, ns[ns.size() / 2]);
}

/// Remembers what it was asked and says nothing.
class SilentBackend : public serve::Backend {
 public:
  explicit SilentBackend(int32_t vocab) {
    info.name = "bench";
    info.max_model_len = 1 << 20;
    info.vocab = vocab;
    info.top_logprobs_max = 5;
  }
  void submit(engine::Request request) override { last = request.id; }
  void abort(engine::RequestId) override {}
  const serve::ModelInfo& model() const override { return info; }
  serve::Health health() const override { return {serve::HealthState::ready, {}, {}}; }
  std::string metrics_text() const override { return {}; }
  uint64_t random_seed() override { return 1; }

  serve::ModelInfo info;
  engine::RequestId last;
};

class CountingResponder : public serve::Responder {
 public:
  void reply(serve::HttpResponse response) override { bytes += response.body.size(); }
  void begin_stream(std::vector<serve::HttpHeader>) override {}
  void send(std::string_view events) override { bytes += events.size(); }
  void end_stream(bool) override {}

  size_t bytes = 0;
};

text::Tokenizer byte_tokenizer() {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string model;
  for (int byte = 0; byte < 256; ++byte)
    model += std::string{kLetters[byte >> 2], kLetters[(byte & 3) << 4], '=', '='} + " " +
             std::to_string(byte) + "\n";
  text::TokenizerSpec spec{.pattern = "[a-z]+|[^a-z]", .special_slots = 8, .specials = {}};
  spec.specials = {{256, "<|end_of_msg|>", true},
                   {257, "<|open|>", false},
                   {258, "<|close|>", false},
                   {259, "<|sep|>", false}};
  auto made = text::Tokenizer::load(model, spec);
  if (!made) std::abort();
  return std::move(*made);
}

struct Front {
  text::Tokenizer tokenizer = byte_tokenizer();
  SilentBackend backend{tokenizer.vocab_size()};
  SystemClock clock;
  Log log{"bench", Level::off};
  CountingResponder responder;
  serve::Api api{{}, backend, tokenizer, clock, log};

  serve::ExchangeId ask(const char* route, std::string body) {
    return api.handle({.method = "POST", .target = route, .body = std::move(body)}, responder);
  }
};

void measure_tokens(const Timing& timing, const char* name, const char* route, const char* body) {
  Front front;
  std::vector<engine::RequestId> streams;
  std::vector<serve::ExchangeId> exchanges;
  for (int i = 0; i < kStreams; ++i) {
    exchanges.push_back(front.ask(route, body));
    streams.push_back(front.backend.last);
  }
  measure(timing, name, 20'000, [&](int i) {
    front.api.deliver({streams[static_cast<size_t>(i) % streams.size()],
                       engine::TokenEvent{.token = 'a' + i % 26, .logprob = {}, .top = {}}});
  });
  for (const auto exchange : exchanges) front.api.cancel(exchange);
}

void measure_requests(const Timing& timing) {
  Front front;
  std::string text;
  while (text.size() < 4000) text += "words of a prompt, ";
  const auto ask = [&](const char* route, const std::string& body) {
    front.api.cancel(front.ask(route, body));
  };
  measure(timing, "request: completion of 16 ids", 2000, [&](int) {
    ask("/v1/completions", R"({"prompt": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]})");
  });
  const std::string chat = R"({"messages": [{"role": "user", "content": ")" + text + R"("}]})";
  measure(timing, "request: chat of 4000 bytes, with its encoding", 200,
          [&](int) { ask("/v1/chat/completions", chat); });
  measure(timing, "request: refused for one field", 2000,
          [&](int) { ask("/v1/completions", R"({"prompt": "x", "temperature": 9})"); });
}

}  // namespace

int main(int argc, char** argv) {
  Timing timing;
  if (argc > 1 && std::strcmp(argv[1], "--once") == 0)
    timing = {.repetitions = 1, .operations = 64};
  CountingResponder responder;
  serve::Responder* volatile to = &responder;
  measure(timing, "null", 20'000, [&](int) { to->send("x"); });
  measure_tokens(timing, "token: completion stream", "/v1/completions",
                 R"({"prompt": "x", "stream": true, "max_tokens": 100000})");
  measure_tokens(timing, "token: chat stream", "/v1/chat/completions",
                 R"({"messages": [{"role": "user", "content": "x"}], "stream": true})");
  measure_tokens(timing, "token: completion with 4 stop strings", "/v1/completions",
                 R"({"prompt": "x", "stream": true, "max_tokens": 100000,
                     "stop": ["User:", "\n\n", "###", "abcabc"]})");
  measure_tokens(timing, "token: answer that is not streamed", "/v1/completions",
                 R"({"prompt": "x", "max_tokens": 100000})");
  measure_requests(timing);
  return 0;
}
