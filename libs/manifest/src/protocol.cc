#include "kern/manifest/protocol.h"

#include <algorithm>

#include "scope.h"

namespace kern::manifest {
namespace {

class Deriver {
 public:
  explicit Deriver(const Verified& manifest) : m_(manifest) {}

  tl::expected<Protocol, Diagnostics> run() {
    axes();
    for (const Program& program : m_->programs) this->program(program);
    for (const Buffer& buffer : m_->buffers) this->buffer(buffer);
    if (p_.services.empty()) problem("/programs", "no program has a `batch`, so none serves");
    if (!p_.services.empty()) need_axes();
    for (const PageTable& table : p_.page_tables) page_width(table);
    if (!diagnostics_.empty()) return tl::unexpected<Diagnostics>(std::move(diagnostics_));
    return std::move(p_);
  }

 private:
  template <class... Args>
  void problem(std::string pointer, fmt::format_string<Args...> format, Args&&... args) {
    diagnostics_.push_back({std::move(pointer), fmt::format(format, std::forward<Args>(args)...)});
  }

  void axes() {
    for (const Var& var : m_->vars) {
      if (!var.axis) continue;
      switch (*var.axis) {
        case Axis::rows:
          p_.rows_var = var.name;
          rows_max_ = var.max;
          break;
        case Axis::groups:
          p_.groups_var = var.name;
          groups_max_ = var.max;
          break;
        case Axis::ranks:
          p_.ranks_var = var.name;
          break;
      }
    }
  }

  void need_axes() {
    if (p_.rows_var.empty())
      problem("/vars", "a manifest with a `batch` names a var with axis `rows`");
    if (p_.groups_var.empty())
      problem("/vars", "a manifest with a `batch` names a var with axis `groups`");
  }

  void program(const Program& program) {
    if (program.once) p_.once_programs.push_back(program.name);
    if (program.derive) p_.derive_programs.push_back(program.name);
    if (program.once) reads_no_input(program);
    if (!program.batch) return;
    const Batch& batch = *program.batch;
    const std::string pointer = pointer_to("programs", program.name) + "/batch";
    Service service;
    service.program = program.name;
    service.groups_max = batch.groups;
    service.context_var = batch.context;
    service.emits = emits(program);
    service.graph = program.graph;
    if (groups_max_ > 0 && batch.groups > groups_max_)
      problem(pointer, "{} groups, but var `{}` stops at {}", batch.groups, p_.groups_var,
              groups_max_);
    if (const auto* count = std::get_if<int64_t>(&batch.rows)) {
      service.rows_each = *count;
      service.rows_max = *count * batch.groups;
      if (rows_max_ > 0 && *count > rows_max_ / batch.groups)
        problem(pointer, "{} groups of {} rows, but var `{}` stops at {}", batch.groups, *count,
                p_.rows_var, rows_max_);
    } else {
      const auto& name = std::get<std::string>(batch.rows);
      service.rows_max = rows_max_;
      if (name != p_.rows_var)
        problem(pointer, "`rows` names var `{}`, whose axis is not `rows`", name);
    }
    p_.services.push_back(std::move(service));
  }

  void reads_no_input(const Program& program) {
    for (size_t c = 0; c < program.calls.size(); ++c)
      for (size_t a = 0; a < program.calls[c].args.size(); ++a) {
        const auto* arg = std::get_if<BufferArg>(&program.calls[c].args[a]);
        const Buffer* buffer = arg != nullptr ? m_.buffer(arg->buffer) : nullptr;
        if (buffer == nullptr) continue;
        if (buffer->kind == BufferKind::input || buffer->kind == BufferKind::inout ||
            buffer->kind == BufferKind::output)
          problem(pointer_to(program, c, a), "a once program has no {} buffer, got `{}`",
                  to_string(buffer->kind), buffer->name);
      }
  }

  bool emits(const Program& program) const {
    for (const Call& call : program.calls)
      for (const CallArg& arg : call.args) {
        const auto* ref = std::get_if<BufferArg>(&arg);
        const Buffer* buffer = ref != nullptr ? m_.buffer(ref->buffer) : nullptr;
        if (buffer != nullptr && buffer->kind == BufferKind::output && buffer->fill == Fill::tokens)
          return true;
      }
    return false;
  }

