// Any bytes as a manifest of schema_version 5. What reads is of version 7 from then on: its text
// says so, reads as the same manifest, and is judged the same.
#include <cstdint>

#include "kern/base/assert.h"
#include "kern/manifest/verify.h"

using namespace kern::manifest;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto manifest = parse({reinterpret_cast<const char*>(data), size});
  if (!manifest) return 0;
  KERN_ASSERT(manifest->schema_version == 7 || !verify(Manifest(*manifest)).has_value(),
              "version {} passes", manifest->schema_version);
  const std::string text = print(*manifest);
  auto again = parse(text);
  KERN_ASSERT(again.has_value(), "the upgraded form does not read: {}", to_text(again.error()));
  KERN_ASSERT(print(*again) == text, "the upgraded form reads as another manifest");
  const auto first = verify(std::move(*manifest)), second = verify(std::move(*again));
  KERN_ASSERT(first.has_value() == second.has_value(), "judged differently once upgraded");
  if (!first) KERN_ASSERT(first.error() == second.error(), "said differently once upgraded");
  return 0;
}
