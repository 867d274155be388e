// Collectives of the cuda device, on a driver and an NCCL without a device: ranks are threads that
// meet, and one record holds the calls of both.
#include <thread>

#include "fixture.h"
#include "kern/runtime/local_peers.h"
#include "kern/runtime/plan.h"
#include "kern_test/fake_nccl.h"

using namespace kern;
using namespace kern_test;
using runtime::VarValue;
using Calls = std::vector<std::string>;
using Floats = std::vector<std::vector<float>>;

namespace {

// n elements a rank from x to y, [12] and [12] at the bound; then y's to z over the same group.
std::string collective(const std::string& name, const std::string& dtype, int ranks,
                       const std::string& program = R"("main": {)") {
  const std::string buffer = "buffer<" + dtype + ">";
  const std::string uses = name.starts_with("nccl_") ? "" : R"("uses": ["collectives"], )";
  return R"({"schema_version": 7, "model": "collective", )" + uses +
         R"("topology": {"groups": {"tp": )" + std::to_string(ranks) +
         R"(}}, "vars": {"n": {"max": 4, "axis": "rows"}, "seqs": {"max": 1, "axis": "groups"}},
    "states": {}, "modules": {},
    "buffers": {"x": {"dtype": ")" +
         dtype + R"(", "shape": [12], "kind": "input"},
                "y": {"dtype": ")" +
         dtype + R"(", "shape": [12], "kind": "output"}},
    "ops": {"share": {"params": ["in )" +
         buffer + R"(", "out )" + buffer + R"(", "i64"],
      "impl": {"launches": [{"entry": "extern:)" +
         name + R"(", "params": ["in )" + buffer + R"(", "out )" + buffer + R"(", "i64", "i32"],
        "args": [{"param": 0}, {"param": 1}, {"param": 2}, {"rank": "tp"}],
        "when": {"var": "seqs", "min": 1}}]}}},
    "programs": {)" +
         program + R"("calls": [{"op": "share", "args": [{"buf": "x"}, {"buf": "y"},
      {"var": "n"}]}]}}
  })";
}

const std::vector<VarValue> kStep = {{"n", 2}, {"seqs", 1}};
const std::string kWhere = "program `main`, call 0, op `share` launch #0: ";

struct Machine {
  runtime::Options options(runtime::PeerGroup& peers) const {
    runtime::Options out;
    out.driver = &driver.driver();
    out.nccl = &nccl.nccl();
    out.peers["tp"] = &peers;
    return out;
  }
  FakeDriver driver;
  FakeNccl nccl{driver};
};

/// The first of several ranks, whose others say what it says.
class Echo final : public runtime::PeerGroup {
 public:
  explicit Echo(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  Result<void> all_gather(ByteSpan send, MutableByteSpan receive) override {
    ++gathers;
    for (size_t at = 0; at < receive.size(); at += send.size())
      std::memcpy(receive.data() + at, send.data(), send.size());
    return {};
  }
  Result<void> all_to_all(ByteSpan, MutableByteSpan) override { return {}; }
  int gathers = 0;

 private:
  int size_;
};

/// One rank of two whose other nobody waits for.
struct Lone {
  explicit Lone(int ranks = 2) : others(ranks) { machine.nccl.record_only(); }
  Result<std::unique_ptr<runtime::Runtime>> load(const std::string& json) {
    return runtime::Runtime::load(verified(json), nullptr, machine.options(others), quiet());
  }
  Calls without_context() {
    Calls calls = machine.driver.take_calls();
    std::erase(calls, "cuCtxSetCurrent");
    return calls;
  }
  Machine machine;
  Echo others;
};

std::string refusal_of(Lone& lone, const std::string& json) {
  const auto loaded = lone.load(json);
  return loaded ? std::string() : loaded.error().text();
}

/// A step of as many ranks as there are rows, each in a thread; every rank's `y`.
template <class T>
std::vector<std::vector<T>> share(const std::string& name, const std::string& dtype,
                                  const std::vector<std::vector<T>>& x) {
  Machine machine;
  const auto size = x.size();
  runtime::LocalGroup group(static_cast<int>(size));
  std::vector<std::vector<T>> out(size);
  std::vector<std::string> errors(size);
  const auto manifest = verified(collective(name, dtype, static_cast<int>(size)));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const auto options = machine.options(group.member(static_cast<int>(rank)));
      const auto r = runtime::Runtime::load(manifest, nullptr, options, quiet());
      if (!r) return void(errors[rank] = r.error().text());
      std::memcpy((*r)->buffer("x").data(), x[rank].data(), x[rank].size() * sizeof(T));
      const auto done = (*r)->run("main", kStep);
      if (!done) return void(errors[rank] = done.error().text());
      out[rank].resize(12);
      std::memcpy(out[rank].data(), (*r)->buffer("y").data(), 12 * sizeof(T));
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(errors == std::vector<std::string>(size));
  CHECK(machine.nccl.live() == 0);
  CHECK(machine.driver.live().empty());
  return out;
}

}  // namespace

