#include <algorithm>

#include "gen/emit.h"

namespace k3 {

using m::Dtype;

namespace {

constexpr int64_t kBoxFloatsMax = 64 * 1024;  // a larger letter goes in several rounds
constexpr int64_t kThreads = 512;

m::ParamType p_i64() {
  return m::ParamType::scalar(m::ParamType::What::i64);
}

}  // namespace

/// What the ranks write into each other: mail, flags and the letters sent, as the mailboxes of
/// kernels/device/comm say, and everyone's addresses of the first two.
void Emitter::mailboxes() {
  const int64_t part = (c_.latent + c_.hidden) * l_.rows_max;  // the largest all-reduce
  const int64_t share = (part + 4 * l_.collective_blocks - 1) / (4 * l_.collective_blocks) * 4;
  const int64_t box = std::min(share, kBoxFloatsMax);
  const auto carry = [this](const char* name, Dtype dtype, std::vector<m::Dim> shape, bool shared) {
    m::Buffer buffer;
    buffer.name = name;
    buffer.dtype = dtype;
    buffer.shape = std::move(shape);
    buffer.kind = m::BufferKind::carry;
    buffer.exported = shared;
    b_.buffer(std::move(buffer));
  };
  const auto peer = [this](const char* name, const char* of) {
    m::Buffer buffer;
    buffer.name = name;
    buffer.dtype = Dtype::u64;
    buffer.shape = {m::Dim::of(l_.ranks)};
    buffer.kind = m::BufferKind::peer;
    buffer.of = of;
    buffer.group = kGroup;
    b_.buffer(std::move(buffer));
  };
  const m::Dim ranks = m::Dim::of(l_.ranks), blocks = m::Dim::of(l_.collective_blocks);
  carry("mail", Dtype::f32, {m::Dim::of(2), ranks, blocks, m::Dim::of(box)}, true);
  carry("mail_flags", Dtype::u32, {ranks, blocks}, true);
  carry("mail_letters", Dtype::u32, {blocks}, false);
  peer("mails", "mail");
  peer("mail_flags_of", "mail_flags");
  box_floats_ = box;
}

/// A collective as a kernel over the mailboxes, or the runtime's own.
void Emitter::collective_op(const std::string& name, BuiltIn built_in,
                            std::vector<m::ParamType> params) {
  if (!b_.is_new_op(name)) return;
  m::Op op;
  op.name = name;
  op.params = params;
  op.params.push_back(p_i64());
  m::Launch made;
  if (t_.has_mailboxes()) {
    op.params.insert(op.params.end(), {inout(Dtype::f32), inout(Dtype::u32), inout(Dtype::u32),
                                       in(Dtype::u64), in(Dtype::u64), p_i32(), p_i32(), p_i32()});
    made = launch("comm-collective", "kern_" + name + "_f32",
                  {m::Expr::constant(l_.collective_blocks)});
    made.block = {kThreads, 1, 1};
  } else {
    // A reduction in place sends what it receives.
    const bool in_place = params.size() == 1;
    made.entry = "extern:" + t_.built_in(built_in);
    made.params = {{in(Dtype::f32), out(Dtype::f32), p_i64(), p_i32()}};
    made.args = {{m::ParamRef{0}, m::ParamRef{in_place ? 0 : 1}, m::ParamRef{in_place ? 1 : 2},
                  m::RankRef{kGroup}}};
  }
  op.launches.push_back(std::move(made));
  b_.op(std::move(op));
}

void Emitter::collective(const std::string& name, std::vector<m::CallArg> args) {
  if (t_.has_mailboxes()) {
    mailboxes();
    args.insert(args.end(), {buf("mail"), buf("mail_flags"), buf("mail_letters"), buf("mails"),
                             buf("mail_flags_of"), i32(box_floats_), rank(), i32(l_.ranks)});
  }
  b_.call(name, std::move(args));
}

/// Sums `buffer` [tokens, width] over the ranks, in rank order, in place; nothing for one rank.
void Emitter::allreduce(const std::string& buffer, int64_t width) {
  if (l_.ranks == 1) return;
  collective_op("allreduce", BuiltIn::allreduce_f32, {inout(Dtype::f32)});
  collective("allreduce", {buf(buffer), m::ExprArg{m::Expr::mul(m::Expr::of_var(kTokens), width)}});
}

/// Block r of `send` goes to rank r; `receive` holds every rank's block for this one.
void Emitter::alltoall(const std::string& send, const std::string& receive, m::Expr count) {
  collective_op("alltoall", BuiltIn::alltoall_f32, {in(Dtype::f32), out(Dtype::f32)});
  collective("alltoall", {buf(send), buf(receive), m::ExprArg{std::move(count)}});
}

/// `receive` holds every rank's `send`, in rank order.
void Emitter::allgather(const std::string& send, const std::string& receive, m::Expr count) {
  collective_op("allgather", BuiltIn::allgather_f32, {in(Dtype::f32), out(Dtype::f32)});
  collective("allgather", {buf(send), buf(receive), m::ExprArg{std::move(count)}});
}

}  // namespace k3
