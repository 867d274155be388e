// text-tokenize: the tokenizer behind a pipe, for the comparison with another implementation.
//   text-tokenize train FOLDER SIZE [CORPUS]   writes a trained tiktoken.model and its
//                                     tokenizer_config.json; of the built-in text without CORPUS
//   text-tokenize encode FOLDER       strings on stdin, ids on stdout
//   text-tokenize decode FOLDER       ids on stdin, strings on stdout
//   text-tokenize render FOLDER       chat requests (JSON) on stdin, the prompts' ids on stdout
// A string is a u32 count and its bytes; ids are a u32 count and i32 each, little-endian.
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <filesystem>

#include "kern/base/bytes.h"
#include "kern/base/file.h"
#include "tokenizer/k3_tokenizer.h"
#include "tokenizer/train_bpe.h"

namespace {

constexpr size_t kItemMax = size_t{64} << 20;

std::string read_stdin() {
  std::string out;
  char buffer[65536];
  ssize_t count = 0;
  while ((count = read(STDIN_FILENO, buffer, sizeof(buffer))) > 0)
    out.append(buffer, static_cast<size_t>(count));
  return out;
}

kern::Result<void> train(const std::filesystem::path& folder, std::string_view size_text,
                         const char* corpus) {
  int32_t size = 0;
  std::from_chars(size_text.data(), size_text.data() + size_text.size(), size);
  std::string text(k3::training_corpus());
  if (corpus != nullptr) {
    KERN_TRY(given, kern::read_file(corpus, kItemMax));
    text = std::move(given);
  }
  KERN_TRY(model, k3::train_tiktoken_model(text, k3::split_pattern(), size));
  KERN_TRY_VOID(kern::write_file(folder / "tiktoken.model", kern::as_bytes(model)));
  return kern::write_file(folder / "tokenizer_config.json",
                          kern::as_bytes(k3::tokenizer_config_json(size)));
}

kern::Result<std::vector<kern::text::TokenId>> rendered(const kern::text::Tokenizer& tokenizer,
                                                        std::string_view json) {
  KERN_TRY(request, kern::text::parse_chat_json(json, k3::chat_style()));
  KERN_TRY(segments, kern::text::render_chat(request, k3::chat_style()));
  return tokenizer.encode(segments);
}

kern::Result<void> pipe_through(const std::filesystem::path& folder, std::string_view command) {
  KERN_TRY(tokenizer, k3::load_tokenizer(folder));
  const std::string input = read_stdin();
  kern::ByteReader reader(kern::as_bytes(input));
  kern::ByteWriter writer;
  while (reader.ok() && reader.left() > 0) {
    if (command == "render") {
      KERN_TRY(ids, rendered(tokenizer, reader.get_text(kItemMax)));
      writer.put_vector(ids);
    } else if (command == "encode") {
      writer.put_vector(tokenizer.encode(reader.get_text(kItemMax)));
    } else {
      writer.put_text(tokenizer.decode(reader.get_vector<kern::text::TokenId>(kItemMax),
                                       kern::text::Specials::keep));
    }
  }
  KERN_TRY_VOID(reader.finish("stdin"));
  const kern::ByteSpan bytes = writer.view();
  fwrite(bytes.data(), 1, bytes.size(), stdout);
  return {};
}

kern::Result<void> run(std::span<char*> args) {
  const std::string_view command = args.size() > 2 ? args[1] : "";
  if (command == "train" && (args.size() == 4 || args.size() == 5))
    return train(args[2], args[3], args.size() == 5 ? args[4] : nullptr);
  if (command == "encode" || command == "decode" || command == "render")
    return pipe_through(args[2], command);
  return kern::fail(kern::Kind::caller,
                    "usage: text-tokenize train|encode|decode|render FOLDER [SIZE [CORPUS]]");
}

}  // namespace

int main(int argc, char** argv) {
  const auto result = run({argv, static_cast<size_t>(argc)});
  if (!result) fmt::print(stderr, "text-tokenize: {}\n", result.error().text());
  return result ? 0 : 1;
}
