#include "built_ins.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kern/base/assert.h"
#include "kern/base/checked.h"
#include "machine.h"

namespace kern::runtime {
namespace {

using manifest::Dtype;
using What = manifest::ParamType::What;

enum class Form : uint8_t { gemm, all_reduce, all_gather, reduce_scatter, all_to_all };

/// What a built-in works with: its launch, and for a collective the other ranks.
struct HostCall {
  Machine& machine;
  const Launch& launch;
  PeerGroup* group;  ///< null: a group of one rank
};
using HostFunction = Result<void> (*)(const HostCall& call);

struct Row {
  std::string_view name;
  Form form;
  Dtype dtype;  ///< of C, or of the elements of a collective
  HostFunction run;
};

class HostBuiltIn final : public BuiltIn {
 public:
  HostBuiltIn(HostFunction function, Machine& machine, PeerGroup* group)
      : function_(function), machine_(machine), group_(group) {}
  Result<void> run(const Launch& launch) override { return function_({machine_, launch, group_}); }

 private:
  HostFunction function_;
  Machine& machine_;
  PeerGroup* group_;
};

void* pointer_of(const Launch& launch, uint32_t arg) {
  void* pointer;
  std::memcpy(&pointer, launch.args[arg], sizeof(pointer));
  return pointer;
}

int64_t integer_of(const Launch& launch, uint32_t arg) {
  int64_t value;
  std::memcpy(&value, launch.args[arg], sizeof(value));
  return value;
}

// ---- products ----

// Below this much work a product is not worth another thread.
constexpr int64_t kAloneOps = 400'000;
constexpr int64_t kTilesPerWorker = 4;
constexpr int64_t kColsMin = 16;
constexpr int64_t kRowsMin = 24;

/// Splits C into tiles: over columns, and over rows where the columns are too few.
template <GemmStore store>
Result<void> run_gemm(const HostCall& call) {
  Machine& machine = call.machine;
  const Launch& launch = call.launch;
  Gemm gemm{static_cast<const uint16_t*>(pointer_of(launch, 0)),
            static_cast<const uint16_t*>(pointer_of(launch, 1)),
            pointer_of(launch, 2),
            integer_of(launch, 3),
            integer_of(launch, 4),
            integer_of(launch, 5)};
  gemm.c_stride = launch.arg_count > 6 ? integer_of(launch, 6) : gemm.n;
  gemm.a_stride = launch.arg_count > 7 ? integer_of(launch, 7) : gemm.k;
  gemm.store = store;
  if (gemm.m <= 0 || gemm.n <= 0) return {};
  const int64_t threads = machine.pool().threads();
  if (threads == 1 || gemm.m * gemm.n * gemm.k < kAloneOps) {
    gemm_tile(machine.isa(), gemm, {0, gemm.m, 0, gemm.n});
    return {};
  }
  const int64_t wanted = threads * kTilesPerWorker;
  const int64_t cols =
      std::max(round_up(ceil_div(gemm.n, wanted), int64_t{4}), std::min(kColsMin, gemm.n));
  const int64_t across = ceil_div(gemm.n, cols);
  const int64_t rows = std::max(ceil_div(gemm.m, ceil_div(wanted, across)), kRowsMin);
  const int64_t down = ceil_div(gemm.m, rows);
  auto body = [&](int, int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / across * rows, col = tile % across * cols;
      gemm_tile(machine.isa(), gemm,
                {row, std::min(row + rows, gemm.m), col, std::min(col + cols, gemm.n)});
    }
  };
  machine.pool().run(across * down, 1, body);
  return {};
}

// ---- collectives ----

float to_float(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float to_float(float value) {
  return value;
}
void put(float value, float& out) {
  out = value;
}
void put(float value, uint16_t& out) {
  out = to_bf16(value);
}

/// Sums blocks in rank order, in f32, rounding once.
template <class T>
void sum_blocks(const std::byte* blocks, int64_t ranks, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      T value;
      std::memcpy(&value, blocks + (rank * count + i) * static_cast<int64_t>(sizeof(T)), sizeof(T));
      sum = rank == 0 ? to_float(value) : sum + to_float(value);
    }
    put(sum, out[i]);
  }
}

struct CollectiveArgs {
  std::byte* send;
  std::byte* receive;
  int64_t count;
  PeerGroup* group;
  int64_t ranks;
};

CollectiveArgs collective_of(const HostCall& call) {
  return {static_cast<std::byte*>(pointer_of(call.launch, 0)),
          static_cast<std::byte*>(pointer_of(call.launch, 1)), integer_of(call.launch, 2),
          call.group, call.group == nullptr ? 1 : call.group->size()};
}

ByteSpan span_of(const std::byte* data, int64_t bytes) {
  return {data, static_cast<size_t>(bytes)};
}

