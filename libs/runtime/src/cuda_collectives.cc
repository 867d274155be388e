#include "cuda_collectives.h"

#include <cstring>
#include <thread>

#include "kern/base/assert.h"

namespace kern::runtime {
namespace {

/// Members are asked for once in so many looks at the stream, and at the first and the last.
constexpr int64_t kLooksAPoll = 1024;

/// What each rank tells the others before a communicator is made; of rank 0 the id counts.
struct Offer {
  cuda::nccl_api::UniqueId id{};
  uint8_t has_nccl = 0;
};

class NcclCollective final : public BuiltIn {
 public:
  NcclCollective(Collective what, cuda::ElementType type, const cuda::Communicator& communicator,
                 const cuda::Stream& stream)
      : what_(what), type_(type), communicator_(communicator), stream_(stream) {}

  Result<void> run(const Launch& launch) override {
    Cell values[3];
    for (size_t i = 0; i < 3; ++i) std::memcpy(&values[i], launch.args[i], sizeof(values[i]));
    const auto send = static_cast<cuda::api::Pointer>(values[0]);
    const auto receive = static_cast<cuda::api::Pointer>(values[1]);
    switch (what_) {
      case Collective::all_reduce:
        return communicator_.all_reduce(stream_, send, receive, values[2], type_);
      case Collective::all_gather:
        return communicator_.all_gather(stream_, send, receive, values[2], type_);
      case Collective::reduce_scatter:
        return communicator_.reduce_scatter(stream_, send, receive, values[2], type_);
      case Collective::all_to_all:
        return communicator_.all_to_all(stream_, send, receive, values[2], type_);
    }
    KERN_ASSERT(false, "collective {}", static_cast<int>(what_));
    return {};
  }

 private:
  Collective what_;
  cuda::ElementType type_;
  const cuda::Communicator& communicator_;
  const cuda::Stream& stream_;
};

}  // namespace

Result<void> CudaCollectives::find_nccl() {
  if (nccl_ != nullptr) return {};
  KERN_TRY(loaded, cuda::Nccl::load(multicast_));
  own_ = std::move(loaded);
  nccl_ = own_.get();
  return {};
}

Result<cuda::Communicator*> CudaCollectives::communicator(std::string_view group_name,
                                                          PeerGroup& group) {
  const auto known = by_group_.find(group_name);
  if (known != by_group_.end()) return &known->second;
  // A member that cannot go on says so to the others, who would wait for it for ever.
  Offer mine;
  auto ready = find_nccl();
  if (ready && group.rank() == 0) {
    auto id = nccl_->new_id();
    if (id)
      mine.id = *id;
    else
      ready = tl::unexpected<Error>(std::move(id.error()));
  }
  mine.has_nccl = ready ? 1 : 0;
  std::vector<Offer> offers(static_cast<size_t>(group.size()));
  const auto gathered = group.all_gather(bytes_of(std::span<const Offer>(&mine, 1)),
                                         std::as_writable_bytes(std::span(offers)));
  KERN_TRY_VOID(ready);
  KERN_TRY_VOID(gathered);
  for (size_t rank = 0; rank < offers.size(); ++rank)
    if (offers[rank].has_nccl == 0)
      return fail(Kind::device, "rank {} has no NCCL, and its own error says why", rank);
  KERN_TRY(made, cuda::Communicator::create(*nccl_, offers[0].id, group.rank(), group.size()));
  return &by_group_.emplace(std::string(group_name), std::move(made)).first->second;
}

Result<std::unique_ptr<BuiltIn>> CudaCollectives::lower(Collective what, cuda::ElementType type,
                                                        std::string_view group_name,
                                                        PeerGroup& group) {
  KERN_TRY(found, with_context(communicator(group_name, group), "group `{}`", group_name));
  return std::unique_ptr<BuiltIn>(std::make_unique<NcclCollective>(what, type, *found, stream_));
}

Result<void> CudaCollectives::poll() {
  Result<void> met;
  for (auto& [name, communicator] : by_group_) {
    met = with_context(communicator.poll(), "group `{}`", name);
    if (!met) break;
  }
  if (met) return {};
  // Whoever waits on the device for any group is let go, so that the stream comes to its end.
  for (auto& [name, communicator] : by_group_) communicator.abort();
  (void)stream_.synchronize();
  return met;
}

Result<void> CudaCollectives::synchronize() {
  if (by_group_.empty()) return stream_.synchronize();
  for (int64_t looks = 0;; ++looks) {
    KERN_TRY(idle, stream_.is_idle());
    if (idle || looks % kLooksAPoll == 0) KERN_TRY_VOID(poll());
    if (idle) return {};
    std::this_thread::yield();
  }
}

Result<void> CudaCollectives::wait(const cuda::Event& event) {
  if (by_group_.empty()) return event.synchronize();
  for (int64_t looks = 0;; ++looks) {
    KERN_TRY(done, event.is_done());
    if (done || looks % kLooksAPoll == 0) KERN_TRY_VOID(poll());
    if (done) return {};
    std::this_thread::yield();
  }
}

}  // namespace kern::runtime
