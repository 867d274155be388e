#pragma once
/// The letters, marks and digits that Unicode 15 and 16 added to 14. Published tokenizers were run
/// with the newer tables; a regular-expression library has the tables it was built with. Before a
/// text is split each of these characters is replaced by one of the same kind and the same length
/// that Unicode 14 has, so that every build cuts in the same places. Thread safety: pure functions.

#include <string>
#include <string_view>

namespace kern::text {

/// `text`, well-formed, with stand-ins; empty when it needs none.
std::string with_stand_ins(std::string_view text);

}  // namespace kern::text
