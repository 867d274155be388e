// How an algorithm is chosen, on a cuBLASLt of this file's own.
#include "kern/cuda/blas.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <set>

#include "kern_test/fake_driver.h"

using namespace kern;
using kern_test::FakeDriver;
namespace blas_api = cuda::blas_api;
using blas_api::Status;

namespace {

constexpr Status kNotSupported = 15;

struct LayoutSize {
  uint64_t rows, columns;
  int64_t stride;
};

/// Algorithms are numbers; what each refuses is the test's to say.
struct FakeBlas {
  std::vector<uint64_t> candidates;
  std::map<uint64_t, std::vector<uint64_t>> candidates_at;  // of one number of rows
  std::map<uint64_t, int32_t> split_k;
  std::map<uint64_t, uint8_t> bits;  // what an algorithm's product begins with
  std::map<uint64_t, std::set<uint64_t>> refused_rows;
  uint64_t asked_rows = 0;
  uint64_t ran = 0, ran_rows = 0;
  int live = 0;
  std::map<uintptr_t, LayoutSize> layouts;
  uintptr_t next = 1;
};
FakeBlas* fake = nullptr;

template <class Handle>
Status make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(fake->next++);
  ++fake->live;
  return 0;
}
template <class Handle>
Status drop(Handle) {
  --fake->live;
  return 0;
}
LayoutSize size_of(blas_api::Layout layout) {
  return fake->layouts[reinterpret_cast<uintptr_t>(layout)];
}

blas_api::Table table() {
  blas_api::Table t{};
  t.create = make<blas_api::Handle>;
  t.destroy = drop<blas_api::Handle>;
  t.get_version = [] { return size_t{130000}; };
  t.get_status_name = [](Status) { return "CUBLAS_STATUS_NOT_SUPPORTED"; };
  t.desc_create = [](blas_api::Desc* desc, int, int) { return make(desc); };
  t.desc_destroy = drop<blas_api::Desc>;
  t.desc_set = [](blas_api::Desc, int, const void*, size_t) { return 0; };
  t.layout_create = [](blas_api::Layout* layout, int, uint64_t rows, uint64_t columns,
                       int64_t stride) {
    const Status made = make(layout);
    fake->layouts[reinterpret_cast<uintptr_t>(*layout)] = {rows, columns, stride};
    return made;
  };
  t.layout_destroy = drop<blas_api::Layout>;
  t.preference_create = make<blas_api::Preference>;
  t.preference_destroy = drop<blas_api::Preference>;
  t.preference_set = [](blas_api::Preference, int, const void*, size_t) { return 0; };
  t.get_heuristic = [](blas_api::Handle, blas_api::Desc, blas_api::Layout, blas_api::Layout a,
                       blas_api::Layout, blas_api::Layout, blas_api::Preference, int wanted,
                       blas_api::HeuristicResult* results, int* found) {
    fake->asked_rows = size_of(a).columns;
    const auto own = fake->candidates_at.find(fake->asked_rows);
    const auto& list = own == fake->candidates_at.end() ? fake->candidates : own->second;
    *found = std::min(wanted, static_cast<int>(list.size()));
    for (int i = 0; i < *found; ++i) results[i].algo.data[0] = list[static_cast<size_t>(i)];
    return 0;
  };
  t.algo_init = [](blas_api::Handle, int, int, int, int, int, int, int id, blas_api::Algo* algo) {
    algo->data[0] = static_cast<uint64_t>(id);
    return 0;
  };
  t.algo_set = [](blas_api::Algo*, int, const void*, size_t) { return 0; };
  t.algo_get = [](const blas_api::Algo* algo, int attribute, void* value, size_t bytes,
                  size_t*) -> Status {
    if (attribute == 2) std::memcpy(value, &fake->split_k[algo->data[0]], bytes);
    return 0;
  };
  t.algo_check = [](blas_api::Handle, blas_api::Desc, blas_api::Layout, blas_api::Layout a,
                    blas_api::Layout, blas_api::Layout, const blas_api::Algo* algo,
                    blas_api::HeuristicResult*) {
    return fake->refused_rows[algo->data[0]].contains(size_of(a).columns) ? kNotSupported : 0;
  };
  t.matmul = [](blas_api::Handle, blas_api::Desc, const void*, const void*, blas_api::Layout,
                const void*, blas_api::Layout a, const void*, const void*, blas_api::Layout,
                void* d, blas_api::Layout, const blas_api::Algo* algo, void*, size_t,
                cuda::api::Stream) {
    fake->ran = algo->data[0];
    fake->ran_rows = size_of(a).columns;
    if (d != nullptr) *static_cast<uint8_t*>(d) = fake->bits[fake->ran];
    return 0;
  };
  return t;
}

struct Fixture {
  Fixture() : context(*cuda::Context::open(driver.driver(), 0)) { fake = &own; }
  ~Fixture() { fake = nullptr; }
  FakeDriver driver;
  FakeBlas own;
  cuda::Context context;
};

constexpr cuda::Product kProduct{.n = 48, .k = 64, .c_stride = 48, .a_stride = 64};

}  // namespace

