#include "cut_plan.h"

#include <algorithm>

#include "scope.h"

namespace kern::manifest {
namespace {

/// How the calls of one stage of one program treat a buffer.
struct Touch {
  bool any = false;
  bool exposed = false;  ///< looked at before it was written whole
  bool killed = false;   ///< written whole before anything looked at it
  bool written = false;
  bool whole = false;    ///< written whole, looked at before or not: from there on another value
  bool changed = false;  ///< written in part or in place before that
};

class Planner {
 public:
  Planner(const Verified& whole, std::span<const std::string> labels)
      : whole_(whole), labels_(labels) {}

  tl::expected<CutPlan, Diagnostics> run() {
    plan_.stages = labels_.size() + 1;
    plan_.crossing.resize(labels_.size());
    if (labels_.empty()) problem("", "no label to cut at; expected at least one");
    if (whole_->cut) problem("/cut", "already a stage of a cut");
    for (size_t i = 0; i < labels_.size(); ++i)
      if (labels_[i].empty()) problem("", "label {} of {} is empty", i + 1, labels_.size());
    for (const Buffer& buffer : whole_->buffers)
      if (buffer.kind == BufferKind::inout)
        problem(pointer_to("buffers", buffer.name), "an uncut manifest has no inout buffer");
    for (const Program& program : whole_->programs)
      if (!program.once && !program.derive) find_starts(program);
    if (plan_.programs.empty() && diagnostics_.empty())
      problem("/programs", "no program to cut: all of them run at load");
    if (diagnostics_.empty()) follow();
    if (!diagnostics_.empty()) return tl::unexpected<Diagnostics>(std::move(diagnostics_));
    return std::move(plan_);
  }

 private:
  template <class... Args>
  void problem(std::string pointer, fmt::format_string<Args...> format, Args&&... args) {
    diagnostics_.push_back({std::move(pointer), fmt::format(format, std::forward<Args>(args)...)});
  }

  void find_starts(const Program& program) {
    const std::string pointer = pointer_to("programs", program.name);
    CutProgram cut{&program, {0}};
    for (const std::string& label : labels_) {
      if (label.empty()) return;  // a call without a label is none
      size_t count = 0, at = 0;
      for (size_t c = 0; c < program.calls.size(); ++c)
        if (program.calls[c].label == label) {
          ++count;
          at = c;
        }
      if (count != 1)
        return problem(pointer, "{} calls are labelled `{}`; expected one", count, label);
      if (at == 0)
        return problem(pointer, "label `{}` is the first call: nothing is before it", label);
      if (at <= cut.starts.back())
        return problem(pointer, "label `{}` does not come after the one before it", label);
      cut.starts.push_back(at);
    }
    cut.starts.push_back(program.calls.size());
    plan_.programs.push_back(std::move(cut));
  }

  void follow() {
    state_stages_.resize(whole_->states.size());
    buffer_stages_.resize(whole_->buffers.size());
    carry_written_.resize(whole_->buffers.size());
    for (const CutProgram& program : plan_.programs) follow(program);
    hand_on_changed();
    for (size_t i = 0; i < whole_->states.size(); ++i)
      if (state_stages_[i].size() > 1)
        problem(pointer_to("states", whole_->states[i].name),
                "stages {} and {} both touch this state; a state does not cross",
                *state_stages_[i].begin(), *state_stages_[i].rbegin());
    for (size_t i = 0; i < whole_->buffers.size(); ++i) check_kind(i);
  }

  void check_kind(size_t i) {
    const Buffer& buffer = whole_->buffers[i];
    const std::set<size_t>& stages = buffer_stages_[i];
    if (stages.empty()) return;
    const std::string pointer = pointer_to("buffers", buffer.name);
    if (buffer.kind == BufferKind::output && buffer.fill && plan_.receives(plan_.stages - 1, i))
      problem(pointer,
              "stage {} writes this output, which the last stage keeps; what crosses has no fill",
              *stages.begin());
    if (buffer.kind == BufferKind::carry && carry_written_[i] && stages.size() > 1)
      problem(pointer, "stages {} and {} both touch this carry, which a step writes",
              *stages.begin(), *stages.rbegin());
  }

