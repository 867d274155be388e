#include "fixture.h"
#include "kern/base/prng.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;

namespace {

// One product as a program: [m, 64] by [n, 64], C in rows of 48.
std::string product(const std::string& entry, const std::string& c_dtype, const std::string& args) {
  const std::string direction = entry.ends_with("_acc") ? "inout" : "out";
  const std::string kind = entry.ends_with("_acc") ? "inout" : "output";
  return R"({
    "schema_version": 7, "model": "product", "uses": ["host"], "device": "host",
    "vars": {"m": {"max": 200}}, "states": {},
    "buffers": {"a": {"dtype": "bf16", "shape": ["m", 64], "kind": "input"},
                "w": {"dtype": "bf16", "shape": [48, 64], "kind": "input"},
                "c": {"dtype": ")" +
         c_dtype + R"(", "shape": ["m", 48], "kind": ")" + kind + R"("}},
    "modules": {},
    "ops": {"product": {"params": ["in buffer<bf16>", "in buffer<bf16>", ")" +
         direction + " buffer<" + c_dtype +
         R"(>", "i32", "i32", "i32"],
      "impl": {"launches": [{"entry": "extern:)" +
         entry + R"("}]}}},
    "programs": {"main": {"calls": [{"op": "product", "args": [{"buf": "a"}, {"buf": "w"},
      {"buf": "c"}, )" +
         args + R"(]}]}}
  })";
}

const std::string kArgs = R"({"var": "m"}, {"i32": 48}, {"i32": 64})";

std::vector<uint16_t> random_bf16(size_t count, uint64_t seed) {
  Prng prng(seed);
  std::vector<uint16_t> out(count);
  for (uint16_t& v : out) v = static_cast<uint16_t>((prng.next() & 0x80FF) | 0x3F00);
  return out;
}

}  // namespace

TEST_CASE("a product's bytes are the same on any number of threads and rows", "[runtime][gemm]") {
  std::vector<float> whole;
  for (const int threads : {1, 2, 5}) {
    const auto r = loaded(product("gemm_bf16_tn_f32", "f32", kArgs), options(threads));
    put(r->buffer("a"), random_bf16(200 * 64, 1));
    put(r->buffer("w"), random_bf16(48 * 64, 2));
    REQUIRE(r->run("main", std::vector<VarValue>{{"m", 200}}));
    const auto c = get<float>(r->buffer("c"), 200 * 48);
    if (whole.empty()) whole = c;
    CHECK(c == whole);
    REQUIRE(r->run("main", std::vector<VarValue>{{"m", 3}}));
    const auto few = get<float>(r->buffer("c"), 3 * 48);
    CHECK(std::equal(few.begin(), few.end(), whole.begin()));
  }
}

TEST_CASE("an accumulating product adds to what stands in C", "[runtime][gemm]") {
  const auto r = loaded(product("gemm_bf16_tn_acc", "bf16", kArgs));
  put(r->buffer("c"), std::vector<uint16_t>(48, 0x4000));  // 2
  REQUIRE(r->run("main", std::vector<VarValue>{{"m", 1}}));
  CHECK(get<uint16_t>(r->buffer("c"), 1)[0] == 0x4000);
  put(r->buffer("a"), std::vector<uint16_t>(64, 0x3F80));
  put(r->buffer("w"), std::vector<uint16_t>(64, 0x3F80));
  REQUIRE(r->run("main", std::vector<VarValue>{{"m", 1}}));
  CHECK(get<uint16_t>(r->buffer("c"), 2)[0] == 0x4284);  // 2 + 64
  CHECK(get<uint16_t>(r->buffer("c"), 2)[1] == 0x4000);
}

TEST_CASE("a product that reaches outside its buffers is refused at load", "[runtime][gemm]") {
  CHECK(refusal(product("gemm_bf16_tn", "bf16", R"({"var": "m"}, {"i32": 49}, {"i32": 64})")) ==
        "program `main`, call 0, op `product` launch #0: `extern:gemm_bf16_tn` arg #1 spans 3136 "
        "elements, but `w` has 6144 bytes left");
  CHECK(refusal(product("gemm_bf16_tn", "bf16", R"({"var": "m"}, {"i32": 48}, {"i32": 0})")) ==
        "program `main`, call 0, op `product` launch #0: `extern:gemm_bf16_tn`: k is 0, expected 1 "
        "to 2^31");
}

TEST_CASE("a built-in of another device is refused with those of this one", "[runtime][gemm]") {
  const std::string sentence = refusal(product("cublaslt_bf16_tn", "bf16", kArgs));
  INFO(sentence);
  CHECK(sentence.find("the host device has no built-in `extern:cublaslt_bf16_tn`, it has: "
                      "gemm_bf16_tn ") != std::string::npos);
}
