#include "kern/engine/follower.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kern/base/assert.h"

namespace kern::engine {

// ---- stage ----

void StageFollower::drop_all() {
  queue_.clear();
  if (actions_.run) running_ = false;  // nobody has taken it
  actions_.run.reset();
  done_.reset();
  for (auto at = sending_.begin(); at != sending_.end();) {
    if (!at->second.started) {
      at = sending_.erase(at);
      continue;
    }
    actions_.cancel.push_back(at->first);
    at->second.dropped = true;
    ++at;
  }
}

void StageFollower::report_ready() {
  if (!resetting_ || running_ || !sending_.empty()) return;
  actions_.reports.push_back(EpochReady{*resetting_});
  resetting_.reset();
}

void StageFollower::on_command(const StageCommand& command) {
  std::visit(
      [this](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, ResetEpoch>) {
          drop_all();
          epoch_ = one.epoch;
          resetting_ = one.epoch;
        } else if constexpr (std::is_same_v<T, RunItem>) {
          if (one.epoch == epoch_) queue_.push_back(one.item);
        } else if constexpr (std::is_same_v<T, SendState>) {
          if (one.epoch == epoch_) sending_.insert_or_assign(one.generation, Sending{one});
        } else if constexpr (std::is_same_v<T, CancelSend>) {
          cancel(one.generation);
        } else if constexpr (std::is_same_v<T, GroupUp>) {
          actions_.groups_up.push_back(one);
        } else {
          actions_.groups_gone.push_back(one.group);
        }
      },
      command);
  advance();
}

void StageFollower::cancel(Generation generation) {
  const auto at = sending_.find(generation);
  if (at == sending_.end() || at->second.dropped) return;
  if (at->second.started) {
    actions_.cancel.push_back(generation);
    return;
  }
  sending_.erase(at);
  actions_.reports.push_back(PartsSent{generation, false, "cancelled"});
}

void StageFollower::advance() {
  if (resetting_) return report_ready();
  if (!running_ && !queue_.empty()) {
    running_ = true;
    running_epoch_ = epoch_;
    actions_.run = std::move(queue_.front());
    actions_.run_epoch = epoch_;
    queue_.erase(queue_.begin());
  }
  for (auto& [generation, sending] : sending_) {
    if (sending.started || !done_ || *done_ < sending.order.after_item) continue;
    sending.started = true;
    actions_.send.push_back(sending.order);
  }
}

void StageFollower::on_item_done(ItemResult result) {
  KERN_ASSERT(running_, "item {} ends and none runs", result.id);
  running_ = false;
  if (running_epoch_ == epoch_ && !resetting_) {
    done_ = result.id;
    actions_.reports.push_back(ItemDone{epoch_, std::move(result)});
  }
  advance();
}

void StageFollower::on_sent(Generation generation, bool whole, std::string why) {
  const auto at = sending_.find(generation);
  KERN_ASSERT(at != sending_.end() && at->second.started, "no send of generation {}",
              generation.value());
  if (!at->second.dropped) actions_.reports.push_back(PartsSent{generation, whole, std::move(why)});
  sending_.erase(at);
  advance();
}

void StageFollower::on_head_lost() {
  drop_all();
  epoch_ = 0;
  resetting_.reset();
  actions_.reports.clear();
}

StageFollower::Actions StageFollower::take_actions() {
  return std::exchange(actions_, {});
}

// ---- rank ----

RankFollower::RankFollower(std::vector<std::string> states) : states_(std::move(states)) {
  KERN_ASSERT(!states_.empty(), "a rank without states has nothing to land");
}

void RankFollower::drop_all() {
  queue_.clear();
  running_ -= actions_.runs.size();  // nobody has taken them
  actions_.runs.clear();
  while (!expected_.empty()) stop_expecting(expected_.begin()->first);
}

void RankFollower::stop_expecting(Generation generation) {
  const auto at = expected_.find(generation);
  if (at == expected_.end()) return;
  actions_.revoked.emplace_back(at->second.order.request, generation);
  expected_.erase(at);
}

