#include "kern/cuda/nccl.h"

#include <dlfcn.h>

#include <array>
#include <cstring>

#include "kern/base/assert.h"

namespace kern::cuda {
namespace {

using nccl_api::Status;
using nccl_api::Table;

struct Row {
  const char* name;
  size_t place;
};
constexpr std::array kRows = {
    Row{"ncclGetVersion", offsetof(Table, get_version)},
    Row{"ncclGetErrorString", offsetof(Table, get_error_string)},
    Row{"ncclGetUniqueId", offsetof(Table, get_unique_id)},
    Row{"ncclCommInitRank", offsetof(Table, comm_init_rank)},
    Row{"ncclCommGetAsyncError", offsetof(Table, comm_get_async_error)},
    Row{"ncclCommAbort", offsetof(Table, comm_abort)},
    Row{"ncclGroupStart", offsetof(Table, group_start)},
    Row{"ncclGroupEnd", offsetof(Table, group_end)},
    Row{"ncclAllReduce", offsetof(Table, all_reduce)},
    Row{"ncclAllGather", offsetof(Table, all_gather)},
    Row{"ncclReduceScatter", offsetof(Table, reduce_scatter)},
    Row{"ncclSend", offsetof(Table, send)},
    Row{"ncclRecv", offsetof(Table, receive)},
};
static_assert(sizeof(Table) == kRows.size() * sizeof(void*), "every function is looked up");

void* pointer(api::Pointer address) {
  return reinterpret_cast<void*>(address);
}

size_t size_of(ElementType type) {
  return type == ElementType::f32 ? 4 : 2;
}

}  // namespace

Result<std::unique_ptr<const Nccl>> Nccl::load(NcclMulticast multicast) {
  if (multicast != NcclMulticast::off)
    return fail(Kind::device,
                "NCCL may use multicast: this program puts no NCCL_NVLS_ENABLE=0 into its "
                "environment");
  // Never closed: the library keeps threads of its own.
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return fail(Kind::device, "no NCCL: {}", ::dlerror());
  Table table{};
  for (const Row& row : kRows) {
    void* function = ::dlsym(library, row.name);
    if (function == nullptr) return fail(Kind::device, "this NCCL has no {}", row.name);
    std::memcpy(reinterpret_cast<char*>(&table) + row.place, &function, sizeof(function));
  }
  auto nccl = std::make_unique<const Nccl>(table);
  int version = 0;
  KERN_TRY_VOID(nccl->check("ncclGetVersion", table.get_version(&version)));
  if (version < kNcclVersionMin)
    return fail(Kind::device, "NCCL is of version number {}, expected at least {}", version,
                kNcclVersionMin);
  return nccl;
}

Result<void> Nccl::check(const char* call, Status status) const {
  if (status == nccl_api::kSuccess) return {};
  const char* text = table_.get_error_string(status);
  return fail(status == nccl_api::kRemoteError ? Kind::peer : Kind::device, "{}: {} ({})", call,
              text == nullptr ? "unknown error" : text, status);
}

Result<nccl_api::UniqueId> Nccl::new_id() const {
  nccl_api::UniqueId id{};
  KERN_TRY_VOID(check("ncclGetUniqueId", table_.get_unique_id(&id)));
  return id;
}

Result<Communicator> Communicator::create(const Nccl& nccl, const nccl_api::UniqueId& id, int rank,
                                          int ranks) {
  KERN_ASSERT(ranks > 0 && rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  nccl_api::Comm comm = nullptr;
  KERN_TRY_VOID(nccl.check("ncclCommInitRank", nccl->comm_init_rank(&comm, ranks, id, rank)));
  return Communicator(nccl, comm, rank, ranks);
}

Communicator::Communicator(Communicator&& other) noexcept
    : nccl_(other.nccl_),
      comm_(std::exchange(other.comm_, nullptr)),
      rank_(other.rank_),
      ranks_(other.ranks_) {}

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  std::swap(nccl_, other.nccl_);
  std::swap(comm_, other.comm_);
  std::swap(rank_, other.rank_);
  std::swap(ranks_, other.ranks_);
  return *this;
}

Communicator::~Communicator() {
  abort();
}

void Communicator::abort() {
  // Not ncclCommDestroy, which waits for the other ranks of the machine.
  if (comm_ != nullptr) (*nccl_)->comm_abort(std::exchange(comm_, nullptr));
}

Result<void> Communicator::alive() const {
  if (comm_ != nullptr) return {};
  return fail(Kind::peer, "the communicator of rank {} of {} has ended with an earlier error",
              rank_, ranks_);
}

Result<void> Communicator::poll() {
  KERN_TRY_VOID(alive());
  Status met = nccl_api::kSuccess;
  auto done = nccl_->check("ncclCommGetAsyncError", (*nccl_)->comm_get_async_error(comm_, &met));
  if (done && met != nccl_api::kInProgress)
    done =
        with_context(nccl_->check("a collective under way", met), "rank {} of {}", rank_, ranks_);
  if (!done) abort();
  return done;
}

Result<void> Communicator::all_reduce(const Stream& stream, api::Pointer send, api::Pointer receive,
                                      int64_t count, ElementType type) const {
  KERN_TRY_VOID(alive());
  return nccl_->check(
      "ncclAllReduce",
      (*nccl_)->all_reduce(pointer(send), pointer(receive), static_cast<size_t>(count),
                           static_cast<int>(type), nccl_api::kSum, comm_, stream.raw()));
}

Result<void> Communicator::all_gather(const Stream& stream, api::Pointer send, api::Pointer receive,
                                      int64_t count, ElementType type) const {
  KERN_TRY_VOID(alive());
  return nccl_->check(
      "ncclAllGather",
      (*nccl_)->all_gather(pointer(send), pointer(receive), static_cast<size_t>(count),
                           static_cast<int>(type), comm_, stream.raw()));
}

Result<void> Communicator::reduce_scatter(const Stream& stream, api::Pointer send,
                                          api::Pointer receive, int64_t count,
                                          ElementType type) const {
  KERN_TRY_VOID(alive());
  return nccl_->check(
      "ncclReduceScatter",
      (*nccl_)->reduce_scatter(pointer(send), pointer(receive), static_cast<size_t>(count),
                               static_cast<int>(type), nccl_api::kSum, comm_, stream.raw()));
}

Result<void> Communicator::all_to_all(const Stream& stream, api::Pointer send, api::Pointer receive,
                                      int64_t count, ElementType type) const {
  KERN_TRY_VOID(alive());
  const auto elements = static_cast<size_t>(count);
  const size_t block = elements * size_of(type);
  KERN_TRY_VOID(nccl_->check("ncclGroupStart", (*nccl_)->group_start()));
  Result<void> done;
  for (int peer = 0; peer < ranks_ && done; ++peer) {
    const size_t at = static_cast<size_t>(peer) * block;
    done =
        nccl_->check("ncclSend", (*nccl_)->send(pointer(send + at), elements,
                                                static_cast<int>(type), peer, comm_, stream.raw()));
    if (done)
      done = nccl_->check("ncclRecv",
                          (*nccl_)->receive(pointer(receive + at), elements, static_cast<int>(type),
                                            peer, comm_, stream.raw()));
  }
  // Also after a failure: groups nest by thread, and this one would stay open.
  const auto ended = nccl_->check("ncclGroupEnd", (*nccl_)->group_end());
  KERN_TRY_VOID(done);
  return ended;
}

}  // namespace kern::cuda
