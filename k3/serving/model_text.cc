#include "serving/model_text.h"

#include "gen/config.h"
#include "kern/base/file.h"
#include "tokenizer/k3_tokenizer.h"

namespace k3 {
namespace {

constexpr size_t kConfigBytesMax = size_t{16} << 20;

}  // namespace

kern::Result<kern::node::ModelText> load_model_text(const std::filesystem::path& checkpoint) {
  KERN_TRY(json, kern::read_file(checkpoint / "config.json", kConfigBytesMax));
  KERN_TRY(config, kern::with_context(read_config(json), "{}", checkpoint.string()));
  KERN_TRY(tokenizer, load_tokenizer(checkpoint));
  if (tokenizer.vocab_size() != config.vocab)
    return kern::fail(kern::Kind::weight_artifact,
                      "`{}`: the tokenizer has {} ids, expected the config's {}",
                      checkpoint.string(), tokenizer.vocab_size(), config.vocab);
  return kern::node::ModelText{std::move(tokenizer),
                               {static_cast<kern::engine::Token>(config.eos)},
                               "kimi-k3",
                               {"k3", checkpoint.filename().string()},
                               chat_style()};
}

}  // namespace k3
