#include "reader.h"

namespace kern::manifest {
namespace {

/// A reader of the literal of that type into a variant.
template <class Variant>
auto literal_into(Reader& r, Variant& out, Literal::Type type) {
  return [&r, &out, type](Json v, const At& a) {
    read_literal(r, v, a, type, out.template emplace<Literal>());
  };
}

void read_tensormap(Reader& r, Json json, const At& at, Tensormap& out) {
  r.object(
      json, at, "tensormap",
      {{"param", Need::required, "the op's parameter it looks at", r.into(out.param, 0, kU32Max)},
       {"dtype", Need::required, "TMA's", r.into(out.dtype)},
       {"dims", Need::required, "innermost first; 0 outermost spans what is bound",
        r.into(out.dims)},
       {"strides", Need::optional, "in bytes, of all dims but the innermost", r.into(out.strides)},
       {"box", Need::required, "elements of a load, innermost first", r.into(out.box)},
       {"swizzle", Need::optional, "0, 32, 64 or 128 bytes", r.into(out.swizzle, 0, kU32Max)},
       {"l2_promotion", Need::optional, "0, 64, 128 or 256 bytes",
        r.into(out.l2_promotion, 0, kU32Max)},
       {"oob_nan", Need::optional, "what lies outside reads as NaN, not 0", r.into(out.oob_nan)},
       {"wrap", Need::optional, "strides overflow on purpose", r.into(out.wrap)}});
}

void read_field(Reader& r, Json json, const At& at, PackField& out) {
  auto& source = out.source;
  r.object(json, at, "field",
           {{"at", Need::required, "its first byte", r.into(out.at, 0, kU32Max)},
            {"width", Need::nullable, "its bytes", r.into(out.width, kU32Max)},
            {"param", Need::one, "the op's parameter at that place",
             [&](Json v, const At& a) {
               r.integer(v, a, 0, kU32Max, source.emplace<ParamRef>().index);
             }},
            {"scratch", Need::one, "the op's scratch of that name",
             [&](Json v, const At& a) { r.text(v, a, source.emplace<ScratchRef>().name); }},
            {"i32", Need::one, "a literal", literal_into(r, source, Literal::Type::i32)},
            {"i64", Need::one, "a literal", literal_into(r, source, Literal::Type::i64)},
            {"f32", Need::one, "a literal", literal_into(r, source, Literal::Type::f32)},
            {"u8", Need::one, "a literal", literal_into(r, source, Literal::Type::u8)},
            {"var", Need::one, "the worth of a var",
             [&](Json v, const At& a) { r.text(v, a, source.emplace<VarRef>().name); }},
            {"expr", Need::one, "the worth of an expression",
             [&](Json v, const At& a) { r.expr(v, a, source.emplace<Expr>()); }},
            {"rank", Need::one, "this rank's place in a group",
             [&](Json v, const At& a) { r.text(v, a, source.emplace<RankRef>().group); }},
            {"tensormap", Need::one, "a CUtensorMap over a buffer",
             [&](Json v, const At& a) { read_tensormap(r, v, a, source.emplace<Tensormap>()); }}});
}

void read_pack(Reader& r, Json json, const At& at, Pack& out) {
  r.object(
      json, at, "pack",
      {{"size", Need::required, "in bytes", r.into(out.size, 1, kU32Max)},
       {"fields", Need::required, "what is not covered is zero", r.into(out.fields, read_field)}});
}

void read_launch_arg(Reader& r, Json json, const At& at, LaunchArg& out) {
  r.object(
      json, at, "launch_argument",
      {{"param", Need::one, "the op's parameter at that place",
        [&](Json v, const At& a) { r.integer(v, a, 0, kU32Max, out.emplace<ParamRef>().index); }},
       {"scratch", Need::one, "the op's scratch of that name",
        [&](Json v, const At& a) { r.text(v, a, out.emplace<ScratchRef>().name); }},
       {"i32", Need::one, "a literal", literal_into(r, out, Literal::Type::i32)},
       {"i64", Need::one, "a literal", literal_into(r, out, Literal::Type::i64)},
       {"f32", Need::one, "a literal", literal_into(r, out, Literal::Type::f32)},
       {"u8", Need::one, "a literal", literal_into(r, out, Literal::Type::u8)},
       {"rank", Need::one, "this rank's place in a group",
        [&](Json v, const At& a) { r.text(v, a, out.emplace<RankRef>().group); }},
       {"pack", Need::one, "a struct, by value",
        [&](Json v, const At& a) { read_pack(r, v, a, out.emplace<Pack>()); }}});
}

void read_param(Reader& r, Json json, const At& at, ParamType& out) {
  r.param_type(json, at, out);
}

void read_params(Reader& r, Json json, const At& at, std::vector<ParamType>& out) {
  r.list_into(json, at, out, read_param);
}

void read_args(Reader& r, Json json, const At& at, std::vector<LaunchArg>& out) {
  r.list_into(json, at, out, read_launch_arg);
}

void read_when(Reader& r, Json json, const At& at, When& out) {
  r.object(json, at, "when",
           {{"var", Need::required, "outside the bounds the launch does nothing", r.into(out.var)},
            {"min", Need::nullable, "inclusive", r.into(out.min)},
            {"max", Need::nullable, "inclusive", r.into(out.max)}});
}

void read_algo(Reader& r, Json json, const At& at, Algo& out) {
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int64_t kU16Max = std::numeric_limits<uint16_t>::max();
  constexpr std::string_view kAbout = "of cublasLtMatmulAlgo_t";
  const auto into = [&](std::string_view key, int64_t min, int64_t max) {
    return [&r, &out, key, min, max](Json v, const At& a) {
      r.integer(v, a, min, max, out.fields.emplace_back(std::string(key), 0).second);
    };
  };
  r.object(json, at, "algo",
           {{"id", Need::required, kAbout, into("id", kMin, kMax)},
            {"tile", Need::required, kAbout, into("tile", 0, kU32Max)},
            {"stages", Need::required, kAbout, into("stages", 0, kU32Max)},
            {"split_k", Need::required, kAbout, into("split_k", kMin, kMax)},
            {"reduction", Need::required, kAbout, into("reduction", 0, kU32Max)},
            {"swizzle", Need::required, kAbout, into("swizzle", 0, kU32Max)},
            {"custom", Need::required, kAbout, into("custom", 0, kU32Max)},
            {"inner_shape", Need::required, kAbout, into("inner_shape", 0, kU16Max)},
            {"cluster_shape", Need::required, kAbout, into("cluster_shape", 0, kU16Max)}});
}

constexpr std::string_view kParams = "the launch's own parameters; without, the op's";
constexpr std::string_view kArgs = "one a parameter; without, the op's in order";
constexpr std::string_view kWhen = "the calls that it is part of; without, all";

void read_extern(Reader& r, Json json, const At& at, Launch& out) {
  r.object(json, at, "extern_launch",
           {{"entry", Need::required, "extern:<name> of a built-in", r.into(out.entry)},
            {"params", Need::nullable, kParams, r.into(out.params, read_params)},
            {"args", Need::nullable, kArgs, r.into(out.args, read_args)},
            {"algo", Need::nullable, "pins the cuBLASLt algorithm", r.into(out.algo, read_algo)},
            {"when", Need::nullable, kWhen, r.into(out.when, read_when), 7}});
}

void read_kernel(Reader& r, Json json, const At& at, Launch& out) {
  const auto triple_into = [&r](std::vector<int64_t>& to) {
    return [&r, &to](Json v, const At& a) {
      r.list_of(v, a, 3, [&](Json one, const At& here) {
        r.integer(one, here, 0, kU32Max, to.emplace_back(0));
      });
    };
  };
  const auto grid = [&](Json v, const At& a) {
    r.list_of(v, a, 3, [&](Json e, const At& here) { r.expr(e, here, out.grid.emplace_back()); });
  };
  r.object(json, at, "launch",
           {{"module", Need::required, "whose entry it is", r.into(out.module)},
            {"entry", Need::required, "the kernel's name", r.into(out.entry)},
            {"block", Need::required, "threads, [x, y, z]", triple_into(out.block)},
            {"grid", Need::required, "blocks, [x, y, z]", grid},
            {"shared_mem", Need::nullable, "dynamic, bytes of a block",
             [&](Json v, const At& a) { r.expr(v, a, out.shared_mem.emplace()); }},
            {"cluster", Need::nullable, "blocks, [x, y, z]", triple_into(out.cluster)},
            {"pdl", Need::optional, "whether the kernel itself waits for the one before",
             r.into(out.pdl)},
            {"when", Need::nullable, kWhen, r.into(out.when, read_when), 7},
            {"params", Need::nullable, kParams, r.into(out.params, read_params)},
            {"args", Need::nullable, kArgs, r.into(out.args, read_args)}});
}

void read_launch(Reader& r, Json json, const At& at, Launch& out) {
  r.choose(
      json, at, "entry", "extern:", [&](Json v, const At& a) { read_extern(r, v, a, out); },
      [&](Json v, const At& a) { read_kernel(r, v, a, out); });
}

void read_scratch(Reader& r, Json json, const At& at, std::vector<Scratch>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Scratch& scratch = out.emplace_back();
    scratch.name = name;
    r.object(
        value, here, "scratch",
        {{"dtype", Need::required, "of an element", r.word_into(scratch.dtype, "a dtype", kDtypes)},
         {"shape", Need::required, "integers or names of vars, outermost first",
          r.into(scratch.shape)}});
  });
}

