#pragma once
/// The manifest as plain data: exactly what the JSON says, names unresolved.
/// A reader builds it from bytes, a generator builds it by hand, `print` writes it back. Nothing is
/// checked here; `verify` turns a Manifest into a Verified.
/// Thread safety: plain values.
/// Determinism: declaration order is kept; nothing is hashed.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace kern::manifest {

enum class Dtype : uint8_t { bf16, f16, f32, fp8e4m3, fp8e8m0, i8, i32, u32, i64, u64, u8 };
std::string_view to_string(Dtype dtype);
std::optional<Dtype> parse_dtype(std::string_view word);
int64_t size_of(Dtype dtype);

/// A closed expression over vars: constant, var, e*c, e+e, ceil(e/c).
struct Expr {
  enum class Op : uint8_t { constant, var, mul, add, ceil_div };
  Op op = Op::constant;
  int64_t value = 0;           ///< the constant, or the c of mul and ceil_div
  std::string var;             ///< for Op::var
  std::vector<Expr> operands;  ///< one for mul and ceil_div, two for add

  static Expr constant(int64_t value);
  static Expr of_var(std::string name);
  static Expr mul(Expr e, int64_t c);
  static Expr add(Expr a, Expr b);
  static Expr ceil_div(Expr e, int64_t c);
  friend bool operator==(const Expr&, const Expr&) = default;
};

// ---- vars and groups ----

enum class Axis : uint8_t { rows, groups, ranks };

struct Var {
  std::string name;
  int64_t max = 0;
  std::optional<Axis> axis;
};

struct Constant {
  std::string name;
  double value = 0;  ///< already expanded wherever it stood; kept for printing
};

struct Group {
  std::string name;
  int64_t size = 0;
};

// ---- memory ----

struct Shard {
  enum class By : uint8_t { position, heads };
  struct Segment {
    int64_t rows = 0;
    int64_t width_bytes = 0;
    friend bool operator==(const Segment&, const Segment&) = default;
  };
  std::string group;
  By by = By::position;
  std::vector<Segment> segments;  ///< by heads only
  friend bool operator==(const Shard&, const Shard&) = default;
};

struct HostState {
  Dtype dtype = Dtype::u8;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements
};

struct State {
  enum class Size : uint8_t { per_token, per_seq, fixed, host };
  std::string name;
  Size size = Size::fixed;
  int64_t bytes = 0;  ///< of one token, one sequence, or in all; 0 for host
  std::optional<Shard> shard;
  std::optional<HostState> host;
};

/// One extent of a buffer: a constant, or a var's name.
struct Dim {
  int64_t value = 0;
  std::string var;  ///< empty for a constant
  bool is_var() const { return !var.empty(); }
  static Dim of(int64_t value) { return {value, {}}; }
  static Dim of_var(std::string name) { return {0, std::move(name)}; }
  friend bool operator==(const Dim&, const Dim&) = default;
};

enum class BufferKind : uint8_t {
  input, output, inout, weight, source, workspace, carry, peer
};
std::string_view to_string(BufferKind kind);

enum class Fill : uint8_t {
  // inputs
  token, position, valid, slot, seq_len, cu_seqlens, blocks,
  // inputs, extension `snapshot`
  snapshot,
  // inputs, extension `sampling`
  temperature, top_p, top_k, min_p, seed, draw,
  // outputs
  tokens, count, error,
  // outputs, extension `sampling`
  logprob, top_tokens, top_logprobs,
};
std::string_view to_string(Fill fill);
std::optional<Fill> parse_fill(std::string_view word);

using Bound = std::variant<int64_t, double, Expr>;

struct Domain {
  std::optional<Bound> min, max;
  std::string index_into;  ///< buffer or state; empty when absent
  std::optional<int64_t> stride;
  bool monotone = false;
};

struct Range {
  int64_t first = 0, last = 0;  ///< half open
  friend bool operator==(const Range&, const Range&) = default;
};

/// One range for every rank, or one per rank of `group`.
struct RangeTable {
  std::string group;  ///< empty: ranges holds one
  std::vector<Range> ranges;
};

struct Interleave {
  std::string with;
  int64_t rows = 0;
};

struct BindSegment {
  std::string group;                 ///< empty: tensors holds one
  std::vector<std::string> tensors;  ///< one, or one per rank of `group`
  std::optional<RangeTable> rows, cols;
  std::optional<Interleave> interleave;
};

struct Buffer {
  std::string name;
  Dtype dtype = Dtype::bf16;
  std::vector<Dim> shape;
  BufferKind kind = BufferKind::workspace;
  std::optional<Fill> fill;
  std::optional<Domain> domain;
  std::vector<BindSegment> bind;
  bool placed_on_host = false;  ///< placement: host
  bool exported = false;        ///< export: true
  std::string of, group;        ///< peer
};

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

struct ParamRef { int64_t index = 0; };
struct ScratchRef { std::string name; };
struct RankRef { std::string group; };
struct VarRef { std::string name; };

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

struct BufferArg { std::string buffer; int64_t offset_bytes = 0; };
struct StateArg { std::string state; int64_t offset_bytes = 0; };
struct ExprArg { Expr expr; };

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

// ---- the whole ----

struct Cut {
  std::string id;
  int64_t stage = 0, stages = 0;
};

/// Extension `meta`: provenance, for people.
struct Meta {
  std::string generator, version, config_sha256, layout, tokenizer;
};

enum class Device : uint8_t { cuda, host };

struct Manifest {
  int64_t schema_version = 7;
  std::string model;
  std::vector<std::string> uses;
  Device device = Device::cuda;  ///< `host` needs the extension of that name
  std::optional<Meta> meta;
  std::vector<Constant> constants;
  std::vector<Var> vars;
  std::vector<Group> groups;
  std::vector<State> states;
  std::vector<Buffer> buffers;
  std::vector<Module> modules;
  std::vector<Op> ops;
  std::vector<Program> programs;
  std::optional<Cut> cut;

  bool uses_extension(std::string_view name) const;
};

}  // namespace kern::manifest