/// Room for one block a rank; reserved at load for the largest call.
MutableByteSpan room_for(Machine& machine, int64_t bytes) {
  const MutableByteSpan room = machine.collective_room();
  KERN_ASSERT(bytes <= static_cast<int64_t>(room.size()), "{} of {} bytes", bytes, room.size());
  return room.first(static_cast<size_t>(bytes));
}

template <class T>
Result<void> run_all_reduce(const HostCall& call) {
  const CollectiveArgs c = collective_of(call);
  const int64_t bytes = c.count * static_cast<int64_t>(sizeof(T));
  if (c.group == nullptr) {
    std::memmove(c.receive, c.send, static_cast<size_t>(bytes));
    return {};
  }
  const MutableByteSpan room = room_for(call.machine, bytes * c.ranks);
  KERN_TRY_VOID(c.group->all_gather(span_of(c.send, bytes), room));
  sum_blocks(room.data(), c.ranks, c.count, reinterpret_cast<T*>(c.receive));
  return {};
}

template <class T>
Result<void> run_all_gather(const HostCall& call) {
  const CollectiveArgs c = collective_of(call);
  const int64_t bytes = c.count * static_cast<int64_t>(sizeof(T));
  if (c.group == nullptr) {
    std::memmove(c.receive, c.send, static_cast<size_t>(bytes));
    return {};
  }
  const MutableByteSpan room = room_for(call.machine, bytes * c.ranks);
  KERN_TRY_VOID(c.group->all_gather(span_of(c.send, bytes), room));
  std::memcpy(c.receive, room.data(), room.size());
  return {};
}

template <class T>
Result<void> run_reduce_scatter(const HostCall& call) {
  const CollectiveArgs c = collective_of(call);
  const int64_t bytes = c.count * static_cast<int64_t>(sizeof(T));
  if (c.group == nullptr) {
    std::memmove(c.receive, c.send, static_cast<size_t>(bytes));
    return {};
  }
  const MutableByteSpan room = room_for(call.machine, bytes * c.ranks);
  KERN_TRY_VOID(c.group->all_to_all(span_of(c.send, bytes * c.ranks), room));
  sum_blocks(room.data(), c.ranks, c.count, reinterpret_cast<T*>(c.receive));
  return {};
}

template <class T>
Result<void> run_all_to_all(const HostCall& call) {
  const CollectiveArgs c = collective_of(call);
  const int64_t bytes = c.count * static_cast<int64_t>(sizeof(T)) * c.ranks;
  if (c.group == nullptr) {
    std::memmove(c.receive, c.send, static_cast<size_t>(bytes));
    return {};
  }
  const MutableByteSpan room = room_for(call.machine, bytes);
  KERN_TRY_VOID(c.group->all_to_all(span_of(c.send, bytes), room));
  std::memcpy(c.receive, room.data(), room.size());
  return {};
}

// ---- the table ----

constexpr std::array kBuiltIns = {
    Row{"gemm_bf16_tn", Form::gemm, Dtype::bf16, &run_gemm<GemmStore::bf16>},
    Row{"gemm_bf16_tn_acc", Form::gemm, Dtype::bf16, &run_gemm<GemmStore::bf16_add>},
    Row{"gemm_bf16_tn_f32", Form::gemm, Dtype::f32, &run_gemm<GemmStore::f32>},
    Row{"allreduce_bf16", Form::all_reduce, Dtype::bf16, &run_all_reduce<uint16_t>},
    Row{"allreduce_f32", Form::all_reduce, Dtype::f32, &run_all_reduce<float>},
    Row{"allgather_bf16", Form::all_gather, Dtype::bf16, &run_all_gather<uint16_t>},
    Row{"allgather_f32", Form::all_gather, Dtype::f32, &run_all_gather<float>},
    Row{"reducescatter_bf16", Form::reduce_scatter, Dtype::bf16, &run_reduce_scatter<uint16_t>},
    Row{"reducescatter_f32", Form::reduce_scatter, Dtype::f32, &run_reduce_scatter<float>},
    Row{"alltoall_bf16", Form::all_to_all, Dtype::bf16, &run_all_to_all<uint16_t>},
    Row{"alltoall_f32", Form::all_to_all, Dtype::f32, &run_all_to_all<float>},
};

const Row* find_row(std::string_view name) {
  for (const Row& row : kBuiltIns)
    if (row.name == name) return &row;
  return nullptr;
}

bool is_pointer(const BoundArg& arg) {
  return arg.type.what == What::buffer || arg.type.what == What::state;
}
bool is_integer(const BoundArg& arg) {
  return arg.type.what == What::i32 || arg.type.what == What::i64;
}

Result<void> check_types(const Row& row, std::span<const BoundArg> args) {
  const size_t pointers = row.form == Form::gemm ? 3 : 2;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool pointer = i < pointers;
    if (pointer ? !is_pointer(args[i]) : !is_integer(args[i]))
      return fail(Kind::manifest, "`extern:{}` arg #{} is `{}`, expected {}", row.name, i,
                  manifest::to_string(args[i].type), pointer ? "a buffer" : "i32 or i64");
    const Dtype dtype = row.form == Form::gemm && i < 2 ? Dtype::bf16 : row.dtype;
    if (pointer && args[i].type.what == What::buffer && args[i].type.dtype != dtype)
      return fail(Kind::manifest, "`extern:{}` arg #{} is `{}`, expected a buffer of {}", row.name,
                  i, manifest::to_string(args[i].type), manifest::to_string(dtype));
  }
  return {};
}

