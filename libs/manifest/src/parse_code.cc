#include "reader.h"

namespace kern::manifest {
namespace {

/// Counts how many of several exclusive keys stood, and says so when it was not one.
class OneOf {
 public:
  OneOf(Reader& reader, const At& at, std::string_view keys)
      : reader_(reader), at_(at), keys_(keys) {}
  void seen() { ++count_; }
  void finish() {
    if (count_ != 1) reader_.problem(at_, "expected exactly one of {}", keys_);
  }

 private:
  Reader& reader_;
  const At& at_;
  std::string_view keys_;
  int count_ = 0;
};

/// A reader of the literal with that key into a variant.
template <class Variant>
auto literal_into(Reader& r, OneOf& one, Variant& out, Literal::Type type) {
  return [&r, &one, &out, type](Json v, const At& a) {
    one.seen();
    read_literal(r, v, a, type, out.template emplace<Literal>());
  };
}

void read_tensormap(Reader& r, Json json, const At& at, Tensormap& out) {
  const auto list_into = [&r](std::vector<int64_t>& to) {
    return [&r, &to](Json v, const At& a) { r.integers(v, a, 0, kIntMax, to); };
  };
  r.object(json, at,
           {{"param", Need::required,
             [&](Json v, const At& a) { r.integer(v, a, 0, kU32Max, out.param); }},
            {"dtype", Need::required, [&](Json v, const At& a) { r.text(v, a, out.dtype); }},
            {"dims", Need::required, list_into(out.dims)},
            {"strides", Need::required, list_into(out.strides)},
            {"box", Need::required, list_into(out.box)},
            {"swizzle", Need::optional,
             [&](Json v, const At& a) { r.integer(v, a, 0, kU32Max, out.swizzle); }},
            {"l2_promotion", Need::optional,
             [&](Json v, const At& a) { r.integer(v, a, 0, kU32Max, out.l2_promotion); }},
            {"oob_nan", Need::optional, [&](Json v, const At& a) { r.boolean(v, a, out.oob_nan); }},
            {"wrap", Need::optional, [&](Json v, const At& a) { r.boolean(v, a, out.wrap); }}});
}

void read_field(Reader& r, Json json, const At& at, PackField& out) {
  OneOf one(r, at,
            "`param`, `scratch`, `i32`, `i64`, `f32`, `u8`, `var`, `expr`, `rank`, `tensormap`");
  const auto lit = [&](Literal::Type type) { return literal_into(r, one, out.source, type); };
  const auto i32 = lit(Literal::Type::i32), i64 = lit(Literal::Type::i64);
  const auto f32 = lit(Literal::Type::f32), u8 = lit(Literal::Type::u8);
  r.object(
      json, at,
      {{"at", Need::required, [&](Json v, const At& a) { r.integer(v, a, 0, kU32Max, out.at); }},
       {"width", Need::nullable,
        [&](Json v, const At& a) { r.integer(v, a, 0, kU32Max, out.width.emplace(0)); }},
       {"param", Need::optional,
        [&](Json v, const At& a) {
          one.seen();
          r.integer(v, a, 0, kU32Max, out.source.emplace<ParamRef>().index);
        }},
       {"scratch", Need::optional,
        [&](Json v, const At& a) {
          one.seen();
          r.text(v, a, out.source.emplace<ScratchRef>().name);
        }},
       {"i32", Need::optional, i32},
       {"i64", Need::optional, i64},
       {"f32", Need::optional, f32},
       {"u8", Need::optional, u8},
       {"var", Need::optional,
        [&](Json v, const At& a) {
          one.seen();
          r.text(v, a, out.source.emplace<VarRef>().name);
        }},
       {"expr", Need::optional,
        [&](Json v, const At& a) {
          one.seen();
          r.expr(v, a, out.source.emplace<Expr>());
        }},
       {"rank", Need::optional,
        [&](Json v, const At& a) {
          one.seen();
          r.text(v, a, out.source.emplace<RankRef>().group);
        }},
       {"tensormap", Need::optional, [&](Json v, const At& a) {
          one.seen();
          read_tensormap(r, v, a, out.source.emplace<Tensormap>());
        }}});
  one.finish();
}

void read_pack(Reader& r, Json json, const At& at, Pack& out) {
  r.object(json, at,
           {{"size", Need::required,
             [&](Json v, const At& a) { r.integer(v, a, 1, kU32Max, out.size); }},
            {"fields", Need::required, [&](Json v, const At& a) {
               r.list(v, a, [&](Json field, const At& here) {
                 read_field(r, field, here, out.fields.emplace_back());
               });
             }}});
}

void read_launch_arg(Reader& r, Json json, const At& at, LaunchArg& out) {
  OneOf one(r, at, "`param`, `scratch`, `i32`, `i64`, `f32`, `u8`, `rank`, `pack`");
  const auto lit = [&](Literal::Type type) { return literal_into(r, one, out, type); };
  const auto i32 = lit(Literal::Type::i32), i64 = lit(Literal::Type::i64);
  const auto f32 = lit(Literal::Type::f32), u8 = lit(Literal::Type::u8);
  r.object(json, at,
           {{"param", Need::optional,
             [&](Json v, const At& a) {
               one.seen();
               r.integer(v, a, 0, kU32Max, out.emplace<ParamRef>().index);
             }},
            {"scratch", Need::optional,
             [&](Json v, const At& a) {
               one.seen();
               r.text(v, a, out.emplace<ScratchRef>().name);
             }},
            {"i32", Need::optional, i32},
            {"i64", Need::optional, i64},
            {"f32", Need::optional, f32},
            {"u8", Need::optional, u8},
            {"rank", Need::optional,
             [&](Json v, const At& a) {
               one.seen();
               r.text(v, a, out.emplace<RankRef>().group);
             }},
            {"pack", Need::optional, [&](Json v, const At& a) {
               one.seen();
               read_pack(r, v, a, out.emplace<Pack>());
             }}});
  one.finish();
}

void read_params(Reader& r, Json json, const At& at, std::vector<ParamType>& out) {
  r.list(json, at, [&](Json v, const At& a) {
    r.word(v, a, "a parameter type such as `i32` or `in buffer<bf16>`", parse_param_type,
           out.emplace_back());
  });
}

void read_when(Reader& r, Json json, const At& at, When& out) {
  r.object(json, at,
           {{"var", Need::required, [&](Json v, const At& a) { r.text(v, a, out.var); }},
            {"min", Need::nullable,
             [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, out.min.emplace(0)); }},
            {"max", Need::nullable,
             [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, out.max.emplace(0)); }}});
}

