#include "kern/runtime/local_peers.h"

#include <fcntl.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include "kern/base/assert.h"

namespace kern::runtime {
namespace {

/// A meeting place: everybody leaves a span, everybody reads all of them, nobody goes early.
class Meeting {
 public:
  explicit Meeting(int size) : sends_(static_cast<size_t>(size)) {}

  template <class Take>
  Result<void> meet(int rank, ByteSpan send, Take take) {
    {
      std::lock_guard lock(mutex_);
      sends_[static_cast<size_t>(rank)] = send;
    }
    KERN_TRY_VOID(wait());
    take(sends_);
    return wait();
  }

  void leave(int rank) {
    std::lock_guard lock(mutex_);
    if (left_ < 0) left_ = rank;
    moved_.notify_all();
  }

 private:
  Result<void> wait() {
    std::unique_lock lock(mutex_);
    const uint64_t round = round_;
    if (++arrived_ == sends_.size()) {
      arrived_ = 0;
      ++round_;
      moved_.notify_all();
      return {};
    }
    moved_.wait(lock, [&] { return round_ != round || left_ >= 0; });
    if (round_ == round) return fail(Kind::peer, "rank {} has left", left_);
    return {};
  }

  std::mutex mutex_;
  std::condition_variable moved_;
  std::vector<ByteSpan> sends_;
  size_t arrived_ = 0;
  uint64_t round_ = 0;
  int left_ = -1;
};

class Member final : public PeerGroup {
 public:
  Member(Meeting& meeting, int rank, int size) : meeting_(meeting), rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Result<void> all_gather(ByteSpan send, MutableByteSpan receive) override {
    KERN_ASSERT(receive.size() == send.size() * static_cast<size_t>(size_), "{} bytes",
                receive.size());
    return meeting_.meet(rank_, send, [&](const std::vector<ByteSpan>& sends) {
      std::byte* to = receive.data();
      for (const ByteSpan from : sends) {
        KERN_ASSERT(from.size() == send.size(), "ranks send {} and {} bytes", from.size(),
                    send.size());
        if (!from.empty()) std::memcpy(to, from.data(), from.size());
        to += from.size();
      }
    });
  }

  Result<void> all_to_all(ByteSpan send, MutableByteSpan receive) override {
    KERN_ASSERT(receive.size() == send.size() && send.size() % static_cast<size_t>(size_) == 0,
                "{} bytes", send.size());
    const size_t block = send.size() / static_cast<size_t>(size_);
    return meeting_.meet(rank_, send, [&](const std::vector<ByteSpan>& sends) {
      for (size_t from = 0; from < sends.size() && block > 0; ++from)
        std::memcpy(receive.data() + from * block,
                    sends[from].data() + static_cast<size_t>(rank_) * block, block);
    });
  }

  Result<std::vector<Descriptor>> all_gather_descriptors(Descriptor mine) override {
    const int fd = mine.get();
    std::vector<Descriptor> all;
    KERN_TRY_VOID(
        meeting_.meet(rank_, bytes_of(std::span(&fd, 1)), [&](const std::vector<ByteSpan>& sends) {
          for (const ByteSpan from : sends) {
            int theirs;
            std::memcpy(&theirs, from.data(), sizeof(theirs));
            all.emplace_back(::fcntl(theirs, F_DUPFD_CLOEXEC, 0));
          }
        }));
    for (const Descriptor& each : all)
      if (!each.is_open()) return fail(Kind::device, "no descriptor: {}", std::strerror(errno));
    return all;
  }

 private:
  Meeting& meeting_;
  int rank_, size_;
};

}  // namespace

struct LocalGroup::State {
  explicit State(int size) : meeting(size) {
    members.reserve(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) members.emplace_back(meeting, rank, size);
  }
  Meeting meeting;
  std::vector<Member> members;
};

LocalGroup::LocalGroup(int size) : state_(std::make_unique<State>(size)) {
  KERN_ASSERT(size >= 1, "{} ranks", size);
}
LocalGroup::~LocalGroup() = default;

PeerGroup& LocalGroup::member(int rank) {
  return state_->members[static_cast<size_t>(rank)];
}
void LocalGroup::leave(int rank) {
  state_->meeting.leave(rank);
}

}  // namespace kern::runtime