  void follow(const CutProgram& program) {
    const size_t buffers = whole_->buffers.size();
    std::vector<std::vector<Touch>> touches(plan_.stages, std::vector<Touch>(buffers));
    for (size_t s = 0; s < plan_.stages; ++s)
      for (size_t c = program.starts[s]; c < program.starts[s + 1]; ++c)
        touch(program.program->calls[c], s, touches[s]);
    for (size_t b = 0; b < buffers; ++b) {
      // what the caller reads is looked at behind the last call
      bool live = whole_->buffers[b].kind == BufferKind::output;
      for (size_t s = plan_.stages; s-- > 1;) {
        const Touch& t = touches[s][b];
        live = t.exposed || (live && !t.killed);
        if (live && crosses(touches, s, b)) plan_.crossing[s - 1].insert(b);
      }
    }
    for (size_t s = 0; s < plan_.stages; ++s)
      for (size_t b = 0; b < buffers; ++b)
        if (touches[s][b].changed) changed_.insert({s, b});
  }

  /// Only a stage that hands on may change in place what it receives, so one that does, though
  /// nobody looks at it again, hands it on, and the next drops it. The last may change it anyway.
  void hand_on_changed() {
    for (const auto& [stage, buffer] : changed_)
      if (stage + 1 < plan_.stages && plan_.receives(stage, buffer))
        plan_.crossing[stage].insert(buffer);
  }

  /// Whether what an earlier stage leaves in a live buffer comes over the edge: what it wrote, or
  /// what only the first can be given.
  bool crosses(const std::vector<std::vector<Touch>>& touches, size_t stage, size_t b) const {
    const Buffer& buffer = whole_->buffers[b];
    switch (buffer.kind) {
      case BufferKind::workspace:
      case BufferKind::output:
        return written_before(touches, stage, b);
      case BufferKind::input:
        return !buffer.fill && (!buffer.domain || buffer.domain->index_into.empty());
      default:
        return false;
    }
  }

  static bool written_before(const std::vector<std::vector<Touch>>& touches, size_t stage,
                             size_t buffer) {
    for (size_t s = 0; s < stage; ++s)
      if (touches[s][buffer].written) return true;
    return false;
  }

  void touch(const Call& call, size_t stage, std::vector<Touch>& touches) {
    const Op* op = whole_.op(call.op);
    for (const bool reading : {true, false})
      for (size_t a = 0; a < call.args.size(); ++a) {
        if (const auto* state = std::get_if<StateArg>(&call.args[a]))
          state_stages_[*whole_.index().states.find(state->state)].insert(stage);
        const auto* ref = std::get_if<BufferArg>(&call.args[a]);
        if (ref == nullptr) continue;
        const size_t b = *whole_.index().buffers.find(ref->buffer);
        buffer_stages_[b].insert(stage);
        const Direction direction = op->params[a].direction;
        Touch& t = touches[b];
        t.any = true;
        if (reading) {
          if (reads(direction) && !t.killed) t.exposed = true;
          continue;
        }
        if (!writes(direction)) continue;
        t.written = true;
        carry_written_[b] = true;
        const bool whole = direction == Direction::out && ref->offset_bytes == 0;
        if (whole && !t.exposed) t.killed = true;
        if (direction == Direction::out && !whole && !t.killed) t.exposed = true;
        if (whole && !whole_->buffers[b].exported) t.whole = true;
        if (!t.whole) t.changed = true;
      }
  }

  const Verified& whole_;
  std::span<const std::string> labels_;
  CutPlan plan_;
  Diagnostics diagnostics_;
  std::vector<std::set<size_t>> state_stages_, buffer_stages_;
  std::vector<bool> carry_written_;
  std::set<std::pair<size_t, size_t>> changed_;  ///< in place: stage, buffer
};

}  // namespace

tl::expected<CutPlan, Diagnostics> plan_cut(const Verified& whole,
                                            std::span<const std::string> labels) {
  return Planner(whole, labels).run();
}

}  // namespace kern::manifest
