#pragma once
/// Ends a growing text at the first stop string. Text that could begin one is held back, so what
/// was let go never has to be taken back; the stop string that is complete first wins, of those the
/// longest. The result does not depend on how the text was cut into pieces.
/// Thread safety: one thread each. Determinism: depends on the text alone.

#include <string>
#include <string_view>
#include <vector>

namespace kern::serve {

class StopMatcher {
 public:
  /// No string may be empty.
  explicit StopMatcher(std::vector<std::string> stops);

  /// The text that is certain now. After a match nothing more comes out.
  std::string push(std::string_view text);
  /// No more text follows: what was held back comes out.
  std::string flush();
  bool matched() const { return matched_; }

 private:
  /// Length of the longest stop string that ends at `end` of the held text.
  size_t match_at(size_t end) const;
  /// How many bytes at the end of the held text could begin a stop string.
  size_t open_bytes() const;

  std::vector<std::string> stops_;
  size_t longest_ = 0;
  std::string held_;
  bool matched_ = false;
};

}  // namespace kern::serve
