#pragma once
/// Appends JSON to a string, one way only: no choice of spacing is left to the caller but whether a
/// list breaks its lines.
/// Thread safety: one thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kern::manifest {

class JsonWriter {
 public:
  enum class Layout : uint8_t { one_line, broken };

  /// `depth` is how deep what is written will stand in something else.
  explicit JsonWriter(size_t depth = 0) : depth_(depth) {}

  void open_object(Layout layout = Layout::one_line) { open('{', layout); }
  void close_object() { close('}'); }
  void open_array(Layout layout = Layout::one_line) { open('[', layout); }
  void close_array() { close(']'); }
  void key(std::string_view name);

  void text(std::string_view value);
  void integer(int64_t value);
  /// Shortest form that reads back as the same double, never one that reads back as an integer.
  void real(double value);
  void boolean(bool value);
  /// A value that another writer took.
  void written(std::string_view value);

  std::string take() { return std::move(out_); }

 private:
  struct Level {
    Layout layout;
    bool empty = true;
  };
  void open(char bracket, Layout layout);
  void close(char bracket);
  void before_value();
  void quoted(std::string_view value);
  void line_break();

  size_t depth_;
  std::string out_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

}  // namespace kern::manifest
