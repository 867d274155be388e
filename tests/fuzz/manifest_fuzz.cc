// Any bytes as a manifest: read, printed, read again, verified, checked for serving.
// What is printed reads as the same manifest; verify says the same of both, and the text's own
// diagnostics are those with lines.
#include <cstdint>

#include "kern/base/assert.h"
#include "kern/manifest/protocol.h"
#include "kern/manifest/verify.h"

using namespace kern::manifest;

namespace {

/// The text as the manifest says itself. Built with KERN_FUZZ_CANARY it has a planted bug: a buffer
/// of three extents loses its last one. No file of the corpus has such a buffer; a run must find
/// it.
std::string printed(Manifest manifest) {
#ifdef KERN_FUZZ_CANARY
  for (Buffer& buffer : manifest.buffers)
    if (buffer.shape.size() == 3) buffer.shape.pop_back();
#endif
  return print(manifest);
}

void check(std::string_view text) {
  auto manifest = parse(text);
  if (!manifest) {
    KERN_ASSERT(!manifest.error().empty(), "refused without a word");
    return;
  }
  const std::string once = printed(*manifest);
  auto again = parse(once);
  KERN_ASSERT(again.has_value(), "what is printed does not read: {}", to_text(again.error()));
  KERN_ASSERT(print(*again) == print(*manifest), "what is printed reads as another manifest");
  const auto loaded = load(text);
  const auto first = verify(std::move(*manifest)), second = verify(std::move(*again));
  KERN_ASSERT(first.has_value() == second.has_value() && first.has_value() == loaded.has_value(),
              "verify judges a manifest and its text differently");
  if (!first) {
    KERN_ASSERT(!first.error().empty() && first.error() == second.error(),
                "verify says other things of a manifest and its text");
    KERN_ASSERT(first.error().size() == loaded.error().size(), "lines change the diagnostics");
    return;
  }
  const auto protocol = Protocol::check(*first);
  KERN_ASSERT(protocol || !protocol.error().empty(), "does not serve, without a word");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check({reinterpret_cast<const char*>(data), size});
  return 0;
}
