#pragma once
/// Why the pool cannot grant something, as a value a scheduler branches on. `busy` passes: evict or
/// wait. `exceeds_pool` and `exceeds_row` never pass: refuse the request.
/// Thread safety: plain values.
/// Determinism: what is missing follows from the geometry and the operations so far alone.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace kern::pool {

/// How many pages and slots. An amount, never a place.
struct Amount {
  uint32_t pages = 0;
  uint32_t slots = 0;
  friend bool operator==(const Amount&, const Amount&) = default;
};

enum class Reason : uint8_t {
  busy,          ///< fits once others finish or are evicted
  exceeds_pool,  ///< can never fit, even in an empty pool
  exceeds_row,   ///< longer than a page table
};

struct Denied {
  Reason reason = Reason::busy;
  /// busy: what must become free for the same call to succeed; else what lies beyond the limit.
  Amount missing;
  friend bool operator==(const Denied&, const Denied&) = default;
};

/// One lowercase sentence without a full stop, fit for an error message.
std::string sentence(const Denied& denied);

namespace detail {
[[noreturn, gnu::cold]] void outcome_misread();
}

/// A grant or the reason there is none. Check, then dereference; the wrong half aborts.
template <class T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T granted) : held_(std::in_place_index<0>, std::move(granted)) {}
  Outcome(Denied denied) : held_(std::in_place_index<1>, denied) {}

  bool granted() const { return held_.index() == 0; }
  explicit operator bool() const { return granted(); }
  T& operator*() & { return *checked(std::get_if<0>(&held_)); }
  T&& operator*() && { return std::move(*checked(std::get_if<0>(&held_))); }
  const T& operator*() const& { return *checked(std::get_if<0>(&held_)); }
  T* operator->() { return checked(std::get_if<0>(&held_)); }
  const T* operator->() const { return checked(std::get_if<0>(&held_)); }
  const Denied& denied() const { return *checked(std::get_if<1>(&held_)); }

 private:
  template <class U>
  static U* checked(U* half) {
    if (half == nullptr) detail::outcome_misread();
    return half;
  }
  std::variant<T, Denied> held_;
};

}  // namespace kern::pool
