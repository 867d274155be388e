#pragma once
/// What a server must know to drive a manifest, derived from `batch`, `fill`, `domain` and `axis`
/// alone: which program serves how many sequences, and how every input is to be filled. Nobody
/// above this looks a buffer up by a name of their own. Thread safety: plain values; `check` is
/// pure. Ownership: a Protocol copies the names it holds and refers to no manifest. Does not:
/// choose what to run, or where a sequence's state lies.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kern/manifest/verify.h"

namespace kern::manifest {

/// Along what the outermost extent of a filled buffer runs.
enum class Along : uint8_t {
  rows,        ///< one element (or `width`) a row
  groups,      ///< one a sequence
  boundaries,  ///< one a sequence and one more: cu_seqlens
  members,     ///< one a member of the group and one more: blocks
  once,        ///< one word in all
};

/// A buffer with a fill role.
struct Filled {
  std::string buffer;
  Fill fill = Fill::token;
  Dtype dtype = Dtype::i32;
  Along along = Along::rows;
  int64_t width = 1;  ///< elements per step of `along`
};

/// An input that indexes a paged state: [sequences, width] page numbers of `page_tokens` tokens.
struct PageTable {
  std::string buffer;
  std::string state;
  Dtype dtype = Dtype::i32;
  int64_t seqs_max = 0;
  int64_t width = 0;
  int64_t page_tokens = 0;
};

/// An input that indexes a per-sequence state in lines: [lines], [lines, sequences] or [lines,
/// sequences, width]. Line l of slot s is number s * lines_per_slot + l.
struct LineTable {
  std::string buffer;
  std::string state;
  Dtype dtype = Dtype::i32;
  int64_t lines = 0;
  int64_t seqs_max = 0;  ///< 0 for the form [lines]
  int64_t width = 1;
  int64_t line_bytes = 0;
  int64_t lines_per_slot = 1;
};

/// A program that serves sequences: one that has a `batch`.
struct Service {
  std::string program;
  int64_t groups_max = 0;
  std::optional<int64_t> rows_each;  ///< exactly so many a sequence; empty: the rows var
  int64_t rows_max = 0;              ///< in all
  std::string context_var;           ///< empty when there is none
  bool emits = false;                ///< writes an output whose fill is `tokens`
  bool graph = false;                ///< may be captured, once for each assignment of its vars
};

struct Protocol {
  static tl::expected<Protocol, Diagnostics> check(const Verified& manifest);

  std::string rows_var, groups_var;  ///< set to the item's rows and sequences
  std::string ranks_var;             ///< empty when no var has that axis
  std::vector<Service> services;
  std::vector<std::string> once_programs, derive_programs;
  std::vector<Filled> inputs, outputs;
  std::vector<PageTable> page_tables;
  std::vector<LineTable> line_tables;
  int64_t page_tokens = 0;  ///< of every page table; 0 when there is none
  /// Buffers a stage takes from the one before and hands to the one after (manifest, section 7).
  std::vector<std::string> received, sent;

  /// The filled input or output of a role; null when the manifest has none.
  const Filled* input(Fill fill) const;
  const Filled* output(Fill fill) const;
  /// The program for prompts: any number of rows a sequence. Null when none fits.
  const Service* for_prompts(int64_t seqs, int64_t rows) const;
  /// The program for exactly `rows_each` rows of every sequence, the one with the fewest groups
  /// that fits; else one that takes any number of rows. Null when none fits.
  const Service* choose(int64_t seqs, int64_t rows_each) const;
};

}  // namespace kern::manifest
