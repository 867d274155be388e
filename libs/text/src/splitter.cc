#include "kern/text/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "kern/base/assert.h"
#include "kern/text/utf8.h"
#include "unicode_16.h"

namespace kern::text {
namespace {

constexpr size_t kJitStackBytesMin = 32 << 10;
constexpr size_t kJitStackBytesMax = 8 << 20;
constexpr uint32_t kCompileOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;

struct CodeFree {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct MatchContextFree {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
struct JitStackFree {
  void operator()(pcre2_jit_stack* stack) const { pcre2_jit_stack_free(stack); }
};

std::string error_text(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

struct Splitter::Impl {
  std::unique_ptr<pcre2_code, CodeFree> code;
  bool has_jit = false;

  /// Start and end of the next match at or after `from`; false when there is none.
  bool match(std::string_view text, size_t from, pcre2_match_data* data,
             pcre2_match_context* context) const {
    const auto* bytes = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = pcre2_match(code.get(), bytes, text.size(), from, PCRE2_NO_UTF_CHECK, data, context);
    // The compiled matcher's stack is bounded; the interpreter's heap is not.
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
      rc = pcre2_match(code.get(), bytes, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       data, context);
    return rc > 0;
  }
};

Splitter::Splitter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;
Splitter::~Splitter() = default;

Result<Splitter> Splitter::compile(std::string_view pattern) {
  if (pattern.empty()) return fail(Kind::caller, "split pattern: it is empty");
  if (pattern.size() > kPatternBytesMax)
    return fail(Kind::caller, "split pattern: at most {} bytes, got {}", kPatternBytesMax,
                pattern.size());
  KERN_TRY(rewritten, to_pcre2_pattern(pattern));
  int error = 0;
  PCRE2_SIZE place = 0;
  auto impl = std::make_unique<Impl>();
  impl->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                                 kCompileOptions, &error, &place, nullptr));
  if (!impl->code)
    return fail(Kind::caller, "split pattern: {} at byte {} of `{}`", error_text(error), place,
                rewritten);
  impl->has_jit = pcre2_jit_compile(impl->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return Splitter(std::move(impl));
}

void Splitter::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  const std::string replaced = with_stand_ins(text);
  const std::string_view subject = replaced.empty() ? text : std::string_view(replaced);
  KERN_ASSERT(subject.size() == text.size());
  const std::unique_ptr<pcre2_match_context, MatchContextFree> context(
      pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, MatchDataFree> data(
      pcre2_match_data_create_from_pattern(impl_->code.get(), nullptr));
  KERN_ASSERT(context && data, "out of memory");
  pcre2_set_match_limit(context.get(), UINT32_MAX);
  pcre2_set_depth_limit(context.get(), UINT32_MAX);
  pcre2_set_heap_limit(context.get(), UINT32_MAX);
  std::unique_ptr<pcre2_jit_stack, JitStackFree> stack;
  if (impl_->has_jit) {
    stack.reset(pcre2_jit_stack_create(kJitStackBytesMin, kJitStackBytesMax, nullptr));
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
  size_t done = 0;  // all before it is in pieces
  size_t from = 0;
  while (from < text.size() && impl_->match(subject, from, data.get(), context.get())) {
    const size_t start = range[0];
    const size_t end = range[1];
    KERN_ASSERT(start >= from && start <= end && end <= text.size(), "{}..{}", start, end);
    if (end == start) {
      if (start == text.size()) break;
      from = start + utf8_step(text.substr(start)).bytes;
      continue;
    }
    if (start > done) pieces.push_back(text.substr(done, start - done));
    pieces.push_back(text.substr(start, end - start));
    done = from = end;
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
}

}  // namespace kern::text
