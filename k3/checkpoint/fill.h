#pragma once
/// Random bytes of one tensor. Thread safety: one thread each.
/// Determinism: integers and exactly rounded arithmetic only; a tensor's bytes depend on the seed,
/// its own name and its plan, not on which other tensors are written.

#include "checkpoint/tensors.h"
#include "kern/base/bytes.h"
#include "kern/base/prng.h"

namespace k3 {

class TensorFiller {
 public:
  TensorFiller(const TensorPlan& plan, uint64_t seed);

  /// Bytes of the whole tensor.
  int64_t bytes_total() const;
  /// The next elements, up to `bytes_max` bytes of them; empty at the end.
  kern::ByteSpan next(int64_t bytes_max);

 private:
  double normal();
  double value(int64_t index);
  uint8_t byte();

  const TensorPlan& plan_;
  kern::Prng prng_;
  int64_t elements_ = 1, at_ = 0;
  std::vector<std::byte> piece_;
};

}  // namespace k3
