#include "kern/cuda/driver.h"

#include <dlfcn.h>

#include <catch2/catch.hpp>

#include "kern/cuda/context.h"
#include "kern_test/fake_driver.h"

using namespace kern;
using kern_test::FakeDriver;

TEST_CASE("a machine without a driver is a reason and no crash", "[cuda][driver]") {
  const auto driver = cuda::Driver::load();
  if (driver) {
    CHECK(cuda::device_count(**driver));
    return;
  }
  CHECK(driver.error().kind == Kind::device);
  const bool is_there = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr;
  CHECK((driver.error().message.find("no CUDA driver: ") == 0) == !is_there);
}

TEST_CASE("a failed call names the function, the driver's words and the number", "[cuda][driver]") {
  FakeDriver fake;
  CHECK(fake.driver().check("cuMemAlloc", 0));
  const auto failed = fake.driver().check("cuMemAlloc", cuda::api::kOutOfMemory);
  REQUIRE(!failed);
  CHECK(failed.error().kind == Kind::device);
  CHECK(failed.error().message == "cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)");
}

TEST_CASE("a context holds its device and lets go of it once", "[cuda][context]") {
  FakeDriver fake;
  {
    auto context = cuda::Context::open(fake.driver(), 0);
    REQUIRE(context);
    CHECK(context->info().sm == 90);
    CHECK(context->info().shared_bytes_max == 232448);
    CHECK(context->info().posix_handles);
    CHECK(!context->info().fabric_handles);
    cuda::Context moved = std::move(*context);
    CHECK(fake.live() == std::vector<std::string>{"context"});
  }
  CHECK(fake.live().empty());
  CHECK(fake.calls_of("cuDevicePrimaryCtxRelease").size() == 1);
}

TEST_CASE("a device that is not there is the caller's mistake", "[cuda][context]") {
  FakeDriver fake;
  const auto context = cuda::Context::open(fake.driver(), 3);
  REQUIRE(!context);
  CHECK(context.error().kind == Kind::caller);
  CHECK(context.error().message == "device 3 of 1 that the driver shows");
}
