#pragma once
/// Golden files: text that is reviewed like code.

#include <string>

namespace kern_test {

/// Compares `text` with `KERN_TEST_DIR/golden/<name>`. On a mismatch it fails the running test with
/// the first differing line and writes the text beside the golden as `.got`.
/// KERN_GOLDEN_UPDATE=1 rewrites the golden instead.
void expect_golden(const std::string& test_dir, const std::string& name, const std::string& text);

}  // namespace kern_test
