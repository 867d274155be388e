#include <algorithm>
#include <array>

#include "builtins.h"
#include "scope.h"

namespace kern::manifest {
namespace {

constexpr std::array<std::string_view, 8> kExtensions = {
    "host", "snapshot", "feedback", "sampling", "collectives", "meta", "series", "hand_on"};

/// The first place that needs each extension; empty where nothing does.
class Needs {
 public:
  void note(std::string_view extension, const std::string& pointer) {
    std::string& place = places_[position(extension)];
    if (place.empty()) place = pointer;
  }
  const std::string& place(std::string_view extension) const {
    return places_[position(extension)];
  }

 private:
  static size_t position(std::string_view extension) {
    return static_cast<size_t>(std::find(kExtensions.begin(), kExtensions.end(), extension) -
                               kExtensions.begin());
  }
  std::array<std::string, kExtensions.size()> places_;
};

std::string_view extension_of(Fill fill) {
  switch (fill) {
    case Fill::snapshot:
      return "snapshot";
    case Fill::fed_from:
      return "feedback";
    case Fill::temperature:
    case Fill::top_p:
    case Fill::top_k:
    case Fill::min_p:
    case Fill::seed:
    case Fill::draw:
    case Fill::logprob:
    case Fill::top_tokens:
    case Fill::top_logprobs:
      return "sampling";
    default:
      return {};
  }
}

void note_series(Needs& needs, const Buffer& buffer) {
  int64_t index = 0;
  for (const BindSegment& segment : buffer.bind) {
    if (segment.series && !segment.series->spelled_out)
      return needs.note(
          "series", fmt::format("{}/bind/{}/series", pointer_to("buffers", buffer.name), index));
    index += segment.written();
  }
}

Needs find_needs(const Manifest& m, const Index& index) {
  Needs needs;
  if (m.device == Device::host) needs.note("host", "/device");
  if (m.meta) needs.note("meta", "/meta");
  for (const Buffer& buffer : m.buffers) {
    const std::string_view extension = buffer.fill ? extension_of(*buffer.fill) : "";
    if (!extension.empty()) needs.note(extension, pointer_to("buffers", buffer.name) + "/fill");
    note_series(needs, buffer);
  }
  for (const Op& op : m.ops)
    for (size_t i = 0; i < op.launches.size(); ++i)
      if (const auto builtin = find_builtin(op.launches[i].entry))
        needs.note(builtin->extension, pointer_to(op, i) + "/entry");
  if (!m.cut) return needs;
  const Used used = find_used(m, index);
  for (size_t i = 0; i < m.buffers.size(); ++i)
    if (!used.buffers[i] && is_handed_on(m, m.buffers[i]))
      needs.note("hand_on", pointer_to("buffers", m.buffers[i].name));
  return needs;
}

}  // namespace

std::vector<std::string> needed_extensions(const Manifest& manifest) {
  const Index index(manifest);
  const Needs needs = find_needs(manifest, index);
  std::vector<std::string> out;
  for (const std::string_view extension : kExtensions)
    if (!needs.place(extension).empty()) out.emplace_back(extension);
  return out;
}

void verify_extensions(const Scope& scope) {
  const Manifest& m = scope.m;
  const Needs needs = find_needs(m, scope.index);
  for (const std::string_view extension : kExtensions)
    // rule 18 says it of a buffer that no call looks at
    if (extension != "hand_on" && !needs.place(extension).empty() && !m.uses_extension(extension))
      scope.problem(needs.place(extension), "needs extension `{}`, which `uses` does not list",
                    extension);
  for (size_t i = 0; i < m.uses.size(); ++i) {
    const std::string pointer = fmt::format("/uses/{}", i);
    const std::string& name = m.uses[i];
    if (std::find(kExtensions.begin(), kExtensions.end(), name) == kExtensions.end())
      scope.problem(pointer, "unknown extension `{}`", name);
    else if (std::find(m.uses.begin(), m.uses.begin() + static_cast<ptrdiff_t>(i), name) !=
             m.uses.begin() + static_cast<ptrdiff_t>(i))
      scope.problem(pointer, "extension `{}` is listed twice", name);
    else if (needs.place(name).empty())
      scope.problem(pointer, "extension `{}` is listed and never used", name);
  }
}

}  // namespace kern::manifest
