// Gives libFuzzer the changes of json_mutator.h beside its own.
#include <algorithm>
#include <cstring>

#include "json_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  kern::Prng random(seed);
  if (random.below(8) == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  for (uint64_t left = 1 + random.below(3); left > 0; --left)
    text = kern_test::mutate_json(text, random);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
