#include <cmath>

#include "reader.h"

namespace kern::manifest {
namespace {

std::optional<BufferKind> parse_kind(std::string_view word) {
  for (int k = 0; k <= static_cast<int>(BufferKind::peer); ++k)
    if (to_string(static_cast<BufferKind>(k)) == word) return static_cast<BufferKind>(k);
  return std::nullopt;
}

std::optional<Shard::By> parse_by(std::string_view word) {
  if (word == "position") return Shard::By::position;
  if (word == "heads") return Shard::By::heads;
  return std::nullopt;
}

std::optional<bool> parse_placement(std::string_view word) {
  if (word == "host") return true;
  if (word == "device") return false;
  return std::nullopt;
}

void read_host(Reader& r, Json json, const At& at, HostState& out) {
  r.object(json, at,
           {{"dtype", Need::required,
             [&](Json v, const At& a) { r.word(v, a, "a dtype", parse_dtype, out.dtype); }},
            {"shape", Need::required,
             [&](Json v, const At& a) { r.integers(v, a, 0, kIntMax, out.shape); }},
            {"strides", Need::required,
             [&](Json v, const At& a) { r.integers(v, a, 0, kIntMax, out.strides); }}});
}

void read_shard(Reader& r, Json json, const At& at, Shard& out) {
  bool segments = false, by = false;
  const auto pair = [&](Json v, const At& a) {
    Shard::Segment& segment = out.segments.emplace_back();
    size_t i = 0;
    r.list_of(v, a, 2, [&](Json part, const At& here) {
      r.integer(part, here, 0, kIntMax, i++ == 0 ? segment.rows : segment.width_bytes);
    });
  };
  r.object(json, at,
           {{"group", Need::required, [&](Json v, const At& a) { r.text(v, a, out.group); }},
            {"by", Need::required,
             [&](Json v, const At& a) {
               by = true;
               r.word(v, a, "`position` or `heads`", parse_by, out.by);
             }},
            {"segments", Need::optional, [&](Json v, const At& a) {
               segments = true;
               r.list(v, a, pair);
             }}});
  if (by && segments != (out.by == Shard::By::heads))
    r.problem(at, "`segments` goes with `by: heads`, and only with it");
}

void read_state(Reader& r, Json json, const At& at, State& out) {
  int sizes = 0;
  const auto size = [&](State::Size kind) {
    return [&r, &out, &sizes, kind](Json v, const At& a) {
      ++sizes;
      out.size = kind;
      r.integer(v, a, 0, kIntMax, out.bytes);
    };
  };
  const auto per_token = size(State::Size::per_token), per_seq = size(State::Size::per_seq);
  const auto fixed = size(State::Size::fixed);
  r.object(json, at,
           {{"bytes_per_token", Need::optional, per_token},
            {"bytes_per_seq", Need::optional, per_seq},
            {"bytes", Need::optional, fixed},
            {"host", Need::nullable,
             [&](Json v, const At& a) {
               ++sizes;
               out.size = State::Size::host;
               read_host(r, v, a, out.host.emplace());
             },
             7},
            {"shard", Need::nullable,
             [&](Json v, const At& a) { read_shard(r, v, a, out.shard.emplace()); }, 7}});
  if (sizes != 1)
    r.problem(at, "expected exactly one of `bytes_per_token`, `bytes_per_seq`, `bytes`, `host`");
}

void read_bound(Reader& r, Json json, const At& at, std::optional<Bound>& out) {
  if (json.type() == Json::Type::real) {
    r.real(json, at, out.emplace(0.0).emplace<double>());
  } else if (json.type() == Json::Type::integer) {
    out.emplace(json.integer());
  } else if (json.type() == Json::Type::text && r.constant(json.text()) != nullptr) {
    const Constant& constant = *r.constant(json.text());
    const double value = constant.value;
    if (r.is_whole(constant) && std::abs(value) < 9e15)
      out.emplace(static_cast<int64_t>(value));
    else
      out.emplace(value);
  } else {
    r.expr(json, at, out.emplace(Expr{}).emplace<Expr>());
  }
}

void read_domain(Reader& r, Json json, const At& at, Domain& out) {
  r.object(
      json, at,
      {{"min", Need::nullable, [&](Json v, const At& a) { read_bound(r, v, a, out.min); }},
       {"max", Need::nullable, [&](Json v, const At& a) { read_bound(r, v, a, out.max); }},
       {"index_into", Need::nullable, [&](Json v, const At& a) { r.text(v, a, out.index_into); }},
       {"stride", Need::optional,
        [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, out.stride.emplace(0)); }},
       {"monotone", Need::optional, [&](Json v, const At& a) { r.boolean(v, a, out.monotone); }}});
}

void read_range(Reader& r, Json json, const At& at, Range& out) {
  size_t i = 0;
  r.list_of(json, at, 2, [&](Json v, const At& a) {
    r.integer(v, a, 0, kIntMax, i++ == 0 ? out.first : out.last);
  });
}

void read_ranges(Reader& r, Json json, const At& at, RangeTable& out) {
  if (json.type() != Json::Type::object) return read_range(r, json, at, out.ranges.emplace_back());
  r.object(json, at,
           {{"group", Need::required,
             [&](Json v, const At& a) {
               r.text(v, a, out.group);
               if (out.group.empty()) r.problem(a, "a table names the group it runs over");
             }},
            {"ranges", Need::required, [&](Json v, const At& a) {
               r.list(v, a, [&](Json one, const At& here) {
                 read_range(r, one, here, out.ranges.emplace_back());
               });
             }}});
}

void read_tensor(Reader& r, Json json, const At& at, BindSegment& out) {
  if (json.type() != Json::Type::object) return r.text(json, at, out.tensors.emplace_back());
  r.object(json, at,
           {{"group", Need::required,
             [&](Json v, const At& a) {
               r.text(v, a, out.group);
               if (out.group.empty()) r.problem(a, "a table names the group it runs over");
             }},
            {"tensors", Need::required, [&](Json v, const At& a) { r.texts(v, a, out.tensors); }}});
}

void read_interleave(Reader& r, Json json, const At& at, Interleave& out) {
  r.object(json, at,
           {{"with", Need::required, [&](Json v, const At& a) { r.text(v, a, out.with); }},
            {"rows", Need::required,
             [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, out.rows); }}});
}

