#include "kern/manifest/verify.h"

#include <bit>
#include <functional>
#include <limits>

#include "kern/base/assert.h"
#include "lines.h"
#include "scope.h"

namespace kern::manifest {
namespace {

/// Numbered as in verify.h.
constexpr void (*kRules[])(const Scope&) = {
    verify_names, verify_vars,       verify_states,  verify_buffers,  verify_domains,
    verify_fills, verify_binds,      verify_modules, verify_ops,      verify_launches,
    verify_packs, verify_builtins,   verify_calls,   verify_dataflow, verify_batch,
    verify_cut,   verify_extensions, verify_unused};

}  // namespace

std::string to_text(const Diagnostics& diagnostics) {
  std::string out;
  for (const Diagnostic& d : diagnostics)
    out += fmt::format("{}: {}\n", d.pointer.empty() ? "/" : d.pointer, d.sentence);
  return out;
}

Error to_error(const Diagnostics& diagnostics, std::string_view what) {
  std::string text = to_text(diagnostics);
  while (text.ends_with('\n')) text.pop_back();
  return Error{Kind::manifest,
               fmt::format("{} has {} problem{}:\n{}", what, diagnostics.size(),
                           diagnostics.size() == 1 ? "" : "s", text),
               {}};
}

void NameIndex::reserve(size_t names) {
  KERN_ASSERT(names < std::numeric_limits<uint32_t>::max() / 4);
  names_.reserve(names);
  slots_.resize(std::bit_ceil(2 * names + 1));
}

size_t NameIndex::slot_of(std::string_view name) const {
  size_t slot = std::hash<std::string_view>()(name) & (slots_.size() - 1);
  while (slots_[slot] != 0 && names_[slots_[slot] - 1] != name)
    slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void NameIndex::add(std::string_view name) {
  names_.push_back(name);
  uint32_t& slot = slots_[slot_of(name)];
  if (slot == 0) slot = static_cast<uint32_t>(names_.size());
}

std::optional<size_t> NameIndex::find(std::string_view name) const {
  if (slots_.empty()) return std::nullopt;
  const uint32_t slot = slots_[slot_of(name)];
  if (slot == 0) return std::nullopt;
  return slot - 1;
}

Index::Index(const Manifest& m)
    : vars(m.vars),
      groups(m.groups),
      states(m.states),
      buffers(m.buffers),
      modules(m.modules),
      ops(m.ops),
      programs(m.programs) {}

Verified::Verified(std::unique_ptr<const Manifest> manifest)
    : manifest_(std::move(manifest)),
      index_(std::make_unique<const Index>(*manifest_)),
      vars_max_(max_values(*manifest_)) {
  buffer_bytes_max_.reserve(manifest_->buffers.size());
  for (const Buffer& buffer : manifest_->buffers) {
    const auto bytes = bytes_of(buffer.dtype, buffer.shape, at_bounds());
    KERN_ASSERT(bytes.has_value(), "buffer `{}` was verified", buffer.name);
    buffer_bytes_max_.push_back(*bytes);
  }
}

namespace {

template <class T>
const T* find_in(const std::vector<T>& list, const NameIndex& names, std::string_view name) {
  const auto at = names.find(name);
  return at ? &list[*at] : nullptr;
}

}  // namespace

const Var* Verified::var(std::string_view name) const {
  return find_in(manifest_->vars, index_->vars, name);
}
const Group* Verified::group(std::string_view name) const {
  return find_in(manifest_->groups, index_->groups, name);
}
const State* Verified::state(std::string_view name) const {
  return find_in(manifest_->states, index_->states, name);
}
const Buffer* Verified::buffer(std::string_view name) const {
  return find_in(manifest_->buffers, index_->buffers, name);
}
const Module* Verified::module(std::string_view name) const {
  return find_in(manifest_->modules, index_->modules, name);
}
const Op* Verified::op(std::string_view name) const {
  return find_in(manifest_->ops, index_->ops, name);
}
const Program* Verified::program(std::string_view name) const {
  return find_in(manifest_->programs, index_->programs, name);
}

int64_t Verified::bytes_max(const Buffer& buffer) const {
  const auto at = index_->buffers.find(buffer.name);
  KERN_ASSERT(at.has_value(), "buffer `{}` is of another manifest", buffer.name);
  return buffer_bytes_max_[*at];
}

tl::expected<Verified, Diagnostics> verify(Manifest manifest) {
  auto owned = std::make_unique<const Manifest>(std::move(manifest));
  Diagnostics diagnostics;
  {
    const Index index(*owned);
    const std::vector<int64_t> at_max = max_values(*owned);
    const std::vector<int64_t> at_min(owned->vars.size(), 1);
    const Scope scope(*owned, index, at_max, at_min, diagnostics);
    for (const auto rule : kRules) rule(scope);
  }
  if (!diagnostics.empty()) return tl::unexpected<Diagnostics>(std::move(diagnostics));
  return Verified(std::move(owned));
}

tl::expected<Verified, Diagnostics> load(std::string_view json) {
  auto manifest = parse(json);
  if (!manifest) return tl::unexpected<Diagnostics>(std::move(manifest.error()));
  auto verified = verify(std::move(*manifest));
  if (!verified) add_lines(json, verified.error());
  return verified;
}

}  // namespace kern::manifest
