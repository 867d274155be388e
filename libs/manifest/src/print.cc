#include <algorithm>
#include <cmath>
#include <variant>

#include "kern/manifest/verify.h"
#include "match.h"
#include "printer.h"
#include "vocabulary.h"

namespace kern::manifest {

using Layout = JsonWriter::Layout;

void Printer::expr(const Expr& e) {
  switch (e.op) {
    case Expr::Op::constant:
      return w_.integer(e.value);
    case Expr::Op::var:
      return w_.text(e.var);
    case Expr::Op::mul:
    case Expr::Op::add:
    case Expr::Op::ceil_div:
      break;
  }
  w_.open_object();
  w_.key(e.op == Expr::Op::mul ? "mul" : e.op == Expr::Op::add ? "add" : "ceil_div");
  w_.open_array();
  for (const Expr& operand : e.operands) expr(operand);
  if (e.op != Expr::Op::add) w_.integer(e.value);
  w_.close_array();
  w_.close_object();
}

void Printer::integers(std::string_view key, const std::vector<int64_t>& values) {
  w_.key(key);
  w_.open_array();
  for (const int64_t value : values) w_.integer(value);
  w_.close_array();
}

void Printer::texts(std::string_view key, const std::vector<std::string>& values) {
  w_.key(key);
  w_.open_array();
  for (const std::string& value : values) w_.text(value);
  w_.close_array();
}

void Printer::shape(const std::vector<Dim>& shape) {
  w_.key("shape");
  w_.open_array();
  for (const Dim& dim : shape) {
    if (dim.is_var())
      w_.text(dim.var);
    else
      w_.integer(dim.value);
  }
  w_.close_array();
}

void Printer::bound(std::string_view key, const std::optional<Bound>& bound) {
  if (!bound) return;
  w_.key(key);
  std::visit(Match{[&](int64_t value) { w_.integer(value); }, [&](double value) { w_.real(value); },
                   [&](const Expr& e) { expr(e); }},
             *bound);
}

void Printer::vars(const Manifest& m) {
  w_.key("vars");
  w_.open_object(Layout::broken);
  for (const Var& var : m.vars) {
    w_.key(var.name);
    w_.open_object();
    integer("max", var.max);
    if (var.axis) text("axis", kAxes[static_cast<size_t>(*var.axis)]);
    w_.close_object();
  }
  w_.close_object();
}

void Printer::state(const State& s) {
  static constexpr std::string_view kSizes[] = {"bytes_per_token", "bytes_per_seq", "bytes"};
  w_.open_object();
  if (s.host) {
    w_.key("host");
    w_.open_object();
    text("dtype", to_string(s.host->dtype));
    integers("shape", s.host->shape);
    integers("strides", s.host->strides);
    w_.close_object();
  } else {
    integer(kSizes[static_cast<size_t>(s.size)], s.bytes);
  }
  if (s.shard) {
    w_.key("shard");
    w_.open_object();
    text("group", s.shard->group);
    text("by", kShardings[static_cast<size_t>(s.shard->by)]);
    if (s.shard->by == Shard::By::heads) {
      w_.key("segments");
      w_.open_array();
      for (const Shard::Segment& segment : s.shard->segments) {
        w_.open_array();
        w_.integer(segment.rows);
        w_.integer(segment.width_bytes);
        w_.close_array();
      }
      w_.close_array();
    }
    w_.close_object();
  }
  w_.close_object();
}

void Printer::range(std::string_view key, const RangeTable& table) {
  const auto one = [&](const Range& r) {
    w_.open_array();
    w_.integer(r.first);
    w_.integer(r.last);
    w_.close_array();
  };
  w_.key(key);
  if (table.group.empty()) {
    for (const Range& r : table.ranges) one(r);
    return;
  }
  w_.open_object();
  text("group", table.group);
  w_.key("ranges");
  w_.open_array();
  for (const Range& r : table.ranges) one(r);
  w_.close_array();
  w_.close_object();
}

void Printer::series(const Series& s) {
  w_.key("series");
  w_.open_object();
  w_.key("first");
  if (s.group.empty()) {
    for (const int64_t first : s.firsts) w_.integer(first);
  } else {
    w_.open_object();
    text("group", s.group);
    integers("firsts", s.firsts);
    w_.close_object();
  }
  integer("count", s.count);
  w_.close_object();
}

/// The segment as it is written once, or the `index`-th of a series that is spelled out.
void Printer::segment(const BindSegment& s, int64_t index) {
  const bool spelled_out = s.series && s.series->spelled_out;
  const auto name = [&](const std::string& tensor, size_t place) {
    return spelled_out ? name_in(s, tensor, place, index) : tensor;
  };
  w_.open_object();
  w_.key("tensor");
  if (s.group.empty() && !(spelled_out && !s.series->group.empty())) {
    w_.text(name(s.tensors[0], 0));
  } else {
    const size_t ranks = std::max(s.tensors.size(), spelled_out ? s.series->firsts.size() : 0);
    w_.open_object();
    text("group", s.group.empty() ? s.series->group : s.group);
    w_.key("tensors");
    w_.open_array();
    for (size_t r = 0; r < ranks; ++r) w_.text(name(s.tensors[s.group.empty() ? 0 : r], r));
    w_.close_array();
    w_.close_object();
  }
  if (s.series && !spelled_out) series(*s.series);
  if (s.rows) range("rows", *s.rows);
  if (s.cols) range("cols", *s.cols);
  if (s.interleave) {
    w_.key("interleave");
    w_.open_object();
    text("with", name(s.interleave->with, 0));
    integer("rows", s.interleave->rows);
    w_.close_object();
  }
  w_.close_object();
}

void Printer::domain(const Domain& d) {
  w_.key("domain");
  w_.open_object();
  bound("min", d.min);
  bound("max", d.max);
  if (!d.index_into.empty()) text("index_into", d.index_into);
  if (d.stride) integer("stride", *d.stride);
  flag("monotone", d.monotone);
  w_.close_object();
}

void Printer::buffer(const Buffer& b) {
  const bool long_bind = b.bind.size() > 1 || (b.bind.size() == 1 && b.bind[0].written() > 1);
  w_.open_object();
  text("dtype", to_string(b.dtype));
  shape(b.shape);
  text("kind", to_string(b.kind));
  if (b.fill) text("fill", to_string(*b.fill));
  if (b.domain) domain(*b.domain);
  if (!b.of.empty()) text("of", b.of);
  if (!b.group.empty()) text("group", b.group);
  if (b.placed_on_host) text("placement", "host");
  flag("export", b.exported);
  if (!b.bind.empty()) {
    w_.key("bind");
    w_.open_array(long_bind ? Layout::broken : Layout::one_line);
    for (const BindSegment& s : b.bind)
      for (int64_t i = 0; i < s.written(); ++i) segment(s, i);
    w_.close_array();
  }
  w_.close_object();
}

void Printer::provenance(const Meta& meta) {
  w_.key("meta");
  w_.open_object();
  if (!meta.generator.empty()) text("generator", meta.generator);
  if (!meta.version.empty()) text("version", meta.version);
  if (!meta.config_sha256.empty()) text("config_sha256", meta.config_sha256);
  if (!meta.layout.empty()) text("layout", meta.layout);
  if (!meta.tokenizer.empty()) text("tokenizer", meta.tokenizer);
  w_.close_object();
}

void Printer::top(const Manifest& m) {
  integer("schema_version", m.schema_version);
  text("model", m.model);
  if (!m.uses.empty()) texts("uses", m.uses);
  if (m.device == Device::host) text("device", "host");
  if (m.meta) provenance(*m.meta);
  if (m.cut) {
    w_.key("cut");
    w_.open_object();
    text("id", m.cut->id);
    integer("stage", m.cut->stage);
    integer("stages", m.cut->stages);
    w_.close_object();
  }
  if (!m.constants.empty()) {
    w_.key("constants");
    w_.open_object(Layout::broken);
    for (const Constant& c : m.constants) {
      w_.key(c.name);
      if (std::abs(c.value) < 9e15 && c.value == std::trunc(c.value))
        w_.integer(static_cast<int64_t>(c.value));
      else
        w_.real(c.value);
    }
    w_.close_object();
  }
  vars(m);
  if (m.groups.empty()) return;
  w_.key("topology");
  w_.open_object();
  w_.key("groups");
  w_.open_object();
  for (const Group& g : m.groups) integer(g.name, g.size);
  w_.close_object();
  w_.close_object();
}

std::string Printer::print(const Manifest& m) {
  const auto named = [&](std::string_view key, const auto& list, const auto& one) {
    w_.key(key);
    w_.open_object(Layout::broken);
    for (const auto& item : list) {
      w_.key(item.name);
      one(item);
    }
    w_.close_object();
  };
  w_.open_object(Layout::broken);
  top(m);
  named("states", m.states, [&](const State& s) { state(s); });
  named("buffers", m.buffers, [&](const Buffer& b) { buffer(b); });
  named("modules", m.modules, [&](const Module& module) {
    w_.open_object();
    text("source", module.source);
    text("sha256", module.sha256);
    w_.close_object();
  });
  named("ops", m.ops, [&](const Op& o) { op(o); });
  named("programs", m.programs, [&](const Program& p) { program(p); });
  w_.close_object();
  return w_.take() + '\n';
}

std::string print(const Manifest& manifest) {
  return Printer().print(manifest);
}

}  // namespace kern::manifest
