#pragma once
/// The part of a manifest that runs: modules, ops with their launches, programs with their calls.
/// Plain data, names unresolved, as in types.h.
/// Thread safety: plain values.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kern/manifest/words.h"

namespace kern::manifest {

// ---- code ----

struct Module {
  std::string name;
  std::string source;
  std::string sha256;  ///< 64 hex digits
};

enum class Direction : uint8_t { in, out, inout };
std::string_view to_string(Direction direction);

struct ParamType {
  enum class What : uint8_t { i32, i64, f32, u8, buffer, state, bytes };
  What what = What::i32;
  Direction direction = Direction::in;  ///< buffer and state
  Dtype dtype = Dtype::bf16;            ///< buffer
  int64_t bytes = 0;                    ///< bytes<n>
  friend bool operator==(const ParamType&, const ParamType&) = default;

  static ParamType scalar(What what) { return {what, Direction::in, Dtype::bf16, 0}; }
  static ParamType buffer(Direction d, Dtype t) { return {What::buffer, d, t, 0}; }
  static ParamType state(Direction d) { return {What::state, d, Dtype::bf16, 0}; }
};
/// "in buffer<bf16>", "inout state", "i32", "bytes<128>".
std::string to_string(const ParamType& type);
std::optional<ParamType> parse_param_type(std::string_view text);

/// A scalar written out in the manifest.
struct Literal {
  enum class Type : uint8_t { i32, i64, f32, u8 };
  Type type = Type::i32;
  int64_t integer = 0;
  double real = 0;  ///< for f32
  friend bool operator==(const Literal&, const Literal&) = default;
};

struct ParamRef {
  int64_t index = 0;
};
struct ScratchRef {
  std::string name;
};
struct RankRef {
  std::string group;
};
struct VarRef {
  std::string name;
};

struct Tensormap {
  int64_t param = 0;
  std::string dtype;  ///< TMA's own list
  std::vector<int64_t> dims, strides, box;
  int64_t swizzle = 0;
  int64_t l2_promotion = 0;
  bool oob_nan = false;
  bool wrap = false;
};

struct PackField {
  int64_t at = 0;
  std::optional<int64_t> width;
  std::variant<ParamRef, ScratchRef, Literal, VarRef, Expr, RankRef, Tensormap> source;
};

struct Pack {
  int64_t size = 0;
  std::vector<PackField> fields;
};

using LaunchArg = std::variant<ParamRef, ScratchRef, Literal, RankRef, Pack>;

struct When {
  std::string var;
  std::optional<int64_t> min, max;
};

/// cuBLASLt's algorithm, pinned.
struct Algo {
  std::vector<std::pair<std::string, int64_t>> fields;  ///< in declaration order
};

struct Launch {
  std::string entry;   ///< "extern:<name>" for a built-in
  std::string module;  ///< empty for a built-in
  std::vector<int64_t> block;
  std::vector<Expr> grid;
  std::optional<Expr> shared_mem;
  std::vector<int64_t> cluster;
  bool pdl = false;
  std::optional<When> when;
  std::optional<std::vector<ParamType>> params;
  std::optional<std::vector<LaunchArg>> args;
  std::optional<Algo> algo;
  bool is_extern() const { return entry.starts_with("extern:"); }
};

struct Scratch {
  std::string name;
  Dtype dtype = Dtype::bf16;
  std::vector<Dim> shape;
};

struct Op {
  std::string name;
  std::vector<ParamType> params;
  std::vector<Scratch> scratch;
  std::vector<Launch> launches;
};

// ---- programs ----

struct BufferArg {
  std::string buffer;
  int64_t offset_bytes = 0;
};
struct StateArg {
  std::string state;
  int64_t offset_bytes = 0;
};
struct ExprArg {
  BoxedExpr expr;
};

using CallArg = std::variant<BufferArg, StateArg, VarRef, ExprArg, Literal, RankRef>;

struct Call {
  std::string op;
  std::vector<CallArg> args;
  std::string label;  ///< empty when absent
};

struct Batch {
  int64_t groups = 0;
  std::variant<int64_t, std::string> rows;  ///< exactly so many a sequence, or the rows var
  std::string context;                      ///< empty when absent
};

struct Program {
  std::string name;
  std::vector<Call> calls;
  std::optional<Batch> batch;
  bool once = false;
  bool derive = false;
  bool graph = false;
};

}  // namespace kern::manifest
