#include "gen/builder.h"

#include <utility>

namespace k3 {

m::CallArg buf(std::string name, int64_t offset_bytes) {
  return m::BufferArg{std::move(name), offset_bytes};
}
m::CallArg state(std::string name) {
  return m::StateArg{std::move(name), 0};
}
m::CallArg var(std::string name) {
  return m::VarRef{std::move(name)};
}
m::CallArg i32(int64_t value) {
  return m::Literal{m::Literal::Type::i32, value, 0};
}
m::CallArg f32(double value) {
  return m::Literal{m::Literal::Type::f32, 0, static_cast<double>(static_cast<float>(value))};
}

m::ParamType in(m::Dtype dtype) {
  return m::ParamType::buffer(m::Direction::in, dtype);
}
m::ParamType out(m::Dtype dtype) {
  return m::ParamType::buffer(m::Direction::out, dtype);
}
m::ParamType inout(m::Dtype dtype) {
  return m::ParamType::buffer(m::Direction::inout, dtype);
}
m::ParamType in_state() {
  return m::ParamType::state(m::Direction::in);
}
m::ParamType inout_state() {
  return m::ParamType::state(m::Direction::inout);
}
m::ParamType p_i32() {
  return m::ParamType::scalar(m::ParamType::What::i32);
}
m::ParamType p_f32() {
  return m::ParamType::scalar(m::ParamType::What::f32);
}

m::ParamType p_bytes(int64_t bytes) {
  return {m::ParamType::What::bytes, m::Direction::in, m::Dtype::bf16, bytes};
}

m::Launch launch(const std::string& module, const std::string& entry, std::vector<m::Expr> grid,
                 int64_t shared_bytes) {
  while (grid.size() < 3) grid.push_back(m::Expr::constant(1));
  m::Launch launch;
  launch.module = module;
  launch.entry = entry;
  launch.block = {1, 1, 1};
  launch.grid = std::move(grid);
  if (shared_bytes > 0) launch.shared_mem = m::Expr::constant(shared_bytes);
  return launch;
}

m::Expr blocks_of(const char* var, int64_t rows) {
  return m::Expr::ceil_div(m::Expr::of_var(var), rows);
}

namespace {

std::vector<m::Dim> dims(Shape shape) {
  std::vector<m::Dim> dims;
  for (const Extent& extent : shape) dims.push_back(extent.dim);
  return dims;
}

}  // namespace

void Builder::buffer(m::Buffer buffer) {
  if (buffers_.insert(buffer.name).second) manifest_.buffers.push_back(std::move(buffer));
}

void Builder::workspace(const std::string& name, m::Dtype dtype, Shape shape) {
  m::Buffer buffer;
  buffer.name = name;
  buffer.dtype = dtype;
  buffer.shape = dims(shape);
  buffer.kind = m::BufferKind::workspace;
  this->buffer(std::move(buffer));
}

void Builder::weight(const std::string& name, m::Dtype dtype, Shape shape,
                     std::vector<m::BindSegment> bind) {
  m::Buffer buffer;
  buffer.name = name;
  buffer.dtype = dtype;
  buffer.shape = dims(shape);
  buffer.kind = m::BufferKind::weight;
  buffer.bind = std::move(bind);
  this->buffer(std::move(buffer));
}

void Builder::kernel_op(const std::string& name, std::vector<m::ParamType> params, Body body) {
  if (!is_new_op(name)) return;
  m::Op op;
  op.name = name;
  op.params = std::move(params);
  op.scratch = std::move(body.scratch);
  op.launches = std::move(body.launches);
  this->op(std::move(op));
}

void Builder::extern_op(const std::string& name, std::vector<m::ParamType> params,
                        const std::string& builtin) {
  if (!is_new_op(name)) return;
  m::Op op;
  op.name = name;
  op.params = std::move(params);
  m::Launch launch;
  launch.entry = "extern:" + builtin;
  op.launches.push_back(std::move(launch));
  this->op(std::move(op));
}

void Builder::call(const std::string& op, std::vector<m::CallArg> args) {
  m::Call call;
  call.op = op;
  call.args = std::move(args);
  call.label = std::exchange(label_, {});
  manifest_.programs.back().calls.push_back(std::move(call));
}

}  // namespace k3
