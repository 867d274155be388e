#include "reader.h"

namespace kern::manifest {
namespace {

/// What stood in one argument of a call: the sources that were named, and the offset.
struct Seen {
  int sources = 0;
  bool offset = false;
  int64_t offset_bytes = 0;
};

void finish_arg(Reader& r, const At& at, const Seen& seen, CallArg& out) {
  if (seen.sources != 1)
    return r.problem(
        at,
        "expected exactly one of `buf`, `state`, `var`, `expr`, `i32`, `i64`, `f32`, `u8`, "
        "`rank`");
  if (!seen.offset) return;
  if (auto* buffer = std::get_if<BufferArg>(&out))
    buffer->offset_bytes = seen.offset_bytes;
  else if (auto* state = std::get_if<StateArg>(&out))
    state->offset_bytes = seen.offset_bytes;
  else
    r.problem(at, "`offset` goes with `buf` or `state` only");
}

void read_call_arg(Reader& r, Json json, const At& at, CallArg& out) {
  Seen seen;
  const auto lit = [&](Literal::Type type) {
    return [&r, &seen, &out, type](Json v, const At& a) {
      ++seen.sources;
      read_literal(r, v, a, type, out.emplace<Literal>());
    };
  };
  const auto i32 = lit(Literal::Type::i32), i64 = lit(Literal::Type::i64);
  const auto f32 = lit(Literal::Type::f32), u8 = lit(Literal::Type::u8);
  r.object(json, at,
           {{"buf", Need::optional,
             [&](Json v, const At& a) {
               ++seen.sources;
               r.text(v, a, out.emplace<BufferArg>().buffer);
             }},
            {"state", Need::optional,
             [&](Json v, const At& a) {
               ++seen.sources;
               r.text(v, a, out.emplace<StateArg>().state);
             }},
            {"offset", Need::optional,
             [&](Json v, const At& a) {
               seen.offset = true;
               r.integer(v, a, 0, kIntMax, seen.offset_bytes);
             }},
            {"var", Need::optional,
             [&](Json v, const At& a) {
               ++seen.sources;
               r.text(v, a, out.emplace<VarRef>().name);
             }},
            {"expr", Need::optional,
             [&](Json v, const At& a) {
               ++seen.sources;
               r.expr(v, a, out.emplace<ExprArg>().expr);
             }},
            {"i32", Need::optional, i32},
            {"i64", Need::optional, i64},
            {"f32", Need::optional, f32},
            {"u8", Need::optional, u8},
            {"rank", Need::optional, [&](Json v, const At& a) {
               ++seen.sources;
               r.text(v, a, out.emplace<RankRef>().group);
             }}});
  finish_arg(r, at, seen, out);
}

void read_call(Reader& r, Json json, const At& at, Call& out) {
  r.object(json, at,
           {{"op", Need::required, [&](Json v, const At& a) { r.text(v, a, out.op); }},
            {"args", Need::required,
             [&](Json v, const At& a) {
               r.list(v, a, [&](Json arg, const At& here) {
                 read_call_arg(r, arg, here, out.args.emplace_back());
               });
             }},
            {"label", Need::nullable, [&](Json v, const At& a) { r.text(v, a, out.label); }}});
}

void read_batch(Reader& r, Json json, const At& at, Batch& out) {
  r.object(json, at,
           {{"groups", Need::required,
             [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, out.groups); }},
            {"rows", Need::required,
             [&](Json v, const At& a) {
               if (v.type() == Json::Type::text && r.constant(v.text()) == nullptr)
                 out.rows = std::string(v.text());
               else
                 r.integer(v, a, 0, kIntMax, out.rows.emplace<int64_t>(0));
             }},
            {"context", Need::nullable, [&](Json v, const At& a) { r.text(v, a, out.context); }}});
}

}  // namespace

void read_programs(Reader& r, Json json, const At& at, std::vector<Program>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Program& program = out.emplace_back();
    program.name = name;
    r.object(
        value, here,
        {{"calls", Need::required,
          [&](Json v, const At& a) {
            r.list(v, a, [&](Json call, const At& where) {
              read_call(r, call, where, program.calls.emplace_back());
            });
          }},
         {"batch", Need::nullable,
          [&](Json v, const At& a) { read_batch(r, v, a, program.batch.emplace()); }},
         {"once", Need::optional, [&](Json v, const At& a) { r.boolean(v, a, program.once); }},
         {"derive", Need::optional, [&](Json v, const At& a) { r.boolean(v, a, program.derive); },
          7},
         {"graph", Need::optional, [&](Json v, const At& a) { r.boolean(v, a, program.graph); }}});
  });
}

}  // namespace kern::manifest