void read_impl(Reader& r, Json json, const At& at, Op& out) {
  r.object(
      json, at, "impl",
      {{"scratch", Need::optional, "memory of this op alone", r.into(out.scratch, read_scratch)},
       {"launches", Need::required, "in order", r.into(out.launches, read_launch)}});
}

}  // namespace

void read_literal(Reader& r, Json json, const At& at, Literal::Type type, Literal& out) {
  out.type = type;
  switch (type) {
    case Literal::Type::i32:
      return r.integer(json, at, std::numeric_limits<int32_t>::min(),
                       std::numeric_limits<int32_t>::max(), out.integer);
    case Literal::Type::i64:
      return r.integer(json, at, std::numeric_limits<int64_t>::min(), kIntMax, out.integer);
    case Literal::Type::u8:
      return r.integer(json, at, 0, 255, out.integer);
    case Literal::Type::f32:
      break;
  }
  r.real(json, at, out.real);
}

void read_ops(Reader& r, Json json, const At& at, std::vector<Op>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Op& op = out.emplace_back();
    op.name = name;
    r.object(value, here, "op",
             {{"params", Need::required, "the interface", r.into(op.params, read_params)},
              {"impl", Need::required, "what carries it out",
               [&](Json v, const At& a) { read_impl(r, v, a, op); }}});
  });
}

}  // namespace kern::manifest
