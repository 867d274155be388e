#pragma once
// A world around one pool: fake memory whose every cell is stamped by who wrote it, the handles in
// hand, and for each of them what it must read. The reference is simpler than the pool: it counts
// nothing, it scans what the handles name. `step` does one operation, chosen by a Chooser, predicts
// its outcome and executes its plan; `verify` checks every view.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

namespace kern_test {

// Where choices come from: a seeded generator, or an odometer that tries them all.
class Chooser {
 public:
  virtual ~Chooser() = default;
  virtual uint32_t below(uint32_t bound) = 0;  // in [0, bound), bound > 0
};

class World {
 public:
  World(const kern::pool::Geometry& geometry, Chooser& choose);

  // One operation, its outcome predicted. False: it had nothing to work on.
  bool step();
  // That every handle reads what it must and the occupancy is what the handles name.
  void verify() const;
  // Everything that happened so far, one operation a line.
  const std::string& trace() const { return trace_; }
  // How many operations of each kind were granted.
  const std::vector<uint32_t>& done() const { return done_; }
  static constexpr uint32_t kOperations = 22;
  static constexpr uint32_t kResident = 14;  // of them, those that need no host tier

 private:
  using Stamps = std::vector<uint64_t>;
  using Tokens = std::vector<int32_t>;

  // What a prefix reads as: its tokens, the stamp of every position, and the recurrent state.
  struct Text {
    Tokens tokens;
    Stamps stamps;
    uint64_t state = 0;
    uint32_t len() const { return static_cast<uint32_t>(stamps.size()); }
  };
  struct Writer {
    kern::pool::Lease lease;
    Text text;
  };
  struct Reader {
    kern::pool::Checkpoint checkpoint;
    Text text;
  };
  // What the tree must hold. The places are those the checkpoint had when it went in.
  struct Entry {
    Text text;
    std::vector<uint32_t> pages;
    uint32_t slot = 0;
    uint64_t last_hit = 0;
  };
  struct Sleeper {
    kern::pool::Parked parked;
    Text text;
  };
  struct HostNames {
    std::map<uint32_t, uint32_t> pages, slots;  // how many handles name each
  };
  struct Names {
    std::vector<uint32_t> pages, slots;  // how many handles name each
    uint32_t writable = 0;               // pages that a lease may still write
  };

  bool lease();
  bool write();
  bool checkpoint();
  bool checkpoint_ahead();
  bool retire();
  bool restore();
  bool fork();
  bool drop_lease();
  bool drop_checkpoint();
  bool share();
  bool insert();
  bool lookup();
  bool evict_one();
  bool evict_missing();
  bool park();
  bool wake();
  bool share_parked();
  bool drop_parked();
  bool insert_parked();
  bool lookup_any();
  bool evict_to_park();
  bool evict_parked();

  void append(Writer& writer, uint32_t count);
  void execute(const kern::pool::Copies& copies);
  Text prefix(const Text& text, uint32_t len) const;
  // Which pages and slots hold the same bytes in both tiers follows from the plans alone.
  void transfer(const kern::pool::Transfers& transfers, bool to_host);
  kern::pool::Amount parking_need(const Reader& reader) const;
  void forget_twins();
  HostNames host_names() const;
  void scramble_host();
  std::optional<kern::pool::Denied> host_denied(uint32_t len, kern::pool::Amount need) const;
  uint64_t host_cell(uint64_t offset) const;
  void verify_parked(const std::vector<uint32_t>& pages, uint32_t slot, const Text& text) const;
  void verify_host() const;
  uint32_t pages_for(uint32_t tokens) const;
  Names names() const;
  kern::pool::Amount free_now(const Names& names) const;
  std::optional<kern::pool::Denied> denied(uint32_t row, kern::pool::Amount beside,
                                           kern::pool::Amount need) const;
  Tokens prompt();
  static bool is_interior(const std::vector<Entry>& entries, const Entry& entry);
  size_t parked_victim() const;
  // The entry to go first among those that `missing` is helped by; entries_.size() if none.
  size_t victim(const Names& names, kern::pool::Amount missing, bool any) const;
  size_t expected_hit(const std::vector<Entry>& entries, const Tokens& tokens, uint32_t& len) const;

  void verify_text(const Text& text, const std::vector<uint32_t>& pages, uint32_t slot,
                   const char* who) const;
  void verify_occupancy() const;
  void require(bool holds, const char* what) const {
    if (!holds) fail(what);
  }
  [[noreturn]] void fail(const std::string& what) const;
  void require_denied(const kern::pool::Denied& got,
                      const std::optional<kern::pool::Denied>& expected) const;
  void note(const std::string& line) { trace_ += line + "\n"; }

  const kern::pool::Geometry geometry_;
  Chooser& choose_;
  kern::pool::Pool pool_;
  std::vector<std::vector<uint64_t>> page_cells_;
  std::vector<uint64_t> slot_cells_;
  std::vector<uint8_t> host_memory_;
  std::map<uint32_t, uint32_t> page_twins_, slot_twins_;  // device to host
  std::vector<Writer> writers_;
  std::vector<Reader> readers_;
  std::vector<Sleeper> sleepers_;
  std::vector<Entry> entries_, parked_entries_;
  kern::pool::PrefixTree tree_;
  uint64_t stamps_ = 0;
  uint64_t uses_ = 0, parked_uses_ = 0;
  std::vector<uint32_t> done_;
  std::string trace_;
};

}  // namespace kern_test
