#pragma once
/// The hand-off of sequence states: stages send parts, ranks receive them. A part is a small head
/// (a frame) and raw bytes whose digest the head announces.
/// PartSender: used from one thread that may block, usually the device thread.
/// PartReceiver: everything on the IoContext's thread, so what it fills is staging memory; the
/// daemon copies into state memory between steps.
/// Failure: a bad head ends the connection; a bad digest, a wrong size or a late generation fails
/// that part alone: its bytes are drained and the connection goes on.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "kern/transport/connect.h"

namespace kern::transport {

inline constexpr uint64_t kPartBytesMax = uint64_t{16} << 30;
inline constexpr size_t kStateNameBytesMax = 128;

struct PartHead {
  uint64_t request = 0;
  uint64_t generation = 0;
  std::string state;  ///< its name in the manifest
  uint64_t bytes = 0;
  uint64_t digest = 0;  ///< digest64 of the bytes
  friend bool operator==(const PartHead&, const PartHead&) = default;
};

/// One part to send, in pieces that follow each other on the wire; the pieces stay in place during
/// the call.
struct OutPart {
  Address to;
  uint64_t request = 0;
  uint64_t generation = 0;
  std::string state;
  std::vector<ByteSpan> pieces;
};

struct PartSenderOptions {
  Terms terms;  ///< purpose parts
  TimeNs dial_timeout = 3 * kSecondNs;
};

struct PartSenderCounters {
  uint64_t parts = 0, bytes = 0, failures = 0;
};

/// Keeps an authenticated connection to each address it has sent to.
class PartSender {
 public:
  explicit PartSender(PartSenderOptions options);
  ~PartSender();
  /// Sends all parts, those for different addresses at the same time, and returns when the last
  /// byte is with the system. An address that fails does not stop the others; the first failure is
  /// returned, kind peer. Connections that failed are dialed again by the next call.
  Result<void> send(const std::vector<OutPart>& parts, TimeNs timeout);
  /// Any thread: fails the current send and every later one.
  void shutdown(const std::string& reason);
  const PartSenderCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Where a part may land: spans that together have exactly its bytes, valid until landed, failed
/// or revoked.
using Destination = std::vector<MutableByteSpan>;
/// Why a part is not wanted; it is drained and reported through `failed`.
struct Refusal {
  std::string sentence;
};

struct PartReceiverCounters {
  uint64_t parts = 0, bytes = 0;
  uint64_t refused = 0, digest_failures = 0, drained_bytes = 0, cut = 0;
};

struct PartReceiverOptions {
  /// A peer that stops in the middle of a part for this long is dead.
  TimeNs peer_timeout = 5 * kSecondNs;
  std::function<std::variant<Destination, Refusal>(const PartHead&, const Identity& from)> expect;
  std::function<void(const PartHead&, const Identity& from)> landed;
  /// Digest mismatch, refusal, wrong size, or a connection lost in the middle of this part.
  std::function<void(const PartHead&, const Identity& from, const Error&)> failed;
  /// A connection ended; its peer may dial again.
  std::function<void(const Identity& from, const Error&)> closed;
};

/// Takes connections from a Listener's `accepted`.
class PartReceiver {
 public:
  PartReceiver(IoContext& io, PartReceiverOptions options);
  ~PartReceiver();
  void add(Connection connection);
  /// From now on nothing is written for that request; bytes still to come are drained.
  void revoke(uint64_t request, uint64_t generation);
  const PartReceiverCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kern::transport
