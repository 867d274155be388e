#include "kern/runtime/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "built_ins.h"
#include "cuda_built_ins.h"
#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "lower.h"

namespace kern::runtime {
namespace {

using manifest::BufferKind;
using manifest::Verified;

constexpr int64_t kAddressesBegin = 4096;  // null is no address
constexpr int64_t kAddressesApart = 256;   // as an allocation of a device is aligned at least

/// Stands for the other ranks, which nobody calls while planning.
class PlannedPeers final : public PeerGroup {
 public:
  explicit PlannedPeers(int64_t size) : size_(static_cast<int>(size)) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  Result<void> all_gather(ByteSpan, MutableByteSpan) override { return none(); }
  Result<void> all_to_all(ByteSpan, MutableByteSpan) override { return none(); }

 private:
  static Result<void> none() {
    KERN_ASSERT(false, "a plan does not run");
    return {};
  }
  int size_;
};

/// Addresses for everything, one after the other. The layout's sum is known to fit.
class AddressCounter {
 public:
  std::byte* take(int64_t bytes) {
    const auto at = static_cast<uintptr_t>(next_);
    next_ += round_up(std::max<int64_t>(bytes, 1), kAddressesApart);
    return reinterpret_cast<std::byte*>(at);
  }

 private:
  int64_t next_ = kAddressesBegin;
};

Addresses counted_addresses(const Verified& manifest, const Layout& layout) {
  Addresses out;
  AddressCounter counter;
  for (const int64_t bytes : layout.state_bytes) out.states.push_back(counter.take(bytes));
  for (size_t i = 0; i < manifest->buffers.size(); ++i) {
    const bool placed = is_short_lived(manifest->buffers[i]);
    out.buffers.push_back(placed ? nullptr : counter.take(manifest.bytes_max(i)));
    out.views.push_back(is_staged(manifest->buffers[i]) ? out.buffers.back() : nullptr);
  }
  out.arena = counter.take(layout.arena_bytes);
  return out;
}

/// Notes the entries that a load would look for; answers with stand-ins.
class PlannedTarget final : public Target {
 public:
  PlannedTarget(const Verified& manifest, std::vector<NeededEntry>& entries)
      : manifest_(manifest), entries_(entries) {}

  Result<const void*> kernel(const LaunchSource& source) override {
    if (seen_.emplace(source.module, source.launch.entry).second)
      entries_.push_back({manifest_->modules[source.module].name, source.launch.entry});
    return this;
  }
  Result<LoweredBuiltIn> built_in(const LaunchSource& source) override {
    return manifest_->device == manifest::Device::host ? lower_host_built_in(source, nullptr)
                                                       : lower_cuda_built_in(source, nullptr);
  }
  Result<void> tensormap(const manifest::Tensormap&, const std::byte*, int64_t,
                         std::byte*) override {
    return {};
  }

 private:
  const Verified& manifest_;
  std::vector<NeededEntry>& entries_;
  std::set<std::pair<size_t, std::string>> seen_;
};

/// Lowers every program with stand-ins for whatever a load would have read.
class Planner {
 public:
  Planner(const Verified& manifest, const Layout& layout)
      : manifest_(manifest), layout_(layout), addresses_(counted_addresses(manifest, layout)) {
    groups_.reserve(manifest->groups.size());
    for (const manifest::Group& group : manifest->groups) {
      groups_.emplace_back(group.size);
      peers_[group.name] = &groups_.back();
      ranks_[group.name] = 0;
    }
  }

  Result<Plan> run() {
    memory();
    for (size_t p = 0; p < manifest_->programs.size(); ++p) KERN_TRY_VOID(program(p));
    return std::move(plan_);
  }

 private:
  void memory() {
    for (const int64_t bytes : layout_.state_bytes) plan_.state_bytes += bytes;
    for (size_t i = 0; i < manifest_->buffers.size(); ++i) {
      const manifest::Buffer& buffer = manifest_->buffers[i];
      if (buffer.kind == BufferKind::weight) plan_.weight_bytes += manifest_.bytes_max(i);
      if (has_own_memory(buffer)) plan_.buffer_bytes += manifest_.bytes_max(i);
    }
    plan_.arena_bytes = layout_.arena_bytes;
  }

  Result<void> program(size_t index) {
    const manifest::Program& program = manifest_->programs[index];
    PlannedProgram& planned = plan_.programs.emplace_back();
    planned.name = program.name;
    planned.arena_bytes = layout_.programs[index].bytes;
    const LowerContext context{manifest_, layout_, addresses_, target_, ranks_, peers_};
    // A load lowers a derive program call by call, between which sources come and go.
    const size_t step = program.derive ? 1 : std::max<size_t>(program.calls.size(), 1);
    for (size_t first = 0; first < program.calls.size(); first += step) {
      KERN_TRY(lowered, lower(context, index, first, first + step));
      planned.launches += static_cast<int64_t>(lowered.launches.size());
      plan_.shared_bytes_max = std::max(plan_.shared_bytes_max, lowered.shared_bytes_max);
      plan_.collective_bytes_max =
          std::max(plan_.collective_bytes_max, lowered.collective_bytes_max);
    }
    return {};
  }

  const Verified& manifest_;
  const Layout& layout_;
  Addresses addresses_;
  std::vector<PlannedPeers> groups_;
  std::map<std::string, PeerGroup*> peers_;
  Ranks ranks_;
  Plan plan_;
  PlannedTarget target_{manifest_, plan_.entries};
};

}  // namespace

Result<Plan> plan(const Verified& manifest, const Capacity& capacity) {
  KERN_TRY(layout, lay_out(manifest, capacity));
  return Planner(manifest, layout).run();
}

}  // namespace kern::runtime
