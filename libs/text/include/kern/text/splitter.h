#pragma once
/// Cuts a text into the pieces that byte-pair merging never crosses. The pattern is written in the
/// dialect of published tokenizers (Rust regex: class intersections `[A&&[^B]]`, `\s` as
/// White_Space); it is rewritten once into PCRE2's dialect with the same meaning and compiled.
/// Thread safety: `split` may be called from several threads.
/// Ownership / lifetime: pieces view the text that was passed in.
/// Determinism: depends on pattern and text alone, with or without a just-in-time compiler.
/// Does not: merge, or know any vocabulary.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/result.h"

namespace kern::text {

/// Rewrites the dialect above into PCRE2's. Refuses an unclosed class and an intersection whose
/// sides it cannot express.
Result<std::string> to_pcre2_pattern(std::string_view pattern);

/// A compiled split pattern.
class Splitter {
 public:
  static constexpr size_t kPatternBytesMax = 65536;

  /// Refuses a pattern that does not compile, with PCRE2's reason and the place.
  static Result<Splitter> compile(std::string_view pattern);
  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;
  ~Splitter();

  /// Appends the pieces of `text` in order; joined they are `text`. What no alternative matches is
  /// a piece of its own. `text` must be well-formed UTF-8.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Impl;
  explicit Splitter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::text
