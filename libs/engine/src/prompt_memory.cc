#include "prompt_memory.h"

#include <variant>

namespace kern::engine {

pool::Outcome<std::optional<pool::Hit>> PromptMemory::find(std::span<const Token> prompt,
                                                           uint32_t grid) {
  auto found = tree_->lookup_any(prompt);
  if (!found) return std::optional<pool::Hit>();
  const uint32_t len = found->len / grid * grid;
  const auto usable = [len](const auto& held) { return len > 0 && held.usable_at(len); };
  if (!std::visit(usable, found->held)) return std::optional<pool::Hit>();
  if (auto* resident = std::get_if<pool::Checkpoint>(&found->held))
    return std::optional(pool::Hit{len, std::move(*resident)});
  const auto& parked = std::get<pool::Parked>(found->held);
  auto woken = with_room([&] { return pool_.wake(parked, len); });
  if (!woken && woken.denied().reason == pool::Reason::busy) return woken.denied();
  if (!woken) return std::optional<pool::Hit>();  // it no longer fits: the prompt runs from nothing
  ++woken_;
  host_hits_ += len;
  woken_bytes_ += add(woken->transfers, false);
  tree_->insert(prompt.first(len), woken->checkpoint.share());
  return std::optional(pool::Hit{len, std::move(woken->checkpoint)});
}

void PromptMemory::insert(std::span<const Token> prompt, pool::Checkpoint checkpoint) {
  const auto tokens = prompt.first(checkpoint.len());
  tree_->insert(tokens, std::move(checkpoint));
}

void PromptMemory::forget() {
  tree_ = std::make_unique<pool::PrefixTree>(pool_);
}

bool PromptMemory::make_room(const pool::Amount& missing) {
  if (pool_.geometry().host_bytes == 0) {
    const pool::Evicted evicted = tree_->evict(missing);
    dropped_ += evicted.entries;
    return evicted.enough;
  }
  auto leaving = tree_->evict_to_park(missing);
  if (!leaving) return false;
  park(*std::move(leaving));
  return true;
}

void PromptMemory::park(pool::Leaving leaving) {
  if (leaving.held.len() < park_tokens_min_) {
    ++dropped_;
    return;
  }
  auto slept = pool_.park(leaving.held);
  if (!slept && slept.denied().reason == pool::Reason::busy) {
    host_dropped_ += tree_->evict_parked(leaving.held).entries;
    slept = pool_.park(leaving.held);
  }
  if (!slept) {
    ++dropped_;
    return;
  }
  ++parked_;
  parked_bytes_ += add(slept->transfers, true);
  tree_->insert(leaving.tokens, std::move(slept->parked));
}

uint64_t PromptMemory::add(const pool::Transfers& transfers, bool park) {
  using What = Move::What;
  for (const pool::PageTransfer& page : transfers.pages)
    due_.push_back(
        {park ? What::park_page : What::wake_page, page.device.value(), page.host.value()});
  if (transfers.slot)
    due_.push_back({park ? What::park_slot : What::wake_slot, transfers.slot->device.value(),
                    transfers.slot->host.value()});
  return transfers.pages.size() * pool_.geometry().page_bytes +
         (transfers.slot ? pool_.geometry().slot_bytes : 0);
}

void PromptMemory::count(Counters& counters) const {
  const pool::Occupancy& now = pool_.occupancy();
  const pool::Geometry& geometry = pool_.geometry();
  counters.pages_max = geometry.pages - 1;
  counters.pages_used = now.pages_leased + now.pages_frozen;
  counters.pages_frozen = now.pages_frozen;
  counters.host_bytes_max = geometry.host_bytes;
  counters.host_bytes_used =
      now.host_pages * geometry.page_bytes + now.host_slots * geometry.slot_bytes;
  counters.host_prefixes = tree_->parked_entries();
  counters.prefixes_parked = parked_;
  counters.prefixes_woken = woken_;
  counters.prefixes_dropped = dropped_ + host_dropped_;
  counters.bytes_parked = parked_bytes_;
  counters.bytes_woken = woken_bytes_;
  counters.cache_hits_woken = host_hits_;
}

}  // namespace kern::engine
