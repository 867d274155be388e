#pragma once
/// Where items run. The engine sees only this; `node` adapts a runtime to it, a test fakes it.
/// Thread safety: one thread calls run.

#include "kern/base/result.h"
#include "kern/engine/item.h"

namespace kern::engine {

/// Limits that the engine plans within; read off a manifest's serving protocol.
struct ExecutorLimits {
  int32_t prefill_rows_max = 0;  ///< rows of a prefill item; 0: no prefill program
  int32_t prefill_seqs_max = 0;
  int32_t decode_seqs_max = 0;  ///< 0: no decode program
  int32_t context_max = 0;      ///< tokens of one sequence
  int32_t page_tokens = 64;
  int32_t top_logprobs_max = 0;
  bool recurrent = true;  ///< whether there are per-sequence states
  bool feeds = false;     ///< whether a step may take tokens of the step before (Slice::fed_from)
  uint32_t pages = 0;     ///< page 0 included
  uint32_t slots = 0;     ///< slot 0 included
  /// Host memory for parked prefixes, and what a page and a slot take of it; 0: none.
  uint64_t host_bytes = 0, host_page_bytes = 0, host_slot_bytes = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  /// Runs one item to its end. Kind device or peer: the executor is of no more use.
  virtual Result<ItemResult> run(const Item& item) = 0;
};

}  // namespace kern::engine
