#pragma once
/// Changes a JSON text as a person would: a number, a name, a member, an element at a time, so that
/// most of what comes out still reads and some of it is still accepted.
/// Thread safety: a pure function.
/// Determinism: the same text and the same generator state give the same text.

#include <string>
#include <string_view>

#include "kern/base/prng.h"

namespace kern_test {

/// One change of a text that is about JSON; the text itself where there is nothing to change.
std::string mutate_json(std::string_view text, kern::Prng& random);

}  // namespace kern_test
