#pragma once
/// The built-ins that extensions add; what they take is known here, unlike version 7's own, whose
/// names are resolved at load.
/// Thread safety: pure functions.

#include <optional>
#include <string_view>

#include "kern/manifest/types.h"

namespace kern::manifest {

struct Builtin {
  enum class What : uint8_t { gemm, collective };
  What what = What::gemm;
  bool accumulates = false;    ///< gemm: C += rather than C =
  Dtype result = Dtype::bf16;  ///< gemm: of C; collective: of both
  std::string_view extension;  ///< that a manifest must list
};

/// By the whole entry, `extern:` included; nothing for a name no extension adds.
std::optional<Builtin> find_builtin(std::string_view entry);

}  // namespace kern::manifest