  void buffer(const Buffer& buffer) {
    if (buffer.fill) return filled(buffer);
    const bool in = buffer.kind == BufferKind::input;
    const State* target = in && buffer.domain ? m_.state(buffer.domain->index_into) : nullptr;
    if (target != nullptr && target->size == State::Size::per_token)
      return page_table(buffer, *target);
    if (target != nullptr && target->size == State::Size::per_seq)
      return line_table(buffer, *target);
    const bool tables = buffer.domain && !buffer.domain->index_into.empty();
    const bool inout = buffer.kind == BufferKind::inout;
    const bool middle = m_->cut && m_->cut->stage > 0;
    const bool first_of_more = m_->cut && m_->cut->stage + 1 < m_->cut->stages;
    if ((in || inout) && !tables) {
      if (middle)
        p_.received.push_back(buffer.name);
      else
        problem(pointer_to("buffers", buffer.name),
                "nothing fills this {} buffer: no fill, no `index_into` a state, no stage before",
                to_string(buffer.kind));
    } else if (in) {
      problem(pointer_to("buffers", buffer.name),
              "nothing fills this table: `{}` is neither a paged nor a per-sequence state",
              buffer.domain->index_into);
    }
    if ((inout || buffer.kind == BufferKind::output) && first_of_more)
      p_.sent.push_back(buffer.name);
  }

  /// The elements a step of `along` holds when the outermost extent runs over it; 0 when it does
  /// not.
  int64_t width_along(const Buffer& buffer, std::string_view var, int64_t bound, int64_t more) {
    const Dim& outer = buffer.shape[0];
    const auto extent = eval(outer, m_.at_bounds());
    const bool by_var = more == 0 && outer.is_var() && outer.var == var;
    const bool by_size = !outer.is_var() && extent && bound > 0 && *extent >= bound + more;
    if (!by_var && !by_size) return 0;
    const auto width = elements_of(std::span(buffer.shape).subspan(1), m_.at_bounds());
    return width.value_or(0);
  }

  void filled(const Buffer& buffer) {
    const std::string pointer = pointer_to("buffers", buffer.name) + "/fill";
    Filled out{buffer.name, *buffer.fill, buffer.dtype, Along::rows, 1};
    auto& list = buffer.kind == BufferKind::input ? p_.inputs : p_.outputs;
    for (const Filled& other : list)
      if (other.fill == out.fill)
        return problem(pointer, "fill `{}` is buffer `{}`'s already; one buffer a role",
                       to_string(out.fill), other.buffer);
    if (!place(buffer, out))
      return problem(pointer, "the shape does not suit fill `{}`; expected {}", to_string(out.fill),
                     shape_for(out.fill));
    list.push_back(std::move(out));
  }

  static std::string_view shape_for(Fill fill) {
    switch (fill) {
      case Fill::token:
      case Fill::position:
      case Fill::slot:
      case Fill::fed_from:
        return "[rows]";
      case Fill::cu_seqlens:
        return "[groups + 1]";
      case Fill::blocks:
        return "[members + 1]";
      case Fill::error:
        return "[1]";
      case Fill::tokens:
        return "[groups] or [groups, rows]";
      case Fill::valid:
        return "[rows], [groups] or [1]";
      case Fill::top_tokens:
      case Fill::top_logprobs:
        return "[groups, n]";
      default:
        return "[groups]";
    }
  }

  bool place(const Buffer& buffer, Filled& out) {
    const auto try_along = [&](Along along, std::string_view var, int64_t bound, int64_t more) {
      const int64_t width = width_along(buffer, var, bound, more);
      if (width < 1) return false;
      out.along = along;
      out.width = width;
      return true;
    };
    const auto rows = [&] { return try_along(Along::rows, p_.rows_var, rows_max_, 0); };
    const auto groups = [&] { return try_along(Along::groups, p_.groups_var, groups_max_, 0); };
    const bool one = elements_of(buffer.shape, m_.at_bounds()) == 1;
    switch (*buffer.fill) {
      case Fill::token:
      case Fill::position:
      case Fill::slot:
      case Fill::fed_from:
        return buffer.shape.size() == 1 && rows();
      case Fill::valid:
        if (one && !buffer.shape[0].is_var()) out.along = Along::once;
        return out.along == Along::once || (rows() && out.width == 1) ||
               (groups() && out.width == 1);
      case Fill::cu_seqlens:
        return buffer.shape.size() == 1 && try_along(Along::boundaries, "", groups_max_, 1);
      case Fill::blocks:
        out.along = Along::members;
        return buffer.shape.size() == 1;
      case Fill::error:
        out.along = Along::once;
        return one;
      case Fill::tokens:
        return buffer.shape.size() <= 2 && groups();
      case Fill::top_tokens:
      case Fill::top_logprobs:
        return buffer.shape.size() == 2 && groups();
      default:
        return buffer.shape.size() == 1 && groups();
    }
  }

