#pragma once
/// Loads a verified manifest, its pinned modules and a checkpoint, and runs programs blindly.
/// It knows no model: buffers, states and programs are found once by name and then by handle. The
/// manifest says on which device: the host (CPU modules, threads of this process) or a GPU.
/// Thread safety: one thread at a time per Runtime, but for what says otherwise; several Runtimes
/// are independent.
/// Ownership: the checkpoint's catalog must outlive `load` only, unless Options::weights_in_place;
/// peer groups must outlive the Runtime.
/// Does not: decide what to run, or where a sequence's state lies.

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/bytes.h"
#include "kern/base/log.h"
#include "kern/manifest/verify.h"
#include "kern/runtime/peers.h"

namespace kern::safetensors {
class Catalog;
}
namespace kern::cuda {
class Driver;
class Nccl;
}  // namespace kern::cuda

namespace kern::runtime {

/// State memory of one process. Index 0 of pages and slots is never leased and stays zero until a
/// kernel writes it.
struct Capacity {
  int64_t pages = 0;        ///< pages of every paged state, page 0 included
  int64_t page_tokens = 0;  ///< tokens a page; the stride of the manifest's page tables
  int64_t slots = 0;        ///< slots of every per-sequence state, slot 0 included
};

class HostTier;

struct Options {
  std::vector<std::filesystem::path> module_dirs;
  Capacity capacity;
  int64_t host_tier_bytes = 0;  ///< of host memory for parked pages and slots; 0: no such tier
  /// Host: worker threads that run grid blocks, the calling one included. GPU: threads that copy
  /// weights while they load.
  int threads = 1;
  /// By group name; every group of the manifest, but one of a single rank may be left out.
  std::map<std::string, PeerGroup*> peers;
  /// Also searched for modules, as `blobs/<sha256>`; empty: no cache.
  std::filesystem::path cache_dir;
  /// Host only: a weight that lies whole in the checkpoint is used where it is mapped, without a
  /// copy. The catalog must then outlive the Runtime.
  bool weights_in_place = false;
  /// No checkpoint: weights and sources get pseudo-random values of this seed instead, at a usual
  /// magnitude and never NaN, the same bytes on every device. For shapes, not for answers.
  std::optional<uint64_t> synthetic_weights;

  // ---- GPU only ----
  int gpu = 0;  ///< the driver's number of the device
  /// A driver of the caller's, which must outlive the Runtime; null: the machine's own.
  const cuda::Driver* driver = nullptr;
  /// An NCCL of the caller's, which must outlive the Runtime; null: the machine's own, where a
  /// manifest has a collective over several ranks.
  const cuda::Nccl* nccl = nullptr;
  /// NCCL_NVLS_ENABLE=0 has stood in this process's environment since before it had threads;
  /// without it the machine's own NCCL, which would use multicast, is not loaded.
  bool multicast_is_off = false;
  /// Programs that the manifest lets be captured are launched one launch at a time all the same.
  bool eager = false;
  /// Most graphs that are kept, one an assignment of vars; the one used longest ago goes first.
  size_t graphs_max = 64;
  /// Outputs and inouts that a run brings back; absent: all that it names.
  std::optional<std::set<std::string, std::less<>>> read_back;
};

/// How long one launch of a run took, waiting for the one before it included.
struct LaunchTime {
  size_t call = 0;    ///< position in the program
  size_t launch = 0;  ///< position in the call's op
  double milliseconds = 0;
};

/// The value of one var for one run.
struct VarValue {
  std::string_view name;
  int64_t value;
};

class Runtime {
 public:
  /// Reads modules (hash before use), binds weights, runs derive and once programs. `weights` may
  /// be null when the manifest binds none, and is with Options::synthetic_weights. Kinds:
  /// kernel_artifact, weight_artifact, manifest, device, peer.
  static Result<std::unique_ptr<Runtime>> load(const manifest::Verified& manifest,
                                               const safetensors::Catalog* weights,
                                               const Options& options, const Log& log);
  virtual ~Runtime() = default;

  /// The caller's view of an input, inout or output at its bound, by name; empty when unknown.
  /// Between `enqueue` and `synchronize` nobody touches it; what a program did not name keeps its
  /// bytes, and so does what lies beyond the vars' values.
  virtual MutableByteSpan buffer(std::string_view name) = 0;

