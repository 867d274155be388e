#include "kern/runtime/peers.h"

namespace kern::runtime {

Result<std::vector<Descriptor>> PeerGroup::all_gather_descriptors(Descriptor) {
  return fail(Kind::manifest,
              "memory of {} ranks is to be mapped, and these peers pass no descriptors", size());
}

}  // namespace kern::runtime
