#include "json_writer.h"

#include <fmt/format.h>

#include <iterator>

#include "kern/base/assert.h"

namespace kern::manifest {

void JsonWriter::line_break() {
  out_ += '\n';
  out_.append((depth_ + levels_.size()) * 2, ' ');
}

void JsonWriter::before_value() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (levels_.empty()) return;
  Level& level = levels_.back();
  if (!level.empty) out_ += ',';
  if (level.layout == Layout::broken)
    line_break();
  else if (!level.empty)
    out_ += ' ';
  level.empty = false;
}

void JsonWriter::open(char bracket, Layout layout) {
  before_value();
  out_ += bracket;
  levels_.push_back({layout, true});
}

void JsonWriter::close(char bracket) {
  KERN_ASSERT(!levels_.empty() && !after_key_);
  const Level level = levels_.back();
  levels_.pop_back();
  if (level.layout == Layout::broken && !level.empty) line_break();
  out_ += bracket;
}

void JsonWriter::key(std::string_view name) {
  KERN_ASSERT(!after_key_);
  before_value();
  quoted(name);
  out_ += ": ";
  after_key_ = true;
}

void JsonWriter::text(std::string_view value) {
  before_value();
  quoted(value);
}

void JsonWriter::integer(int64_t value) {
  before_value();
  fmt::format_to(std::back_inserter(out_), "{}", value);
}

void JsonWriter::real(double value) {
  before_value();
  const size_t start = out_.size();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  if (out_.find_first_of(".en", start) == std::string::npos) out_ += ".0";
}

void JsonWriter::boolean(bool value) {
  before_value();
  out_ += value ? "true" : "false";
}

void JsonWriter::written(std::string_view value) {
  before_value();
  out_ += value;
}

void JsonWriter::quoted(std::string_view value) {
  out_ += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out_ += '\\';
      out_ += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(out_), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out_ += c;
    }
  }
  out_ += '"';
}

}  // namespace kern::manifest
