#include "kern_test/fake_nccl.h"

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include "kern/base/assert.h"

namespace kern_test {

namespace api = kern::cuda::nccl_api;
using api::Status;

namespace {

/// What one rank brings to a meeting.
struct Brought {
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;
  int type = 0;
  std::map<int, std::pair<const void*, size_t>> sends;  // by peer; bytes
  std::map<int, std::pair<void*, size_t>> receives;
};

struct Clique {
  std::vector<Brought> brought;
  size_t arrived = 0;
  uint64_t round = 0;
};

struct End {
  Clique* clique;
  int rank;
};

}  // namespace

struct FakeNccl::State {
  explicit State(FakeDriver& d) : driver(d) {}
  FakeDriver& driver;
  std::mutex mutex;
  std::condition_variable moved;
  std::map<std::string, std::unique_ptr<Clique>> cliques;  // by id
  std::map<api::Comm, std::unique_ptr<End>> ends;
  int ids = 0;
  bool records_only = false, lost = false;

  /// Waits until every rank of a clique is here. False: one never will be.
  bool meet(std::unique_lock<std::mutex>& lock, Clique& clique) {
    const uint64_t round = clique.round;
    if (++clique.arrived == clique.brought.size()) {
      clique.arrived = 0;
      ++clique.round;
      moved.notify_all();
      return true;
    }
    moved.wait(lock, [&] { return clique.round != round || lost; });
    return clique.round != round;
  }
  /// Everybody brings something, everybody takes from all, nobody goes early.
  template <class Take>
  Status collective(api::Comm comm, Brought mine, Take take) {
    std::unique_lock lock(mutex);
    if (records_only) return api::kSuccess;
    const End& end = *ends.at(comm);
    Clique& clique = *end.clique;
    clique.brought[static_cast<size_t>(end.rank)] = std::move(mine);
    // On a device the error shows later.
    if (!meet(lock, clique)) return api::kSuccess;
    take(clique.brought, end.rank);
    // What was sent may be where another receives: nobody writes before all have read.
    (void)meet(lock, clique);
    return api::kSuccess;
  }
};

namespace {

FakeNccl* current = nullptr;
thread_local int group_depth = 0;
thread_local Brought grouped;
thread_local api::Comm grouped_comm = nullptr;

FakeNccl::State& state() {
  KERN_ASSERT(current != nullptr, "no fake NCCL stands");
  return current->state();
}

#define FAKE_NOTE(...) \
  if (const Status noted = state().driver.note(__VA_ARGS__); noted != api::kSuccess) return noted

size_t bytes_of(int type) {
  return type == api::kTypeF32 ? 4 : 2;
}

float load(const void* from, size_t i, int type) {
  uint32_t bits = 0;
  if (type == api::kTypeF32)
    std::memcpy(&bits, static_cast<const char*>(from) + i * 4, 4);
  else
    std::memcpy(reinterpret_cast<char*>(&bits) + 2, static_cast<const char*>(from) + i * 2, 2);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

/// Of bf16 the upper half: values of tests need no rounding.
std::vector<std::byte> sums(const std::vector<Brought>& all, size_t first, size_t count, int type) {
  std::vector<std::byte> out(count * bytes_of(type));
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (const Brought& each : all) sum += load(each.send, first + i, type);
    const auto* bytes = reinterpret_cast<const std::byte*>(&sum);
    std::memcpy(out.data() + i * bytes_of(type), bytes + (4 - bytes_of(type)), bytes_of(type));
  }
  return out;
}

std::string detail(size_t count, int type, kern::cuda::api::Stream stream) {
  return std::to_string(count) + (type == api::kTypeF32 ? " f32" : " bf16") + " stream " +
         std::to_string(reinterpret_cast<uintptr_t>(stream));
}

Status comm_init_rank(api::Comm* comm, int ranks, api::UniqueId id, int rank) {
  FAKE_NOTE("ncclCommInitRank", std::to_string(rank) + " of " + std::to_string(ranks));
  FakeNccl::State& s = state();
  std::unique_lock lock(s.mutex);
  auto& clique = s.cliques[id.bytes];
  if (clique == nullptr) {
    clique = std::make_unique<Clique>();
    clique->brought.resize(static_cast<size_t>(ranks));
  }
  if (!s.records_only && !s.meet(lock, *clique)) return api::kRemoteError;
  auto end = std::make_unique<End>(End{clique.get(), rank});
  *comm = reinterpret_cast<api::Comm>(end.get());
  s.ends[*comm] = std::move(end);
  return api::kSuccess;
}

void fill_communicators(api::Table& t) {
  t.get_version = [](int* version) {
    *version = 22809;
    return api::kSuccess;
  };
  t.get_error_string = [](Status status) {
    return status == api::kRemoteError ? "remote process exited" : "as the test asked";
  };
  t.get_unique_id = [](api::UniqueId* id) {
    FAKE_NOTE("ncclGetUniqueId");
    const std::lock_guard lock(state().mutex);
    std::snprintf(id->bytes, sizeof(id->bytes), "clique %d", ++state().ids);
    return api::kSuccess;
  };
  t.comm_init_rank = comm_init_rank;
  t.comm_get_async_error = [](api::Comm, Status* status) {
    FAKE_NOTE("ncclCommGetAsyncError");
    const std::lock_guard lock(state().mutex);
    *status = state().lost ? api::kRemoteError : api::kSuccess;
    return api::kSuccess;
  };
  t.comm_abort = [](api::Comm comm) {
    FAKE_NOTE("ncclCommAbort");
    const std::lock_guard lock(state().mutex);
    return state().ends.erase(comm) == 1 ? api::kSuccess : api::kInvalidUsage;
  };
}

void fill_collectives(api::Table& t) {
  t.all_reduce = [](const void* send, void* receive, size_t count, int type, int, api::Comm comm,
                    kern::cuda::api::Stream stream) {
    FAKE_NOTE("ncclAllReduce", detail(count, type, stream));
    std::vector<std::byte> out;
    const Status done = state().collective(
        comm, {send, receive, count, type, {}, {}},
        [&](const std::vector<Brought>& all, int) { out = sums(all, 0, count, type); });
    if (!out.empty()) std::memcpy(receive, out.data(), out.size());
    return done;
  };
  t.reduce_scatter = [](const void* send, void* receive, size_t count, int type, int,
                        api::Comm comm, kern::cuda::api::Stream stream) {
    FAKE_NOTE("ncclReduceScatter", detail(count, type, stream));
    std::vector<std::byte> out;
    const Status done = state().collective(
        comm, {send, receive, count, type, {}, {}}, [&](const std::vector<Brought>& all, int rank) {
          out = sums(all, static_cast<size_t>(rank) * count, count, type);
        });
    if (!out.empty()) std::memcpy(receive, out.data(), out.size());
    return done;
  };
  t.all_gather = [](const void* send, void* receive, size_t count, int type, api::Comm comm,
                    kern::cuda::api::Stream stream) {
    FAKE_NOTE("ncclAllGather", detail(count, type, stream));
    std::vector<std::byte> out;
    const size_t bytes = count * bytes_of(type);
    const Status done = state().collective(
        comm, {send, receive, count, type, {}, {}}, [&](const std::vector<Brought>& all, int) {
          for (const Brought& each : all) {
            const auto* from = static_cast<const std::byte*>(each.send);
            out.insert(out.end(), from, from + bytes);
          }
        });
    if (!out.empty()) std::memcpy(receive, out.data(), out.size());
    return done;
  };
}

Status end_group() {
  const Brought mine = std::exchange(grouped, {});
  const api::Comm comm = std::exchange(grouped_comm, nullptr);
  --group_depth;
  FAKE_NOTE("ncclGroupEnd");
  if (comm == nullptr) return api::kSuccess;
  return state().collective(comm, mine, [&](const std::vector<Brought>& all, int rank) {
    for (const auto& [peer, to] : mine.receives) {
      const auto& from = all[static_cast<size_t>(peer)].sends.at(rank);
      KERN_ASSERT(from.second == to.second, "{} and {} bytes", from.second, to.second);
      std::memcpy(to.first, from.first, to.second);
    }
  });
}

void fill_groups(api::Table& t) {
  t.group_start = [] {
    FAKE_NOTE("ncclGroupStart");
    ++group_depth;
    return api::kSuccess;
  };
  t.group_end = end_group;
  t.send = [](const void* from, size_t count, int type, int peer, api::Comm comm,
              kern::cuda::api::Stream stream) {
    FAKE_NOTE("ncclSend", "to " + std::to_string(peer) + " " + detail(count, type, stream));
    if (group_depth == 0) return api::kInvalidUsage;
    grouped_comm = comm;
    grouped.sends[peer] = {from, count * bytes_of(type)};
    return api::kSuccess;
  };
  t.receive = [](void* to, size_t count, int type, int peer, api::Comm comm,
                 kern::cuda::api::Stream stream) {
    FAKE_NOTE("ncclRecv", "from " + std::to_string(peer) + " " + detail(count, type, stream));
    if (group_depth == 0) return api::kInvalidUsage;
    grouped_comm = comm;
    grouped.receives[peer] = {to, count * bytes_of(type)};
    return api::kSuccess;
  };
}

}  // namespace

FakeNccl::FakeNccl(FakeDriver& driver) : state_(std::make_unique<State>(driver)) {
  KERN_ASSERT(current == nullptr, "one fake NCCL at a time");
  current = this;
  api::Table table{};
  fill_communicators(table);
  fill_collectives(table);
  fill_groups(table);
  nccl_ = std::make_unique<const kern::cuda::Nccl>(table);
}

FakeNccl::~FakeNccl() {
  current = nullptr;
}

void FakeNccl::record_only() {
  const std::lock_guard lock(state_->mutex);
  state_->records_only = true;
}

void FakeNccl::lose_a_rank() {
  const std::lock_guard lock(state_->mutex);
  state_->lost = true;
  state_->moved.notify_all();
}

int FakeNccl::live() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->ends.size());
}

int FakeNccl::open_groups() const {
  return group_depth;
}

}  // namespace kern_test
