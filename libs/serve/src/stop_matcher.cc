#include "stop_matcher.h"

#include <algorithm>
#include <utility>

#include "kern/base/assert.h"

namespace kern::serve {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const auto& stop : stops_) {
    KERN_ASSERT(!stop.empty(), "an empty stop string");
    longest_ = std::max(longest_, stop.size());
  }
}

size_t StopMatcher::match_at(size_t end) const {
  KERN_ASSERT(end <= held_.size(), "byte {} of {}", end, held_.size());
  const std::string_view before = std::string_view(held_).substr(0, end);
  size_t longest = 0;
  for (const auto& stop : stops_)
    if (stop.size() > longest && before.ends_with(stop)) longest = stop.size();
  return longest;
}

size_t StopMatcher::open_bytes() const {
  const std::string_view held = held_;
  for (size_t bytes = std::min(held.size(), longest_ == 0 ? 0 : longest_ - 1); bytes > 0; --bytes)
    for (const std::string_view stop : stops_)
      if (stop.starts_with(held.substr(held.size() - bytes))) return bytes;
  return 0;
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return {};
  if (stops_.empty()) return std::string(text);
  KERN_ASSERT(held_.size() < longest_, "{} bytes are held for stop strings of {}", held_.size(),
              longest_);
  const size_t known = held_.size();
  held_ += text;
  for (size_t end = known + 1; end <= held_.size(); ++end)
    if (const size_t bytes = match_at(end); bytes > 0) {
      matched_ = true;
      held_.resize(end - bytes);
      return std::exchange(held_, {});
    }
  // No stop string is whole: only what could still begin one stays.
  const size_t open = open_bytes();
  std::string certain = held_.substr(0, held_.size() - open);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopMatcher::flush() {
  return std::exchange(held_, {});
}

}  // namespace kern::serve
