#pragma once
/// Reads JSON into plain data by tables of keys, collecting every problem instead of stopping.
/// Thread safety: one thread.

#include <fmt/format.h>

#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "kern/manifest/verify.h"

namespace kern::manifest {

/// Where a value stands: a chain of names and numbers on the stack, made a pointer only on demand.
struct At {
  const At* parent = nullptr;
  std::string_view key;
  size_t index = 0;
  bool is_index = false;

  At member(std::string_view name) const { return {this, name, 0, false}; }
  At element(size_t i) const { return {this, {}, i, true}; }
  std::string pointer() const;
};

enum class Need : uint8_t {
  required,
  optional,  ///< may be left out
  nullable,  ///< may be left out or null
};

using ReadValue = FunctionRef<void(Json, const At&)>;

/// The oldest schema_version that is read, and the one that is written.
constexpr int64_t kOldest = 5, kNewest = 7;

struct Field {
  std::string_view key;
  Need need;
  ReadValue read;
  int64_t since = kOldest;  ///< the schema_version that brought the key
};

constexpr int64_t kIntMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kU32Max = std::numeric_limits<uint32_t>::max();

class Reader {
 public:
  template <class... Args>
  void problem(const At& at, fmt::format_string<Args...> format, Args&&... args) {
    diagnostics_.push_back({at.pointer(), fmt::format(format, std::forward<Args>(args)...)});
  }
  Diagnostics take() { return std::move(diagnostics_); }
  bool ok() const { return diagnostics_.empty(); }
  int64_t version() const { return version_; }
  void set_version(int64_t version) { version_ = version; }
  /// Says so when the manifest is older than what stands there.
  void need_version(const At& at, int64_t since, std::string_view what) {
    if (version_ < since)
      problem(at, "`{}` came with schema_version {}; this manifest has {}", what, since, version_);
  }
  /// Constants to expand; `whole` says which were written as integers.
  void set_constants(const std::vector<Constant>* constants, std::vector<bool> whole) {
    constants_ = constants;
    whole_ = std::move(whole);
  }

  /// An object with exactly these keys.
  void object(Json json, const At& at, std::initializer_list<Field> fields);
  /// An object of the form name -> declaration; names are unique.
  void named(Json json, const At& at, FunctionRef<void(std::string_view, Json, const At&)> read);
  /// A list; returns whether it was one.
  bool list(Json json, const At& at, ReadValue read);
  /// A list of exactly `count`.
  void list_of(Json json, const At& at, size_t count, ReadValue read);

  void integer(Json json, const At& at, int64_t min, int64_t max, int64_t& out);
  void integers(Json json, const At& at, int64_t min, int64_t max, std::vector<int64_t>& out);
  void real(Json json, const At& at, double& out);
  void boolean(Json json, const At& at, bool& out);
  void text(Json json, const At& at, std::string& out);
  void texts(Json json, const At& at, std::vector<std::string>& out);
  /// One of the words `parse` knows.
  template <class T, class Parse>
  void word(Json json, const At& at, std::string_view what, const Parse& parse, T& out) {
    std::string_view word;
    if (!expect(json, at, Json::Type::text, word)) return;
    if (const auto value = parse(word))
      out = *value;
    else
      problem(at, "expected {}, got `{}`", what, word);
  }
  void expr(Json json, const At& at, Expr& out);
  void shape(Json json, const At& at, std::vector<Dim>& out);

  /// The constant of that name; null when there is none.
  const Constant* constant(std::string_view name) const;
  bool is_whole(const Constant& constant) const {
    return whole_[static_cast<size_t>(&constant - constants_->data())];
  }

 private:
  bool expect(Json json, const At& at, Json::Type type, std::string_view& out);
  void wrong_type(Json json, const At& at, std::string_view expected);
  void check_duplicates(std::vector<std::string_view>& names, const At& at);

  Diagnostics diagnostics_;
  int64_t version_ = kNewest;
  const std::vector<Constant>* constants_ = nullptr;
  std::vector<bool> whole_;
};

// ---- what parse.cc is divided into ----

void read_states(Reader& reader, Json json, const At& at, std::vector<State>& out);
void read_buffers(Reader& reader, Json json, const At& at, std::vector<Buffer>& out);
void read_ops(Reader& reader, Json json, const At& at, std::vector<Op>& out);
void read_programs(Reader& reader, Json json, const At& at, std::vector<Program>& out);

/// Turns what was read from an older schema_version into the newest: names the vars' axes.
void upgrade(Reader& reader, Manifest& manifest);

/// Reads `{"i32": 1}`'s value into a literal of that type.
void read_literal(Reader& reader, Json json, const At& at, Literal::Type type, Literal& out);

}  // namespace kern::manifest
