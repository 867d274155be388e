#include "json_mutator.h"

#include <array>
#include <cstdint>
#include <vector>

namespace kern_test {
namespace {

constexpr size_t kNone = ~size_t{0};

/// A string, a number, a word, or one of {}[]:,
struct Token {
  char kind;  ///< '"', '0' for numbers, 'a' for words, else the character itself
  size_t begin, end;
};

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> out;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const size_t begin = at++;
    if (c == '"') {
      while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
      at = std::min(at + 1, text.size());
      out.push_back({'"', begin, at});
    } else if ((c >= '0' && c <= '9') || c == '-') {
      while (at < text.size() && std::string_view("0123456789.eE+-").find(text[at]) != kNone) ++at;
      out.push_back({'0', begin, at});
    } else if (c >= 'a' && c <= 'z') {
      while (at < text.size() && text[at] >= 'a' && text[at] <= 'z') ++at;
      out.push_back({'a', begin, at});
    } else if (std::string_view("{}[]:,").find(c) != kNone) {
      out.push_back({c, begin, at});
    }
  }
  return out;
}

/// A value with the tokens it is made of, and the key or the bracket it stands behind.
struct Value {
  size_t first, last;  ///< tokens, both included
  size_t key = kNone;  ///< token of its key; none in an array
  size_t depth = 0;
};

std::vector<Value> values_of(const std::vector<Token>& tokens) {
  std::vector<Value> out;
  std::vector<size_t> open;  // positions in `out`
  for (size_t i = 0; i < tokens.size(); ++i) {
    const char kind = tokens[i].kind;
    if (kind == '}' || kind == ']') {
      if (open.empty()) break;
      out[open.back()].last = i;
      open.pop_back();
      continue;
    }
    if (kind == ':' || kind == ',') continue;
    const bool is_key = kind == '"' && i + 1 < tokens.size() && tokens[i + 1].kind == ':';
    if (is_key) continue;
    const bool has_key = i >= 2 && tokens[i - 1].kind == ':';
    out.push_back({i, i, has_key ? i - 2 : kNone, open.size()});
    if (kind == '{' || kind == '[') open.push_back(out.size() - 1);
  }
  return out;
}

constexpr std::array<std::string_view, 22> kNumbers = {"0",
                                                       "1",
                                                       "-1",
                                                       "2",
                                                       "3",
                                                       "7",
                                                       "16",
                                                       "64",
                                                       "65535",
                                                       "65536",
                                                       "1024",
                                                       "232448",
                                                       "2147483647",
                                                       "2147483648",
                                                       "4294967296",
                                                       "4611686018427387904",
                                                       "9223372036854775807",
                                                       "0.5",
                                                       "1e9",
                                                       "-2147483648",
                                                       "256",
                                                       "5"};

/// Members that the format knows, ready to be put into an object.
constexpr std::array<std::string_view, 30> kMembers = {R"("when": {"var": "n", "min": 2})",
                                                       R"("cluster": [2, 1, 1])",
                                                       R"("pdl": true)",
                                                       R"("export": true)",
                                                       R"("placement": "host")",
                                                       R"("domain": {"min": 0, "max": 3})",
                                                       R"("fill": "token")",
                                                       R"("offset": 16)",
                                                       R"("shared_mem": 64)",
                                                       R"("label": "here")",
                                                       R"("once": true)",
                                                       R"("derive": true)",
                                                       R"("graph": true)",
                                                       R"("monotone": true)",
                                                       R"("stride": 4)",
                                                       R"("rows": [0, 2])",
                                                       R"("cols": [0, 2])",
                                                       R"("group": "tp")",
                                                       R"("axis": "rows")",
                                                       R"("axis": "groups")",
                                                       R"("width": 8)",
                                                       R"("wrap": true)",
                                                       R"("uses": ["host"])",
                                                       R"("device": "host")",
                                                       R"("oob_nan": true)",
                                                       R"("args": [])",
                                                       R"("params": [])",
                                                       R"("batch": {"groups": 1, "rows": 1})",
                                                       R"("constants": {"K": 4})",
                                                       R"("interleave": {"with": "w", "rows": 1})"};

class Change {
 public:
  Change(std::string_view text, kern::Prng& random)
      : text_(text), random_(random), tokens_(tokens_of(text)), values_(values_of(tokens_)) {}

  std::string run() {
    if (values_.size() < 2) return std::string(text_);
    const Value& value = values_[1 + random_.below(values_.size() - 1)];
    const char kind = tokens_[value.first].kind;
    switch (random_.below(10)) {
      case 0:
      case 1:
      case 2:
        if (kind == '0') return put(value, number(value));
        if (kind == '"') return put(value, of_kind('"', value));
        return put(value, like(value));
      case 3:
      case 4:
        return put(value, like(value));
      case 5:
        return without(value);
      case 6:
        return doubled(value);
      case 7:
        return kind == '{' ? with_member(value) : put(value, like(value));
      case 8:
        return swapped(value);
      default:
        return put(value, anything());
    }
  }

