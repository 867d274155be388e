#pragma once
/// The cuda device's Target, for its own sources: geometry as the head of each kernel's source
/// says. target_cuda.cc has what works on rows and experts, target_cuda_attention.cc KDA and MLA.

#include <string>
#include <vector>

#include "gen/emit.h"
#include "gen/target.h"

namespace k3 {

/// Cubins, one a variant of a kernel; geometry as the head of each kernel's source says.
class CudaTarget final : public Target {
 public:
  CudaTarget(const Config& config, const Layout& layout, bool plain)
      : c_(config), l_(layout), is_plain_(plain) {}

  m::Device device() const override { return m::Device::cuda; }
  std::vector<std::string> extensions() const override {
    return is_plain_ ? std::vector<std::string>{} : std::vector<std::string>{"meta", "sampling"};
  }
  Body body(Work work, int64_t sources) const override;
  std::string built_in(BuiltIn built_in) const override;
  bool has_mailboxes() const override { return !is_plain_; }
  bool has_sampling() const override { return !is_plain_; }
  int64_t row_elements() const override { return 8; }

 private:
  int64_t kda_heads() const { return c_.kda_heads / l_.ranks; }
  std::string kda(const char* name) const;
  /// A size that a variant is built for, and the one it has unless a key says otherwise.
  struct Define {
    const char* name;
    int64_t value, usual;
  };
  std::string mla(const char* name, std::initializer_list<Define> defines) const;
  Define lora() const { return {"MLA_LORA", c_.kv_lora, 512}; }
  Define rope() const { return {"MLA_ROPE", c_.rope, 64}; }
  Define nope() const { return {"MLA_NOPE", c_.nope, 128}; }
  Define v() const { return {"MLA_V", c_.v_dim, 128}; }

  Body mix(const char* entry, int64_t sources) const;
  Body norm(const char* module, const char* entry, int64_t threads) const;
  m::Launch kda_prep() const;
  int64_t kda_record_bytes() const { return 132 * c_.kda_dim + 1024; }
  m::Expr kda_slots() const;
  m::Launch kda_chunk() const;
  m::Launch kda_scan() const;
  m::Launch kda_recurrence() const;
  m::Launch kda_windows(bool snapshot) const;
  m::Launch kda_out() const;
  Body kda_rows() const;
  Body kda_rows_snapshot() const;
  Body kda_step() const;
  Body routed() const;
  m::Launch moe_plan(int64_t tile_rows) const;
  m::Launch moe_up(int64_t tile_rows) const;
  m::Launch moe_down(int64_t tile_rows) const;
  m::Launch only_for(m::Launch launch, int64_t tile_rows) const;
  Body attend(bool one_row) const;
  Body attend_rows() const;
  Body attend_split() const;
  m::Pack cache_map() const;
  Body absorb() const;
  Body merge() const;
  Body sample() const;

  const Config& c_;
  const Layout l_;
  const bool is_plain_;
};

// ---- for its sources ----

inline m::Expr of(int64_t value) {
  return m::Expr::constant(value);
}

/// A launch of a block of threads.
m::Launch on(const std::string& module, const std::string& entry, std::vector<int64_t> block,
             std::vector<m::Expr> grid, int64_t shared_bytes = 0);

}  // namespace k3
