#pragma once
/// Collectives between GPUs through NCCL, found at run time as the driver is, so that no program
/// links it and every program starts without it.
/// Multicast: NCCL uses NVLink multicast (NVLS) where it can, and only the environment turns that
/// off. `main` puts NCCL_NVLS_ENABLE=0 there and says so; without that word nothing is loaded.
/// Thread safety: a Communicator is used by one thread at a time; the context it was made in is
/// current there. Making one waits for the other ranks, so each rank has a thread of its own.
/// Determinism: in which order NCCL sums is NCCL's; what moves without a sum keeps its bytes.
/// Does not: hand ids round, wait for a stream, or notice a peer that NCCL does not.

#include <memory>

#include "kern/cuda/stream.h"

namespace kern::cuda {

/// The part of NCCL's binary interface used here, compared with <nccl.h> by a test.
namespace nccl_api {

using Status = int;
using Comm = struct CommTag*;

struct UniqueId {
  char bytes[128];
};

inline constexpr Status kSuccess = 0, kSystemError = 2, kInvalidUsage = 5, kRemoteError = 6,
                        kInProgress = 7;
inline constexpr int kTypeF32 = 7, kTypeBf16 = 9;
inline constexpr int kSum = 0;

/// The functions used of libnccl; a test has its own.
struct Table {
  Status (*get_version)(int* version);
  const char* (*get_error_string)(Status);
  Status (*get_unique_id)(UniqueId*);
  Status (*comm_init_rank)(Comm*, int ranks, UniqueId, int rank);
  Status (*comm_get_async_error)(Comm, Status*);
  Status (*comm_abort)(Comm);
  Status (*group_start)();
  Status (*group_end)();
  Status (*all_reduce)(const void* send, void* receive, size_t count, int type, int sum, Comm,
                       api::Stream);
  Status (*all_gather)(const void* send, void* receive, size_t count, int type, Comm, api::Stream);
  Status (*reduce_scatter)(const void* send, void* receive, size_t count, int type, int sum, Comm,
                           api::Stream);
  Status (*send)(const void* from, size_t count, int type, int peer, Comm, api::Stream);
  Status (*receive)(void* to, size_t count, int type, int peer, Comm, api::Stream);
};

}  // namespace nccl_api

/// The oldest NCCL that tells a lost peer from other errors: 2.13.
inline constexpr int kNcclVersionMin = 21300;

/// What the process's environment has told NCCL since before any thread of it began.
enum class NcclMulticast : uint8_t { allowed, off };

class Nccl {
 public:
  /// Opens libnccl.so.2. Kind device, with the reason: multicast is not off, no library, too old,
  /// no function.
  static Result<std::unique_ptr<const Nccl>> load(NcclMulticast multicast);
  /// A table of a test's own; nothing is called.
  explicit Nccl(const nccl_api::Table& table) : table_(table) {}
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  const nccl_api::Table* operator->() const { return &table_; }
  /// Success, or the call's name and NCCL's words: kind peer for a remote error, else device.
  Result<void> check(const char* call, nccl_api::Status status) const;
  /// Names a communicator that is about to be made; one rank asks, all use it.
  Result<nccl_api::UniqueId> new_id() const;

 private:
  nccl_api::Table table_;
};

enum class ElementType : int { f32 = nccl_api::kTypeF32, bf16 = nccl_api::kTypeBf16 };

/// This rank's end of a group of ranks. Refers to its Nccl, which outlives it.
class Communicator {
 public:
  /// Waits until every rank has come with the same id.
  static Result<Communicator> create(const Nccl& nccl, const nccl_api::UniqueId& id, int rank,
                                     int ranks);
  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  /// Gives it back without waiting for the others, who may be gone: whoever ends in order has
  /// synchronized first. Graphs that were captured over it go before.
  ~Communicator();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Enqueue, or are captured. `count` is elements a rank (of the all-to-all: a peer); blocks lie in
  // rank order. Send and receive are the same address or do not overlap (the all-to-all's never
  // do). Kind peer once the communicator was aborted.
  Result<void> all_reduce(const Stream& stream, api::Pointer send, api::Pointer receive,
                          int64_t count, ElementType type) const;
  Result<void> all_gather(const Stream& stream, api::Pointer send, api::Pointer receive,
                          int64_t count, ElementType type) const;
  Result<void> reduce_scatter(const Stream& stream, api::Pointer send, api::Pointer receive,
                              int64_t count, ElementType type) const;
  Result<void> all_to_all(const Stream& stream, api::Pointer send, api::Pointer receive,
                          int64_t count, ElementType type) const;

  /// Whether what was enqueued met an error since. After one nothing more goes through: what waits
  /// on the device ends, and every later call is kind peer.
  Result<void> poll();
  void abort();

 private:
  Communicator(const Nccl& nccl, nccl_api::Comm comm, int rank, int ranks)
      : nccl_(&nccl), comm_(comm), rank_(rank), ranks_(ranks) {}
  Result<void> alive() const;

  const Nccl* nccl_;
  nccl_api::Comm comm_;  ///< null: aborted, or moved from
  int rank_, ranks_;
};

}  // namespace kern::cuda
