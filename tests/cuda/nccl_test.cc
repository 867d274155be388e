// NCCL's table and a Communicator over it, on an NCCL of threads (kern_test/fake_nccl.h).
#include "kern/cuda/nccl.h"

#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "kern_test/fake_nccl.h"

using namespace kern;
using cuda::Communicator;
using cuda::ElementType;
using kern_test::FakeDriver;
using kern_test::FakeNccl;
using Calls = std::vector<std::string>;
namespace nccl_api = cuda::nccl_api;

namespace {

cuda::api::Pointer at(const void* memory) {
  return reinterpret_cast<cuda::api::Pointer>(memory);
}

/// What the tests of one rank use: nobody is waited for.
struct Lone {
  Lone() { nccl.record_only(); }
  Result<Communicator> communicator() {
    return Communicator::create(nccl.nccl(), nccl_api::UniqueId{}, 0, 2);
  }
  FakeDriver driver;
  FakeNccl nccl{driver};
  cuda::Stream stream = *cuda::Stream::create(driver.driver());
};

/// Runs `body` for each rank in a thread of its own, all with communicators of one clique.
template <class Body>
void ranks(int count, Body body) {
  FakeDriver driver;
  FakeNccl nccl(driver);
  const auto id = nccl.nccl().new_id();
  REQUIRE(id);
  std::vector<char> good(static_cast<size_t>(count), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank)
    threads.emplace_back([&, rank] {
      const auto stream = cuda::Stream::create(driver.driver());
      const auto comm = Communicator::create(nccl.nccl(), *id, rank, count);
      good[static_cast<size_t>(rank)] = stream && comm && body(*comm, *stream).has_value();
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(good == std::vector<char>(static_cast<size_t>(count), 1));
  CHECK(nccl.live() == 0);
}

}  // namespace

TEST_CASE("NCCL is not loaded by a program that does not turn multicast off", "[cuda][nccl]") {
  const auto refused = cuda::Nccl::load(cuda::NcclMulticast::allowed);
  REQUIRE(!refused);
  CHECK(refused.error().kind == Kind::device);
  CHECK(refused.error().text() ==
        "NCCL may use multicast: this program puts no NCCL_NVLS_ENABLE=0 into its environment");
}

TEST_CASE("NCCL is found by name with every function, or a sentence says why not", "[cuda][nccl]") {
  const auto found = cuda::Nccl::load(cuda::NcclMulticast::off);
  if (!found) {
    CHECK(found.error().kind == Kind::device);
    CHECK(found.error().text().find("no NCCL: libnccl.so.2") == 0);
    return;
  }
  int version = 0;
  CHECK((**found)->get_version(&version) == 0);
  CHECK(version >= cuda::kNcclVersionMin);
  CHECK((*found)->check("f", nccl_api::kRemoteError).error().kind == Kind::peer);
}

TEST_CASE("collectives of three ranks move and sum what each brought", "[cuda][nccl]") {
  using Row = std::array<float, 6>;
  std::array<Row, 3> sums{}, gathered{}, scattered{}, exchanged{};
  ranks(3, [&](const Communicator& comm, const cuda::Stream& stream) -> Result<void> {
    const auto rank = static_cast<size_t>(comm.rank());
    Row send{};
    for (size_t i = 0; i < 6; ++i) send[i] = static_cast<float>(10 * (rank + 1) + i);
    const auto f32 = ElementType::f32;
    KERN_TRY_VOID(comm.all_reduce(stream, at(send.data()), at(sums[rank].data()), 6, f32));
    KERN_TRY_VOID(comm.all_gather(stream, at(send.data()), at(gathered[rank].data()), 2, f32));
    KERN_TRY_VOID(comm.reduce_scatter(stream, at(send.data()), at(scattered[rank].data()), 2, f32));
    return comm.all_to_all(stream, at(send.data()), at(exchanged[rank].data()), 2, f32);
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    const auto block = static_cast<float>(2 * rank);
    CHECK(sums[rank] == Row{60, 63, 66, 69, 72, 75});
    CHECK(gathered[rank] == Row{10, 11, 20, 21, 30, 31});
    CHECK(scattered[rank] == Row{60 + 3 * block, 63 + 3 * block});
    CHECK(exchanged[rank] ==
          Row{10 + block, 11 + block, 20 + block, 21 + block, 30 + block, 31 + block});
  }
}

TEST_CASE("an all-to-all is one group of a send and a receive a peer", "[cuda][nccl]") {
  Lone lone;
  const auto comm = lone.communicator();
  REQUIRE(comm);
  lone.driver.take_calls();
  REQUIRE(comm->all_to_all(lone.stream, 0, 1000, 5, ElementType::bf16));
  CHECK(lone.driver.take_calls() ==
        Calls{"ncclGroupStart", "ncclSend to 0 5 bf16 stream 1", "ncclRecv from 0 5 bf16 stream 1",
              "ncclSend to 1 5 bf16 stream 1", "ncclRecv from 1 5 bf16 stream 1", "ncclGroupEnd"});
}

TEST_CASE("a call that fails is a sentence, and no group stays open", "[cuda][nccl][unwind]") {
  Lone lone;
  lone.driver.fail("ncclCommInitRank", 1);
  const auto refused = lone.communicator();
  REQUIRE(!refused);
  CHECK(refused.error().text() == "ncclCommInitRank: as the test asked (1)");
  lone.driver.fail("ncclGetUniqueId", 3);
  CHECK(!lone.nccl.nccl().new_id());
  CHECK(lone.nccl.live() == 0);
  auto comm = lone.communicator();
  REQUIRE(comm);
  const auto f32 = ElementType::f32;
  const std::pair<const char*, std::function<Result<void>()>> each[] = {
      {"ncclAllReduce", [&] { return comm->all_reduce(lone.stream, 0, 0, 1, f32); }},
      {"ncclAllGather", [&] { return comm->all_gather(lone.stream, 0, 0, 1, f32); }},
      {"ncclReduceScatter", [&] { return comm->reduce_scatter(lone.stream, 0, 0, 1, f32); }},
      {"ncclGroupStart", [&] { return comm->all_to_all(lone.stream, 0, 0, 1, f32); }},
      {"ncclSend", [&] { return comm->all_to_all(lone.stream, 0, 0, 1, f32); }},
      {"ncclRecv", [&] { return comm->all_to_all(lone.stream, 0, 0, 1, f32); }},
      {"ncclGroupEnd", [&] { return comm->all_to_all(lone.stream, 0, 0, 1, f32); }},
  };
  for (const auto& [name, call] : each) {
    INFO(name);
    lone.driver.fail(name, nccl_api::kSystemError);
    const auto failed = call();
    REQUIRE(!failed);
    CHECK(failed.error().kind == Kind::device);
    CHECK(failed.error().text() == std::string(name) + ": as the test asked (2)");
    CHECK(lone.nccl.open_groups() == 0);
    CHECK(call());
  }
}

TEST_CASE("a lost rank is kind peer when asked for, and the communicator ends there",
          "[cuda][nccl]") {
  Lone lone;
  auto comm = lone.communicator();
  REQUIRE(comm);
  CHECK(comm->poll());
  lone.nccl.lose_a_rank();
  const auto met = comm->poll();
  REQUIRE(!met);
  CHECK(met.error().kind == Kind::peer);
  CHECK(met.error().text() == "rank 0 of 2: a collective under way: remote process exited (6)");
  CHECK(lone.nccl.live() == 0);
  const auto later = comm->all_reduce(lone.stream, 0, 0, 1, ElementType::f32);
  REQUIRE(!later);
  CHECK(later.error().kind == Kind::peer);
  CHECK(later.error().text() == "the communicator of rank 0 of 2 has ended with an earlier error");
}
