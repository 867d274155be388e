#include "kern/base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "kern/base/assert.h"

namespace kern {

Digest sha256(ByteSpan bytes) {
  Digest out;
  unsigned size = 0;
  const int ok =
      EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(out.data()), &size,
                 EVP_sha256(), nullptr);
  KERN_ASSERT(ok == 1 && size == out.size());
  return out;
}

Digest hmac_sha256(ByteSpan key, ByteSpan bytes) {
  Digest out;
  unsigned size = 0;
  const auto* ok = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                        reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                        reinterpret_cast<unsigned char*>(out.data()), &size);
  KERN_ASSERT(ok != nullptr && size == out.size());
  return out;
}

bool digests_equal(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Result<void> fill_random(MutableByteSpan out) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) != 1)
    return fail(Kind::io, "the system gave no random bytes");
  return {};
}

std::string to_hex(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const std::byte b : bytes) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

}  // namespace kern
