#include "executor_moves.h"

#include <vector>

namespace kern::node {
namespace {

using What = engine::Move::What;
using runtime::TierMove;

TierMove tier_move(const engine::Move& move) {
  const bool park = move.what == What::park_page || move.what == What::park_slot;
  return {.way = park ? TierMove::Way::park : TierMove::Way::wake,
          .slot = move.what == What::park_slot || move.what == What::wake_slot,
          .device = move.device,
          .host = move.host};
}

}  // namespace

Result<void> ExecutorMoves::start(const engine::Item& item) {
  if (item.moves.empty() || item.id == last_item_) return {};
  if (tier_ == nullptr)
    return fail(Kind::caller, "item {}: {} moves, and this process has no host tier (--host-gib)",
                item.id, item.moves.size());
  std::vector<TierMove> moves;
  moves.reserve(item.moves.size());
  for (const engine::Move& move : item.moves) moves.push_back(tier_move(move));
  KERN_TRY(ticket, with_context(tier_->move(moves), "item {}", item.id));
  last_item_ = item.id;
  under_way_.push_back({item.id, ticket});
  return {};
}

Result<void> ExecutorMoves::await(const engine::Item& item) {
  uint64_t ticket = 0;
  for (const Started& one : under_way_)
    if (one.item <= item.after_moves) ticket = one.ticket;
  return ticket == 0 ? Result<void>() : tier_->await(ticket);
}

Result<uint64_t> ExecutorMoves::moved() {
  if (under_way_.empty()) return moved_;
  KERN_TRY(done, tier_->done());
  while (!under_way_.empty() && under_way_.front().ticket <= done) {
    moved_ = under_way_.front().item;
    under_way_.pop_front();
  }
  return moved_;
}

Result<void> ExecutorMoves::settle() {
  if (tier_ != nullptr) KERN_TRY_VOID(tier_->settle());
  under_way_.clear();
  last_item_ = moved_ = 0;
  return {};
}

}  // namespace kern::node
