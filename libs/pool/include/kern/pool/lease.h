#pragma once
/// The right to write: one sequence's pages and slot for its worst case, taken all or nothing.
/// Thread safety: one thread with its pool.
/// Ownership / lifetime: move-only; gives everything back when destroyed, before its pool is.
/// A moved-from lease may only be destroyed or assigned to.
/// Does not: know how many of its positions have been computed.

#include <cstdint>

#include "kern/pool/view.h"

namespace kern::pool {

class Lease {
 public:
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease();

  /// Its places; good until the pool changes.
  LeaseView view() const;
  /// Positions that the page table reaches: a whole number of pages, at least what was asked for.
  uint32_t capacity() const;
  /// First position that may still be written. What lies before is frozen and shared.
  uint32_t writable_from() const;

 private:
  friend class Store;
  Lease(Store* store, uint32_t record) : store_(store), record_(record) {}
  Store* store_;
  uint32_t record_;
};

}  // namespace kern::pool