TEST_CASE("the first candidate without split-K that takes every number of rows is the one",
          "[cuda][blas]") {
  Fixture f;
  f.own.candidates = {7, 8, 9, 10};
  f.own.split_k = {{7, 2}, {8, 1}, {9, 1}, {10, 1}};
  f.own.refused_rows[8] = {129};
  {
    const auto blas = cuda::Blas::create(f.context, table());
    REQUIRE(blas);
    const auto stream = cuda::Stream::create(f.driver.driver());
    auto matmul = cuda::Matmul::plan(**blas, kProduct, {.m_max = 200});
    REQUIRE(matmul);
    CHECK(f.own.asked_rows == 1024);  // wherever the largest lies
    for (const int64_t m : {1, 200, 3}) {
      REQUIRE(matmul->run(*stream, m, 0, 0, 0));
      CHECK(f.own.ran == 9);
      CHECK(f.own.ran_rows == static_cast<uint64_t>(m));
    }
    // What refuses only more rows than there can be is no reason.
    auto fewer = cuda::Matmul::plan(**blas, kProduct, {.m_max = 100});
    REQUIRE(fewer);
    REQUIRE(fewer->run(*stream, 5, 0, 0, 0));
    CHECK(f.own.ran == 8);
  }
  CHECK(f.own.live == 0);
}

TEST_CASE("without a fitting algorithm the product is refused with its sizes", "[cuda][blas]") {
  Fixture f;
  f.own.candidates = {7};
  f.own.refused_rows[7] = {200};
  {
    const auto blas = cuda::Blas::create(f.context, table());
    const auto matmul = cuda::Matmul::plan(**blas, kProduct, {.m_max = 200});
    REQUIRE(!matmul);
    CHECK(matmul.error().kind == Kind::manifest);
    CHECK(matmul.error().message ==
          "cuBLASLt has no algorithm for n 48, k 64, row strides 48 of C and 64 of A that takes "
          "every number of rows up to 200 (of 1 candidates)");
  }
  CHECK(f.own.live == 0);
}

TEST_CASE("a pinned algorithm is taken as it is, or refused with the rows that it does not fit",
          "[cuda][blas]") {
  Fixture f;
  {
    const auto blas = cuda::Blas::create(f.context, table());
    const auto stream = cuda::Stream::create(f.driver.driver());
    const cuda::PinnedAlgo pinned{.id = 66};
    auto matmul = cuda::Matmul::plan(**blas, kProduct, {.m_max = 200, .pinned = pinned});
    REQUIRE(matmul);
    REQUIRE(matmul->run(*stream, 5, 0, 0, 0));
    CHECK(f.own.ran == 66);
    f.own.refused_rows[66] = {17};
    const auto refused = cuda::Matmul::plan(**blas, kProduct, {.m_max = 200, .pinned = pinned});
    REQUIRE(!refused);
    CHECK(refused.error().message ==
          "the pinned algorithm does not fit 17 rows of n 48, k 64: cublasLtMatmulAlgoCheck: "
          "CUBLAS_STATUS_NOT_SUPPORTED (15)");
  }
  CHECK(f.own.live == 0);
}

TEST_CASE("a class of row counts takes a faster algorithm only where its bits are the base's",
          "[cuda][blas]") {
  Fixture f;
  f.own.candidates = {9};
  f.own.candidates_at[16] = {20, 21, 22, 9};  // the fastest has other bits
  f.own.candidates_at[64] = {23};             // hardly faster
  f.own.candidates_at[200] = {24};            // refused for a number of rows of the class
  f.own.bits = {{9, 1}, {20, 2}, {21, 1}, {22, 1}, {23, 1}, {24, 1}};
  f.own.refused_rows[24] = {129};
  f.own.refused_rows[22] = f.own.refused_rows[21] = {65};
  const std::map<uint64_t, float> milliseconds = {{9, 4.f},  {20, 1.f},   {21, 3.f},
                                                  {22, 2.f}, {23, 3.95f}, {24, 2.5f}};
  f.driver.milliseconds = [&] { return milliseconds.at(f.own.ran); };
  {
    const auto blas = cuda::Blas::create(f.context, table());
    const auto stream = cuda::Stream::create(f.driver.driver());
    auto matmul = cuda::Matmul::plan(**blas, kProduct,
                                     {.m_max = 200, .tune_on = &*stream, .context = &f.context});
    REQUIRE(matmul);
    const auto used = [&](int64_t m) {
      REQUIRE(matmul->run(*stream, m, 0, 0, 0));
      return f.own.ran;
    };
    CHECK(matmul->is_loaded());
    CHECK(used(1) == 22);
    CHECK(used(16) == 22);
    CHECK(used(17) == 22);  // what was named for fewer rows is tried for more
    CHECK(used(64) == 22);
    CHECK(used(65) == 9);
    CHECK(used(200) == 9);
    // Without memory for a trial the base serves all.
    f.driver.memory_bytes = size_t{40} << 20;
    auto plain = cuda::Matmul::plan(**blas, kProduct,
                                    {.m_max = 200, .tune_on = &*stream, .context = &f.context});
    REQUIRE(plain);
    CHECK(!plain->is_loaded());
    REQUIRE(plain->run(*stream, 1, 0, 0, 0));
    CHECK(plain->is_loaded());
    CHECK(f.own.ran == 9);
  }
  CHECK(f.own.live == 0);
}
