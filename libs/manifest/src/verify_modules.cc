#include <algorithm>

#include "scope.h"

namespace kern::manifest {
namespace {

bool is_sha256(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(),
                                          [](unsigned char c) { return std::isxdigit(c) != 0; });
}

/// Whether "a/b/c" has at least `parts` parts, none of them empty.
bool has_parts(std::string_view path, size_t parts) {
  size_t found = 0;
  for (;;) {
    const size_t slash = path.find('/');
    if (path.substr(0, slash).empty()) return false;
    ++found;
    if (slash == std::string_view::npos) return found >= parts;
    path.remove_prefix(slash + 1);
  }
}

bool is_hub_path(std::string_view path) {
  const size_t at = path.rfind('@');
  if (at != std::string_view::npos && at + 1 == path.size()) return false;
  return has_parts(path.substr(0, at), 3);
}

void check_source(const Scope& scope, const Module& module, const std::string& pointer) {
  const std::string_view source = module.source;
  if (source.empty()) return scope.problem(pointer, "an empty source");
  if (source.starts_with("https://")) {
    if (!has_parts(source.substr(8), 2))
      scope.problem(pointer, "source `{}`; expected https://host/path", source);
  } else if (source.starts_with("hf:")) {
    if (!is_hub_path(source.substr(3)))
      scope.problem(pointer, "source `{}`; expected hf:org/repo/path, @revision after it if any",
                    source);
  } else if (source.find("://") != std::string_view::npos) {
    scope.problem(pointer, "source `{}`; expected a file name, https://… or hf:…", source);
  }
}

}  // namespace

void verify_modules(const Scope& scope) {
  for (const Module& module : scope.m.modules) {
    const std::string pointer = pointer_to("modules", module.name);
    if (!is_sha256(module.sha256))
      scope.problem(pointer, "sha256 `{}`; expected 64 hex digits", module.sha256);
    check_source(scope, module, pointer);
  }
}

}  // namespace kern::manifest