TEST_CASE("ranks on GPUs reduce, gather, scatter and exchange through NCCL",
          "[runtime][cuda][collectives]") {
  const Floats x = {{1, 2, 3, 4, 5, 6}, {10, 20, 30, 40, 50, 60}, {100, 0, 0, 0, 0, 600}};
  for (const auto& y : share("nccl_allreduce_f32", "f32", x))
    CHECK(std::vector<float>(y.begin(), y.begin() + 3) == std::vector<float>{111, 22, 0});
  const auto scattered = share("nccl_reducescatter_f32", "f32", x);
  CHECK(scattered[0][0] == 111);
  CHECK(scattered[1][1] == 44);
  CHECK(scattered[2][1] == 666);
  // What only moves keeps its bytes, so NCCL serves the collectives that promise them too.
  for (const std::string prefix : {"nccl_", ""}) {
    for (const auto& y : share(prefix + "allgather_f32", "f32", x))
      CHECK(std::vector<float>(y.begin(), y.begin() + 7) ==
            std::vector<float>{1, 2, 10, 20, 100, 0, 0});
    const auto exchanged = share(prefix + "alltoall_f32", "f32", x);
    CHECK(std::vector<float>(exchanged[1].begin(), exchanged[1].begin() + 7) ==
          std::vector<float>{3, 4, 30, 40, 0, 0, 0});
  }
  const std::vector<std::vector<uint16_t>> halves = {{0x3F80, 0x4000}, {0x3F80, 0x4000}};
  for (const auto& y : share("nccl_allreduce_bf16", "bf16", halves)) {
    CHECK(y[0] == 0x4000);
    CHECK(y[1] == 0x4080);
  }
}

TEST_CASE("a sum that promises the order of ranks is not NCCL's, in a load as in a plan",
          "[runtime][cuda][collectives]") {
  Lone lone;
  for (const std::string name : {"allreduce_f32", "reducescatter_f32"}) {
    const std::string said =
        kWhere + "`extern:" + name +
        "` over 2 ranks sums in rank order, for which the cuda device has no built-in: kernels "
        "over peer buffers do, and `extern:nccl_" +
        name + "` sums in NCCL's order";
    CHECK(refusal_of(lone, collective(name, "f32", 2)) == said);
    const auto planned = runtime::plan(verified(collective(name, "f32", 2)), {});
    REQUIRE(!planned);
    CHECK(planned.error().text() == said);
    CHECK(refusal_of(lone, collective(name, "f32", 1)) ==
          "group `tp` has 1 ranks, its peers are 2");
    CHECK(runtime::plan(verified(collective("nccl_" + name, "f32", 2)), {}));
  }
  CHECK(lone.machine.nccl.live() == 0);
}

