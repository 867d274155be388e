#include <catch2/catch.hpp>
#include <filesystem>

#include "kern/base/file.h"
#include "kern/base/prng.h"
#include "kern/text/chat.h"
#include "kern/text/utf8.h"
#include "small.h"

using namespace kern::text;

namespace {

/// `text` with a few bytes changed, dropped or doubled.
std::string mutated(std::string text, kern::Prng& prng) {
  for (size_t i = 1 + prng.below(3); i > 0 && !text.empty(); --i) {
    const size_t at = prng.below(text.size());
    switch (prng.below(4)) {
      case 0:
        text[at] = static_cast<char>(prng.below(256));
        break;
      case 1:
        text.erase(at, 1 + prng.below(8));
        break;
      case 2:
        text.insert(at, text.substr(at, 1 + prng.below(8)));
        break;
      default:
        text[at] = "{}[]\",:\\0\n "[prng.below(11)];
        break;
    }
  }
  return text;
}

}  // namespace

TEST_CASE("an altered vocabulary file loads whole or is refused", "[text][tokenizer][prop]") {
  kern::Prng prng(3);
  const std::string model = *k3::train_tiktoken_model("", k3::split_pattern(), 256);
  size_t refused = 0;
  for (int round = 0; round < 150; ++round) {
    const auto loaded = Tokenizer::load(mutated(model, prng), {k3::split_pattern(), 4, {}});
    refused += loaded ? 0 : 1;
    if (!loaded) {
      CHECK(loaded.error().kind == kern::Kind::weight_artifact);
      CHECK_FALSE(loaded.error().message.empty());
      continue;
    }
    const std::string text = "Grüße 123\n";
    CHECK(loaded->decode(loaded->encode(text), Specials::keep) == text);
  }
  CHECK(refused > 75);
}

TEST_CASE("an altered request renders to whole text or is the caller's fault",
          "[text][chat][prop]") {
  kern::Prng prng(5);
  size_t rendered = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KERN_TEST_DIR "/fixtures/chat")) {
    if (entry.path().extension() != ".json") continue;
    const auto json = kern::read_file(entry.path(), 1 << 20);
    REQUIRE(json);
    for (int round = 0; round < 60; ++round) {
      const auto request = parse_chat_json(mutated(*json, prng), k3::chat_style());
      if (!request) {
        CHECK(request.error().kind == kern::Kind::caller);
        continue;
      }
      const auto segments = render_chat(*request, k3::chat_style());
      if (!segments) {
        CHECK(segments.error().kind == kern::Kind::caller);
        continue;
      }
      ++rendered;
      CHECK(is_utf8(join(*segments)));
    }
  }
  CHECK(rendered > 50);
}
