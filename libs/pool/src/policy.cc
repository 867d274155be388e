#include "check.h"
#include "kern/pool/prefix.h"

namespace kern::pool {

namespace {

class RecomputeCostPerByte final : public EvictionPolicy {
 public:
  explicit RecomputeCostPerByte(const EntryCost& cost) : cost_(cost) {
    KERN_POOL_ASSERT(cost.page_tokens > 0 && cost.page_bytes > 0, "a page has tokens and bytes");
    KERN_POOL_ASSERT(cost.slot_bytes >= 0, "a slot has no negative size");
  }

  double worth(const EntryView& entry) override {
    KERN_POOL_ASSERT(entry.ancestor_len < entry.len, "an ancestor is shorter");
    const double len = entry.len, from = entry.ancestor_len;
    const double work =
        cost_.per_token * (len - from) + cost_.per_token_pair * (len * len - from * from) / 2;
    const uint32_t pages =
        (entry.len - 1) / cost_.page_tokens + 1 - entry.ancestor_len / cost_.page_tokens;
    return age_ + work / (pages * cost_.page_bytes + (entry.recurrent ? cost_.slot_bytes : 0));
  }

  void evicted(double worth) override {
    if (worth > age_) age_ = worth;
  }

 private:
  const EntryCost cost_;
  double age_ = 0;
};

}  // namespace

std::unique_ptr<EvictionPolicy> recompute_cost_per_byte(const EntryCost& cost) {
  return std::make_unique<RecomputeCostPerByte>(cost);
}

}  // namespace kern::pool
