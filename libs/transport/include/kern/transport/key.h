#pragma once
/// The secret that all daemons of one cluster share.
/// Thread safety: plain value.
/// Does not: print itself; only a short fingerprint ever reaches a log.

#include <filesystem>
#include <string>

#include "kern/base/sha256.h"

namespace kern::transport {

inline constexpr size_t kKeyBytesMin = 16;
inline constexpr size_t kKeyBytesMax = 4096;

class ClusterKey {
 public:
  /// Reads a key file: a regular file that group and others cannot read, 16 to 4096 bytes without
  /// the white space at its end. Fails with kind caller or io, naming the path.
  static Result<ClusterKey> read(const std::filesystem::path& path);
  /// From bytes; the same length bounds.
  static Result<ClusterKey> from_bytes(ByteSpan bytes);

  /// HMAC-SHA-256 under this key.
  Digest sign(ByteSpan bytes) const;
  /// Eight hex digits that tell keys apart and give nothing away.
  std::string fingerprint() const;

 private:
  explicit ClusterKey(Digest key) : key_(key) {}
  Digest key_;  ///< SHA-256 of the file's bytes
};

}  // namespace kern::transport