void RankFollower::on_command(const RankCommand& command) {
  std::visit(
      [this](const auto& one) {
        using T = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<T, ResetEpoch>) {
          drop_all();
          epoch_ = one.epoch;
          resetting_ = one.epoch;
        } else if constexpr (std::is_same_v<T, RunItem>) {
          if (one.epoch == epoch_) queue_.push_back(one.item);
        } else if constexpr (std::is_same_v<T, ExpectParts>) {
          if (one.epoch != epoch_) return;
          stop_expecting(one.generation);
          expected_.emplace(one.generation, Expected{one, std::vector<bool>(states_.size(), false),
                                                     states_.size()});
          actions_.reports.push_back(RankExpecting{epoch_, one.generation});
        } else {
          stop_expecting(one.generation);
        }
      },
      command);
  advance();
}

void RankFollower::advance() {
  if (resetting_) {
    if (running_ > 0) return;
    actions_.reports.push_back(EpochReady{*resetting_});
    resetting_.reset();
  }
  // What still runs of an earlier epoch ends first.
  while (!queue_.empty() && running_ < kRunningMax && (running_ == 0 || running_epoch_ == epoch_)) {
    ++running_;
    running_epoch_ = epoch_;
    actions_.runs.push_back(std::move(queue_.front()));
    queue_.erase(queue_.begin());
  }
}

void RankFollower::on_item_done(ItemResult result) {
  KERN_ASSERT(running_ > actions_.runs.size(), "item {} ends and none runs", result.id);
  --running_;
  if (running_epoch_ == epoch_ && !resetting_)
    actions_.reports.push_back(ItemDone{epoch_, std::move(result)});
  advance();
}

void RankFollower::on_head_lost() {
  drop_all();
  epoch_ = 0;
  resetting_.reset();
  actions_.reports.clear();
}

Result<RankFollower::PartPlace> RankFollower::accept(const PartHeader& header) const {
  const auto at = expected_.find(header.generation);
  if (at == expected_.end())
    return fail(Kind::peer, "part `{}`: generation {} is not expected", header.state,
                header.generation.value());
  const Expected& expected = at->second;
  const auto state = std::find(states_.begin(), states_.end(), header.state);
  if (state == states_.end())
    return fail(Kind::peer, "part `{}`: no state of this rank has that name", header.state);
  if (expected.here[static_cast<size_t>(state - states_.begin())])
    return fail(Kind::peer, "part `{}` of generation {}: it is here already", header.state,
                header.generation.value());
  if (header.tokens != expected.order.tokens || header.request != expected.order.request)
    return fail(Kind::peer,
                "part `{}` of generation {}: expected {} tokens of request {}, got {} of {}",
                header.state, header.generation.value(), expected.order.tokens,
                expected.order.request.value(), header.tokens, header.request.value());
  return PartPlace{expected.order.place, expected.order.tokens};
}

std::optional<uint32_t> RankFollower::tokens_expected(Generation generation) const {
  const auto at = expected_.find(generation);
  if (at == expected_.end()) return std::nullopt;
  return at->second.order.tokens;
}

void RankFollower::on_part(const PartHeader& header, bool good) {
  if (!accept(header)) return;  // stopped while its bytes came in
  const auto at = expected_.find(header.generation);
  Expected& expected = at->second;
  if (good) {
    const auto state = std::find(states_.begin(), states_.end(), header.state);
    expected.here[static_cast<size_t>(state - states_.begin())] = true;
    KERN_ASSERT(expected.missing > 0);
    if (--expected.missing > 0) return;
  }
  RankLanded report{epoch_, header.generation, good, {}};
  KERN_ASSERT(expected.missing == 0 || !good, "{} states are missing", expected.missing);
  if (!good) report.why = fmt::format("part `{}` does not match its digest", header.state);
  actions_.reports.push_back(std::move(report));
  if (good)
    expected_.erase(at);
  else
    stop_expecting(header.generation);  // the parts beside this one
}

RankFollower::Actions RankFollower::take_actions() {
  return std::exchange(actions_, {});
}

}  // namespace kern::engine