void read_segment(Reader& r, Json json, const At& at, BindSegment& out) {
  r.object(json, at,
           {{"tensor", Need::required, [&](Json v, const At& a) { read_tensor(r, v, a, out); }},
            {"rows", Need::nullable,
             [&](Json v, const At& a) { read_ranges(r, v, a, out.rows.emplace()); }},
            {"cols", Need::nullable,
             [&](Json v, const At& a) { read_ranges(r, v, a, out.cols.emplace()); }},
            {"interleave", Need::nullable,
             [&](Json v, const At& a) { read_interleave(r, v, a, out.interleave.emplace()); }}});
}

void read_bind(Reader& r, Json json, const At& at, std::vector<BindSegment>& out) {
  r.list(json, at, [&](Json v, const At& a) { read_segment(r, v, a, out.emplace_back()); });
}

void read_buffer(Reader& r, Json json, const At& at, Buffer& out) {
  r.object(json, at,
           {{"dtype", Need::required,
             [&](Json v, const At& a) { r.word(v, a, "a dtype", parse_dtype, out.dtype); }},
            {"shape", Need::required, [&](Json v, const At& a) { r.shape(v, a, out.shape); }},
            {"kind", Need::required,
             [&](Json v, const At& a) {
               r.word(v, a, "a buffer kind", parse_kind, out.kind);
               if (out.kind == BufferKind::source || out.kind == BufferKind::inout)
                 r.need_version(a, 7, to_string(out.kind));
             }},
            {"bind", Need::nullable, [&](Json v, const At& a) { read_bind(r, v, a, out.bind); }},
            {"fill", Need::nullable,
             [&](Json v, const At& a) {
               r.word(v, a, "a fill role", parse_fill, out.fill.emplace(Fill::token));
             }},
            {"domain", Need::nullable,
             [&](Json v, const At& a) { read_domain(r, v, a, out.domain.emplace()); }},
            {"placement", Need::optional,
             [&](Json v, const At& a) {
               r.word(v, a, "`device` or `host`", parse_placement, out.placed_on_host);
             }},
            {"export", Need::optional, [&](Json v, const At& a) { r.boolean(v, a, out.exported); }},
            {"of", Need::nullable, [&](Json v, const At& a) { r.text(v, a, out.of); }},
            {"group", Need::nullable, [&](Json v, const At& a) { r.text(v, a, out.group); }}});
}

}  // namespace

void read_states(Reader& r, Json json, const At& at, std::vector<State>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    State& state = out.emplace_back();
    state.name = name;
    read_state(r, value, here, state);
  });
}

void read_buffers(Reader& r, Json json, const At& at, std::vector<Buffer>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Buffer& buffer = out.emplace_back();
    buffer.name = name;
    read_buffer(r, value, here, buffer);
  });
}

}  // namespace kern::manifest
