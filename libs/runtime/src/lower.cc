#include "lower.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <variant>

#include "inputs.h"
#include "kern/base/assert.h"

namespace kern::runtime {
namespace {

using manifest::CallArg;
using manifest::LaunchArg;
using manifest::Literal;
using manifest::ParamType;
using What = manifest::ParamType::What;

template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

BoundArg varying(const Cell* cell) {
  BoundArg out;
  out.cell = cell;
  out.varies = true;
  return out;
}

bool mentions_var(const manifest::Expr& expr) {
  return expr.op == manifest::Expr::Op::var ||
         std::any_of(expr.operands.begin(), expr.operands.end(), mentions_var);
}

/// Lowers one call at a time into one program.
class Lowering {
 public:
  Lowering(const LowerContext& context, size_t program)
      : context_(context),
        program_(context.manifest->programs[program]),
        places_(context.layout.programs[program]),
        out_(context.manifest->vars) {
    out_.name = program_.name;
    out_.graph = program_.graph;
  }

  Result<void> add_call(size_t call);
  void add_transfers();
  Result<LoweredProgram> finish();

 private:
  Result<void> add_launch(const manifest::Op& op, const manifest::Launch& launch,
                          std::span<const BoundArg> params, size_t call);
  Result<void> set_kernel(const manifest::Launch& launch, std::span<const BoundArg> args,
                          Launch& out);
  Result<void> set_built_in(const manifest::Launch& launch, std::span<const BoundArg> args,
                            Launch& out);
  Result<BoundArg> bind_param(const CallArg& arg, const ParamType& type);
  Result<BoundArg> bind_arg(const manifest::Op& op, const LaunchArg& arg, const ParamType& type,
                            std::span<const BoundArg> params, size_t call);
  BoundArg buffer_arg(const manifest::BufferArg& arg);
  Result<BoundArg> state_arg(const manifest::StateArg& arg);
  BoundArg scratch_arg(const manifest::Op& op, const std::string& name, size_t call);
  Result<BoundArg> pack_arg(const manifest::Op& op, const manifest::Pack& pack,
                            std::span<const BoundArg> params, size_t call);
  BoundArg literal_arg(const Literal& literal);
  BoundArg rank_arg(const std::string& group);

