#include "checkpoint/checkpoint.h"

#include "checkpoint/fill.h"
#include "kern/base/file.h"
#include "kern/safetensors/writer.h"
#include "tokenizer/k3_tokenizer.h"
#include "tokenizer/train_bpe.h"

namespace k3 {

using namespace kern;

namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

Result<void> write_tensors(const Config& config, uint64_t seed, const Shape& shape,
                           const std::filesystem::path& dir) {
  const std::vector<TensorPlan> plans = tensor_plans(config, shape);
  std::vector<safetensors::TensorSpec> specs;
  specs.reserve(plans.size());
  for (const TensorPlan& plan : plans)
    specs.push_back({plan.name, plan.dtype, plan.shape, plan.starts_shard});
  safetensors::WriterOptions options;
  options.shard_bytes_max = int64_t{1} << 40;  // shards begin where the plan says
  KERN_TRY(writer, safetensors::Writer::create(dir, specs, options));
  for (const TensorPlan& plan : plans) {
    TensorFiller filler(plan, seed);
    for (int64_t at = 0; at < filler.bytes_total();) {
      const ByteSpan piece = filler.next(kPieceBytes);
      KERN_TRY_VOID(writer.write(plan.name, piece, at));
      at += static_cast<int64_t>(piece.size());
    }
  }
  return writer.finish();
}

Result<void> write_tokenizer(const Config& config, const std::filesystem::path& dir) {
  const int64_t base = config.vocab - kSpecialSlots;
  if (base < 256 || base > kBaseVocabMax)
    return fail(Kind::caller,
                "config: `vocab_size`: a trained tokenizer has {} to {} tokens, got {}",
                256 + kSpecialSlots, kBaseVocabMax + kSpecialSlots, config.vocab);
  KERN_TRY(model,
           train_tiktoken_model(training_corpus(), split_pattern(), static_cast<int32_t>(base)));
  KERN_TRY_VOID(write_file(dir / "tiktoken.model", as_bytes(model)));
  return write_file(dir / "tokenizer_config.json",
                    as_bytes(tokenizer_config_json(static_cast<int32_t>(base))));
}

}  // namespace

Result<void> write_checkpoint(std::string_view config_json, uint64_t seed, const Shape& shape,
                              const std::filesystem::path& dir) {
  KERN_TRY(config, read_config(config_json));
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return fail(Kind::io, "`{}`: {}", dir.string(), error.message());
  KERN_TRY_VOID(write_tokenizer(config, dir));
  KERN_TRY_VOID(write_tensors(config, seed, shape, dir));
  return write_file(dir / "config.json", as_bytes(config_json));
}

}  // namespace k3
