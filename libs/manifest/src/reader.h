#pragma once
/// Reads JSON into plain data by tables of keys, collecting every problem instead of stopping.
/// Driven without JSON and with a SchemaWriter, the same calls write down what they would read.
/// Thread safety: one thread.

#include <fmt/format.h>

#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "kern/manifest/verify.h"
#include "vocabulary.h"

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
  optional,      ///< may be left out
  nullable,      ///< may be left out or null
  one,           ///< of the keys so marked, exactly one stands
  one_nullable,  ///< the same, and null is as good as left out
};

using ReadValue = FunctionRef<void(Json, const At&)>;

/// The oldest schema_version that is read, and the one that is written.
constexpr int64_t kOldest = 5, kNewest = 7;

struct Field {
  std::string_view key;
  Need need;
  std::string_view about;  ///< what it is, for people
  ReadValue read;
  uint8_t since = kOldest;  ///< the schema_version that brought the key
  uint8_t until = kNewest;  ///< the last one that had it
};

/// A key that stands only beside one of two others.
struct Companion {
  std::string_view key, first, second;
};

enum class EmptyName : uint8_t { allowed, refused };

class SchemaWriter;

constexpr int64_t kIntMax = std::numeric_limits<int64_t>::max();
constexpr size_t kTrimBytes = 16384;
constexpr int64_t kU32Max = std::numeric_limits<uint32_t>::max();

class Reader {
 public:
  Reader() = default;
  /// Reads nothing: whatever it is asked to read, it describes.
  explicit Reader(SchemaWriter& schema) : schema_(&schema) {}
  bool describing() const { return schema_ != nullptr; }

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

  /// An object with exactly these keys; `name` is what the schema calls it.
  void object(Json json, const At& at, std::string_view name, std::initializer_list<Field> fields,
              const Companion* companion = nullptr);
  /// An object of the form name -> declaration; names are unique.
  void named(Json json, const At& at, FunctionRef<void(std::string_view, Json, const At&)> read,
             EmptyName empty = EmptyName::allowed);
  /// A list of at least so many; returns whether it was a list.
  bool list(Json json, const At& at, ReadValue read, size_t at_least = 0);
  /// A list of exactly `count`.
  void list_of(Json json, const At& at, size_t count, ReadValue read);
  /// A list, each element read into a new one of `out`.
  template <class T, class Read>
  void list_into(Json json, const At& at, std::vector<T>& out, const Read& read) {
    list(json, at, [&](Json one, const At& here) { read(*this, one, here, out.emplace_back()); });
    trim(out);
  }
  /// Gives back the room that a short list grew and does not need: there are thousands of them. A
  /// long list's is never touched.
  template <class T>
  static void trim(std::vector<T>& out) {
    if (out.size() * sizeof(T) < kTrimBytes) out.shrink_to_fit();
  }
  /// An object of one form, or anything else of another.
  template <class Object, class Other>
  void either(Json json, const At& at, const Object& object, const Other& other) {
    if (describing()) return describe_either(object, other);
    if (json.type() == Json::Type::object) return object(json, at);
    other(json, at);
  }
  /// An object of one form where the text at `key` begins with `prefix`, else of another.
  void choose(Json json, const At& at, std::string_view key, std::string_view prefix,
              ReadValue with, ReadValue without);

  void integer(Json json, const At& at, int64_t min, int64_t max, int64_t& out);
  void integers(Json json, const At& at, int64_t min, int64_t max, std::vector<int64_t>& out);
  void real(Json json, const At& at, double& out);
  /// Describes an integer that was read before everything else.
  void exactly(int64_t value);
  /// A number written out, where no constant may stand.
  void number(Json json, const At& at, double& out);
  void boolean(Json json, const At& at, bool& out);
  void text(Json json, const At& at, std::string& out);
  void texts(Json json, const At& at, std::vector<std::string>& out, size_t at_least = 0);
  /// A text that is not empty.
  void name(Json json, const At& at, std::string& out);
  /// Which of the words stands there.
  std::optional<size_t> word_at(Json json, const At& at, std::string_view what, Words words);
  /// One of the words; its position becomes the value.
  template <class T>
  void word(Json json, const At& at, std::string_view what, Words words, T& out) {
    if (const auto value = word_at(json, at, what, words)) out = static_cast<T>(*value);
  }
  void param_type(Json json, const At& at, ParamType& out);
  void expr(Json json, const At& at, Expr& out);
  /// A list of integers and names of vars.
  void shape(Json json, const At& at, std::vector<Dim>& out);

