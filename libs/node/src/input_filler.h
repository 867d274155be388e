#pragma once
/// Writes an item into a runtime's inputs, role by role. Where everything lies is found once.

#include <vector>

#include "kern/engine/item.h"
#include "kern/manifest/protocol.h"
#include "kern/runtime/runtime.h"

namespace kern::node {

/// A buffer with a role, and its memory.
struct RoleBuffer {
  manifest::Fill fill = manifest::Fill::token;
  manifest::Dtype dtype = manifest::Dtype::i32;
  manifest::Along along = manifest::Along::rows;
  int64_t width = 1;
  std::byte* data = nullptr;
  int64_t fixed_extent = 0;  ///< when the outermost extent is a constant; 0 when it is a var
};

/// How a group divides the positions of the paged states; one member holds all by default.
struct PositionShard {
  int64_t member = 0;
  int64_t members = 1;
};

class InputFiller {
 public:
  /// Kind manifest for a role or a table form that this filler does not know.
  static Result<InputFiller> create(const manifest::Verified& manifest,
                                    const manifest::Protocol& protocol, runtime::Runtime& runtime,
                                    PositionShard shard);

  /// Kind caller when a slice needs more pages than it names or than a table holds.
  Result<void> check(const engine::Item& item) const;
  /// Fills every input; the item has been checked.
  void fill(const engine::Item& item);

 private:
  struct Table {
    manifest::PageTable shape;
    std::byte* data = nullptr;
    std::vector<int64_t> used;  ///< entries of each row that hold a page
  };
  struct Lines {
    manifest::LineTable shape;
    std::byte* data = nullptr;
  };

  Result<void> add_tables(const manifest::Protocol& protocol, runtime::Runtime& runtime);
  int64_t token_slot(const engine::Slice& slice, int64_t position) const;
  void fill_rows(const RoleBuffer& to, const engine::Item& item) const;
  void fill_groups(const RoleBuffer& to, const engine::Item& item) const;
  void fill_boundaries(const RoleBuffer& to, const engine::Item& item) const;
  void pad(const RoleBuffer& to, int64_t filled) const;
  void fill_table(Table& table, const engine::Item& item) const;
  void fill_lines(const Lines& lines, const engine::Item& item) const;

  std::vector<RoleBuffer> roles_;
  std::vector<Table> tables_;
  std::vector<Lines> lines_;
  PositionShard shard_;
  int64_t page_tokens_ = 0;     ///< 0: no paged state is indexed
  int64_t snapshot_lines_ = 1;  ///< lines a slot, as the snapshot input counts them
};

}  // namespace kern::node