TEST_CASE("a collective of a GPU that spans more than its buffer is refused, a plan's too",
          "[runtime][cuda][collectives]") {
  Lone lone(4);
  for (const auto& [name, arg] :
       {std::pair("nccl_allgather_f32", "#1 spans 16 elements, but `y`"),
        std::pair("nccl_alltoall_f32", "#0 spans 16 elements, but `x`"),
        std::pair("nccl_reducescatter_f32", "#0 spans 16 elements, but `x`")}) {
    const std::string said = kWhere + "`extern:" + name + "` arg " + arg + " has 48 bytes left";
    CHECK(refusal_of(lone, collective(name, "f32", 4)) == said);
    const auto planned = runtime::plan(verified(collective(name, "f32", 4)), {});
    REQUIRE(!planned);
    CHECK(planned.error().text() == said);
  }
  CHECK(refusal_of(lone, collective("nccl_allreduce_f32", "f32", 4)).empty());
}

TEST_CASE("a group's communicator is made once, with the id of rank 0",
          "[runtime][cuda][collectives]") {
  Lone lone;
  std::string json = collective("nccl_allreduce_f32", "f32", 2);
  const std::string call = json.substr(json.find(R"({"op": "share")"));
  const std::string one = call.substr(0, call.find("]}}\n"));
  json.insert(json.find(R"({"op": "share")"), one + ", ");
  const auto r = lone.load(json);
  if (!r) FAIL(r.error().text());
  CHECK(lone.machine.driver.calls_of("nccl") ==
        Calls{"ncclGetUniqueId", "ncclCommInitRank 0 of 2", "ncclCommGetAsyncError"});
  CHECK(lone.others.gathers == 1);
  REQUIRE((*r)->run("main", kStep));
  CHECK(lone.machine.driver.calls_of("ncclAllReduce").size() == 2);
  CHECK(lone.machine.driver.calls_of("ncclCommInitRank").size() == 1);
}

TEST_CASE("a step enqueues its collective between its copies, and waits asking for lost ranks",
          "[runtime][cuda][collectives]") {
  Lone lone;
  const auto r = lone.load(collective("nccl_alltoall_f32", "f32", 2));
  if (!r) FAIL(r.error().text());
  put((*r)->buffer("x"), std::vector<float>{1, 2, 3, 4});
  lone.machine.driver.take_calls();
  lone.machine.driver.fail("cuStreamQuery", 600, 1);  // not ready, twice
  lone.machine.driver.fail("cuStreamQuery", 600, 2);
  REQUIRE((*r)->run("main", kStep));
  CHECK(lone.without_context() ==
        Calls{"cuMemcpyHtoDAsync 48 stream 1", "ncclGroupStart", "ncclSend to 0 2 f32 stream 1",
              "ncclRecv from 0 2 f32 stream 1", "ncclSend to 1 2 f32 stream 1",
              "ncclRecv from 1 2 f32 stream 1", "ncclGroupEnd", "cuMemcpyDtoHAsync 48 stream 1",
              "cuStreamQuery stream 1", "ncclCommGetAsyncError", "cuStreamQuery stream 1",
              "cuStreamQuery stream 1", "ncclCommGetAsyncError"});
}

TEST_CASE("a program with a collective is captured, and its graph goes before the communicator",
          "[runtime][cuda][collectives]") {
  Lone lone;
  const std::string graph = R"("main": {"graph": true, "batch": {"groups": 1, "rows": "n"}, )";
  {
    const auto r = lone.load(collective("nccl_allreduce_f32", "f32", 2, graph));
    if (!r) FAIL(r.error().text());
    REQUIRE((*r)->run("main", kStep));
    lone.machine.driver.take_calls();
    REQUIRE((*r)->run("main", kStep));
    Calls calls = lone.without_context();
    calls.resize(4);
    CHECK(calls == Calls{"cuStreamBeginCapture stream 1", "ncclAllReduce 2 f32 stream 1",
                         "cuStreamEndCapture stream 1", "cuGraphInstantiate"});
    lone.machine.driver.take_calls();
    REQUIRE((*r)->run("main", kStep));
    CHECK(lone.machine.driver.calls_of("ncclAllReduce").empty());
    CHECK(lone.machine.driver.calls_of("cuGraphLaunch").size() == 1);
  }
  CHECK(lone.machine.nccl.live() == 0);
  CHECK(lone.machine.driver.live().empty());
}