  // What a field is read into; each is borrowed until the object is read.
  auto into(std::string& out) {
    return [this, &out](Json v, const At& at) { text(v, at, out); };
  }
  auto name_into(std::string& out) {
    return [this, &out](Json v, const At& at) { name(v, at, out); };
  }
  auto into(bool& out) {
    return [this, &out](Json v, const At& at) { boolean(v, at, out); };
  }
  auto into(int64_t& out, int64_t min = 0, int64_t max = kIntMax) {
    return [=, this, &out](Json v, const At& at) { integer(v, at, min, max, out); };
  }
  auto into(std::optional<int64_t>& out, int64_t max = kIntMax) {
    return [=, this, &out](Json v, const At& at) { integer(v, at, 0, max, out.emplace(0)); };
  }
  auto into(std::vector<int64_t>& out) {
    return [this, &out](Json v, const At& at) { integers(v, at, 0, kIntMax, out); };
  }
  auto into(std::vector<Dim>& out) {
    return [this, &out](Json v, const At& at) { shape(v, at, out); };
  }
  template <class T>
  using Read = void (*)(Reader&, Json, const At&, T&);
  template <class T>
  auto into(T& out, Read<T> read) {
    return [=, this, &out](Json v, const At& at) { read(*this, v, at, out); };
  }
  template <class T>
  auto into(std::optional<T>& out, Read<T> read) {
    return [=, this, &out](Json v, const At& at) { read(*this, v, at, out.emplace()); };
  }
  template <class T>
  auto into(Rare<T>& out, Read<T> read) {
    return [=, this, &out](Json v, const At& at) { read(*this, v, at, out.emplace()); };
  }
  template <class T>
  auto into(std::vector<T>& out, Read<T> read) {
    return [=, this, &out](Json v, const At& at) { list_into(v, at, out, read); };
  }
  template <class T>
  auto word_into(T& out, std::string_view what, Words words) {
    return [=, this, &out](Json v, const At& at) { word(v, at, what, words, out); };
  }

  /// Whether a text stands there that is no constant, where an integer or a var may stand. The
  /// schema of an integer has the text already.
  bool names_var(Json json) const {
    return !describing() && json.type() == Json::Type::text && constant(json.text()) == nullptr;
  }
  /// The constant of that name; null when there is none.
  const Constant* constant(std::string_view name) const;
  bool is_whole(const Constant& constant) const {
    return whole_[static_cast<size_t>(&constant - constants_->data())];
  }

 private:
  bool expect_text(Json json, const At& at, std::string_view& out);
  void wrong_type(Json json, const At& at, std::string_view expected);
  void check_duplicates(std::vector<std::string_view>& names, const At& at);
  void check_needs(uint32_t standing, const At& at, std::initializer_list<Field> fields,
                   const Companion* companion);
  void operation(Json json, const At& at, Expr& out);
  void describe_either(ReadValue object, ReadValue other);

  SchemaWriter* schema_ = nullptr;
  Diagnostics diagnostics_;
  int64_t version_ = kNewest;
  const std::vector<Constant>* constants_ = nullptr;
  std::vector<bool> whole_;
};

// ---- what parse.cc is divided into ----

/// Whether everything was read with what it depends on known; `whole` looks for that everywhere
/// first, not only at the head.
bool read_manifest(Reader& reader, Json json, const At& at, Manifest& out, bool whole);
void read_states(Reader& reader, Json json, const At& at, std::vector<State>& out);
void read_buffers(Reader& reader, Json json, const At& at, std::vector<Buffer>& out);
void read_ops(Reader& reader, Json json, const At& at, std::vector<Op>& out);
void read_programs(Reader& reader, Json json, const At& at, std::vector<Program>& out);

/// Turns what was read from an older schema_version into the newest: names the vars' axes.
void upgrade(Reader& reader, Manifest& manifest);

/// Reads `{"i32": 1}`'s value into a literal of that type.
void read_literal(Reader& reader, Json json, const At& at, Literal::Type type, Literal& out);

}  // namespace kern::manifest
