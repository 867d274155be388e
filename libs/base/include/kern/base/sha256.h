#pragma once
/// SHA-256 and HMAC-SHA-256 (OpenSSL underneath), and hex.

#include <array>
#include <string>

#include "kern/base/bytes.h"

namespace kern {

using Digest = std::array<std::byte, 32>;

Digest sha256(ByteSpan bytes);
Digest hmac_sha256(ByteSpan key, ByteSpan bytes);
/// Compares in constant time.
bool digests_equal(const Digest& a, const Digest& b);
/// Cryptographically random bytes.
Result<void> fill_random(MutableByteSpan out);
/// Lower-case hex.
std::string to_hex(ByteSpan bytes);

}  // namespace kern