  const LowerContext& context_;
  const manifest::Program& program_;
  const ProgramPlaces& places_;
  LoweredProgram out_;
};

BoundArg Lowering::buffer_arg(const manifest::BufferArg& arg) {
  const auto index = context_.manifest.index().buffers.find(arg.buffer);
  KERN_ASSERT(index.has_value(), "buffer `{}`", arg.buffer);
  std::byte* base = context_.addresses.buffer(*index, places_);
  KERN_ASSERT(base != nullptr, "buffer `{}` has no address in `{}`", arg.buffer, program_.name);
  BoundArg out;
  out.cell = out_.values.of_pointer(base + arg.offset_bytes);
  out.name = arg.buffer;
  out.bytes_left = context_.manifest.bytes_max(*index) - arg.offset_bytes;
  out.is_peer = context_.manifest->buffers[*index].kind == manifest::BufferKind::peer;
  return out;
}

Result<BoundArg> Lowering::state_arg(const manifest::StateArg& arg) {
  const auto index = context_.manifest.index().states.find(arg.state);
  KERN_ASSERT(index.has_value(), "state `{}`", arg.state);
  // How large a state is, is known here only.
  const int64_t bytes = context_.layout.state_bytes[*index];
  if (arg.offset_bytes >= bytes && arg.offset_bytes != 0)
    return fail(Kind::manifest, "byte {} of state `{}`, which has {} at this capacity",
                arg.offset_bytes, arg.state, bytes);
  BoundArg out;
  out.cell = out_.values.of_pointer(context_.addresses.states[*index] + arg.offset_bytes);
  out.name = arg.state;
  out.bytes_left = bytes - arg.offset_bytes;
  return out;
}

BoundArg Lowering::literal_arg(const Literal& literal) {
  BoundArg out;
  out.cell = literal.type == Literal::Type::f32
                 ? out_.values.of_float(static_cast<float>(literal.real))
                 : out_.values.of_integer(literal.integer);
  return out;
}

BoundArg Lowering::rank_arg(const std::string& group) {
  const auto rank = context_.ranks.find(group);
  KERN_ASSERT(rank != context_.ranks.end(), "group `{}`", group);
  BoundArg out;
  out.cell = out_.values.of_integer(rank->second);
  out.group = rank->first;
  return out;
}

Result<BoundArg> Lowering::bind_param(const CallArg& arg, const ParamType& type) {
  using Bound = Result<BoundArg>;
  KERN_TRY(out,
           std::visit(Match{[&](const manifest::BufferArg& a) -> Bound { return buffer_arg(a); },
                            [&](const manifest::StateArg& a) -> Bound { return state_arg(a); },
                            [&](const manifest::VarRef& a) -> Bound {
                              return varying(out_.values.of_var(a.name));
                            },
                            [&](const manifest::ExprArg& a) -> Bound {
                              BoundArg out;
                              out.cell = out_.values.of(*a.expr);
                              out.varies = mentions_var(*a.expr);
                              return out;
                            },
                            [&](const Literal& a) -> Bound { return literal_arg(a); },
                            [&](const manifest::RankRef& a) -> Bound { return rank_arg(a.group); }},
                      arg));
  out.type = type;
  return out;
}

BoundArg Lowering::scratch_arg(const manifest::Op& op, const std::string& name, size_t call) {
  const std::vector<int64_t>& offsets = places_.scratch[call];
  for (size_t i = 0; i < op.scratch.size(); ++i) {
    if (op.scratch[i].name != name) continue;
    BoundArg out;
    out.cell = out_.values.of_pointer(context_.addresses.arena + offsets[i]);
    out.name = op.scratch[i].name;
    out.bytes_left = *manifest::bytes_of(op.scratch[i].dtype, op.scratch[i].shape,
                                         context_.manifest.at_bounds());
    return out;
  }
  KERN_ASSERT(false, "op `{}` has no scratch `{}`", op.name, name);
  return {};
}

uint32_t natural_width(const ParamType& type) {
  switch (type.what) {
    case What::i64:
    case What::buffer:
    case What::state:
      return 8;
    case What::u8:
      return 1;
    default:
      return 4;
  }
}

Result<BoundArg> Lowering::pack_arg(const manifest::Op& op, const manifest::Pack& pack,
                                    std::span<const BoundArg> params, size_t call) {
  auto bytes = std::make_unique<std::byte[]>(static_cast<size_t>(pack.size));
  BoundArg out;
  for (const manifest::PackField& field : pack.fields) {
    if (const auto* map = std::get_if<manifest::Tensormap>(&field.source)) {
      const BoundArg& over = params[static_cast<size_t>(map->param)];
      const auto* address = reinterpret_cast<const std::byte*>(static_cast<intptr_t>(*over.cell));
      KERN_TRY_VOID(
          context_.target.tensormap(*map, address, over.bytes_left, bytes.get() + field.at));
      continue;
    }
    BoundArg from;
    uint32_t width = 4;
    if (const auto* param = std::get_if<manifest::ParamRef>(&field.source)) {
      from = params[static_cast<size_t>(param->index)];
      width = natural_width(from.type);
    } else if (const auto* scratch = std::get_if<manifest::ScratchRef>(&field.source)) {
      from = scratch_arg(op, scratch->name, call);
      width = 8;
    } else if (const auto* literal = std::get_if<Literal>(&field.source)) {
      from = literal_arg(*literal);
      width = literal->type == Literal::Type::i64 ? 8 : literal->type == Literal::Type::u8 ? 1 : 4;
    } else if (const auto* var = std::get_if<manifest::VarRef>(&field.source)) {
      from.cell = out_.values.of_var(var->name);
    } else if (const auto* expr = std::get_if<manifest::Expr>(&field.source)) {
      from.cell = out_.values.of(*expr);
    } else {
      from = rank_arg(std::get<manifest::RankRef>(field.source).group);
    }
    out.is_peer = out.is_peer || from.is_peer;
    width = static_cast<uint32_t>(field.width.value_or(width));
    KERN_ASSERT(width <= sizeof(Cell) && field.at + width <= pack.size, "field at {}", field.at);
    out_.patches.push_back({bytes.get() + field.at, from.cell, width});
  }
  // A pack is passed by its bytes, not by a cell.
  out.cell = reinterpret_cast<const Cell*>(bytes.get());
  out_.packs.push_back(std::move(bytes));
  return out;
}

Result<BoundArg> Lowering::bind_arg(const manifest::Op& op, const LaunchArg& arg,
                                    const ParamType& type, std::span<const BoundArg> params,
                                    size_t call) {
  BoundArg out;
  if (const auto* param = std::get_if<manifest::ParamRef>(&arg)) {
    KERN_ASSERT(static_cast<size_t>(param->index) < params.size(), "param {}", param->index);
    out = params[static_cast<size_t>(param->index)];
  } else if (const auto* scratch = std::get_if<manifest::ScratchRef>(&arg)) {
    out = scratch_arg(op, scratch->name, call);
  } else if (const auto* literal = std::get_if<Literal>(&arg)) {
    out = literal_arg(*literal);
  } else if (const auto* rank = std::get_if<manifest::RankRef>(&arg)) {
    out = rank_arg(rank->group);
  } else {
    KERN_TRY(pack, pack_arg(op, std::get<manifest::Pack>(arg), params, call));
    out = pack;
  }
  out.type = type;
  return out;
}

Result<void> Lowering::set_kernel(const manifest::Launch& launch, std::span<const BoundArg> args,
                                  Launch& out) {
  const auto module = context_.manifest.index().modules.find(launch.module);
  KERN_ASSERT(module.has_value(), "module `{}`", launch.module);
  KERN_TRY(kernel, context_.target.kernel({launch, args, *module}));
  KERN_ASSERT(kernel != nullptr, "entry `{}`", launch.entry);
  out.kernel = kernel;
  for (size_t axis = 0; axis < 3; ++axis) {
    out.block[axis] = axis < launch.block.size() ? static_cast<uint32_t>(launch.block[axis]) : 1;
    out.grid[axis] =
        axis < launch.grid.size() ? out_.values.of(launch.grid[axis]) : out_.values.of_integer(1);
    if (axis < launch.cluster.size())
      out.cluster[axis] = static_cast<uint32_t>(launch.cluster[axis]);
  }
  out.pdl = launch.pdl;
  if (launch.shared_mem) out.shared_bytes = out_.values.of(*launch.shared_mem);
  return {};
}

Result<void> Lowering::set_built_in(const manifest::Launch& launch, std::span<const BoundArg> args,
                                    Launch& out) {
  out_.values.evaluate(context_.manifest.vars_max());
  LaunchSource source{launch, args};
  for (const BoundArg& arg : args) {
    if (arg.group.empty()) continue;
    source.group_size = context_.manifest.group(arg.group)->size;
    const auto peers = context_.peers.find(std::string(arg.group));
    source.group = peers == context_.peers.end() ? nullptr : peers->second;
    KERN_ASSERT(source.group != nullptr || source.group_size == 1, "group `{}`", arg.group);
  }
  KERN_TRY(lowered, context_.target.built_in(source));
  out.built_in = std::move(lowered.run);
  out_.collective_bytes_max = std::max(out_.collective_bytes_max, lowered.collective_bytes);
  return {};
}

Result<void> Lowering::add_launch(const manifest::Op& op, const manifest::Launch& launch,
                                  std::span<const BoundArg> params, size_t call) {
  const std::vector<ParamType>& types = launch.params ? *launch.params : op.params;
  std::vector<BoundArg> args;
  if (launch.args) {
    KERN_ASSERT(launch.args->size() == types.size(), "op `{}`", op.name);
    for (size_t i = 0; i < types.size(); ++i) {
      KERN_TRY(arg, bind_arg(op, (*launch.args)[i], types[i], params, call));
      args.push_back(arg);
    }
  } else {
    args.assign(params.begin(), params.end());
  }
  Launch out;
  out.call = static_cast<uint32_t>(call);
  out.op = op.name;
  if (launch.is_extern())
    KERN_TRY_VOID(set_built_in(launch, args, out));
  else
    KERN_TRY_VOID(set_kernel(launch, args, out));
  if (launch.when) {
    const auto var = context_.manifest.index().vars.find(launch.when->var);
    KERN_ASSERT(var.has_value(), "var `{}`", launch.when->var);
    out.when = out_.values.of_var(launch.when->var);
    out.when_min = launch.when->min.value_or(0);
    out.when_max = launch.when->max.value_or(context_.manifest->vars[*var].max);
  }
  out.arg_count = static_cast<uint32_t>(args.size());
  out_.arg_tables.push_back(std::make_unique<void*[]>(args.size()));
  out.args = out_.arg_tables.back().get();
  for (size_t i = 0; i < args.size(); ++i) out.args[i] = const_cast<Cell*>(args[i].cell);
  out_.launches.push_back(std::move(out));
  return {};
}

Result<void> Lowering::add_call(size_t call) {
  const manifest::Call& source = program_.calls[call];
  const manifest::Op* op = context_.manifest.op(source.op);
  KERN_ASSERT(op != nullptr && op->params.size() == source.args.size(), "op `{}`", source.op);
  std::vector<BoundArg> params;
  params.reserve(source.args.size());
  for (size_t i = 0; i < source.args.size(); ++i) {
    KERN_TRY(param, with_context(bind_param(source.args[i], op->params[i]),
                                 "program `{}`, call {}, op `{}` arg #{}", program_.name, call,
                                 op->name, i));
    params.push_back(param);
  }
  for (size_t i = 0; i < op->launches.size(); ++i)
    KERN_TRY_VOID(with_context(add_launch(*op, op->launches[i], params, call),
                               "program `{}`, call {}, op `{}` launch #{}", program_.name, call,
                               op->name, i));
  return {};
}

/// Inputs, inouts and outputs that the calls name, where the caller's view is not the device's.
void Lowering::add_transfers() {
  std::set<size_t> seen;
  for (const manifest::Call& call : program_.calls)
    for (const CallArg& arg : call.args) {
      const auto* bound = std::get_if<manifest::BufferArg>(&arg);
      if (bound == nullptr) continue;
      const size_t index = *context_.manifest.index().buffers.find(bound->buffer);
      const manifest::Buffer& buffer = context_.manifest->buffers[index];
      const std::byte* host = context_.addresses.host_view(index);
      std::byte* device = context_.addresses.buffers[index];
      if (host == nullptr || host == device || !seen.insert(index).second) continue;
      Transfer transfer{const_cast<std::byte*>(host), device, {}, manifest::size_of(buffer.dtype)};
      for (const manifest::Dim& dim : buffer.shape)
        transfer.extents.push_back(dim.is_var() ? out_.values.of_var(dim.var)
                                                : out_.values.of_integer(dim.value));
      transfer.changes_only = is_compared(buffer, context_.manifest.bytes_max(index));
      if (buffer.kind != manifest::BufferKind::output) out_.uploads.push_back(transfer);
      if (buffer.kind == manifest::BufferKind::input) continue;
      if (context_.read_back == nullptr || context_.read_back->contains(buffer.name))
        out_.downloads.push_back(transfer);
    }
}

Result<LoweredProgram> Lowering::finish() {
  add_transfers();
  KERN_TRY_VOID(
      add_checked_inputs(context_.manifest, program_, context_.layout, context_.addresses, out_));
  out_.values.evaluate(context_.manifest.vars_max());
  for (const Launch& launch : out_.launches)
    if (launch.shared_bytes != nullptr)
      out_.shared_bytes_max = std::max(out_.shared_bytes_max, *launch.shared_bytes);
  return std::move(out_);
}

}  // namespace

Result<LoweredProgram> lower(const LowerContext& context, size_t program, size_t first,
                             size_t last) {
  Lowering lowering(context, program);
  for (size_t call = first; call < last; ++call) KERN_TRY_VOID(lowering.add_call(call));
  return lowering.finish();
}

Result<LoweredProgram> lower(const LowerContext& context, size_t program) {
  return lower(context, program, 0, context.manifest->programs[program].calls.size());
}

}  // namespace kern::runtime
