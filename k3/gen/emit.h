#pragma once
/// Writes the model's computation into a manifest: declares what a layer needs and appends its
/// calls. One Emitter serves every program of a manifest; buffers, weights and ops are shared
/// between them. Thread safety: one thread.

#include <string>

#include "gen/bind.h"
#include "gen/builder.h"
#include "gen/config.h"
#include "gen/target.h"

namespace k3 {

inline constexpr int64_t kPageTokens = 64;  ///< tokens a page, and the grid of snapshots
inline constexpr int64_t kTopLogprobs = 20;
inline constexpr const char* kTokens = "tokens";  ///< the rows var
inline constexpr const char* kSeqs = "seqs";      ///< the groups var

class Emitter {
 public:
  Emitter(const Config& config, const Layout& layout, const Target& target, Builder& builder)
      : c_(config), l_(layout), t_(target), b_(builder) {}

  /// Declares vars, groups, states and inputs. `snapshot`: some program leaves snapshots.
  void declare(bool snapshot, bool feedback);
  /// Appends the whole model to the builder's current program. `rows`: how many a sequence brings,
  /// and whether it leaves snapshots.
  enum class Rows { one, any, any_with_snapshots };
  void program(Rows rows);

 private:
  // emit.cc
  void states();
  void inputs(bool snapshot);
  void fed_inputs();
  void sampling_inputs();
  void layer(int64_t layer, Rows rows);
  void embed(bool fed);
  /// The stream a mix reads, its pseudo-query and the norm after it.
  struct MixNames {
    std::string stream, query, norm;
  };
  void mix(int64_t layer, const MixNames& names, int64_t sources);
  void push(int64_t row);
  void gemm(const std::string& a, const std::string& w, const std::string& c, int64_t n, int64_t k);
  void gemm_f32(const std::string& a, const std::string& w, const std::string& c, int64_t n,
                int64_t k);
  void land();
  void land_add(const std::string& from, const std::string& to);
  std::string norm_weight(const std::string& name, const std::string& tensor, int64_t width);
  // emit_collectives.cc
  void allreduce(const std::string& buffer, int64_t width);
  void alltoall(const std::string& send, const std::string& receive, m::Expr count);
  void allgather(const std::string& send, const std::string& receive, m::Expr count);
  void mailboxes();
  void collective_op(const std::string& name, BuiltIn built_in, std::vector<m::ParamType> params);
  void collective(const std::string& name, std::vector<m::CallArg> args);
  // emit_kda.cc
  void kda(int64_t layer, Rows rows);
  void kda_weights(int64_t layer);
  std::string kda_op(Rows rows);
  // emit_mla.cc
  void mla(int64_t layer, Rows rows);
  void mla_weights(int64_t layer);
  std::string mla_ops(Rows rows);
  // emit_mlp.cc
  void dense(int64_t layer);
  void situ_mlp(int64_t layer, const std::string& tensors, int64_t inter, const std::string& name);
  void moe(int64_t layer);
  void moe_weights(int64_t layer);
  void routed_op();
  // emit_head.cc
  void head();
  void sample();
  void output(const char* name, m::Dtype dtype, m::Fill fill, int64_t width);

  m::CallArg rank() const;
  std::string at(int64_t layer, const std::string& name) const;

  const Config& c_;
  const Layout l_;
  const Target& t_;
  bool feeds_ = false;
  int64_t box_floats_ = 0;  ///< of the mailboxes, once they are declared
  Builder& b_;
};

}  // namespace k3
