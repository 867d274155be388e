#include "kern/manifest/binds.h"

#include <catch2/catch.hpp>

#include "fixture.h"

using namespace kern::manifest;
using namespace kern_test;

namespace {

using Lines = std::vector<std::string>;

struct Checkpoint {
  struct Tensor {
    std::string name, dtype;
    std::vector<int64_t> shape;
  };
  std::vector<Tensor> tensors = {{"up", "BF16", {4, 32}},      {"down", "BF16", {4, 32}},
                                 {"embed", "BF16", {100, 32}}, {"gate.0", "BF16", {8, 32}},
                                 {"gate.1", "BF16", {16, 32}}, {"gate.all", "BF16", {8, 4, 8}},
                                 {"bias", "F32", {32}},        {"raw", "U8", {8, 8}}};

  Tensor& operator[](std::string_view name) {
    for (Tensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    FAIL("no tensor " << name);
    return tensors[0];
  }
  Lines said(const Verified& manifest) const {
    std::vector<TensorInfo> infos;
    for (const Tensor& tensor : tensors) infos.push_back({tensor.name, tensor.dtype, tensor.shape});
    return lines_of(check_binds(manifest, infos));
  }
};

}  // namespace

TEST_CASE("a checkpoint that has what the binds want is accepted", "[manifest][binds]") {
  CHECK(Checkpoint().said(verified(fixture("base"))).empty());
}

TEST_CASE("a missing tensor is named", "[manifest][binds]") {
  Checkpoint checkpoint;
  checkpoint["gate.1"].name = "gate.2";
  CHECK(checkpoint.said(verified(fixture("base"))) ==
        Lines{"/buffers/gate/bind/0: the checkpoint has no tensor `gate.1`"});
}

TEST_CASE("a missing interleaved tensor is named", "[manifest][binds]") {
  Checkpoint checkpoint;
  checkpoint["down"].name = "dawn";
  CHECK(checkpoint.said(verified(fixture("base"))) ==
        Lines{"/buffers/gate/bind/2: the checkpoint has no tensor `down`"});
}

TEST_CASE("a dtype of the checkpoint agrees with the buffer's", "[manifest][binds]") {
  Checkpoint checkpoint;
  checkpoint["bias"].dtype = "BF16";
  CHECK(checkpoint.said(verified(fixture("base"))) ==
        Lines{"/buffers/bias/bind/0: tensor `bias` is BF16, the buffer f32"});
}

TEST_CASE("bytes on disk may bind eight-bit floats", "[manifest][binds]") {
  CHECK(may_bind("U8", Dtype::u8));
  CHECK(may_bind("U8", Dtype::fp8e4m3));
  CHECK(may_bind("U8", Dtype::fp8e8m0));
  CHECK(may_bind("F8_E4M3", Dtype::fp8e4m3));
  CHECK_FALSE(may_bind("U8", Dtype::i8));
  CHECK_FALSE(may_bind("F8_E4M3", Dtype::u8));
  CHECK_FALSE(may_bind("BF16", Dtype::f16));
}

TEST_CASE("a range lies inside its tensor", "[manifest][binds]") {
  Checkpoint checkpoint;
  checkpoint["gate.all"].shape = {7, 32};
  CHECK(
      checkpoint.said(verified(fixture("base"))) ==
      Lines{"/buffers/gate/bind/1: rows [4, 8) and columns [0, 32) of tensor `gate.all`, which is "
            "7 x 32"});
}

TEST_CASE("the segments fill the buffer exactly on every rank", "[manifest][binds]") {
  Checkpoint checkpoint;
  checkpoint["embed"].shape = {101, 32};
  CHECK(checkpoint.said(verified(fixture("base"))) ==
        Lines{"/buffers/table/bind: the segments make 3232 elements on rank 0; the buffer holds "
              "3200"});
  const auto uneven = changed(fixture("base"), "[[0, 4], [4, 8]]", "[[0, 4], [4, 7]]");
  CHECK(
      Checkpoint().said(verified(uneven)) ==
      Lines{"/buffers/gate/bind: the segments make 608 elements on rank 1; the buffer holds 640"});
}

TEST_CASE("interleaved tensors are alike and divide into blocks", "[manifest][binds]") {
  Checkpoint checkpoint;
  checkpoint["down"].shape = {8, 16};
  CHECK(checkpoint.said(verified(fixture("base"))) ==
        Lines{"/buffers/gate/bind/2: interleaves `up` with `down`, of another shape or dtype"});
  checkpoint = Checkpoint();
  checkpoint["up"].shape = checkpoint["down"].shape = {3, 32};
  CHECK(checkpoint.said(verified(fixture("base"))) ==
        Lines{"/buffers/gate/bind/2: blocks of 2 rows do not divide the 3 rows of `up`"});
}

TEST_CASE("a tensor whose size overflows is refused", "[manifest][binds]") {
  Checkpoint checkpoint;
  checkpoint["embed"].shape = {1, int64_t{1} << 40, int64_t{1} << 40};
  CHECK(checkpoint.said(verified(fixture("base"))) ==
        Lines{"/buffers/table/bind/0: tensor `embed` has more elements than 64 bits count"});
}

TEST_CASE("a segment reads its rank's tensor and ranges", "[manifest][binds]") {
  const Verified m = verified(fixture("base"));
  const auto& bind = m.buffer("gate")->bind;
  const std::vector<Place> first = {{"tp", 0}}, second = {{"ep", 5}, {"tp", 1}};
  CHECK(tensor_at(bind[0], first) == "gate.0");
  CHECK(tensor_at(bind[0], second) == "gate.1");
  CHECK(tensor_at(bind[2], {}) == "up");
  const Rectangle part = part_at(bind[1], second, 8, 32);
  CHECK(part.rows == Range{4, 8});
  CHECK(part.cols == Range{0, 32});
  CHECK(part_at(bind[2], {}, 4, 32).rows == Range{0, 4});
}

TEST_CASE("a buffer over two groups is checked on every pair of places", "[manifest][binds]") {
  // rank t of `tp` takes its rows, member e of `ep` its columns: 2 x 16 each, but for the last
  const auto over_two = [](std::string_view last) {
    return changed(changed(changed(fixture("base"), R"("groups": {"tp": 2})",
                                   R"("groups": {"ep": 3, "tp": 2})"),
                           R"("embed"}]})",
                           R"("embed", "rows": {"group": "tp", "ranges": [[0, 50], [50, 100]]},
                    "cols": {"group": "ep", "ranges": [[0, 8], [8, 16], )" +
                               std::string(last) + "]}}]}"),
                   R"("shape": [100, "WIDE"])", R"("shape": [50, 8])");
  };
  Checkpoint checkpoint;
  CHECK(checkpoint.said(verified(over_two("[24, 32]"))).empty());
  CHECK(checkpoint.said(verified(over_two("[24, 31]"))) ==
        Lines{"/buffers/table/bind: the segments make 350 elements on rank 0 of `tp` and 2 of "
              "`ep`; the buffer holds 400"});
  CHECK(checkpoint.said(verified(over_two("[25, 33]"))) ==
        Lines{"/buffers/table/bind/0: rows [0, 50) and columns [25, 33) of tensor `embed`, which "
              "is 100 x 32"});
}

TEST_CASE("two groups of many places each are too many to check", "[manifest][binds]") {
  Manifest m = parsed(fixture("base"));
  m.groups.push_back({"wide", 40'000});
  m.groups.push_back({"long", 40'000});
  BindSegment& segment = m.buffers[9].bind.at(0);
  segment.rows.emplace({"wide", std::vector<Range>(40'000, Range{0, 100})});
  segment.cols.emplace({"long", std::vector<Range>(40'000, Range{0, 32})});
  CHECK(Checkpoint().said(verified(std::move(m))) ==
        Lines{"/buffers/table/bind: its tables are over 2 groups with more than 65536 places "
              "together"});
}