TEST_CASE("whatever call of NCCL fails, it says so and everything is given back",
          "[runtime][cuda][collectives][unwind]") {
  const std::string json = collective("nccl_alltoall_f32", "f32", 2);
  for (const auto& [name, where] :
       {std::pair("ncclGetUniqueId", "group `tp`: "), std::pair("ncclCommInitRank", "group `tp`: "),
        std::pair("ncclCommGetAsyncError", "group `tp`: ")}) {
    INFO(name);
    Lone lone;
    lone.machine.driver.fail(name, 2);
    const std::string said = refusal_of(lone, json);
    CHECK(said.ends_with(std::string(where) + name + ": as the test asked (2)"));
    CHECK(lone.machine.nccl.live() == 0);
    CHECK(lone.machine.driver.live().empty());
  }
  for (const std::string name : {"ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd"}) {
    INFO(name);
    Lone lone;
    {
      const auto r = lone.load(json);
      if (!r) FAIL(r.error().text());
      lone.machine.driver.fail(name, 2);
      const auto done = (*r)->run("main", kStep);
      REQUIRE(!done);
      CHECK(done.error().kind == Kind::device);
      CHECK(done.error().text() ==
            "program `main`, call 0, op `share`: " + name + ": as the test asked (2)");
      CHECK(lone.machine.nccl.open_groups() == 0);
    }
    CHECK(lone.machine.nccl.live() == 0);
    CHECK(lone.machine.driver.live().empty());
  }
}

TEST_CASE("a rank without NCCL says why, the others that it has none, and nobody waits",
          "[runtime][cuda][collectives]") {
  Machine machine;
  runtime::LocalGroup group(2);
  std::vector<std::string> errors(2);
  const auto manifest = verified(collective("nccl_allreduce_f32", "f32", 2));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto options = machine.options(group.member(static_cast<int>(rank)));
      if (rank == 1) options.nccl = nullptr;
      const auto r = runtime::Runtime::load(manifest, nullptr, options, quiet());
      if (!r) errors[rank] = r.error().text();
    });
  for (std::thread& thread : threads) thread.join();
  const std::string where = kWhere + "`extern:nccl_allreduce_f32`: group `tp`: ";
  CHECK(errors[0] == where + "rank 1 has no NCCL, and its own error says why");
  CHECK(errors[1].find(where + "NCCL may use multicast: ") == 0);
  CHECK(machine.nccl.live() == 0);
}

TEST_CASE("a rank lost in a step is kind peer, for this step and every later one",
          "[runtime][cuda][collectives]") {
  Machine machine;
  runtime::LocalGroup group(2);
  std::vector<std::unique_ptr<runtime::Runtime>> ranks(2);
  const auto manifest = verified(collective("nccl_allreduce_f32", "f32", 2));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto r = runtime::Runtime::load(
          manifest, nullptr, machine.options(group.member(static_cast<int>(rank))), quiet());
      if (r) ranks[rank] = std::move(*r);
    });
  for (std::thread& thread : threads) thread.join();
  REQUIRE((ranks[0] != nullptr && ranks[1] != nullptr));
  // Rank 1 never comes to this step.
  std::string first, later;
  Kind kind = Kind::io;
  std::thread step([&] {
    const auto done = ranks[0]->run("main", kStep);
    if (!done) first = done.error().text(), kind = done.error().kind;
    const auto again = ranks[0]->run("main", kStep);
    if (!again) later = again.error().text();
  });
  machine.nccl.lose_a_rank();
  step.join();
  CHECK(kind == Kind::peer);
  CHECK(first == "group `tp`: rank 0 of 2: a collective under way: remote process exited (6)");
  CHECK(later ==
        "program `main`, call 0, op `share`: the communicator of rank 0 of 2 has ended with an "
        "earlier error");
  ranks.clear();
  CHECK(machine.nccl.live() == 0);
  CHECK(machine.driver.live().empty());
}
