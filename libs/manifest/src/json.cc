#include "json.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>

#include "kern/base/assert.h"

namespace kern::manifest {

namespace {

constexpr size_t kDepthMax = 1024;
constexpr size_t kNone = std::numeric_limits<size_t>::max();
constexpr size_t kSafeDigits = 18;  // a number of so many digits fits int64
constexpr size_t kQuotedMax = 40;   // characters of a token that a sentence repeats

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Of an integer that does not fit int64: a number like any other in JSON, but the parser refuses
/// those that do not fit uint64 either. As a double, if it has one.
std::optional<double> long_integer(std::string_view token) {
  const std::string_view digits = token.substr(token[0] == '-' ? 1 : 0);
  if (digits.size() <= kSafeDigits || digits[0] == '0') return std::nullopt;
  if (!std::all_of(digits.begin(), digits.end(), is_digit)) return std::nullopt;
  const char* const end = token.data() + token.size();
  int64_t fits = 0;
  if (std::from_chars(token.data(), end, fits).ec == std::errc()) return std::nullopt;
  double value = 0;
  if (std::from_chars(token.data(), end, value).ec != std::errc()) return std::nullopt;
  return value;
}

/// Of a number short enough that nothing can go wrong; most are.
std::optional<int64_t> short_integer(std::string_view token) {
  const bool negative = token[0] == '-';
  const std::string_view digits = token.substr(negative ? 1 : 0);
  if (digits.empty() || digits.size() > kSafeDigits) return std::nullopt;
  if (digits[0] == '0' && digits.size() > 1) return std::nullopt;
  int64_t value = 0;
  for (const char c : digits) {
    if (!is_digit(c)) return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return negative ? -value : value;
}

}  // namespace

/// The text, the places at which its tokens start, and how far it has been found to be JSON.
/// simdjson's first stage finds the places and checks UTF-8, quotes and control characters at the
/// speed of memory. Its second would copy the strings and build a tree larger than the text, to be
/// walked once; here the reader's walk is the second stage.
class JsonText {
 public:
  explicit JsonText(std::string_view text) : text_(text) {}

  simdjson::error_code index() {
    if (text_.size() > std::numeric_limits<uint32_t>::max() - simdjson::SIMDJSON_PADDING)
      return simdjson::CAPACITY;
    if (text_.empty()) return simdjson::EMPTY;
    if (const auto error = simdjson::get_active_implementation()->create_dom_parser_implementation(
            text_.size(), kDepthMax, stage1_))
      return error;
    const auto error = stage1_->stage1(reinterpret_cast<const uint8_t*>(text_.data()), text_.size(),
                                       simdjson::stage1_mode::regular);
    if (error != simdjson::SUCCESS) return error;
    starts_ = stage1_->structural_indexes.get();
    count_ = stage1_->n_structural_indexes;
    check(0);
    return error_;
  }

  simdjson::error_code error() const { return error_; }
  void fail(simdjson::error_code error) {
    if (error_ == simdjson::SUCCESS) error_ = error;
  }

  /// The first character of a token; 0 past the last.
  char first_of(size_t at) const { return at < count_ ? text_[starts_[at]] : '\0'; }

  /// A token whole: nothing but space lies between its end and the next one's start.
  std::string_view token(size_t at) const {
    const size_t start = starts_[at];
    size_t end = at + 1 < count_ ? starts_[at + 1] : text_.size();
    while (is_space(text_[end - 1])) --end;
    return text_.substr(start, end - start);
  }

  /// Whether a value stands there that is JSON as far as one token tells.
  bool check(size_t at) {
    switch (first_of(at)) {
      case '{':
      case '[':
        return true;
      case '"':
        if (token(at).find('\\') != std::string_view::npos) return parse_alone(at).has_value();
        plain_ = at;
        return true;
      case 't':
        return is_word(at, "true", simdjson::T_ATOM_ERROR);
      case 'f':
        return is_word(at, "false", simdjson::F_ATOM_ERROR);
      case 'n':
        return is_word(at, "null", simdjson::N_ATOM_ERROR);
      case '\0':
      case '}':
      case ']':
      case ',':
      case ':':
        fail(simdjson::TAPE_ERROR);
        return false;
      default:
        return integer_at(at).has_value() || long_integer_at(at).has_value() ||
               parse_alone(at).has_value();
    }
  }

