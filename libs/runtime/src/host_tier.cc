#include "host_tier.h"

#include <fstream>
#include <optional>

#include "kern/base/assert.h"
#include "kern/base/clock.h"

namespace kern::runtime {
namespace {

using manifest::State;

constexpr double kGib = 1024.0 * 1024 * 1024;

/// What the system says could be had without swapping; nothing where it does not say.
std::optional<int64_t> available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  int64_t kib = 0;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kib * 1024;
  }
  return std::nullopt;
}

/// A state's part of every place of its kind.
struct Part {
  std::byte* device = nullptr;  ///< of place 0
  int64_t bytes = 0;            ///< of one place
  int64_t offset = 0;           ///< in a place of the host
};

class HostTierOverStates final : public HostTier {
 public:
  HostTierOverStates(const manifest::Manifest& manifest, const Store& store, Device& device,
                     TierSize size, std::unique_ptr<TierMemory> memory)
      : size_(size), capacity_(store.capacity()), device_(device), memory_(std::move(memory)) {
    for (size_t i = 0; i < manifest.states.size(); ++i) {
      const State& state = manifest.states[i];
      if (state.size == State::Size::per_token)
        add(pages_, store.state(i), state.bytes * capacity_.page_tokens);
      if (state.size == State::Size::per_seq) add(slots_, store.state(i), state.bytes);
    }
  }
  ~HostTierOverStates() override {
    if (device_.enter()) (void)memory_->settle();
  }

  const TierSize& size() const override { return size_; }
  Result<uint64_t> move(std::span<const TierMove> moves) override {
    for (const TierMove& move : moves) KERN_TRY_VOID(check(move));
    copies_.clear();
    for (size_t i = 0; i < moves.size();) {
      size_t last = i;  // places one after the other in both memories move as one
      while (last + 1 < moves.size() && follows(moves[last], moves[last + 1])) ++last;
      add_copies(moves[i], static_cast<int64_t>(last - i + 1));
      i = last + 1;
    }
    KERN_TRY_VOID(device_.enter());
    return memory_->start(copies_);
  }
  Result<void> await(uint64_t ticket) override {
    KERN_TRY_VOID(device_.enter());
    return memory_->await(ticket);
  }
  Result<uint64_t> done() override {
    KERN_TRY_VOID(device_.enter());
    return memory_->done();
  }
  Result<void> settle() override {
    KERN_TRY_VOID(device_.enter());
    return memory_->settle();
  }

 private:
  static void add(std::vector<Part>& parts, std::byte* device, int64_t bytes) {
    const int64_t offset = parts.empty() ? 0 : parts.back().offset + parts.back().bytes;
    parts.push_back({device, bytes, offset});
  }
  static bool follows(const TierMove& one, const TierMove& next) {
    return !one.slot && !next.slot && one.way == next.way && next.device == one.device + 1 &&
           next.host == one.host + 1;
  }
  int64_t offset(bool slot, int64_t host) const {
    return slot ? size_.bytes - host * size_.slot_bytes : (host - 1) * size_.page_bytes;
  }
  Result<void> check(const TierMove& move) const;
  void add_copies(const TierMove& first, int64_t places);

  TierSize size_;
  Capacity capacity_;
  Device& device_;
  std::unique_ptr<TierMemory> memory_;
  std::vector<Part> pages_, slots_;
  std::vector<TierCopy> copies_;  ///< kept for its memory
};

/// A kind of place that no state has is nowhere, whatever its number.
Result<void> HostTierOverStates::check(const TierMove& move) const {
  if (move.slot ? slots_.empty() : pages_.empty()) return {};
  const char* const what = move.slot ? "slot" : "page";
  const int64_t count = move.slot ? capacity_.slots : capacity_.pages;
  if (move.device < 0 || move.device >= count)
    return fail(Kind::caller, "{} {} is outside the capacity of {}", what, move.device, count);
  const int64_t most = size_.bytes / (move.slot ? size_.slot_bytes : size_.page_bytes);
  if (move.host < 1 || move.host > most)
    return fail(Kind::caller, "{} {} of the host tier, which has room for {}", what, move.host,
                most);
  return {};
}

void HostTierOverStates::add_copies(const TierMove& first, int64_t places) {
  KERN_ASSERT(places == 1 || !first.slot, "{} slots", places);
  const int64_t at = offset(first.slot, first.host);
  for (const Part& part : first.slot ? slots_ : pages_)
    copies_.push_back({.to_host = first.way == TierMove::Way::park,
                       .device = part.device + first.device * part.bytes,
                       .host = memory_->data() + at + part.offset,
                       .row_bytes = part.bytes,
                       .rows = places,
                       .device_pitch = part.bytes,
                       .host_pitch = size_.page_bytes});
}

}  // namespace

TierSize tier_size(const manifest::Manifest& manifest, const Capacity& capacity, int64_t bytes) {
  TierSize size{.bytes = bytes};
  for (const State& state : manifest.states) {
    if (state.size == State::Size::per_token) size.page_bytes += state.bytes * capacity.page_tokens;
    if (state.size == State::Size::per_seq) size.slot_bytes += state.bytes;
  }
  return size;
}

Result<std::unique_ptr<HostTier>> make_host_tier(const manifest::Manifest& manifest,
                                                 const Store& store, Device& device, int64_t bytes,
                                                 const Log& log) {
  const TierSize size = tier_size(manifest, store.capacity(), bytes);
  if (bytes < size.page_bytes + size.slot_bytes)
    return fail(Kind::caller, "a host tier of {} bytes: one page and one slot take {}", bytes,
                size.page_bytes + size.slot_bytes);
  // The system would promise more than there is, and end the process when it is touched.
  if (const auto available = available_bytes(); available && bytes > *available)
    return fail(Kind::device, "a host tier of {:.2f} GiB: this machine has {:.2f} GiB available",
                static_cast<double>(bytes) / kGib, static_cast<double>(*available) / kGib);
  const SystemClock clock;
  const TimeNs start = clock.now();
  KERN_TRY(memory, with_context(device.make_tier(bytes), "a host tier of {:.2f} GiB",
                                static_cast<double>(bytes) / kGib));
  log.info("host tier: {:.2f} GiB {}, in {:.1f} s; a page takes {} bytes, a slot {}",
           static_cast<double>(bytes) / kGib, memory->describe(),
           static_cast<double>(clock.now() - start) / static_cast<double>(kSecondNs),
           size.page_bytes, size.slot_bytes);
  return std::unique_ptr<HostTier>(
      std::make_unique<HostTierOverStates>(manifest, store, device, size, std::move(memory)));
}

}  // namespace kern::runtime
