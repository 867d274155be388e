#include "lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace kern::manifest {
namespace {

constexpr int kDepthMax = 1024;

/// Walks the text once and notes the line of every wanted pointer and of whatever is above it.
class Walker {
 public:
  Walker(std::string_view json, std::vector<std::string> wanted)
      : json_(json), wanted_(std::move(wanted)) {}

  void walk() {
    skip_space();
    whole_ = value(0);
    skip_space();
    whole_ = whole_ && at_ == json_.size();
  }
  bool whole() const { return whole_; }
  size_t line() const { return line_; }

  /// The line of the pointer, or of the longest part of it that was seen; 0 when none was.
  size_t line_of(std::string_view pointer) const {
    for (;;) {
      const auto found = lines_.find(pointer);
      if (found != lines_.end()) return found->second;
      if (pointer.empty()) return 0;
      pointer = pointer.substr(0, pointer.rfind('/'));
    }
  }

 private:
  /// Whether some wanted pointer is this path or lies below it.
  bool leads_somewhere() const {
    const auto first = std::lower_bound(wanted_.begin(), wanted_.end(), path_);
    return first != wanted_.end() && first->starts_with(path_);
  }

  void skip_space() {
    for (; at_ < json_.size(); ++at_) {
      const char c = json_[at_];
      if (c == '\n')
        ++line_;
      else if (c != ' ' && c != '\t' && c != '\r')
        return;
    }
  }

  bool take(char c) {
    if (at_ >= json_.size() || json_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool text(std::string_view& out) {
    if (!take('"')) return false;
    const size_t first = at_;
    for (; at_ < json_.size() && json_[at_] != '"'; ++at_) {
      if (json_[at_] == '\n') return false;
      if (json_[at_] == '\\') ++at_;
    }
    if (at_ >= json_.size()) return false;
    out = json_.substr(first, at_ - first);
    ++at_;
    return true;
  }

  bool scalar() {
    const size_t first = at_;
    while (at_ < json_.size() && std::string_view("+-.").find(json_[at_]) != std::string_view::npos)
      ++at_;
    while (at_ < json_.size() && (std::isalnum(static_cast<unsigned char>(json_[at_])) ||
                                  json_[at_] == '.' || json_[at_] == '-' || json_[at_] == '+'))
      ++at_;
    return at_ > first;
  }

  bool value(int depth) {
    if (depth > kDepthMax || at_ >= json_.size()) return false;
    if (json_[at_] == '{') return container(depth, '}');
    if (json_[at_] == '[') return container(depth, ']');
    std::string_view ignored;
    return json_[at_] == '"' ? text(ignored) : scalar();
  }

  bool container(int depth, char close) {
    const bool object = close == '}';
    const bool wanted = leads_somewhere();
    ++at_;
    skip_space();
    if (take(close)) return true;
    for (size_t index = 0;; ++index) {
      const size_t path_size = path_.size();
      const size_t line = line_;
      std::string_view key;
      if (object) {
        if (!text(key)) return false;
        skip_space();
        if (!take(':')) return false;
        skip_space();
      }
      if (wanted) {
        path_ += '/';
        path_ += object ? escape_pointer(key) : fmt::format("{}", index);
        if (leads_somewhere()) lines_[path_] = line;
      }
      const bool ok = value(depth + 1);
      path_.resize(path_size);
      if (!ok) return false;
      skip_space();
      if (take(close)) return true;
      if (!take(',')) return false;
      skip_space();
    }
  }

  std::string_view json_;
  std::vector<std::string> wanted_;  ///< sorted
  size_t at_ = 0;
  size_t line_ = 1;
  std::string path_;
  bool whole_ = false;
  std::map<std::string, size_t, std::less<>> lines_;
};

}  // namespace

std::string escape_pointer(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

void add_lines(std::string_view json, Diagnostics& diagnostics) {
  std::vector<std::string> wanted;
  for (const Diagnostic& d : diagnostics) wanted.push_back(d.pointer);
  std::sort(wanted.begin(), wanted.end());
  Walker walker(json, std::move(wanted));
  walker.walk();
  for (Diagnostic& d : diagnostics)
    if (const size_t line = walker.line_of(d.pointer); line != 0)
      d.sentence += fmt::format(" (line {})", line);
}

size_t line_of_break(std::string_view json) {
  Walker walker(json, {});
  walker.walk();
  return walker.whole() ? 0 : walker.line();
}

}  // namespace kern::manifest
