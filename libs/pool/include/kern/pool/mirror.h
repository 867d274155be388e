#pragma once
/// Another process's pool as its grants tell it: who sends bytes there knows in which page and slot
/// each position belongs, and notices when the two no longer agree. The one idea: a record says
/// which of its places were held before, so that the rest must have been free.
/// Thread safety: one thread.
/// Ownership / lifetime: copies what it is told; needs no pool.
/// Determinism: what it holds follows from the records alone.
/// Does not: trust the records, or decide anything: a record that contradicts those before is
/// refused with a sentence and changes nothing.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kern/pool/checkpoint.h"
#include "kern/pool/lease.h"
#include "kern/pool/pool.h"

namespace kern::pool {

/// One handle's places, as they go over the wire.
struct GrantRecord {
  uint64_t id = 0;              ///< of the handle: the granting process chooses, never twice alive
  std::vector<uint32_t> pages;  ///< from position 0
  uint32_t pages_shared = 0;    ///< so many of them in front were held by another handle
  uint32_t slot = 0;            ///< 0 without recurrent state
  bool slot_shared = false;     ///< whether it was held by another handle
  friend bool operator==(const GrantRecord&, const GrantRecord&) = default;
};

/// The record of a lease just granted, restored or forked.
GrantRecord record(uint64_t id, const Lease& lease, const Geometry& geometry);
/// The record of a checkpoint: one just taken or retired, told before its lease goes, whose plan
/// was `copies` (none for `retire` and `share`).
GrantRecord record(uint64_t id, const Checkpoint& checkpoint, const Copies& copies);
/// The record of a checkpoint that `wake` has just made.
GrantRecord record(uint64_t id, const Woken& woken);

/// Writes what happened behind a log that `Mirror::replay` reads: bytes, in the order of the
/// events, little-endian whatever the machine, to be kept in a file or sent as they are.
void log_granted(std::vector<uint8_t>& log, const GrantRecord& record);
void log_returned(std::vector<uint8_t>& log, uint64_t id);

/// How far a log was taken in.
struct Replayed {
  size_t bytes = 0;  ///< of whole events taken in; go on from there when more has come
  std::string why;   ///< why the next event cannot be so, and at which byte; empty: none is refused
};

/// Where a position's bytes belong.
struct Spot {
  uint32_t page = 0;
  uint32_t offset = 0;  ///< positions into the page
  friend bool operator==(const Spot&, const Spot&) = default;
};

class Mirror {
 public:
  /// That of the pool mirrored, which has no `refusal`.
  explicit Mirror(const Geometry& geometry);

  /// Why the record cannot be so, as one sentence; empty when it was taken in.
  std::string granted(const GrantRecord& record);
  /// The same for a handle that went.
  std::string returned(uint64_t id);

  /// Takes in a log's events one by one up to the first that cannot be so; one that is not all
  /// there yet is left for later.
  Replayed replay(std::span<const uint8_t> log);

  /// Null when there is no such handle; valid until it is returned.
  const GrantRecord* find(uint64_t id) const;
  /// None when there is no such handle or it does not reach the position.
  std::optional<Spot> spot(uint64_t id, uint32_t position) const;
  /// Places that at least one handle names.
  Amount held() const { return held_; }

 private:
  struct Step {
    size_t bytes = 0;
    std::string why;
  };
  Step step(std::span<const uint8_t> log);
  std::string contradiction(const GrantRecord& record) const;

  const Geometry geometry_;
  std::map<uint64_t, GrantRecord> records_;
  std::vector<uint32_t> page_holders_, slot_holders_;
  Amount held_;
};

}  // namespace kern::pool
