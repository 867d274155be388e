// Any bytes as a module's file. Every image lies inside the file, in order and apart; looking
// through one for multicast reads nothing outside it; and an image taken alone is one image,
// itself.
#include <cstdint>
#include <cstring>
#include <vector>

#include "kern/base/assert.h"
#include "kern/cuda/module.h"

using namespace kern;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan file(reinterpret_cast<const std::byte*>(data), size);
  const auto images = cuda::device_images(file);
  if (!images) {
    KERN_ASSERT(images.error().kind == Kind::kernel_artifact && !images.error().message.empty());
    return 0;
  }
  KERN_ASSERT(!images->empty());
  const std::byte* end = file.data();
  for (const ByteSpan image : *images) {
    KERN_ASSERT(image.data() >= end && !image.empty());
    end = image.data() + image.size();
    KERN_ASSERT(end <= file.data() + file.size());
    // A copy of its own, so that a sanitizer sees a read past its end.
    const std::vector<std::byte> copy(image.begin(), image.end());
    const auto found = cuda::scan_multicast(copy);
    KERN_ASSERT(found == cuda::scan_multicast(image));
    const auto again = cuda::device_images(copy);
    KERN_ASSERT(again && again->size() == 1 && (*again)[0].size() == copy.size());
  }
  return 0;
}
