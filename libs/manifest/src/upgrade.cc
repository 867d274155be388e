#include <algorithm>

#include "reader.h"

namespace kern::manifest {
namespace {

/// Which vars a version 5 server set to what: that of the `slot` input to a call's rows, that of
/// the `seq_len` input to its sequences, a third one to the rows of the whole group.
class AxesOf5 {
 public:
  AxesOf5(Reader& reader, Manifest& manifest) : reader_(reader), m_(manifest) {}

  void infer() {
    Var* const rows = var_of(Fill::slot);
    Var* const groups = var_of(Fill::seq_len);
    if (rows == nullptr || groups == nullptr) return;
    if (rows == groups)
      return problem(*rows,
                     "the inputs `slot` and `seq_len` both run over it; in schema_version 5 they "
                     "tell rows from sequences");
    rows->axis = Axis::rows;
    groups->axis = Axis::groups;
    Var* ranks = nullptr;
    for (const Buffer& buffer : m_.buffers) {
      Var* const over = var_over(buffer);
      if (over == nullptr || over == rows || over == groups || over == ranks) continue;
      if (ranks != nullptr)
        return problem(*over,
                       "`{}` runs over it, others over `{}`; schema_version 5 has one var besides "
                       "rows and sequences",
                       buffer.name, ranks->name);
      ranks = over;
      ranks->axis = Axis::ranks;
    }
  }

 private:
  template <class... Args>
  void problem(const Var& var, fmt::format_string<Args...> format, Args&&... args) {
    const At root, vars = root.member("vars");
    reader_.problem(vars.member(var.name), format, std::forward<Args>(args)...);
  }

  Var* var_of(const Dim& dim) {
    if (!dim.is_var()) return nullptr;
    const auto at = std::find_if(m_.vars.begin(), m_.vars.end(),
                                 [&](const Var& var) { return var.name == dim.var; });
    return at == m_.vars.end() ? nullptr : &*at;
  }

  Var* var_of(Fill fill) {
    for (const Buffer& buffer : m_.buffers)
      if (buffer.fill == fill) return buffer.shape.size() == 1 ? var_of(buffer.shape[0]) : nullptr;
    return nullptr;
  }

  bool is_line_table(const Buffer& buffer) const {
    if (buffer.kind != BufferKind::input || buffer.fill || !buffer.domain) return false;
    return std::any_of(m_.states.begin(), m_.states.end(), [&](const State& state) {
      return state.size == State::Size::per_seq && state.name == buffer.domain->index_into;
    });
  }

  /// The var that decides how a server fills the buffer: a line table's columns, the outermost
  /// extent of what has a role.
  Var* var_over(const Buffer& buffer) {
    if (is_line_table(buffer)) return buffer.shape.size() < 2 ? nullptr : var_of(buffer.shape[1]);
    return buffer.fill && !buffer.shape.empty() ? var_of(buffer.shape[0]) : nullptr;
  }

  Reader& reader_;
  Manifest& m_;
};

}  // namespace

void upgrade(Reader& reader, Manifest& manifest) {
  AxesOf5(reader, manifest).infer();
  manifest.schema_version = kNewest;
}

}  // namespace kern::manifest