void read_algo(Reader& r, Json json, const At& at, Algo& out) {
  const auto into = [&](std::string_view key, int64_t min, int64_t max) {
    return [&r, &out, key, min, max](Json v, const At& a) {
      r.integer(v, a, min, max, out.fields.emplace_back(std::string(key), 0).second);
    };
  };
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  constexpr int64_t kU16Max = std::numeric_limits<uint16_t>::max();
  const auto id = into("id", kMin, kMax), tile = into("tile", 0, kU32Max);
  const auto stages = into("stages", 0, kU32Max), split_k = into("split_k", kMin, kMax);
  const auto reduction = into("reduction", 0, kU32Max), swizzle = into("swizzle", 0, kU32Max);
  const auto custom = into("custom", 0, kU32Max), inner = into("inner_shape", 0, kU16Max);
  const auto outer = into("cluster_shape", 0, kU16Max);
  r.object(json, at,
           {{"id", Need::required, id},
            {"tile", Need::required, tile},
            {"stages", Need::required, stages},
            {"split_k", Need::required, split_k},
            {"reduction", Need::required, reduction},
            {"swizzle", Need::required, swizzle},
            {"custom", Need::required, custom},
            {"inner_shape", Need::required, inner},
            {"cluster_shape", Need::required, outer}});
}

