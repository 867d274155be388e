#pragma once
/// Typed reads of a flat JSON object, with sentences for what is missing or of another type.
/// Ownership: owns the parsed document; views into it live as long.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kern/base/result.h"

namespace k3 {

class ConfigJson {
 public:
  /// Parses `json`; reads fields from its object `text_config` when there is one, else from the
  /// top.
  static kern::Result<ConfigJson> parse(std::string_view json);
  ConfigJson(ConfigJson&&) noexcept;
  ~ConfigJson();

  /// A field may lie in an inner object: "linear_attn_config.head_dim".
  kern::Result<int64_t> integer(std::string_view path) const;
  kern::Result<double> number(std::string_view path) const;
  kern::Result<std::string> text(std::string_view path) const;
  kern::Result<bool> boolean(std::string_view path) const;
  kern::Result<std::vector<int64_t>> integers(std::string_view path) const;
  bool has(std::string_view path) const;

 private:
  struct Document;
  explicit ConfigJson(std::unique_ptr<Document> document);

  std::unique_ptr<Document> document_;
};

}  // namespace k3