 private:
  std::string_view text_of(const Value& value) const {
    const size_t begin = tokens_[value.first].begin;
    return text_.substr(begin, tokens_[value.last].end - begin);
  }
  std::string_view text_of(size_t token) const {
    return text_.substr(tokens_[token].begin, tokens_[token].end - tokens_[token].begin);
  }
  std::string splice(size_t begin, size_t end, std::string_view with) const {
    std::string out(text_.substr(0, begin));
    out += with;
    out += text_.substr(end);
    return out;
  }
  std::string put(const Value& value, std::string_view with) const {
    return splice(tokens_[value.first].begin, tokens_[value.last].end, with);
  }

  std::string number(const Value& value) {
    const int64_t old = std::strtoll(std::string(text_of(value)).c_str(), nullptr, 10);
    switch (random_.below(6)) {
      case 0:
        return std::string(kNumbers[random_.below(kNumbers.size())]);
      case 1:
        return std::to_string(old / 2);
      case 2:
        return std::to_string(static_cast<int64_t>(static_cast<uint64_t>(old) * 2));
      case 3:
        return std::string(of_kind('0', value));
      default:
        return std::to_string(
            static_cast<int64_t>(static_cast<uint64_t>(old) + random_.below(9) - 4));
    }
  }

  /// Another token of that kind: keys are strings too, and name what is declared.
  std::string_view of_kind(char kind, const Value& instead) {
    for (int attempt = 0; attempt < 200; ++attempt) {
      const size_t at = random_.below(tokens_.size());
      if (tokens_[at].kind == kind && at != instead.first) return text_of(at);
    }
    return text_of(instead);
  }

  /// A value that stands under the same key, or any of the same kind.
  std::string_view like(const Value& value) {
    for (int attempt = 0; attempt < 200; ++attempt) {
      const Value& other = values_[random_.below(values_.size())];
      if (tokens_[other.first].kind != tokens_[value.first].kind) continue;
      const bool same_key = value.key == kNone || other.key == kNone
                                ? value.key == other.key
                                : text_of(value.key) == text_of(other.key);
      if ((same_key || attempt > 150) && other.first != value.first) return text_of(other);
    }
    return text_of(value);
  }

  std::string_view anything() {
    if (random_.below(3) == 0) return kNumbers[random_.below(kNumbers.size())];
    const Value& other = values_[random_.below(values_.size())];
    return other.last - other.first < 64 ? text_of(other) : std::string_view("null");
  }

  /// Where the value with its key begins, and where its comma ends.
  std::string without(const Value& value) const {
    size_t first = value.key == kNone ? value.first : value.key, last = value.last;
    if (last + 1 < tokens_.size() && tokens_[last + 1].kind == ',')
      ++last;
    else if (first > 0 && tokens_[first - 1].kind == ',')
      --first;
    return splice(tokens_[first].begin, tokens_[last].end, "");
  }

  /// Once more, in an object under another name of the text.
  std::string doubled(const Value& value) {
    const size_t at = tokens_[value.last].end;
    if (value.key == kNone) return splice(at, at, ", " + std::string(text_of(value)));
    return splice(at, at,
                  ", " + std::string(of_kind('"', value)) + ": " + std::string(text_of(value)));
  }

  std::string with_member(const Value& value) {
    const size_t at = tokens_[value.first].end;
    const bool empty = value.last == value.first + 1;
    return splice(at, at,
                  std::string(kMembers[random_.below(kMembers.size())]) + (empty ? "" : ", "));
  }

  /// The value and the one that follows it in the same list change places.
  std::string swapped(const Value& value) const {
    for (const Value& next : values_) {
      const size_t before = next.key == kNone ? next.first : next.key;
      if (before != value.last + 2) continue;
      const size_t begin = tokens_[value.first].begin, middle = tokens_[value.last].end;
      const size_t from = tokens_[next.first].begin, end = tokens_[next.last].end;
      return splice(begin, end,
                    std::string(text_of(next)) + std::string(text_.substr(middle, from - middle)) +
                        std::string(text_of(value)));
    }
    return std::string(text_);
  }

  std::string_view text_;
  kern::Prng& random_;
  std::vector<Token> tokens_;
  std::vector<Value> values_;
};

}  // namespace

std::string mutate_json(std::string_view text, kern::Prng& random) {
  return Change(text, random).run();
}

}  // namespace kern_test
