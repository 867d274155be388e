#pragma once
/// xxh3-64 over bytes that come in runs; equal to digest64 of them all together.

#include <memory>

#include "kern/base/bytes.h"

struct XXH3_state_s;

namespace kern::transport {

class RunningDigest {
 public:
  RunningDigest();
  RunningDigest(RunningDigest&&) noexcept;
  RunningDigest& operator=(RunningDigest&&) noexcept;
  ~RunningDigest();

  void add(ByteSpan bytes);
  uint64_t finish() const;
  void reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace kern::transport
