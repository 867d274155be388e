#pragma once
/// The two JSON documents of the format, read into plain structs. Nothing here looks at a file.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kern/base/result.h"

namespace kern::safetensors {

/// One tensor as a header describes it; unchecked against the file.
struct HeaderEntry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

/// Reads a shard's header. Errors are weight_artifact without the file's name.
Result<std::vector<HeaderEntry>> parse_header(std::string_view json);

/// Reads an index: tensor name and file name, in document order.
Result<std::vector<std::pair<std::string, std::string>>> parse_index(std::string_view json);

/// Appends a JSON string literal.
void append_json_string(std::string& out, std::string_view text);

}  // namespace kern::safetensors