  /// A number that is short enough to be an integer without a doubt.
  std::optional<int64_t> integer_at(size_t at) {
    if (counted_ == at) return integer_;
    const auto value = short_integer(token(at));
    if (value) {
      counted_ = at;
      integer_ = *value;
    }
    return value;
  }

  std::optional<double> long_integer_at(size_t at) const { return long_integer(token(at)); }

  std::string_view text_at(size_t at) {
    const std::string_view quoted = token(at);
    if (plain_ == at || quoted.find('\\') == std::string_view::npos)
      return quoted.substr(1, quoted.size() - 2);
    const auto element = parse_alone(at);
    std::string_view text;
    if (!element || element->get(text) != simdjson::SUCCESS) return {};
    return unescaped_.emplace_back(text);
  }

  /// What the parser makes of a token that stands alone; nothing, and a failure, when it is none.
  std::optional<simdjson::dom::element> parse_alone(size_t at) {
    const std::string_view alone = token(at);
    simdjson::dom::element element;
    const auto error = scalars_.parse(alone.data(), alone.size(), true).get(element);
    if (error == simdjson::SUCCESS) return element;
    fail(error);
    if (failed_at_ == kNone) failed_at_ = at;
    return std::nullopt;
  }

  NotJson failure() const {
    if (failed_at_ == kNone) return {simdjson::error_message(error_)};
    const std::string_view alone = token(failed_at_);
    const bool long_one = alone.size() > kQuotedMax;
    const auto line = std::count(text_.begin(), text_.begin() + starts_[failed_at_], '\n') + 1;
    return {fmt::format("{}: `{}{}`", simdjson::error_message(error_), alone.substr(0, kQuotedMax),
                        long_one ? "…" : ""),
            static_cast<size_t>(line)};
  }

  /// Visits `{"key": value, …}` from its bracket on.
  template <class Visit>
  void members(size_t at, const Visit& visit) {
    walk(at, '}', [&](size_t& next, size_t) {
      if (first_of(next) != '"' || !check(next) || first_of(next + 1) != ':') {
        fail(simdjson::TAPE_ERROR);
        return false;
      }
      const std::string_view key = text_at(next);
      next += 2;
      return check(next) && visit(key, Json(*this, next));
    });
  }
  template <class Visit>
  void elements(size_t at, const Visit& visit) {
    walk(at, ']', [&](size_t& next, size_t index) {
      if (!check(next)) return false;
      visit(index, Json(*this, next));
      return true;
    });
  }

  Spelling spelling(size_t at) const {
    if (walked_ != at || walked_end_ == 0 || error_ != simdjson::SUCCESS) return {};
    return {text_.substr(starts_[at], starts_[walked_end_ - 1] + 1 - starts_[at]),
            walked_end_ - at};
  }

  /// The same bytes from the start of a token on are the same tokens.
  bool is_spelled(size_t at, const Spelling& spelling) {
    if (text_.compare(starts_[at], spelling.text.size(), spelling.text) != 0) return false;
    walked_ = at;
    walked_end_ = at + spelling.tokens;
    return true;
  }

  /// Walks what was not walked yet and looks for anything behind it.
  void finish() {
    if (error_ == simdjson::SUCCESS && end_of(0) != count_) fail(simdjson::TAPE_ERROR);
  }

 private:
  bool is_word(size_t at, std::string_view word, simdjson::error_code otherwise) {
    if (token(at) == word) return true;
    fail(otherwise);
    return false;
  }

  template <class Each>
  void walk(const size_t at, char close, const Each& each) {
    if (error_ != simdjson::SUCCESS) return;
    if (++depth_ > kDepthMax) return fail(simdjson::DEPTH_ERROR);
    size_t next = at + 1;
    if (first_of(next) != close) {
      for (size_t index = 0;; ++index) {
        if (!each(next, index) || error_ != simdjson::SUCCESS) {
          --depth_;
          return;
        }
        next = end_of(next);
        if (first_of(next) != ',') break;
        ++next;
      }
    }
    --depth_;
    if (first_of(next) != close) return fail(simdjson::TAPE_ERROR);
    walked_ = at;
    walked_end_ = next + 1;
  }

  /// Past a checked value. A visitor has usually just walked it.
  size_t end_of(size_t at) {
    const char first = first_of(at);
    if (first != '{' && first != '[') return at + 1;
    if (walked_ != at || walked_end_ == 0) {
      if (first == '{')
        members(at, [](std::string_view, Json) { return true; });
      else
        elements(at, [](size_t, Json) {});
    }
    return error_ == simdjson::SUCCESS ? walked_end_ : count_;
  }

