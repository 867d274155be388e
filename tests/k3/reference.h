#pragma once
/// The whole model in double precision, written from its definition and the release's tensor names,
/// apart from the generator and the kernels. Nothing is rounded but the checkpoint's own values.
/// Thread safety: one thread.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gen/config.h"
#include "kern/safetensors/catalog.h"

namespace k3_test {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

class Reference {
 public:
  Reference(const k3::Config& config, const kern::safetensors::Catalog& catalog)
      : c_(config), catalog_(catalog) {}

  /// Logits of every row of one sequence from position 0.
  Rows logits(const std::vector<int32_t>& tokens);

 private:
  const Row& tensor(const std::string& name);
  Row linear(const std::string& name, const Row& x);
  Row norm(const std::string& name, const Row& x, double eps);
  Row mix(const std::string& name, const std::vector<Row>& bank, const Row& stream);
  Rows kda(int64_t layer, const Rows& x);
  Rows mla(int64_t layer, const Rows& x);
  Row situ_mlp(const std::string& name, const Row& x);
  Row expert(int64_t layer, int64_t e, const Row& z);
  Row moe(int64_t layer, const Row& x);
  Row mxfp4(const std::string& name, const Row& x);
  Row situ(const Row& gate, const Row& up) const;

  const k3::Config& c_;
  const kern::safetensors::Catalog& catalog_;
  std::map<std::string, Row> tensors_;
};

}  // namespace k3_test
