#include "kern/node/pace.h"

#include <algorithm>
#include <utility>

namespace kern::node {
namespace {

/// A connection that lived this long was wanted.
constexpr TimeNs kLasting = 5 * kSecondNs;
constexpr TimeNs kPauseFirst = 50 * kMillisecondNs;
constexpr TimeNs kPauseMax = 5 * kSecondNs;

}  // namespace

TimeNs Redial::pause(TimeNs now) {
  if (now - connected_ >= kLasting) {
    pause_ = 0;
    told_.clear();
  } else {
    pause_ = std::clamp(2 * pause_, kPauseFirst, kPauseMax);
  }
  return pause_;
}

bool Redial::is_news(std::string_view reason) {
  if (told_ == reason) return false;
  told_ = reason;
  return true;
}

Throttle::Turn Throttle::next(TimeNs now) {
  Turn turn;
  if (!begun_ || now - begin_ >= window_) {
    begun_ = true;
    begin_ = now;
    lines_ = 0;
    turn.held_back = std::exchange(held_back_, 0);
  }
  turn.write = lines_ < lines_max_;
  if (turn.write)
    ++lines_;
  else
    ++held_back_;
  return turn;
}

}  // namespace kern::node
