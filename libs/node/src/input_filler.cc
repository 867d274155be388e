#include "input_filler.h"

#include <algorithm>
#include <cstring>

#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "kern/manifest/shard.h"

namespace kern::node {
namespace {

using engine::Item;
using engine::Slice;
using manifest::Along;
using manifest::Dtype;
using manifest::Fill;

void put_integer(std::byte* data, Dtype dtype, int64_t at, int64_t value) {
  if (dtype == Dtype::i32) {
    const auto narrow = static_cast<int32_t>(value);
    std::memcpy(data + at * 4, &narrow, sizeof(narrow));
  } else {
    std::memcpy(data + at * 8, &value, sizeof(value));
  }
}

void put_float(std::byte* data, int64_t at, float value) {
  std::memcpy(data + at * 4, &value, sizeof(value));
}

int64_t tokens_of(const Slice& slice) {
  return static_cast<int64_t>(slice.tokens.size());
}
int64_t length_after(const Slice& slice) {
  return int64_t{slice.start} + tokens_of(slice);
}

/// Whether the filler knows how to fill the role at that place.
bool is_known(const manifest::Filled& filled) {
  switch (filled.fill) {
    case Fill::token:
    case Fill::position:
    case Fill::slot:
    case Fill::fed_from:
      return filled.along == Along::rows && filled.width == 1;
    case Fill::valid:
      return (filled.along == Along::rows && filled.width == 1) || filled.along == Along::once;
    case Fill::cu_seqlens:
      return filled.along == Along::boundaries;
    case Fill::seq_len:
    case Fill::snapshot:
    case Fill::temperature:
    case Fill::top_p:
    case Fill::top_k:
    case Fill::min_p:
    case Fill::seed:
    case Fill::draw:
      return filled.along == Along::groups && filled.width == 1;
    default:
      return false;
  }
}

/// Lines a slot, from the domain of the snapshot input.
int64_t lines_of_snapshot(const manifest::Verified& manifest, std::string_view buffer) {
  const auto& domain = manifest.buffer(buffer)->domain;
  if (!domain || !domain->stride) return 1;
  const manifest::State* state = manifest.state(domain->index_into);
  return state == nullptr ? 1 : std::max<int64_t>(1, state->bytes / *domain->stride);
}

}  // namespace

Result<InputFiller> InputFiller::create(const manifest::Verified& manifest,
                                        const manifest::Protocol& protocol,
                                        runtime::Runtime& runtime, PositionShard shard) {
  InputFiller filler;
  filler.shard_ = shard;
  filler.page_tokens_ = protocol.page_tokens;
  for (const manifest::Filled& filled : protocol.inputs) {
    if (!is_known(filled))
      return fail(Kind::manifest, "input `{}`: this server does not fill the role `{}` in its form",
                  filled.buffer, manifest::to_string(filled.fill));
    const MutableByteSpan bytes = runtime.buffer(filled.buffer);
    KERN_ASSERT(!bytes.empty(), "input `{}`", filled.buffer);
    if (filled.fill == Fill::snapshot)
      filler.snapshot_lines_ = lines_of_snapshot(manifest, filled.buffer);
    const manifest::Dim& outer = manifest.buffer(filled.buffer)->shape[0];
    filler.roles_.push_back({filled.fill, filled.dtype, filled.along, filled.width, bytes.data(),
                             outer.is_var() ? 0 : outer.value});
  }
  KERN_TRY_VOID(filler.add_tables(protocol, runtime));
  return filler;
}

Result<void> InputFiller::add_tables(const manifest::Protocol& protocol,
                                     runtime::Runtime& runtime) {
  for (const manifest::PageTable& table : protocol.page_tables) {
    const MutableByteSpan bytes = runtime.buffer(table.buffer);
    KERN_ASSERT(!bytes.empty(), "page table `{}`", table.buffer);
    tables_.push_back(
        {table, bytes.data(), std::vector<int64_t>(static_cast<size_t>(table.seqs_max), 0)});
  }
  for (const manifest::LineTable& lines : protocol.line_tables) {
    if (lines.width != 1)
      return fail(Kind::manifest, "line table `{}`: this server fills one line a sequence, got {}",
                  lines.buffer, lines.width);
    const MutableByteSpan bytes = runtime.buffer(lines.buffer);
    KERN_ASSERT(!bytes.empty(), "line table `{}`", lines.buffer);
    lines_.push_back({lines, bytes.data()});
  }
  return {};
}

Result<void> InputFiller::check(const Item& item) const {
  for (const Slice& slice : item.slices) {
    if (slice.tokens.empty())
      return fail(Kind::caller, "item {}: request {} feeds no token", item.id,
                  slice.request.value());
    if (page_tokens_ == 0) continue;
    const int64_t held = manifest::rows_held(length_after(slice), {shard_.member, shard_.members});
    const int64_t needed = ceil_div(held, page_tokens_);
    const auto named = static_cast<int64_t>(slice.pages.size());
    if (needed > named)
      return fail(Kind::caller, "item {}: request {} needs {} pages for {} tokens, got {}", item.id,
                  slice.request.value(), needed, length_after(slice), named);
    for (const Table& table : tables_)
      if (needed > table.shape.width)
        return fail(Kind::caller, "item {}: request {} needs {} pages, a row of `{}` holds {}",
                    item.id, slice.request.value(), needed, table.shape.buffer, table.shape.width);
  }
  return {};
}

/// Where the row of a position lies on this member; 0, which is never leased, where it lies on
/// another.
int64_t InputFiller::token_slot(const Slice& slice, int64_t position) const {
  if (manifest::member_of(position, shard_.members) != shard_.member) return 0;
  const int64_t row = manifest::row_of(position, shard_.members);
  const auto page = static_cast<size_t>(row / page_tokens_);
  KERN_ASSERT(page < slice.pages.size(), "page {} of {}", page, slice.pages.size());
  return int64_t{slice.pages[page]} * page_tokens_ + row % page_tokens_;
}

void InputFiller::fill_rows(const RoleBuffer& to, const Item& item) const {
  int64_t row = 0;
  for (const Slice& slice : item.slices)
    for (int64_t i = 0; i < tokens_of(slice); ++i, ++row) {
      int64_t value = 1;  // valid
      if (to.fill == Fill::token) value = slice.tokens[static_cast<size_t>(i)];
      if (to.fill == Fill::fed_from) value = slice.fed_from;
      if (to.fill == Fill::position) value = int64_t{slice.start} + i;
      if (to.fill == Fill::slot)
        value = page_tokens_ == 0 ? 0 : token_slot(slice, int64_t{slice.start} + i);
      put_integer(to.data, to.dtype, row, value);
    }
  pad(to, row);
}

void InputFiller::fill_groups(const RoleBuffer& to, const Item& item) const {
  for (size_t g = 0; g < item.slices.size(); ++g) {
    const Slice& slice = item.slices[g];
    const auto at = static_cast<int64_t>(g);
    switch (to.fill) {
      case Fill::seq_len:
        put_integer(to.data, to.dtype, at, length_after(slice));
        break;
      case Fill::snapshot:
        put_integer(to.data, to.dtype, at, int64_t{slice.snapshot_slot} * snapshot_lines_);
        break;
      case Fill::temperature:
        put_float(to.data, at, slice.sampling.temperature);
        break;
      case Fill::top_p:
        put_float(to.data, at, slice.sampling.top_p);
        break;
      case Fill::min_p:
        put_float(to.data, at, slice.sampling.min_p);
        break;
      case Fill::top_k:
        put_integer(to.data, to.dtype, at, slice.sampling.top_k);
        break;
      case Fill::seed:
        put_integer(to.data, to.dtype, at, static_cast<int64_t>(slice.sampling.seed));
        break;
      case Fill::draw:
        put_integer(to.data, to.dtype, at, slice.draw);
        break;
      default:
        KERN_ASSERT(false, "role `{}`", manifest::to_string(to.fill));
    }
  }
}

void InputFiller::fill_boundaries(const RoleBuffer& to, const Item& item) const {
  int64_t rows = 0;
  put_integer(to.data, to.dtype, 0, 0);
  for (size_t g = 0; g < item.slices.size(); ++g) {
    rows += tokens_of(item.slices[g]);
    put_integer(to.data, to.dtype, static_cast<int64_t>(g) + 1, rows);
  }
  pad(to, static_cast<int64_t>(item.slices.size()) + 1);
}

/// An input of constant extent is checked to its end: what the item does not reach repeats the last
/// value, so that sums stay sums and bounds hold, or is place 0, which nobody leases.
void InputFiller::pad(const RoleBuffer& to, int64_t filled) const {
  const int64_t size = manifest::size_of(to.dtype);
  const bool place = to.fill == Fill::slot || to.fill == Fill::snapshot;
  for (int64_t at = filled; at < to.fixed_extent; ++at) {
    if (place)
      put_integer(to.data, to.dtype, at, 0);
    else
      std::memcpy(to.data + at * size, to.data + (filled - 1) * size, static_cast<size_t>(size));
  }
}

/// Entries behind a sequence's pages are page 0, so that the same item always leaves the same
/// bytes.
void InputFiller::fill_table(Table& table, const Item& item) const {
  const int64_t width = table.shape.width;
  for (size_t g = 0; g < item.slices.size(); ++g) {
    const std::vector<uint32_t>& pages = item.slices[g].pages;
    const auto row = static_cast<int64_t>(g) * width;
    const int64_t named = std::min(static_cast<int64_t>(pages.size()), width);
    for (int64_t i = 0; i < named; ++i)
      put_integer(table.data, table.shape.dtype, row + i, pages[static_cast<size_t>(i)]);
    for (int64_t i = named; i < table.used[g]; ++i)
      put_integer(table.data, table.shape.dtype, row + i, 0);
    table.used[g] = named;
  }
}

void InputFiller::fill_lines(const Lines& lines, const Item& item) const {
  const auto seqs = static_cast<int64_t>(item.slices.size());
  for (int64_t line = 0; line < lines.shape.lines; ++line)
    for (int64_t g = 0; g < seqs; ++g)
      put_integer(
          lines.data, lines.shape.dtype, line * seqs + g,
          int64_t{item.slices[static_cast<size_t>(g)].slot} * lines.shape.lines_per_slot + line);
}

void InputFiller::fill(const Item& item) {
  for (const RoleBuffer& role : roles_) {
    switch (role.along) {
      case Along::rows:
        fill_rows(role, item);
        break;
      case Along::groups:
        fill_groups(role, item);
        break;
      case Along::boundaries:
        fill_boundaries(role, item);
        break;
      case Along::once: {
        int64_t rows = 0;
        for (const Slice& slice : item.slices) rows += tokens_of(slice);
        put_integer(role.data, role.dtype, 0, rows);
        break;
      }
      case Along::members:
        KERN_ASSERT(false, "refused by create");
        break;
    }
  }
  for (Table& table : tables_) fill_table(table, item);
  for (const Lines& lines : lines_) fill_lines(lines, item);
}

}  // namespace kern::node
