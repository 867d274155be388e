#include "kern/manifest/cut.h"

#include <algorithm>

#include "cut_plan.h"
#include "kern/base/sha256.h"
#include "scope.h"

namespace kern::manifest {
namespace {

constexpr size_t kIdDigits = 32;

/// Stages of different cuts, or of cuts of different manifests, have different ids.
std::string id_of(const Verified& whole, std::span<const std::string> labels) {
  std::string text = print(*whole);
  for (const std::string& label : labels) {
    text += '\0';
    text += label;
  }
  return to_hex(sha256(as_bytes(text))).substr(0, kIdDigits);
}

bool is_table(const Buffer& buffer) {
  return buffer.domain && !buffer.domain->index_into.empty();
}

std::string text_of(const Buffer& buffer) {
  std::string out = fmt::format("{}[", to_string(buffer.dtype));
  for (size_t i = 0; i < buffer.shape.size(); ++i) {
    const Dim& dim = buffer.shape[i];
    out +=
        fmt::format("{}{}", i == 0 ? "" : ", ", dim.is_var() ? dim.var : std::to_string(dim.value));
  }
  return out + "]";
}

class EdgeCheck {
 public:
  EdgeCheck(const Verified& before, const Verified& after) : before_(before), after_(after) {}

  Diagnostics run() {
    if (!before_->cut || !after_->cut) {
      problem("", "a stage has a `cut` record, one of these two does not");
      return std::move(diagnostics_);
    }
    const Cut &a = *before_->cut, &b = *after_->cut;
    if (a.id != b.id || a.stages != b.stages)
      problem("/cut", "stages of different cuts: `{}` of {} and `{}` of {}", a.id, a.stages, b.id,
              b.stages);
    if (a.stage + 1 != b.stage)
      problem("/cut", "stage {} does not come after stage {}", b.stage, a.stage);
    if (!diagnostics_.empty()) return std::move(diagnostics_);
    buffers();
    vars();
    programs();
    return std::move(diagnostics_);
  }

 private:
  template <class... Args>
  void problem(std::string_view pointer, fmt::format_string<Args...> format, Args&&... args) {
    const int64_t stage = after_->cut ? after_->cut->stage : 0;
    diagnostics_.push_back(
        {fmt::format("/{}{}", stage, pointer), fmt::format(format, std::forward<Args>(args)...)});
  }

  void buffers() {
    const auto sent = sent_buffers(*before_), received = received_buffers(*after_);
    for (const std::string& name : received) {
      const Buffer* there = after_.buffer(name);
      const Buffer* here = before_.buffer(name);
      if (std::find(sent.begin(), sent.end(), name) == sent.end())
        problem(pointer_to("buffers", name), "stage {} does not send `{}`", before_->cut->stage,
                name);
      else if (here->dtype != there->dtype || here->shape != there->shape)
        problem(pointer_to("buffers", name), "expected {}, stage {} sends {}", text_of(*there),
                before_->cut->stage, text_of(*here));
    }
    for (const std::string& name : sent)
      if (std::find(received.begin(), received.end(), name) == received.end())
        problem("/buffers", "stage {} sends `{}`, which nothing here receives", before_->cut->stage,
                name);
  }

  void vars() {
    for (const Var& var : after_->vars) {
      const Var* other = before_.var(var.name);
      if (other != nullptr && (other->max != var.max || other->axis != var.axis))
        problem(pointer_to("vars", var.name), "var `{}` differs from stage {}'s", var.name,
                before_->cut->stage);
    }
  }

  void programs() {
    for (const Program& program : after_->programs)
      if (program.batch && before_.program(program.name) == nullptr)
        problem(pointer_to("programs", program.name), "stage {} has no program `{}`",
                before_->cut->stage, program.name);
    for (const Program& program : before_->programs)
      if (program.batch && after_.program(program.name) == nullptr)
        problem("/programs", "no program `{}`, which stage {} has", program.name,
                before_->cut->stage);
  }

  const Verified& before_;
  const Verified& after_;
  Diagnostics diagnostics_;
};

}  // namespace

tl::expected<std::vector<Manifest>, Diagnostics> cut(const Verified& whole,
                                                     std::span<const std::string> labels) {
  const auto plan = plan_cut(whole, labels);
  if (!plan) return tl::unexpected<Diagnostics>(plan.error());
  const std::string id = id_of(whole, labels);
  std::vector<Manifest> stages;
  Diagnostics diagnostics;
  for (size_t s = 0; s < plan->stages; ++s) {
    auto stage = build_stage(whole, *plan, s, id);
    if (stage)
      stages.push_back(std::move(*stage));
    else
      diagnostics.insert(diagnostics.end(), stage.error().begin(), stage.error().end());
  }
  if (!diagnostics.empty()) return tl::unexpected<Diagnostics>(std::move(diagnostics));
  return stages;
}

std::vector<std::string> received_buffers(const Manifest& stage) {
  std::vector<std::string> names;
  if (!stage.cut || stage.cut->stage == 0) return names;
  for (const Buffer& buffer : stage.buffers)
    if ((buffer.kind == BufferKind::input || buffer.kind == BufferKind::inout) && !buffer.fill &&
        !is_table(buffer))
      names.push_back(buffer.name);
  return names;
}

std::vector<std::string> sent_buffers(const Manifest& stage) {
  std::vector<std::string> names;
  if (!stage.cut || stage.cut->stage + 1 >= stage.cut->stages) return names;
  for (const Buffer& buffer : stage.buffers)
    if ((buffer.kind == BufferKind::output || buffer.kind == BufferKind::inout) && !buffer.fill)
      names.push_back(buffer.name);
  return names;
}

Diagnostics check_edge(const Verified& before, const Verified& after) {
  return EdgeCheck(before, after).run();
}

Diagnostics check_cut(std::span<const Verified* const> stages) {
  Diagnostics diagnostics;
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto& record = (*stages[i])->cut;
    if (!record)
      diagnostics.push_back({fmt::format("/{}", i), "has no `cut` record"});
    else if (record->stages != static_cast<int64_t>(stages.size()) ||
             record->stage != static_cast<int64_t>(i))
      diagnostics.push_back({fmt::format("/{}/cut", i),
                             fmt::format("is stage {} of {}; expected stage {} of {}",
                                         record->stage, record->stages, i, stages.size())});
  }
  for (size_t i = 1; diagnostics.empty() && i < stages.size(); ++i) {
    const Diagnostics edge = check_edge(*stages[i - 1], *stages[i]);
    diagnostics.insert(diagnostics.end(), edge.begin(), edge.end());
  }
  return diagnostics;
}

}  // namespace kern::manifest
