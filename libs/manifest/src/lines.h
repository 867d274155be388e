#pragma once
/// Finds the lines of JSON pointers in a text; asked only once something is wrong.
/// Thread safety: pure functions.

#include <string_view>

#include "kern/manifest/verify.h"

namespace kern::manifest {

/// Appends " (line n)" to every sentence whose pointer, or the nearest part of it above, is found.
/// For a name that stands twice the later place counts.
void add_lines(std::string_view json, Diagnostics& diagnostics);

/// The line at which the text stops being JSON, as far as brackets, commas and quotes tell; 0 when
/// they do not.
size_t line_of_break(std::string_view json);

/// A name as one part of a JSON pointer.
std::string escape_pointer(std::string_view name);

}  // namespace kern::manifest
