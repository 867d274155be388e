#pragma once
/// What is well-formed, as JSON Schema 2020-12: generated from the tables that `parse` reads by, so
/// that whatever the schema refuses `parse` refuses too, and the other way round, but for what a
/// schema cannot say: names and keys that stand twice, a string that must name a constant of the
/// right kind, text that is no JSON. Of schema_version 7; `parse` reads 5 as well.
/// Thread safety: pure. Determinism: the same text always. Does not: stand for `verify`.

#include <string>

namespace kern::manifest {

std::string schema();

}  // namespace kern::manifest
