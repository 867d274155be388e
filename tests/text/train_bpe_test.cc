#include "tokenizer/train_bpe.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <ctime>

#include "small.h"

using namespace kern::text;

TEST_CASE("a trained vocabulary has exactly the size asked for and loads", "[text][train]") {
  for (const int32_t size : {256, 257, 300, 1024, 2048, 4096, 8192}) {
    const auto model = k3::train_tiktoken_model(k3::training_corpus(), k3::split_pattern(), size);
    REQUIRE(model);
    const auto tokenizer =
        Tokenizer::load(*model, {k3::split_pattern(), k3::kSpecialSlots, k3::special_tokens(size)});
    REQUIRE(tokenizer);
    CHECK(tokenizer->base_size() == size);
    CHECK(tokenizer->vocab_size() == size + 256);
  }
}

TEST_CASE("training takes the most frequent pair first and the smaller of equals",
          "[text][train]") {
  // ab stands four times, then abc three times; cd and xy once each.
  const auto model = k3::train_tiktoken_model("abc abcd abc ab xy", "[a-z]+", 259);
  REQUIRE(model);
  CHECK(model->ends_with("YWI= 256\nYWJj 257\neHk= 258\n"));
}

TEST_CASE("a corpus without pairs fills up with two-byte tokens", "[text][train]") {
  const auto model = k3::train_tiktoken_model("", "[a-z]+", 65536);
  REQUIRE(model);
  CHECK(std::ranges::count(*model, '\n') == 65536);
}

TEST_CASE("training twice gives the same bytes, quickly", "[text][train]") {
  const std::clock_t start = std::clock();
  const auto first = k3::train_tiktoken_model(k3::training_corpus(), k3::split_pattern(), 4096);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  const auto second = k3::train_tiktoken_model(k3::training_corpus(), k3::split_pattern(), 4096);
  REQUIRE(first);
  CHECK(*first == *second);
  CHECK(seconds < 2.0);
}

TEST_CASE("a trained vocabulary shortens the text it was trained on", "[text][train]") {
  const std::string_view corpus = k3::training_corpus();
  CHECK(kern_test::small_tokenizer().encode(corpus).size() * 2 < corpus.size());
}

TEST_CASE("a size out of range and a bad pattern are refused", "[text][train]") {
  const auto reason = [](int32_t size, std::string_view pattern) {
    const auto model = k3::train_tiktoken_model("abc", pattern, size);
    return model ? "trained" : model.error().text();
  };
  CHECK(reason(255, "a") == "base vocabulary: expected 256 to 65536 tokens, got 255");
  CHECK(reason(65537, "a") == "base vocabulary: expected 256 to 65536 tokens, got 65537");
  CHECK(reason(256, "(").starts_with("split pattern: "));
}