  std::string_view text_;
  std::unique_ptr<simdjson::internal::dom_parser_implementation> stage1_;
  const uint32_t* starts_ = nullptr;  ///< of every bracket, comma, colon, string, number and word
  size_t count_ = 0;
  size_t depth_ = 0;
  size_t walked_ = 0, walked_end_ = 0;  ///< the container walked last, and past its end
  // what was checked last is mostly what is asked for next
  size_t plain_ = kNone;    ///< a string without escapes
  size_t counted_ = kNone;  ///< a short integer, and its value
  int64_t integer_ = 0;
  simdjson::error_code error_ = simdjson::SUCCESS;
  size_t failed_at_ = kNone;  ///< a number or string that is none
  simdjson::dom::parser scalars_;
  std::deque<std::string> unescaped_;
};

Json::Type Json::type() const {
  switch (text_->first_of(at_)) {
    case '{':
      return Type::object;
    case '[':
      return Type::array;
    case '"':
      return Type::text;
    case 't':
    case 'f':
      return Type::boolean;
    case 'n':
      return Type::null;
    default:
      break;
  }
  if (text_->integer_at(at_)) return Type::integer;
  if (text_->long_integer_at(at_)) return Type::real;
  const auto element = text_->parse_alone(at_);
  return element && element->is_int64() ? Type::integer : Type::real;
}

std::string_view Json::type_name() const {
  switch (type()) {
    case Type::null:
      return "null";
    case Type::boolean:
      return "a boolean";
    case Type::integer:
    case Type::real:
      return "a number";
    case Type::text:
      return "a string";
    case Type::array:
      return "a list";
    case Type::object:
      break;
  }
  return "an object";
}

bool Json::boolean() const {
  return text_->first_of(at_) == 't';
}

int64_t Json::integer() const {
  if (const auto value = text_->integer_at(at_)) return *value;
  const auto element = text_->parse_alone(at_);
  int64_t value = 0;
  const bool is_integer = element && element->get(value) == simdjson::SUCCESS;
  KERN_ASSERT(is_integer, "its type is integer");
  return value;
}

double Json::real() const {
  if (const auto value = text_->long_integer_at(at_)) return *value;
  const auto element = text_->parse_alone(at_);
  double value = 0;
  const bool is_number = element && element->get(value) == simdjson::SUCCESS;
  KERN_ASSERT(is_number, "its type is integer or real");
  return value;
}

std::string_view Json::text() const {
  KERN_ASSERT(text_->first_of(at_) == '"');
  return text_->text_at(at_);
}

void Json::each_member(FunctionRef<void(std::string_view, Json)> visit) const {
  KERN_ASSERT(text_->first_of(at_) == '{');
  text_->members(at_, [&](std::string_view key, Json value) {
    visit(key, value);
    return true;
  });
}

void Json::each_member_while(FunctionRef<bool(std::string_view, Json)> visit) const {
  KERN_ASSERT(text_->first_of(at_) == '{');
  text_->members(at_, visit);
}

void Json::each_element(FunctionRef<void(size_t, Json)> visit) const {
  KERN_ASSERT(text_->first_of(at_) == '[');
  text_->elements(at_, visit);
}

Spelling Json::spelling() const {
  return text_->spelling(at_);
}

bool Json::is_spelled(const Spelling& spelling) const {
  KERN_ASSERT(spelling.tokens > 0);
  return text_->is_spelled(at_, spelling);
}

JsonDocument::JsonDocument(std::unique_ptr<JsonText> text) : text_(std::move(text)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Json JsonDocument::root() const {
  return Json(*text_, 0);
}

std::optional<NotJson> JsonDocument::finish() const {
  text_->finish();
  if (text_->error() == simdjson::SUCCESS) return std::nullopt;
  return text_->failure();
}

tl::expected<JsonDocument, NotJson> JsonDocument::read(std::string_view text) {
  auto indexed = std::make_unique<JsonText>(text);
  if (const auto error = indexed->index(); error == simdjson::SUCCESS)
    return JsonDocument(std::move(indexed));
  else if (indexed->error() == error)
    return tl::unexpected(indexed->failure());
  else
    return tl::unexpected(NotJson{simdjson::error_message(error)});
}

}  // namespace kern::manifest