  void page_table(const Buffer& buffer, const State& state) {
    const std::string pointer = pointer_to("buffers", buffer.name);
    PageTable table{buffer.name, state.name, buffer.dtype, 0, 0, buffer.domain->stride.value_or(1)};
    if (buffer.shape.size() != 2)
      return problem(pointer, "a page table has shape [sequences, pages], got {} extents",
                     buffer.shape.size());
    table.seqs_max = eval(buffer.shape[0], m_.at_bounds()).value_or(0);
    table.width = eval(buffer.shape[1], m_.at_bounds()).value_or(0);
    if (p_.page_tokens != 0 && p_.page_tokens != table.page_tokens)
      problem(pointer, "pages of {} tokens, other tables have pages of {}", table.page_tokens,
              p_.page_tokens);
    p_.page_tokens = table.page_tokens;
    p_.page_tables.push_back(std::move(table));
  }

  void page_width(const PageTable& table) {
    const Buffer* buffer = m_.buffer(table.buffer);
    if (buffer->shape[0].is_var() && buffer->shape[0].var != p_.groups_var)
      problem(pointer_to("buffers", table.buffer), "a page table runs over `{}`; expected `{}`",
              buffer->shape[0].var, p_.groups_var);
  }

  void line_table(const Buffer& buffer, const State& state) {
    const std::string pointer = pointer_to("buffers", buffer.name);
    LineTable table{buffer.name, state.name, buffer.dtype, 0, 0, 1, 0, 1};
    table.line_bytes = buffer.domain->stride.value_or(state.bytes);
    table.lines_per_slot = state.bytes / table.line_bytes;
    if (buffer.shape.size() > 3)
      return problem(pointer,
                     "a line table has shape [lines], [lines, sequences] or [lines, "
                     "sequences, width], got {} extents",
                     buffer.shape.size());
    const auto extent = [&](size_t i) { return eval(buffer.shape[i], m_.at_bounds()).value_or(0); };
    const bool flat = buffer.shape.size() == 1 && buffer.shape[0].is_var() &&
                      buffer.shape[0].var == p_.groups_var;
    table.lines = flat ? 1 : extent(0);
    if (flat) table.seqs_max = extent(0);
    if (buffer.shape.size() > 1) table.seqs_max = extent(1);
    if (buffer.shape.size() > 2) table.width = extent(2);
    p_.line_tables.push_back(std::move(table));
  }

  const Verified& m_;
  Protocol p_;
  Diagnostics diagnostics_;
  int64_t rows_max_ = 0, groups_max_ = 0;
};

const Filled* find(const std::vector<Filled>& list, Fill fill) {
  const auto at =
      std::find_if(list.begin(), list.end(), [&](const Filled& f) { return f.fill == fill; });
  return at == list.end() ? nullptr : &*at;
}

}  // namespace

tl::expected<Protocol, Diagnostics> Protocol::check(const Verified& manifest) {
  return Deriver(manifest).run();
}

const Filled* Protocol::input(Fill fill) const {
  return find(inputs, fill);
}
const Filled* Protocol::output(Fill fill) const {
  return find(outputs, fill);
}

const Service* Protocol::for_prompts(int64_t seqs, int64_t rows) const {
  const Service* best = nullptr;
  for (const Service& service : services) {
    if (service.rows_each || service.groups_max < seqs || service.rows_max < rows) continue;
    if (best == nullptr || service.groups_max < best->groups_max) best = &service;
  }
  return best;
}

const Service* Protocol::choose(int64_t seqs, int64_t rows_each) const {
  const Service* best = nullptr;
  for (const Service& service : services) {
    if (service.rows_each != rows_each || service.groups_max < seqs) continue;
    if (best == nullptr || service.groups_max < best->groups_max) best = &service;
  }
  return best != nullptr ? best : for_prompts(seqs, seqs * rows_each);
}

}  // namespace kern::manifest
