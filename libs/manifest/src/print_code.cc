#include <variant>

#include "match.h"
#include "printer.h"

namespace kern::manifest {

using Layout = JsonWriter::Layout;

void Printer::params(const std::vector<ParamType>& params) {
  w_.key("params");
  w_.open_array();
  for (const ParamType& type : params) w_.text(to_string(type));
  w_.close_array();
}

void Printer::literal(const Literal& literal) {
  static constexpr std::string_view kKeys[] = {"i32", "i64", "f32", "u8"};
  w_.key(kKeys[static_cast<size_t>(literal.type)]);
  if (literal.type == Literal::Type::f32)
    w_.real(literal.real);
  else
    w_.integer(literal.integer);
}

void Printer::tensormap(const Tensormap& map) {
  w_.key("tensormap");
  w_.open_object();
  integer("param", map.param);
  text("dtype", map.dtype);
  integers("dims", map.dims);
  integers("strides", map.strides);
  integers("box", map.box);
  if (map.swizzle != 0) integer("swizzle", map.swizzle);
  if (map.l2_promotion != 0) integer("l2_promotion", map.l2_promotion);
  flag("oob_nan", map.oob_nan);
  flag("wrap", map.wrap);
  w_.close_object();
}

void Printer::field(const PackField& field) {
  w_.open_object();
  integer("at", field.at);
  if (field.width) integer("width", *field.width);
  std::visit(
      Match{[&](const ParamRef& p) { integer("param", p.index); },
            [&](const ScratchRef& s) { text("scratch", s.name); },
            [&](const Literal& l) { literal(l); }, [&](const VarRef& v) { text("var", v.name); },
            [&](const Expr& e) {
              w_.key("expr");
              expr(e);
            },
            [&](const RankRef& r) { text("rank", r.group); },
            [&](const Tensormap& t) { tensormap(t); }},
      field.source);
  w_.close_object();
}

void Printer::pack(const Pack& pack) {
  w_.key("pack");
  w_.open_object();
  integer("size", pack.size);
  w_.key("fields");
  w_.open_array();
  for (const PackField& f : pack.fields) field(f);
  w_.close_array();
  w_.close_object();
}

void Printer::launch_arg(const LaunchArg& arg) {
  w_.open_object();
  std::visit(
      Match{[&](const ParamRef& p) { integer("param", p.index); },
            [&](const ScratchRef& s) { text("scratch", s.name); },
            [&](const Literal& l) { literal(l); }, [&](const RankRef& r) { text("rank", r.group); },
            [&](const Pack& p) { pack(p); }},
      arg);
  w_.close_object();
}

void Printer::launch(const Launch& launch) {
  w_.open_object();
  if (!launch.module.empty()) text("module", launch.module);
  text("entry", launch.entry);
  if (!launch.block.empty()) integers("block", launch.block);
  if (!launch.grid.empty()) {
    w_.key("grid");
    w_.open_array();
    for (const Expr& e : launch.grid) expr(e);
    w_.close_array();
  }
  if (launch.shared_mem) {
    w_.key("shared_mem");
    expr(*launch.shared_mem);
  }
  if (!launch.cluster.empty()) integers("cluster", launch.cluster);
  flag("pdl", launch.pdl);
  if (launch.when) {
    w_.key("when");
    w_.open_object();
    text("var", launch.when->var);
    if (launch.when->min) integer("min", *launch.when->min);
    if (launch.when->max) integer("max", *launch.when->max);
    w_.close_object();
  }
  if (launch.params) params(*launch.params);
  if (launch.args) {
    w_.key("args");
    w_.open_array();
    for (const LaunchArg& arg : *launch.args) launch_arg(arg);
    w_.close_array();
  }
  if (launch.algo) {
    w_.key("algo");
    w_.open_object();
    for (const auto& [name, value] : launch.algo->fields) integer(name, value);
    w_.close_object();
  }
  w_.close_object();
}

void Printer::op(const Op& op) {
  w_.open_object(Layout::broken);
  params(op.params);
  w_.key("impl");
  w_.open_object(Layout::broken);
  if (!op.scratch.empty()) {
    w_.key("scratch");
    w_.open_object(Layout::broken);
    for (const Scratch& s : op.scratch) {
      w_.key(s.name);
      w_.open_object();
      text("dtype", to_string(s.dtype));
      shape(s.shape);
      w_.close_object();
    }
    w_.close_object();
  }
  w_.key("launches");
  w_.open_array(Layout::broken);
  for (const Launch& l : op.launches) launch(l);
  w_.close_array();
  w_.close_object();
  w_.close_object();
}

void Printer::call_arg(const CallArg& arg) {
  w_.open_object();
  std::visit(Match{[&](const BufferArg& b) {
                     text("buf", b.buffer);
                     if (b.offset_bytes != 0) integer("offset", b.offset_bytes);
                   },
                   [&](const StateArg& s) {
                     text("state", s.state);
                     if (s.offset_bytes != 0) integer("offset", s.offset_bytes);
                   },
                   [&](const VarRef& v) { text("var", v.name); },
                   [&](const ExprArg& e) {
                     w_.key("expr");
                     expr(*e.expr);
                   },
                   [&](const Literal& l) { literal(l); },
                   [&](const RankRef& r) { text("rank", r.group); }},
             arg);
  w_.close_object();
}

void Printer::call(const Call& call) {
  w_.open_object();
  text("op", call.op);
  w_.key("args");
  w_.open_array();
  for (const CallArg& arg : call.args) call_arg(arg);
  w_.close_array();
  if (!call.label.empty()) text("label", call.label);
  w_.close_object();
}

void Printer::batch(const Batch& batch) {
  w_.key("batch");
  w_.open_object();
  integer("groups", batch.groups);
  if (const auto* count = std::get_if<int64_t>(&batch.rows))
    integer("rows", *count);
  else
    text("rows", std::get<std::string>(batch.rows));
  if (!batch.context.empty()) text("context", batch.context);
  w_.close_object();
}

void Printer::program(const Program& p) {
  w_.open_object(Layout::broken);
  if (p.batch) batch(*p.batch);
  flag("once", p.once);
  flag("derive", p.derive);
  flag("graph", p.graph);
  w_.key("calls");
  w_.open_array(Layout::broken);
  for (const Call& c : p.calls) call(c);
  w_.close_array();
  w_.close_object();
}

}  // namespace kern::manifest
