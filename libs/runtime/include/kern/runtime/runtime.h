#pragma once
/// Loads a verified manifest, its pinned modules and a checkpoint, and runs programs blindly.
/// It knows no model: buffers, states and programs are found once by name and then by handle.
/// Thread safety: one thread at a time per Runtime; several Runtimes are independent.
/// Ownership: the checkpoint's catalog must outlive `load` only, unless Options::weights_in_place;
/// peer groups must outlive the Runtime.
/// Does not: decide what to run, or where a sequence's state lies.

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
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

namespace kern::runtime {

/// State memory of one process. Index 0 of pages and slots is never leased and stays zero until a
/// kernel writes it.
struct Capacity {
  int64_t pages = 0;        ///< pages of every paged state, page 0 included
  int64_t page_tokens = 0;  ///< tokens a page; the stride of the manifest's page tables
  int64_t slots = 0;        ///< slots of every per-sequence state, slot 0 included
};

struct Options {
  std::vector<std::filesystem::path> module_dirs;
  Capacity capacity;
  int threads = 1;  ///< worker threads that run grid blocks, the calling one included
  /// By group name; every group of the manifest, but one of a single rank may be left out.
  std::map<std::string, PeerGroup*> peers;
  /// Also searched for modules, as `blobs/<sha256>`; empty: no cache.
  std::filesystem::path cache_dir;
  /// A weight that lies whole in the checkpoint is used where it is mapped, without a copy. The
  /// catalog must then outlive the Runtime.
  bool weights_in_place = false;
};

/// The value of one var for one run.
struct VarValue {
  std::string_view name;
  int64_t value;
};

class Runtime {
 public:
  /// Reads modules (hash before use), binds weights, runs derive and once programs. `weights` may
  /// be null when the manifest binds none. Kinds: kernel_artifact, weight_artifact, manifest,
  /// device.
  static Result<std::unique_ptr<Runtime>> load(const manifest::Verified& manifest,
                                               const safetensors::Catalog* weights,
                                               const Options& options, const Log& log);
  virtual ~Runtime() = default;

  /// The bytes of an input, inout or output buffer at its bound, by name; empty when unknown.
  virtual MutableByteSpan buffer(std::string_view name) = 0;
  /// The bytes of a whole state; empty when unknown. A paged state is pages x page_tokens x
  /// bytes_per_token, a per-sequence state slots x bytes_per_seq.
  virtual MutableByteSpan state(std::string_view name) = 0;
  /// Copies page `from` onto page `to` in every paged state; likewise for slots. Zeroes a slot.
  virtual Result<void> copy_page(int64_t from, int64_t to) = 0;
  virtual Result<void> copy_slot(int64_t from, int64_t to) = 0;
  virtual Result<void> zero_slot(int64_t slot) = 0;

  /// Runs a program to its end. A var outside 1..max, or an input outside its declared domain, is a
  /// caller error and nothing ran; a lost peer is kind peer.
  virtual Result<void> run(std::string_view program, std::span<const VarValue> vars) = 0;

  /// Calls `see` with the bytes of a buffer, at its bound, after each call of that label in any
  /// program run from now on; an empty label means the last call that names the buffer. For people
  /// who compare layers; costs nothing until it is used. Kind caller when no call has the label or
  /// no buffer the name.
  using Observer = std::function<void(ByteSpan)>;
  virtual Result<void> observe(std::string_view label, std::string_view buffer, Observer see) = 0;
};

}  // namespace kern::runtime
