#include <cmath>

#include "reader.h"
#include "series.h"

namespace kern::manifest {
namespace {

void read_host(Reader& r, Json json, const At& at, HostState& out) {
  r.object(json, at, "host_state",
           {{"dtype", Need::required, "of an element", r.word_into(out.dtype, "a dtype", kDtypes)},
            {"shape", Need::required, "outermost first; 0 there is as many blocks as the host has",
             r.into(out.shape)},
            {"strides", Need::required, "in elements", r.into(out.strides)}});
}

void read_shard_segment(Reader& r, Json json, const At& at, Shard::Segment& out) {
  size_t i = 0;
  r.list_of(json, at, 2, [&](Json part, const At& here) {
    r.integer(part, here, 0, kIntMax, i++ == 0 ? out.rows : out.width_bytes);
  });
}

void read_shard(Reader& r, Json json, const At& at, Shard& out) {
  const auto group = r.into(out.group);
  const auto by = r.word_into(out.by, "`position` or `heads`", kShardings);
  constexpr std::string_view kGroup = "the ranks that divide the state";
  constexpr std::string_view kBy =
      "position p lies on rank p mod the group's size, or each rank "
      "has its share of every row's heads";
  r.choose(
      json, at, "by", "heads",
      [&](Json v, const At& a) {
        r.object(v, a, "shard_by_heads",
                 {{"group", Need::required, kGroup, group},
                  {"by", Need::required, kBy, by},
                  {"segments", Need::required, "[rows, bytes of a row] end to end, of all ranks",
                   r.into(out.segments, read_shard_segment)}});
      },
      [&](Json v, const At& a) {
        r.object(v, a, "shard_by_position",
                 {{"group", Need::required, kGroup, group}, {"by", Need::required, kBy, by}});
      });
}

void read_state(Reader& r, Json json, const At& at, State& out) {
  const auto size = [&](State::Size kind) {
    return [&r, &out, kind](Json v, const At& a) {
      out.size = kind;
      r.integer(v, a, 0, kIntMax, out.bytes);
    };
  };
  r.object(json, at, "state",
           {{"bytes_per_token", Need::one, "paged, so many bytes a position",
             size(State::Size::per_token)},
            {"bytes_per_seq", Need::one, "a slot a sequence, so many bytes each",
             size(State::Size::per_seq)},
            {"bytes", Need::one, "so many bytes in all", size(State::Size::fixed)},
            {"host", Need::one_nullable, "memory of a foreign engine",
             [&](Json v, const At& a) {
               out.size = State::Size::host;
               read_host(r, v, a, out.host.emplace());
             },
             7},
            {"shard", Need::nullable, "how a group divides the whole",
             r.into(out.shard, read_shard), 7}});
}

/// An integer stays one, so that a bound of an integer buffer is told from a float.
void read_bound(Reader& r, Json json, const At& at, std::optional<Bound>& out) {
  r.either(
      json, at, [&](Json v, const At& a) { r.expr(v, a, out.emplace(Expr{}).emplace<Expr>()); },
      [&](Json v, const At& a) {
        if (r.names_var(v)) return r.expr(v, a, out.emplace(Expr{}).emplace<Expr>());
        double value = 0;
        r.real(v, a, value);
        if (r.describing()) return;
        const Constant* named = v.type() == Json::Type::text ? r.constant(v.text()) : nullptr;
        if (v.type() == Json::Type::integer)
          out.emplace(v.integer());
        else if (named != nullptr && r.is_whole(*named) && std::abs(value) < 9e15)
          out.emplace(static_cast<int64_t>(value));
        else
          out.emplace(value);
      });
}

void read_domain(Reader& r, Json json, const At& at, Domain& out) {
  r.object(json, at, "domain",
           {{"min", Need::nullable, "the least value", r.into(out.min, read_bound)},
            {"max", Need::nullable, "the largest value", r.into(out.max, read_bound)},
            {"index_into", Need::nullable, "the buffer or state that the values index",
             r.name_into(out.index_into)},
            {"stride", Need::optional,
             "what an index steps over: tokens of a page of a paged state, bytes of a line of a "
             "per-sequence one",
             r.into(out.stride)},
            {"monotone", Need::optional, "whether no value is less than the one before",
             r.into(out.monotone)}});
}

void read_range(Reader& r, Json json, const At& at, Range& out) {
  size_t i = 0;
  r.list_of(json, at, 2, [&](Json v, const At& a) {
    r.integer(v, a, 0, kIntMax, i++ == 0 ? out.first : out.last);
  });
}

constexpr std::string_view kTableGroup = "the group with an entry a rank";

void read_ranges(Reader& r, Json json, const At& at, RangeTable& out) {
  r.either(
      json, at,
      [&](Json v, const At& a) {
        r.object(v, a, "ranges",
                 {{"group", Need::required, kTableGroup, r.name_into(out.group)},
                  {"ranges", Need::required, "one a rank", r.into(out.ranges, read_range)}});
      },
      [&](Json v, const At& a) { read_range(r, v, a, out.ranges.emplace_back()); });
}

void read_tensor(Reader& r, Json json, const At& at, BindSegment& out) {
  r.either(
      json, at,
      [&](Json v, const At& a) {
        r.object(v, a, "tensors",
                 {{"group", Need::required, kTableGroup, r.name_into(out.group)},
                  {"tensors", Need::required, "one a rank",
                   [&](Json list, const At& here) { r.texts(list, here, out.tensors); }}});
      },
      [&](Json v, const At& a) { r.text(v, a, out.tensors.emplace_back()); });
}

void read_interleave(Reader& r, Json json, const At& at, Interleave& out) {
  r.object(json, at, "interleave",
           {{"with", Need::required, "a tensor of the same shape and dtype", r.into(out.with)},
            {"rows", Need::required, "of a block", r.into(out.rows)}});
}

void read_firsts(Reader& r, Json json, const At& at, Series& out) {
  r.either(
      json, at,
      [&](Json v, const At& a) {
        r.object(v, a, "firsts",
                 {{"group", Need::required, kTableGroup, r.name_into(out.group)},
                  {"firsts", Need::required, "one a rank", r.into(out.firsts)}});
      },
      [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, out.firsts.emplace_back(0)); });
}

void read_series(Reader& r, Json json, const At& at, Series& out) {
  r.object(json, at, "series",
           {{"first", Need::required, "the number in the first tensor's name, or one a rank",
             [&](Json v, const At& a) { read_firsts(r, v, a, out); }},
            {"count", Need::required, "of tensors", r.into(out.count)}});
}

void read_segment(Reader& r, Json json, const At& at, BindSegment& out) {
  r.object(json, at, "segment",
           {{"tensor", Need::required, "of the checkpoint, or one a rank",
             [&](Json v, const At& a) { read_tensor(r, v, a, out); }},
            {"rows", Need::nullable, "[first, end) of the first axis, or one a rank",
             r.into(out.rows, read_ranges)},
            {"cols", Need::nullable, "[first, end) of all other axes together, or one a rank",
             r.into(out.cols, read_ranges)},
            {"interleave", Need::nullable, "blocks of rows of two whole tensors in turn",
             r.into(out.interleave, read_interleave)},
            {"series", Need::optional,
             "as many tensors, by the number for which `{}` stands in each name; an extension",
             r.into(out.series, read_series), 7}});
}

void read_bind(Reader& r, Json json, const At& at, std::vector<BindSegment>& out) {
  SeriesFinder finder(out);
  r.list(json, at, [&](Json v, const At& a) {
    if (!r.describing() && finder.take(v)) return;
    read_segment(r, v, a, out.emplace_back());
    if (!r.describing()) finder.appended(v);
  });
  Reader::trim(out);
}

void read_kind(Reader& r, Json json, const At& at, BufferKind& out) {
  r.word(json, at, "a buffer kind", kKinds, out);
  if (out == BufferKind::source || out == BufferKind::inout) r.need_version(at, 7, to_string(out));
}

void read_fill(Reader& r, Json json, const At& at, Fill& out) {
  if (r.version() < 7 && json.type() == Json::Type::text && json.text() == "span_at")
    return r.problem(at,
                     "schema_version 7 has no spans, and nothing else would fill an input of "
                     "`span_at`; take it out of the ops that look at it");
  r.word(json, at, "a fill role", kFills, out);
}

void read_buffer(Reader& r, Json json, const At& at, Buffer& out) {
  r.object(
      json, at, "buffer",
      {{"dtype", Need::required, "of an element", r.word_into(out.dtype, "a dtype", kDtypes)},
       {"shape", Need::required, "integers or names of vars, outermost first", r.into(out.shape)},
       {"kind", Need::required, "who fills it, and how long it lives", r.into(out.kind, read_kind)},
       {"bind", Need::nullable, "segments of the checkpoint, end to end; weights and sources",
        [&](Json v, const At& a) { read_bind(r, v, a, out.bind); }},
       {"fill", Need::nullable,
        "the role by which a server fills or reads it; `snapshot`, `fed_from`, and from "
        "`temperature` on all but `tokens`, `count`, `error` are extensions",
        r.into(out.fill, read_fill)},
       {"domain", Need::nullable, "the values it may hold", r.into(out.domain, read_domain)},
       {"placement", Need::optional, "where a weight lies",
        r.word_into(out.placed_on_host, "`device` or `host`", kPlacements)},
       {"export", Need::optional, "whether other ranks may map it", r.into(out.exported)},
       {"of", Need::nullable, "the exported buffer or the state that a peer has addresses of",
        r.name_into(out.of)},
       {"group", Need::nullable, "the group of a peer", r.name_into(out.group)}});
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
