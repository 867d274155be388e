#include "kern/manifest/schema.h"

#include <catch2/catch.hpp>

#include "fixture.h"
#include "kern_test/golden.h"

using namespace kern::manifest;
using namespace kern_test;

TEST_CASE("the schema is the one that was reviewed", "[manifest][schema][golden]") {
  expect_golden(KERN_TEST_DIR, "schema.json", schema());
}