Result<void> check_room(std::string_view name, const BoundArg& arg, size_t index, int64_t elements,
                        int64_t element_bytes) {
  const std::optional<int64_t> bytes = checked_mul(elements, element_bytes);
  if (!bytes || *bytes > arg.bytes_left)
    return fail(Kind::manifest, "`extern:{}` arg #{} spans {} elements, but `{}` has {} bytes left",
                name, index, elements, arg.name, arg.bytes_left);
  return {};
}

/// How many blocks a rank sends and receives.
CollectiveReach reach_of(Form form) {
  return {form == Form::reduce_scatter || form == Form::all_to_all,
          form == Form::all_gather || form == Form::all_to_all};
}

int64_t collective_bytes(const Row& row, std::span<const BoundArg> args, int64_t group_size) {
  if (row.form == Form::gemm) return 0;
  return *args[2].cell * group_size * manifest::size_of(row.dtype);
}

}  // namespace

Result<void> check_gemm_args(std::string_view name, std::span<const BoundArg> args, Dtype c_dtype) {
  const int64_t m = *args[3].cell, n = *args[4].cell, k = *args[5].cell;
  const int64_t c_stride = args.size() > 6 ? *args[6].cell : n;
  const int64_t a_stride = args.size() > 7 ? *args[7].cell : k;
  for (const auto& [dim, value] : {std::pair("m", m), std::pair("n", n), std::pair("k", k)})
    if (value < 1 || value > int64_t{1} << 31)
      return fail(Kind::manifest, "`extern:{}`: {} is {}, expected 1 to 2^31", name, dim, value);
  if (c_stride < n || a_stride < k || c_stride > int64_t{1} << 31 || a_stride > int64_t{1} << 31)
    return fail(Kind::manifest,
                "`extern:{}`: row strides {} of C and {} of A are below n {} or k {}", name,
                c_stride, a_stride, n, k);
  KERN_TRY_VOID(check_room(name, args[0], 0, (m - 1) * a_stride + k, 2));
  KERN_TRY_VOID(check_room(name, args[1], 1, n * k, 2));
  return check_room(name, args[2], 2, (m - 1) * c_stride + n, manifest::size_of(c_dtype));
}

Result<void> check_collective_args(std::string_view name, std::span<const BoundArg> args,
                                   Dtype dtype, int64_t ranks, CollectiveReach reach) {
  const int64_t count = *args[2].cell, element = manifest::size_of(dtype);
  if (count < 0 || count > int64_t{1} << 40)
    return fail(Kind::manifest, "`extern:{}`: the count is {}", name, count);
  if (args[3].group.empty())
    return fail(Kind::manifest, "`extern:{}` arg #3 is no rank of a group", name);
  const std::optional<int64_t> all = checked_mul(count, ranks);
  if (!all || !checked_mul(*all, element))
    return fail(Kind::manifest, "`extern:{}`: {} elements for each of {} ranks overflow 64 bits",
                name, count, ranks);
  KERN_TRY_VOID(check_room(name, args[0], 0, reach.sends_all ? *all : count, element));
  return check_room(name, args[1], 1, reach.receives_all ? *all : count, element);
}

Result<LoweredBuiltIn> lower_host_built_in(const LaunchSource& source, Machine* machine) {
  const std::string_view name = source.built_in_name();
  const std::span<const BoundArg> args = source.args;
  const Row* row = find_row(name);
  if (row == nullptr) {
    std::string known;
    for (const Row& each : kBuiltIns)
      known += fmt::format("{}{}", known.empty() ? "" : " ", each.name);
    return fail(Kind::manifest, "the host device has no built-in `extern:{}`, it has: {}", name,
                known);
  }
  const size_t least = row->form == Form::gemm ? 6 : 4;
  const size_t most = row->form == Form::gemm ? 8 : 4;
  if (args.size() < least || args.size() > most)
    return fail(Kind::manifest, "`extern:{}` takes {} args, got {}", name,
                least == most ? fmt::format("{}", least) : fmt::format("{} to {}", least, most),
                args.size());
  KERN_TRY_VOID(check_types(*row, args));
  KERN_TRY_VOID(
      row->form == Form::gemm
          ? check_gemm_args(name, args, row->dtype)
          : check_collective_args(name, args, row->dtype, source.group_size, reach_of(row->form)));
  LoweredBuiltIn out;
  if (machine != nullptr) out.run = std::make_unique<HostBuiltIn>(row->run, *machine, source.group);
  out.collective_bytes = collective_bytes(*row, args, source.group_size);
  return out;
}

}  // namespace kern::runtime
