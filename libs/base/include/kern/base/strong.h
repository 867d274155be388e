#pragma once
/// Strong<Tag, Rep>: an integer that is one thing and not another (a page is not a slot).

#include <compare>
#include <cstdint>

namespace kern {

template <class Tag, class Rep = uint32_t>
class Strong {
 public:
  constexpr Strong() = default;
  constexpr explicit Strong(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  friend constexpr auto operator<=>(Strong, Strong) = default;

 private:
  Rep value_ = 0;
};

}  // namespace kern
