#pragma once
/// The caller's values against the domains that the manifest declares, before anything runs.

#include "layout.h"
#include "program.h"

namespace kern::runtime {

/// Notes every input of the program that has a domain, and the vars its shape needs.
Result<void> add_checked_inputs(const manifest::Verified& manifest,
                                const manifest::Program& program, const Layout& layout,
                                const Addresses& addresses, LoweredProgram& out);

/// Checks all of them at the present values of the cells. Kind caller; names the input, the
/// element, the bound and the value.
Result<void> check_inputs(const manifest::Manifest& manifest, const LoweredProgram& program);

}  // namespace kern::runtime
