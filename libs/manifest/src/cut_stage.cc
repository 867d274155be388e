#include <algorithm>
#include <map>

#include "cut_plan.h"
#include "kern/base/assert.h"
#include "scope.h"

namespace kern::manifest {
namespace {

template <class T>
void keep_marked(std::vector<T>& list, const std::vector<bool>& marks) {
  size_t i = 0;
  std::erase_if(list, [&](const T&) { return !marks[i++]; });
}

class Builder {
 public:
  Builder(const Verified& whole, const CutPlan& plan, size_t stage)
      : whole_(whole),
        plan_(plan),
        stage_(stage),
        buffers_(whole->buffers.size()),
        states_(whole->states.size()),
        ops_(whole->ops.size()) {}

  tl::expected<Manifest, Diagnostics> run(const std::string& id) {
    head(id);
    for (const CutProgram& cut : plan_.programs) slice(cut);
    for (size_t b = 0; b < buffers_.size(); ++b)
      if (plan_.receives(stage_, b) || plan_.hands_on(stage_, b)) buffers_[b] = true;
    keep_targets();
    keep_load_programs();
    order_programs();
    copy_used();
    split_received();
    for (Buffer& buffer : m_.buffers) aim(buffer);
    const Index index(m_);
    const Used used = find_used(m_, index);
    keep_marked(m_.vars, used.vars);
    keep_marked(m_.groups, used.groups);
    keep_marked(m_.modules, used.modules);
    m_.uses = needed_extensions(m_);
    if (!diagnostics_.empty()) return tl::unexpected<Diagnostics>(std::move(diagnostics_));
    return std::move(m_);
  }

 private:
  template <class... Args>
  void problem(std::string pointer, fmt::format_string<Args...> format, Args&&... args) {
    diagnostics_.push_back({std::move(pointer), fmt::format(format, std::forward<Args>(args)...)});
  }

  void head(const std::string& id) {
    m_.model = whole_->model;
    m_.device = whole_->device;
    m_.meta = whole_->meta;
    m_.constants = whole_->constants;
    m_.vars = whole_->vars;
    m_.groups = whole_->groups;
    m_.modules = whole_->modules;
    m_.cut = Cut{id, static_cast<int64_t>(stage_), static_cast<int64_t>(plan_.stages)};
  }

  void mark(const Call& call) {
    ops_[*whole_.index().ops.find(call.op)] = true;
    for (const CallArg& arg : call.args) {
      if (const auto* b = std::get_if<BufferArg>(&arg))
        buffers_[*whole_.index().buffers.find(b->buffer)] = true;
      else if (const auto* s = std::get_if<StateArg>(&arg))
        states_[*whole_.index().states.find(s->state)] = true;
    }
  }

  void slice(const CutProgram& cut) {
    const Program& whole = *cut.program;
    Program& part = m_.programs.emplace_back();
    part.name = whole.name;
    part.batch = whole.batch;
    part.graph = whole.graph;
    part.calls.assign(whole.calls.begin() + static_cast<ptrdiff_t>(cut.starts[stage_]),
                      whole.calls.begin() + static_cast<ptrdiff_t>(cut.starts[stage_ + 1]));
    for (const Call& call : part.calls) mark(call);
  }

  /// What a kept peer buffer holds addresses of is kept too.
  void keep_targets() {
    for (size_t b = 0; b < buffers_.size(); ++b) {
      if (!buffers_[b] || whole_->buffers[b].of.empty()) continue;
      if (const auto at = whole_.index().buffers.find(whole_->buffers[b].of)) buffers_[*at] = true;
      if (const auto at = whole_.index().states.find(whole_->buffers[b].of)) states_[*at] = true;
    }
  }

  /// Of the programs that run at load, the calls that this stage's steps depend on.
  void keep_load_programs() {
    for (size_t p = whole_->programs.size(); p-- > 0;) {
      const Program& whole = whole_->programs[p];
      if (!whole.once && !whole.derive) continue;
      Program part = whole;
      part.calls.clear();
      for (size_t c = whole.calls.size(); c-- > 0;) {
        if (!is_wanted(whole.calls[c])) continue;
        mark(whole.calls[c]);
        keep_targets();
        part.calls.push_back(whole.calls[c]);
      }
      std::reverse(part.calls.begin(), part.calls.end());
      if (!part.calls.empty()) m_.programs.push_back(std::move(part));
    }
  }

  /// A call at load is wanted when it writes what is kept, or when nothing says what it writes.
  bool is_wanted(const Call& call) const {
    const Op* op = whole_.op(call.op);
    bool says = false;
    for (size_t a = 0; a < call.args.size(); ++a) {
      if (!writes(op->params[a].direction)) continue;
      if (const auto* b = std::get_if<BufferArg>(&call.args[a])) {
        says = true;
        if (buffers_[*whole_.index().buffers.find(b->buffer)]) return true;
      } else if (const auto* s = std::get_if<StateArg>(&call.args[a])) {
        says = true;
        if (states_[*whole_.index().states.find(s->state)]) return true;
      }
    }
    return !says;
  }

  void order_programs() {
    std::sort(m_.programs.begin(), m_.programs.end(), [&](const Program& a, const Program& b) {
      return *whole_.index().programs.find(a.name) < *whole_.index().programs.find(b.name);
    });
  }

