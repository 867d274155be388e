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

#include "kern/manifest/code.h"
#include "kern/manifest/segment.h"
#include "kern/manifest/words.h"

namespace kern::manifest {

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

enum class BufferKind : uint8_t { input, output, inout, weight, source, workspace, carry, peer };
std::string_view to_string(BufferKind kind);

enum class Fill : uint8_t {
  // inputs
  token,
  position,
  valid,
  slot,
  seq_len,
  cu_seqlens,
  blocks,
  // inputs, extension `snapshot`
  snapshot,
  // inputs, extension `feedback`
  fed_from,
  // inputs, extension `sampling`
  temperature,
  top_p,
  top_k,
  min_p,
  seed,
  draw,
  // outputs
  tokens,
  count,
  error,
  // outputs, extension `sampling`
  logprob,
  top_tokens,
  top_logprobs,
};
std::string_view to_string(Fill fill);

using Bound = std::variant<int64_t, double, Expr>;

struct Domain {
  std::optional<Bound> min, max;
  std::string index_into;  ///< buffer or state; empty when absent
  std::optional<int64_t> stride;
  bool monotone = false;
};

struct Buffer {
  std::string name;
  Dtype dtype = Dtype::bf16;
  std::vector<Dim> shape;
  BufferKind kind = BufferKind::workspace;
  std::optional<Fill> fill;
  Rare<Domain> domain;
  std::vector<BindSegment> bind;
  bool placed_on_host = false;  ///< placement: host
  bool exported = false;        ///< export: true
  std::string of, group;        ///< peer
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
  int64_t schema_version = 7;  ///< a reader turns older ones into this
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
