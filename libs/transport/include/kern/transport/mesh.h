#pragma once
/// A full mesh of TCP connections among the ranks of a group, for small collectives in lockstep.
/// Every member makes the same calls in the same order; each step's number, kind and size are
/// compared and its bytes digested: a member out of step is an error and never a wrong byte.
/// Thread safety: one thread calls the collectives; shutdown may come from any thread.
/// Failure: a member that is lost, late or out of step gives kind peer within `peer_timeout`; the
/// mesh is then broken for good and every later call fails at once. Join anew with a new epoch.

#include <memory>
#include <string>
#include <vector>

#include "kern/transport/connect.h"

namespace kern::transport {

struct MeshOptions {
  int rank = 0;
  std::vector<Address> addresses;  ///< of every member, in rank order
  std::optional<ClusterKey> key;
  Digest plan{};
  uint64_t epoch = 0;
  TimeNs join_timeout = 30 * kSecondNs;
  TimeNs peer_timeout = 5 * kSecondNs;
};

inline constexpr size_t kMeshMembersMax = 256;

class Mesh {
 public:
  /// Dials every lower rank and accepts every higher one on `port`; blocks until all are there.
  static Result<std::unique_ptr<Mesh>> join(ListenSocket port, const MeshOptions& options);
  struct Impl;
  explicit Mesh(std::unique_ptr<Impl> impl);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const;
  int size() const;
  /// `receive` gets size() blocks of send.size() bytes, in rank order, own block included.
  Result<void> all_gather(ByteSpan send, MutableByteSpan receive);
  /// `send` holds size() equal blocks, block i for member i; `receive` each member's block for this
  /// rank, in rank order.
  Result<void> all_to_all(ByteSpan send, MutableByteSpan receive);
  /// Wakes and fails the current call and every later one.
  void shutdown(const std::string& reason);

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::transport
