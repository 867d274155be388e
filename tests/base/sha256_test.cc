#include "kern/base/sha256.h"

#include <catch2/catch.hpp>

using namespace kern;

TEST_CASE("sha-256 of abc is the standard's", "[base][sha256]") {
  CHECK(to_hex(sha256(as_bytes("abc"))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_CASE("hmac of the second rfc 4231 case is the standard's", "[base][sha256]") {
  CHECK(to_hex(hmac_sha256(as_bytes("Jefe"), as_bytes("what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}
