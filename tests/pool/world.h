#pragma once
// A world around one pool: fake memory whose every cell is stamped by who wrote it, the handles in
// hand, and for each of them what it must read and where. The reference is simpler than the pool:
// it counts nothing, it scans what the handles name. `step` does one operation, chosen by a
// Chooser, predicts its outcome and executes its plan; `verify` checks every view.

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kern/pool/pool.h"
#include "kern/pool/prefix.h"

namespace kern_test {

// Where choices come from: a seeded generator, an odometer that tries them all, bytes.
class Chooser {
 public:
  virtual ~Chooser() = default;
  virtual uint32_t below(uint32_t bound) = 0;  // in [0, bound), bound > 0
};

// What does not hold, and the trace as far as it was kept.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Setup {
  kern::pool::Geometry geometry;
  bool by_cost = false;  // both tiers evict by recompute cost a byte, else the least recently hit
  bool narrow = false;   // one token at a time and the fewest prompts that matter, to enumerate
  bool traced = false;   // keeps the trace
};

// Roomy and tight, with and without recurrent state, host memory and an order by cost; pages of one
// token and of several.
std::span<const Setup> setups();

class World {
 public:
  World(const Setup& setup, Chooser& choose);

  // One operation, its outcome predicted. False: it had nothing to work on.
  bool step();
  // That every handle reads what it must and the occupancy is what the handles name.
  void verify() const;
  // Everything that happened so far, with every number of every plan, one operation a line.
  const std::string& trace() const { return trace_; }
  // What the future depends on: two worlds with equal keys differ in the numbers of device places
  // and in who wrote what, and nothing else. Only without costs.
  std::string key() const;
  // How many operations of each kind were done or denied.
  const std::vector<uint32_t>& done() const { return done_; }
  static constexpr uint32_t kOperations = 22;
  static constexpr uint32_t kResident = 14;  // of them, those that need no host tier

 private:
  using Stamps = std::vector<uint64_t>;
  using Tokens = std::vector<int32_t>;
  using Counts = std::vector<uint32_t>;

  // What a prefix reads as: its tokens, the stamp of every position, and the recurrent state.
  struct Text {
    Tokens tokens;
    Stamps stamps;
    uint64_t state = 0;
    uint32_t len() const { return static_cast<uint32_t>(stamps.size()); }
  };
  // The numbers a handle was granted.
  struct Places {
    std::vector<uint32_t> pages;
    uint32_t slot = 0;
    bool operator==(const Places&) const = default;
  };
  struct Writer {
    kern::pool::Lease lease;
    Text text;
    Places at;
  };
  struct Reader {
    kern::pool::Checkpoint checkpoint;
    Text text;
    Places at;
  };
  struct Sleeper {
    kern::pool::Parked parked;
    Text text;
    Places at;
  };
  // What a tier of the tree must hold, where it was when it went in.
  struct Entry {
    Text text;
    Places at;
    uint64_t last_hit = 0;
    double worth = 0;
    bool interior = false;  // whether one that continues it is there
  };
  struct Entries {
    std::vector<Entry> all;
    uint64_t uses = 0;
    double age = 0;
    // Since when there is an entry that begins so; kept where a lookup may end inside one.
    std::map<Tokens, uint64_t> since;
  };
  // How many handles name each place.
  struct Names {
    Counts pages, slots;
    uint32_t writable = 0;  // pages that a lease may still write
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

  uint32_t one_of(size_t count) { return choose_.below(static_cast<uint32_t>(count)); }
  uint32_t some_positions(const Writer& writer);
  void append(Writer& writer, uint32_t count);
  void execute(const kern::pool::Copies& copies);
  Text prefix(const Text& text, uint32_t len) const;
  uint32_t pages_for(uint32_t tokens) const;
  Names names() const;
  kern::pool::Amount free_now(const Names& names) const;
  std::optional<kern::pool::Denied> denied(uint32_t row, kern::pool::Amount beside,
                                           kern::pool::Amount need) const;

  // The host tier. Which places hold the same bytes in both tiers follows from the plans alone.
  void transfer(const kern::pool::Transfers& transfers, bool to_host);
  kern::pool::Amount parking_need(const Reader& reader) const;
  void forget_twins();
  Names host_names() const;
  void scramble_host();
  std::optional<kern::pool::Denied> host_denied(uint32_t len, kern::pool::Amount need) const;
  uint64_t host_cell(uint64_t offset) const;

  // The tree.
  Tokens prompt();
  void enter(Entries& entries, Entry entry);
  void hit(Entries& entries, Entry& entry);
  void leave(Entries& entries, size_t which);
  double worth(const Entries& entries, const Entry& entry) const;
  void refresh(Entries& entries);
  // The entry to go first among those whose going frees a page, if wanted, or a slot, likewise;
  // when none does alone, of those that do together. all.size() if none.
  static size_t victim(const Entries& entries, const Names& names, bool pages, bool slots);
  static size_t first_to_go(const Entries& entries);
  // Of the entries that begin so, the one that a lookup takes: where they part, the branch that was
  // empty last.
  static size_t taken(const Entries& entries, Tokens begin);
  std::string branches(const Entries& entries, const Tokens& tokens) const;
  size_t expected_hit(const Entries& entries, const Tokens& tokens, uint32_t& len) const;

  // The key, before what is alike is put in order.
  struct Line;
  std::vector<Line> lines() const;
  std::string rendered(const std::vector<Line>& lines, const std::vector<size_t>& order) const;

  void verify_text(const Text& text, const Places& at, const char* who) const;
  void verify_parked(const Text& text, const Places& at) const;
  void verify_occupancy() const;
  void verify_host() const;
  void require(bool holds, const char* what) const {
    if (!holds) fail(what);
  }
  [[noreturn]] void fail(const std::string& what) const;
  void require_denied(const kern::pool::Denied& got,
                      const std::optional<kern::pool::Denied>& expected) const;

  template <class... Parts>
  void note(const Parts&... parts) {
    if (!setup_.traced) return;
    (append_part(parts), ...);
    trace_ += '\n';
  }
  void append_part(const char* text) { trace_ += text; }
  void append_part(uint32_t number) { trace_ += ' ' + std::to_string(number); }
  void append_part(const Tokens& tokens);
  void append_part(const Places& at);
  void append_part(const kern::pool::Copies& copies);
  void append_part(const kern::pool::Denied& denied);
  void append_part(const kern::pool::Transfers& transfers);

  const Setup setup_;
  const kern::pool::Geometry& geometry_;
  Chooser& choose_;
  kern::pool::Pool pool_;
  std::vector<std::vector<uint64_t>> page_cells_;
  std::vector<uint64_t> slot_cells_;
  std::vector<uint8_t> host_memory_;
  std::map<uint32_t, uint32_t> page_twins_, slot_twins_;  // device to host
  std::vector<Writer> writers_;
  std::vector<Reader> readers_;
  std::vector<Sleeper> sleepers_;
  Entries entries_, parked_entries_;
  kern::pool::PrefixTree tree_;
  uint64_t stamps_ = 0;
  std::vector<uint32_t> done_;
  std::string trace_;
};

}  // namespace kern_test
