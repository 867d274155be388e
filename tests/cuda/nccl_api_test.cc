// NCCL's interface as this project declares it, against <nccl.h>. Compiled where that header is
// installed; signatures are compared by the compiler.
#include <nccl.h>

#include <catch2/catch.hpp>
#include <type_traits>

#include "kern/cuda/nccl.h"

namespace api = kern::cuda::nccl_api;

namespace {

/// A type as it goes over the call: handles, structures and enumerations by their size and class.
template <class Ours, class Theirs>
constexpr bool passes_alike() {
  return sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
         std::is_class_v<Ours> == std::is_class_v<Theirs> &&
         std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;
}

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class R, class... A, class S, class... B>
struct Alike<R (*)(A...), S (*)(B...)> {
  static constexpr bool compare() {
    if constexpr (sizeof...(A) == sizeof...(B))
      return passes_alike<R, S>() && (passes_alike<A, B>() && ...);
    return false;
  }
  static constexpr bool value = compare();
};
template <class Ours, class Theirs>
constexpr bool alike(Ours, Theirs) {
  return Alike<Ours, Theirs>::value;
}

constexpr api::Table kNone{};
static_assert(alike(kNone.get_version, &ncclGetVersion));
static_assert(alike(kNone.get_error_string, &ncclGetErrorString));
static_assert(alike(kNone.get_unique_id, &ncclGetUniqueId));
static_assert(alike(kNone.comm_init_rank, &ncclCommInitRank));
static_assert(alike(kNone.comm_get_async_error, &ncclCommGetAsyncError));
static_assert(alike(kNone.comm_abort, &ncclCommAbort));
static_assert(alike(kNone.group_start, &ncclGroupStart));
static_assert(alike(kNone.group_end, &ncclGroupEnd));
static_assert(alike(kNone.all_reduce, &ncclAllReduce));
static_assert(alike(kNone.all_gather, &ncclAllGather));
static_assert(alike(kNone.reduce_scatter, &ncclReduceScatter));
static_assert(alike(kNone.send, &ncclSend));
static_assert(alike(kNone.receive, &ncclRecv));
static_assert(!alike(kNone.send, &ncclAllGather), "the comparison can fail");

static_assert(sizeof(api::UniqueId) == sizeof(ncclUniqueId));
static_assert(alignof(api::UniqueId) == alignof(ncclUniqueId));

}  // namespace

TEST_CASE("numbers of NCCL's interface are those of its header", "[cuda][nccl]") {
  CHECK(api::kSuccess == ncclSuccess);
  CHECK(api::kSystemError == ncclSystemError);
  CHECK(api::kInvalidUsage == ncclInvalidUsage);
  CHECK(api::kRemoteError == ncclRemoteError);
  CHECK(api::kInProgress == ncclInProgress);
  CHECK(api::kTypeF32 == ncclFloat32);
  CHECK(api::kTypeBf16 == ncclBfloat16);
  CHECK(api::kSum == ncclSum);
}
