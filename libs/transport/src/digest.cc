#include "digest.h"

#include <xxhash.h>

#include "kern/base/assert.h"

namespace kern::transport {

void RunningDigest::Free::operator()(XXH3_state_s* state) const {
  XXH3_freeState(state);
}

RunningDigest::RunningDigest() : state_(XXH3_createState()) {
  KERN_ASSERT(state_ != nullptr, "out of memory");
  reset();
}
RunningDigest::RunningDigest(RunningDigest&&) noexcept = default;
RunningDigest& RunningDigest::operator=(RunningDigest&&) noexcept = default;
RunningDigest::~RunningDigest() = default;

void RunningDigest::add(ByteSpan bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}
uint64_t RunningDigest::finish() const {
  return XXH3_64bits_digest(state_.get());
}
void RunningDigest::reset() {
  XXH3_64bits_reset(state_.get());
}

}  // namespace kern::transport