  void copy_used() {
    for (size_t i = 0; i < states_.size(); ++i)
      if (states_[i]) m_.states.push_back(whole_->states[i]);
    for (size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i]) m_.ops.push_back(whole_->ops[i]);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      if (!buffers_[i]) continue;
      Buffer& buffer = m_.buffers.emplace_back(whole_->buffers[i]);
      const bool in = plan_.receives(stage_, i), out = plan_.hands_on(stage_, i);
      if (in || out)
        crossing(buffer, in, out);
      else if (buffer.kind == BufferKind::output && stage_ + 1 < plan_.stages)
        local(buffer);
    }
  }

  void crossing(Buffer& buffer, bool in, bool out) const {
    // an input that the first stage is given and hands on; an output that the last goes on with
    const bool given = in || buffer.kind == BufferKind::input;
    const bool last = stage_ + 1 == plan_.stages;
    const bool taken = out || (last && buffer.kind == BufferKind::output);
    buffer.kind = given && taken ? BufferKind::inout
                  : given        ? BufferKind::input
                                 : BufferKind::output;
    buffer.fill.reset();
    // a crossing buffer is no table of the stage, whatever it indexed in the whole
    if (buffer.domain && !buffer.domain->index_into.empty()) buffer.domain.reset();
  }

  /// What the whole gives its caller is written anew by a later stage.
  static void local(Buffer& buffer) {
    buffer.kind = BufferKind::workspace;
    buffer.fill.reset();
    buffer.domain.reset();
  }

  bool is_written(const Buffer& buffer) const {
    for (const Program& program : m_.programs)
      for (const Call& call : program.calls)
        for (size_t a = 0; a < call.args.size(); ++a) {
          const auto* ref = std::get_if<BufferArg>(&call.args[a]);
          if (ref != nullptr && ref->buffer == buffer.name &&
              writes(whole_.op(call.op)->params[a].direction))
            return true;
        }
    return false;
  }

  /// A buffer that is received, and written here once it is no longer looked at, but not handed
  /// on: what is written is another value, and gets a buffer of its own, since inputs are
  /// read-only. The last stage hands nothing on, so there it may be changed in place.
  void split_received() {
    std::vector<Buffer> own;
    for (Buffer& buffer : m_.buffers) {
      const size_t b = *find(buffer.name);
      if (!plan_.receives(stage_, b) || plan_.hands_on(stage_, b)) continue;
      if (stage_ + 1 == plan_.stages) {
        if (is_written(buffer)) buffer.kind = BufferKind::inout;
        continue;
      }
      std::string name = buffer.name + ".own";
      while (whole_.buffer(name) != nullptr) name += '_';
      bool renamed = false;
      for (Program& program : m_.programs)
        if (!program.once && !program.derive) renamed = split(program, buffer, name) || renamed;
      if (!renamed) continue;
      own.push_back(buffer);
      own.back().name = name;
      own.back().kind = BufferKind::workspace;
    }
    for (Buffer& buffer : own) m_.buffers.push_back(std::move(buffer));
  }

  std::optional<size_t> find(std::string_view name) const {
    return whole_.index().buffers.find(name);
  }

  bool split(Program& program, const Buffer& buffer, const std::string& name) {
    bool own = false;
    for (Call& call : program.calls) {
      const Op* op = whole_.op(call.op);
      const bool was_own = own;
      for (size_t a = 0; a < call.args.size(); ++a) {
        auto* ref = std::get_if<BufferArg>(&call.args[a]);
        if (ref == nullptr || ref->buffer != buffer.name) continue;
        const Direction direction = op->params[a].direction;
        if (was_own) {
          ref->buffer = name;
        } else if (direction == Direction::out && ref->offset_bytes == 0 && !buffer.exported) {
          ref->buffer = name;
          own = true;
        } else {
          KERN_ASSERT(!writes(direction), "stage {}: `{}` is changed and not handed on", stage_,
                      buffer.name);
        }
      }
    }
    return own;
  }

  /// A table whose state stays behind is aimed at the first state of the stage of the same kind and
  /// size, with which it shares its numbers.
  void aim(Buffer& buffer) {
    if (!buffer.domain || buffer.domain->index_into.empty()) return;
    std::string& target = buffer.domain->index_into;
    const auto has = [&](const auto& list) {
      return std::any_of(list.begin(), list.end(),
                         [&](const auto& one) { return one.name == target; });
    };
    if (has(m_.states) || has(m_.buffers)) return;
    const State* old = whole_.state(target);
    for (const State& state : m_.states) {
      if (old == nullptr || state.size != old->size) continue;
      if (state.size != State::Size::per_token && state.bytes != old->bytes) continue;
      target = state.name;
      return;
    }
    // a fill says by itself what the buffer holds; a table without one is nothing without its
    // target
    if (buffer.fill || buffer.kind != BufferKind::input)
      buffer.domain.reset();
    else if (old == nullptr)
      problem(pointer_to("buffers", buffer.name),
              "stage {} reads this table, and `{}`, which it indexes, stays behind", stage_,
              target);
    else
      problem(pointer_to("buffers", buffer.name),
              "stage {} reads this table, and has no state like `{}`, which it indexes", stage_,
              target);
  }

  const Verified& whole_;
  const CutPlan& plan_;
  size_t stage_;
  Manifest m_;
  std::vector<bool> buffers_, states_, ops_;
  Diagnostics diagnostics_;
};

}  // namespace

tl::expected<Manifest, Diagnostics> build_stage(const Verified& whole, const CutPlan& plan,
                                                size_t stage, const std::string& id) {
  return Builder(whole, plan, stage).run(id);
}

}  // namespace kern::manifest