void read_args(Reader& r, Json json, const At& at, std::vector<LaunchArg>& out) {
  r.list(json, at, [&](Json v, const At& a) { read_launch_arg(r, v, a, out.emplace_back()); });
}

void read_extern(Reader& r, Json json, const At& at, Launch& out) {
  r.object(json, at,
           {{"entry", Need::required, [&](Json v, const At& a) { r.text(v, a, out.entry); }},
            {"params", Need::nullable,
             [&](Json v, const At& a) { read_params(r, v, a, out.params.emplace()); }},
            {"args", Need::nullable,
             [&](Json v, const At& a) { read_args(r, v, a, out.args.emplace()); }},
            {"algo", Need::nullable,
             [&](Json v, const At& a) { read_algo(r, v, a, out.algo.emplace()); }},
            {"when", Need::nullable,
             [&](Json v, const At& a) { read_when(r, v, a, out.when.emplace()); }, 7}});
}

void read_kernel(Reader& r, Json json, const At& at, Launch& out) {
  const auto triple_into = [&r](std::vector<int64_t>& to) {
    return [&r, &to](Json v, const At& a) {
      r.list_of(v, a, 3, [&](Json one, const At& here) {
        r.integer(one, here, 0, kU32Max, to.emplace_back(0));
      });
    };
  };
  const auto block = triple_into(out.block), cluster = triple_into(out.cluster);
  r.object(json, at,
           {{"module", Need::required, [&](Json v, const At& a) { r.text(v, a, out.module); }},
            {"entry", Need::required, [&](Json v, const At& a) { r.text(v, a, out.entry); }},
            {"block", Need::required, block},
            {"grid", Need::required,
             [&](Json v, const At& a) {
               r.list_of(v, a, 3,
                         [&](Json e, const At& here) { r.expr(e, here, out.grid.emplace_back()); });
             }},
            {"shared_mem", Need::nullable,
             [&](Json v, const At& a) { r.expr(v, a, out.shared_mem.emplace()); }},
            {"cluster", Need::nullable, cluster},
            {"pdl", Need::optional, [&](Json v, const At& a) { r.boolean(v, a, out.pdl); }},
            {"when", Need::nullable,
             [&](Json v, const At& a) { read_when(r, v, a, out.when.emplace()); }, 7},
            {"params", Need::nullable,
             [&](Json v, const At& a) { read_params(r, v, a, out.params.emplace()); }},
            {"args", Need::nullable,
             [&](Json v, const At& a) { read_args(r, v, a, out.args.emplace()); }}});
}

bool is_extern(Json json) {
  bool found = false;
  if (json.type() != Json::Type::object) return false;
  json.each_member([&](std::string_view key, Json value) {
    if (key == "entry" && value.type() == Json::Type::text)
      found = value.text().starts_with("extern:");
  });
  return found;
}

void read_scratch(Reader& r, Json json, const At& at, std::vector<Scratch>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Scratch& scratch = out.emplace_back();
    scratch.name = name;
    r.object(
        value, here,
        {{"dtype", Need::required,
          [&](Json v, const At& a) { r.word(v, a, "a dtype", parse_dtype, scratch.dtype); }},
         {"shape", Need::required, [&](Json v, const At& a) { r.shape(v, a, scratch.shape); }}});
  });
}

void read_impl(Reader& r, Json json, const At& at, Op& out) {
  r.object(json, at,
           {{"scratch", Need::optional,
             [&](Json v, const At& a) { read_scratch(r, v, a, out.scratch); }},
            {"launches", Need::required, [&](Json v, const At& a) {
               r.list(v, a, [&](Json launch, const At& here) {
                 if (is_extern(launch))
                   read_extern(r, launch, here, out.launches.emplace_back());
                 else
                   read_kernel(r, launch, here, out.launches.emplace_back());
               });
             }}});
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
    r.object(
        value, here,
        {{"params", Need::required, [&](Json v, const At& a) { read_params(r, v, a, op.params); }},
         {"impl", Need::required, [&](Json v, const At& a) { read_impl(r, v, a, op); }}});
  });
}

}  // namespace kern::manifest
