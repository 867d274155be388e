#include "reader.h"

namespace kern::manifest {
namespace {

void set_offset(CallArg& arg, int64_t bytes) {
  if (auto* buffer = std::get_if<BufferArg>(&arg)) buffer->offset_bytes = bytes;
  if (auto* state = std::get_if<StateArg>(&arg)) state->offset_bytes = bytes;
}

void read_call_arg(Reader& r, Json json, const At& at, CallArg& out) {
  static constexpr Companion kOffset = {"offset", "buf", "state"};
  int64_t offset_bytes = 0;
  const auto literal = [&](Literal::Type type) {
    return [&r, &out, type](Json v, const At& a) {
      read_literal(r, v, a, type, out.emplace<Literal>());
    };
  };
  r.object(json, at, "call_argument",
           {{"buf", Need::one, "a buffer",
             [&](Json v, const At& a) { r.text(v, a, out.emplace<BufferArg>().buffer); }},
            {"state", Need::one, "a state",
             [&](Json v, const At& a) { r.text(v, a, out.emplace<StateArg>().state); }},
            {"offset", Need::optional, "bytes into the buffer or state", r.into(offset_bytes)},
            {"var", Need::one, "the worth of a var",
             [&](Json v, const At& a) { r.text(v, a, out.emplace<VarRef>().name); }},
            {"expr", Need::one, "the worth of an expression",
             [&](Json v, const At& a) { r.expr(v, a, *out.emplace<ExprArg>().expr); }},
            {"i32", Need::one, "a literal", literal(Literal::Type::i32)},
            {"i64", Need::one, "a literal", literal(Literal::Type::i64)},
            {"f32", Need::one, "a literal", literal(Literal::Type::f32)},
            {"u8", Need::one, "a literal", literal(Literal::Type::u8)},
            {"rank", Need::one, "this rank's place in a group",
             [&](Json v, const At& a) { r.text(v, a, out.emplace<RankRef>().group); }}},
           &kOffset);
  set_offset(out, offset_bytes);
}

void read_call(Reader& r, Json json, const At& at, Call& out) {
  r.object(json, at, "call",
           {{"op", Need::required, "what is called", r.into(out.op)},
            {"args", Need::required, "one a parameter", r.into(out.args, read_call_arg)},
            {"label", Need::nullable, "where a cut may be made", r.into(out.label)}});
}

void read_rows(Reader& r, Json json, const At& at, std::variant<int64_t, std::string>& out) {
  if (r.names_var(json))
    out = std::string(json.text());
  else
    r.integer(json, at, 0, kIntMax, out.emplace<int64_t>(0));
}

/// Beside the single rows of the other sequences, one of them has a run of as many rows as the var
/// says, from the row in the input of fill `span_at` on.
void read_span(Reader& r, Json json, const At& at, std::string& out) {
  r.text(json, at, out);
  r.problem(at,
            "schema_version 7 has no call in which one sequence has a run of rows and the others "
            "one each; take the program out");
}

void read_batch(Reader& r, Json json, const At& at, Batch& out) {
  std::string span;
  r.object(json, at, "batch",
           {{"groups", Need::required, "sequences at most", r.into(out.groups)},
            {"rows", Need::required, "exactly so many of each, or the rows var",
             r.into(out.rows, read_rows)},
            {"context", Need::nullable, "the var that holds the longest sequence",
             r.name_into(out.context)},
            {"span", Need::nullable, "the var of a run's rows", r.into(span, read_span), 5, 5}});
}

}  // namespace

void read_programs(Reader& r, Json json, const At& at, std::vector<Program>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Program& program = out.emplace_back();
    program.name = name;
    r.object(value, here, "program",
             {{"calls", Need::required, "in order", r.into(program.calls, read_call)},
              {"batch", Need::nullable, "how many sequences, and rows of each, a call serves",
               r.into(program.batch, read_batch)},
              {"once", Need::optional, "runs once, after load", r.into(program.once)},
              {"derive", Need::optional, "runs while weights load, from sources to carries",
               r.into(program.derive), 7},
              {"graph", Need::optional, "captured for each assignment of the vars and replayed",
               r.into(program.graph)}});
  });
}

}  // namespace kern::manifest
