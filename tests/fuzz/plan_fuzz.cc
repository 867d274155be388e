// Every accepted manifest of the host device lowers, or is refused for a reason that the runtime's
// README lists (accepted_refusal.h). Nothing is allocated, whatever sizes are declared.
#include <cstdint>

#include "accepted_refusal.h"
#include "kern/base/assert.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto verified = kern::manifest::load({reinterpret_cast<const char*>(data), size});
  if (!verified) return 0;
  const auto plan = kern::runtime::plan(*verified, kern_test::smallest_capacity(*verified));
  KERN_ASSERT(plan.has_value() || kern_test::is_listed_refusal(plan.error()),
              "an accepted manifest does not lower: {}", plan.error().text());
  if (!plan) return 0;
  KERN_ASSERT(plan->bytes() >= 0 && plan->programs.size() == (*verified)->programs.size());
  return 0;
}
