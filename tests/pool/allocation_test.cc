// Counts what this binary allocates, to see that the steady state allocates nothing.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

namespace {
uint64_t allocations = 0;
}

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

using namespace kern::pool;

TEST_CASE("leases, checkpoints, restores and hits allocate nothing in the steady state",
          "[pool][allocation]") {
  Pool pool({.page_tokens = 4, .pages = 100, .slots = 10, .recurrent = true, .row_pages_max = 50});
  PrefixTree tree(pool);
  const std::vector<int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const std::span<const int32_t> tokens(prompt);
  tree.insert(tokens.first(8), pool.retire(*pool.lease(8), 8));
  tree.insert(tokens.first(4), pool.retire(*pool.lease(4), 4));
  const auto turn = [&] {
    auto hit = tree.lookup(tokens);
    auto restored = pool.restore(hit->held, hit->len, 60);
    auto frozen = pool.checkpoint(restored->lease, 20);
    auto other = pool.lease(30);
    const Checkpoint last = pool.retire(std::move(restored->lease), 50);
  };
  for (int i = 0; i < 4; ++i) turn();  // until every page table has been as long as it gets
  const uint64_t before = allocations;
  for (int i = 0; i < 10; ++i) turn();
  CHECK(allocations == before);
}
