#pragma once
/// A launch that may start while the ones before it still run (`pdl` in a manifest). It calls both
/// halves, or `take_turn`, before it returns or touches memory that any launch writes; weights
/// alone may be asked for in between, and not into registers. In a launch without `pdl` neither
/// does anything.
///
/// Why waiting for the launch ahead is enough: it has ended only once it has itself waited for the
/// one before it. A kernel that waits for another device calls neither: what starts behind it would
/// hold room that the other device's half may need where both share a GPU.

namespace kern {

/// Lets the next launch start once every block of this one has come here.
__device__ __forceinline__ void let_next_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
/// Returns when everything launched before is done, and what it wrote can be read.
__device__ __forceinline__ void wait_for_earlier() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void take_turn() {
  let_next_start();
  wait_for_earlier();
}

}  // namespace kern
