#include "kern/transport/key.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "kern/base/file.h"

namespace kern::transport {

Result<ClusterKey> ClusterKey::read(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return fail(Kind::io, "cluster key file `{}`: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return fail(Kind::caller, "cluster key file `{}`: not a regular file", path.string());
  if ((info.st_mode & 077) != 0)
    return fail(Kind::caller,
                "cluster key file `{}`: mode {:04o} lets others read or write it, expected 0600 or "
                "0400",
                path.string(), info.st_mode & 07777);
  KERN_TRY(text, with_context(read_file(path, kKeyBytesMax + 16), "cluster key file"));
  while (!text.empty() && std::strchr(" \t\r\n", text.back()) != nullptr) text.pop_back();
  return with_context(from_bytes(as_bytes(text)), "cluster key file `{}`", path.string());
}

Result<ClusterKey> ClusterKey::from_bytes(ByteSpan bytes) {
  if (bytes.size() < kKeyBytesMin || bytes.size() > kKeyBytesMax)
    return fail(Kind::caller, "a cluster key has {} to {} bytes, got {}", kKeyBytesMin,
                kKeyBytesMax, bytes.size());
  return ClusterKey(sha256(bytes));
}

Digest ClusterKey::sign(ByteSpan bytes) const {
  return hmac_sha256(key_, bytes);
}

std::string ClusterKey::fingerprint() const {
  const Digest digest = sign(as_bytes("fingerprint"));
  return to_hex(ByteSpan(digest).first(4));
}

}  // namespace kern::transport