  /// Bytes of a whole state; nothing when unknown. A paged state is pages x page_tokens x
  /// bytes_per_token, a per-sequence state slots x bytes_per_seq.
  virtual std::optional<int64_t> state_bytes(std::string_view name) const = 0;
  /// Part of a state, apart from what is enqueued: of bytes that no work under way touches, as
  /// everything that was synchronized has left them. From any thread. Kind caller when the state
  /// has no such bytes.
  virtual Result<void> read_state(std::string_view name, int64_t offset, MutableByteSpan to) = 0;
  virtual Result<void> write_state(std::string_view name, int64_t offset, ByteSpan from) = 0;
  /// The bytes themselves where the device is the host; empty when unknown or on a GPU.
  virtual MutableByteSpan state(std::string_view name) = 0;
  /// Copies page `from` onto page `to` in every paged state; likewise for slots. Zeroes a slot.
  /// In order with what is enqueued.
  virtual Result<void> copy_page(int64_t from, int64_t to) = 0;
  virtual Result<void> copy_slot(int64_t from, int64_t to) = 0;
  virtual Result<void> zero_slot(int64_t slot) = 0;
  /// Where pages and slots are parked (host_tier.h); null without Options::host_tier_bytes.
  virtual HostTier* host_tier() = 0;

  /// Starts a program. A var outside 1..max, or an input outside its declared domain, is a caller
  /// error and nothing runs; a lost peer is kind peer. The host runs it to its end here. One thread
  /// that drives several Runtimes whose kernels wait for each other enqueues on all before it
  /// synchronizes any.
  virtual Result<void> enqueue(std::string_view program, std::span<const VarValue> vars) = 0;
  /// Waits for all that was enqueued; outputs stand in their buffers then. Kind device: the end.
  virtual Result<void> synchronize() = 0;
  /// Both.
  Result<void> run(std::string_view program, std::span<const VarValue> vars);

  // ---- running ahead: the next program starts before the last one's outputs have been read ----
  //   launch(n); read_back(); loop { wait_inputs(); fill n + 1; launch(n + 1); wait_outputs();
  //   read the outputs of n; read_back(); }
  // Buffers may then be touched between these calls alone: inputs after `wait_inputs`, outputs from
  // `wait_outputs` to the next `read_back`. The host has everything done when `launch` returns, and
  // the next one writes over it: outputs that `outputs_are_here` says are there are read before it.

  /// `enqueue` that brings nothing back.
  virtual Result<void> launch(std::string_view program, std::span<const VarValue> vars) = 0;
  /// Starts to bring back what the last `launch` makes; to be called before the next one.
  virtual Result<void> read_back() = 0;
  /// Waits until every `launch` has taken its inputs.
  virtual Result<void> wait_inputs() = 0;
  /// Whether, and waits until, what the last `read_back` brings stands in its buffers; whatever was
  /// launched since may still be under way. Kinds as `synchronize`.
  virtual Result<bool> outputs_are_here() = 0;
  virtual Result<void> wait_outputs() = 0;

  /// Captures a program that the manifest lets be captured, at these vars, so that the first run at
  /// them is a replay. Runs nothing and reads no buffer; not between a `launch` and its
  /// `read_back`. Nothing to do on the host, with Options::eager, and where collectives run on
  /// NCCL, which connects at its first use: there the second run captures.
  virtual Result<void> capture(std::string_view program, std::span<const VarValue> vars) = 0;

  /// `run` launch by launch, never as a graph, with the device's clock read between launches (on a
  /// GPU some microseconds each, which the sum holds). Launches whose `when` does not hold are left
  /// out.
  virtual Result<std::vector<LaunchTime>> run_timed(std::string_view program,
                                                    std::span<const VarValue> vars) = 0;

  /// Calls `see` with the bytes of a buffer, at its bound, after each call of that label in any
  /// program run from now on; an empty label means the last call that names the buffer. For people
  /// who compare layers; costs nothing until it is used, and a GPU then waits at each such call.
  /// Kind caller when no call has the label or no buffer the name.
  using Observer = std::function<void(ByteSpan)>;
  virtual Result<void> observe(std::string_view label, std::string_view buffer, Observer see) = 0;
};

}  // namespace kern::runtime
