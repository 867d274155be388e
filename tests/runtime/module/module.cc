// The smallest CPU module that uses each thing an entry may be given.
#include <cstring>

#include "kern/runtime/host_module.h"

namespace {

template <class T>
T scalar(void* const* args, int i) {
  T value;
  std::memcpy(&value, args[i], sizeof(value));
  return value;
}
template <class T>
T* pointer(void* const* args, int i) {
  return static_cast<T*>(scalar<void*>(args, i));
}

}  // namespace

extern "C" {

// in f32 table, in i32 token, out f32 rows, i32 width; a block a row
void test_gather(const kern_block* where, void* const* args) {
  const auto width = scalar<int32_t>(args, 3);
  const int32_t token = pointer<int32_t>(args, 1)[where->index[0]];
  std::memcpy(pointer<float>(args, 2) + int64_t{where->index[0]} * width,
              pointer<float>(args, 0) + int64_t{token} * width, sizeof(float) * width);
}

// in f32 a, in f32 b, out f32 c, i32 width; a block a row
void test_add(const kern_block* where, void* const* args) {
  const auto width = scalar<int32_t>(args, 3);
  for (int64_t i = int64_t{where->index[0]} * width, end = i + width; i < end; ++i)
    pointer<float>(args, 2)[i] = pointer<float>(args, 0)[i] + pointer<float>(args, 1)[i];
}

// inout state, in i32 lines, in f32 x, out f32 y, i32 width: the line grows by x, y is the line
void test_accumulate(const kern_block* where, void* const* args) {
  const auto width = scalar<int32_t>(args, 4);
  float* line = pointer<float>(args, 0) + pointer<int32_t>(args, 1)[where->index[0]] * width;
  for (int64_t i = 0; i < width; ++i) {
    line[i] += pointer<float>(args, 2)[int64_t{where->index[0]} * width + i];
    pointer<float>(args, 3)[int64_t{where->index[0]} * width + i] = line[i];
  }
}

// out i32 out: each block writes its place, through its shared memory
void test_where(const kern_block* where, void* const* args) {
  const uint32_t place =
      (where->index[2] * where->grid[1] + where->index[1]) * where->grid[0] + where->index[0];
  auto* shared = static_cast<uint32_t*>(where->shared);
  const uint32_t words = where->shared_bytes / 4;
  for (uint32_t i = 0; i < words; ++i) shared[i] = place + i;
  uint32_t sum = where->block[0];
  for (uint32_t i = 0; i < words; ++i) sum += shared[i] - i;
  pointer<uint32_t>(args, 0)[place] = sum;
}

// i32, i64, f32, u8, out f32 out[4]
void test_scalars(const kern_block*, void* const* args) {
  float* out = pointer<float>(args, 4);
  out[0] = static_cast<float>(scalar<int32_t>(args, 0));
  out[1] = static_cast<float>(scalar<int64_t>(args, 1));
  out[2] = scalar<float>(args, 2);
  out[3] = static_cast<float>(scalar<uint8_t>(args, 3));
}

// bytes<32> { f32* out; i32 n; i64 m; u8 c }: out[0..2] = n, m, c
void test_pack(const kern_block*, void* const* args) {
  struct Pack {
    float* out;
    int32_t n;
    int64_t m;
    uint8_t c;
  };
  static_assert(sizeof(Pack) == 32);
  Pack pack;
  std::memcpy(&pack, args[0], sizeof(pack));
  pack.out[0] = static_cast<float>(pack.n);
  pack.out[1] = static_cast<float>(pack.m);
  pack.out[2] = static_cast<float>(pack.c);
}

// in u8 raw, out f32 wide, i32 n
void test_widen(const kern_block*, void* const* args) {
  for (int32_t i = 0; i < scalar<int32_t>(args, 2); ++i)
    pointer<float>(args, 1)[i] = pointer<uint8_t>(args, 0)[i];
}

// in i32 cu_seqlens, in i32 token, out i32 next, out f32 logprob, out i32 top, out f32 top_logprob,
// i32 width; a block a sequence: next = last token + 1, or -1 behind a 13
void test_next(const kern_block* where, void* const* args) {
  const uint32_t seq = where->index[0];
  const int32_t last = pointer<int32_t>(args, 1)[pointer<int32_t>(args, 0)[seq + 1] - 1];
  pointer<int32_t>(args, 2)[seq] = last == 13 ? -1 : last + 1;
  pointer<float>(args, 3)[seq] = -static_cast<float>(last);
  for (int32_t i = 0, width = scalar<int32_t>(args, 6); i < width; ++i) {
    pointer<int32_t>(args, 4)[static_cast<int32_t>(seq) * width + i] = last + 1 + i;
    pointer<float>(args, 5)[static_cast<int32_t>(seq) * width + i] = -static_cast<float>(i);
  }
}

// out f32 x, f32 value, i32 n
void test_set(const kern_block*, void* const* args) {
  for (int32_t i = 0; i < scalar<int32_t>(args, 2); ++i)
    pointer<float>(args, 0)[i] = scalar<float>(args, 1);
}
}
