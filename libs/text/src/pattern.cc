// The rewriting of a published split pattern into PCRE2's dialect. Three things differ in meaning:
// class intersections, which PCRE2 10.42 has not; \s, which is White_Space there; and \p{Script},
// which PCRE2 reads as script extensions.
#include <algorithm>
#include <array>
#include <utility>

#include "kern/base/assert.h"
#include "kern/text/splitter.h"

namespace kern::text {
namespace {

/// The characters of White_Space, as the inside of a class.
constexpr std::string_view kSpaceItems =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

/// General categories: they part the code points, so the complement of some is the union of the
/// others.
constexpr std::array<std::string_view, 30> kCategories = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

/// One class as written: items in order, and the class it is intersected with, if any.
struct ClassText {
  bool negated = false;
  std::vector<std::string> items;
  std::unique_ptr<ClassText> other;
};

/// One escape, rewritten; `text` can stand in a class, except for \S.
enum class EscapeSet { other, space, no_space };
struct Escape {
  EscapeSet set = EscapeSet::other;
  std::string text;
};

/// Which bit of kCategories a name stands for; none for a name that is no category.
uint32_t category_bits(std::string_view name) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kCategories.size(); ++i) {
    if (kCategories[i] == name || (name.size() == 1 && kCategories[i][0] == name[0]))
      bits |= uint32_t{1} << i;
  }
  return bits;
}

class Rewriter {
 public:
  explicit Rewriter(std::string_view pattern) : pattern_(pattern) {}

  Result<std::string> run() {
    std::string out;
    while (at_ < pattern_.size()) {
      if (pattern_[at_] == '[') {
        KERN_TRY(parsed, parse_class());
        KERN_TRY(text, print_class(parsed));
        out += text;
      } else if (pattern_[at_] == '\\') {
        KERN_TRY(item, parse_escape());
        const bool is_space = item.set != EscapeSet::other;
        const bool is_negated = item.set == EscapeSet::no_space;
        out += is_space ? fmt::format("[{}{}]", is_negated ? "^" : "", kSpaceItems) : item.text;
      } else {
        out += pattern_[at_++];
      }
    }
    return out;
  }

 private:
  Result<Escape> parse_escape() {
    KERN_ASSERT(pattern_[at_] == '\\', "byte {}", at_);
    const size_t start = at_;
    if (start + 1 >= pattern_.size())
      return fail(Kind::caller, "split pattern: a backslash at the end, byte {}", start);
    const char letter = pattern_[start + 1];
    at_ += 2;
    if (letter == 's') return Escape{EscapeSet::space, std::string(kSpaceItems)};
    if (letter == 'S') return Escape{EscapeSet::no_space, {}};
    if (letter == 'w' || letter == 'W' || letter == 'b' || letter == 'B')
      return fail(Kind::caller, "split pattern: `\\{}` at byte {} means another set in PCRE2",
                  letter, start);
    if (letter != 'p' && letter != 'P')
      return Escape{EscapeSet::other, std::string(pattern_.substr(start, 2))};
    if (at_ >= pattern_.size() || pattern_[at_] != '{')
      return fail(Kind::caller, "split pattern: expected `{{` after `\\{}` at byte {}", letter,
                  start);
    const size_t end = pattern_.find('}', at_);
    if (end == std::string_view::npos)
      return fail(Kind::caller, "split pattern: the property at byte {} has no `}}`", start);
    const std::string_view name = pattern_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    const bool is_script = category_bits(name) == 0 && name != "Any";
    return Escape{EscapeSet::other,
                  fmt::format("\\{}{{{}{}}}", letter, is_script ? "sc:" : "", name)};
  }

  Result<ClassText> parse_class() {
    KERN_ASSERT(pattern_[at_] == '[', "byte {}", at_);
    const size_t start = at_++;
    ClassText out;
    if (at_ < pattern_.size() && pattern_[at_] == '^') {
      out.negated = true;
      ++at_;
    }
    while (at_ < pattern_.size()) {
      const char byte = pattern_[at_];
      if (byte == ']') {
        ++at_;
        if (out.items.empty())
          return fail(Kind::caller, "split pattern: empty class at byte {}", start);
        return out;
      }
      if (byte == '\\') {
        const size_t place = at_;
        KERN_TRY(item, parse_escape());
        if (item.set == EscapeSet::no_space)
          return fail(Kind::caller, "split pattern: `\\S` inside a class at byte {}", place);
        out.items.push_back(std::move(item.text));
      } else if (pattern_.substr(at_, 3) == "&&[" && !out.other) {
        at_ += 2;
        KERN_TRY(other, parse_class());
        if (at_ >= pattern_.size() || pattern_[at_] != ']')
          return fail(Kind::caller, "split pattern: expected `]` after an intersection, byte {}",
                      at_);
        out.other = std::make_unique<ClassText>(std::move(other));
      } else if (byte == '[' || pattern_.substr(at_, 2) == "&&") {
        return fail(Kind::caller, "split pattern: only `[A&&[B]]` may nest classes, byte {}", at_);
      } else {
        out.items.emplace_back(1, byte);
        ++at_;
      }
    }
    return fail(Kind::caller, "split pattern: the class at byte {} has no `]`", start);
  }

  static std::string print_items(const ClassText& parsed) {
    std::string out;
    for (const std::string& item : parsed.items) out += item;
    return out;
  }

  /// The categories outside `parsed`, when it consists of categories only; empty otherwise.
  static std::string complement(const ClassText& parsed) {
    uint32_t bits = 0;
    for (const std::string& item : parsed.items) {
      const bool is_property = item.size() > 4 && item.starts_with("\\p{");
      const uint32_t item_bits =
          is_property ? category_bits(std::string_view(item).substr(3, item.size() - 4)) : 0;
      if (item_bits == 0) return {};
      bits |= item_bits;
    }
    std::string out;
    for (size_t i = 0; i < kCategories.size(); ++i) {
      if ((bits >> i & 1) == 0) out += fmt::format("\\p{{{}}}", kCategories[i]);
    }
    return out;
  }

  static Result<std::string> print_class(const ClassText& parsed) {
    KERN_ASSERT(!parsed.items.empty());
    const std::string plain = fmt::format("[{}{}]", parsed.negated ? "^" : "", print_items(parsed));
    if (!parsed.other) return plain;
    if (parsed.negated)
      return fail(Kind::caller, "split pattern: a negated intersection cannot be expressed");
    KERN_TRY(other, print_class(*parsed.other));
    const std::string outside = complement(parsed);
    // A and not B is not (not A or B): one class, without a look-ahead at every character.
    if (parsed.other->negated && !parsed.other->other && !outside.empty())
      return fmt::format("[^{}{}]", outside, print_items(*parsed.other));
    return fmt::format("(?:(?={}){})", other, plain);
  }

  std::string_view pattern_;
  size_t at_ = 0;
};

}  // namespace

Result<std::string> to_pcre2_pattern(std::string_view pattern) {
  return Rewriter(pattern).run();
}

}  // namespace kern::text
