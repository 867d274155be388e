#pragma once
/// Writes JSON Schema 2020-12 as a Reader goes through its tables: one schema for each thing it
/// would have read. Objects, and what may contain itself, are definitions of their own, referred to
/// by name. Thread safety: one thread.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "function_ref.h"
#include "json_writer.h"
#include "reader.h"

namespace kern::manifest {

class SchemaWriter {
 public:
  /// Describes one thing by asking a Reader to read it.
  using Describe = FunctionRef<void()>;

  void object(std::string_view name, std::initializer_list<Field> fields,
              const Companion* companion);
  void named(Describe describe, EmptyName empty);
  void list(Describe describe, size_t at_least);
  /// `describe` is asked once an element.
  void list_of(size_t count, Describe describe);
  void any_of(Describe first, Describe second);
  void choose(std::string_view key, std::string_view prefix, Describe with, Describe without);
  void integer(int64_t min, int64_t max);
  void exactly(int64_t value);
  /// Anything of these JSON types.
  void plain(std::initializer_list<std::string_view> types);
  void name();
  void words(Words words);
  void matching(std::string_view pattern);

  /// Refers to a definition; whether it is to be described now, until `end`.
  bool begin(std::string_view name);
  void end();

  /// The whole, given the name of the outermost definition.
  std::string finish(std::string_view root);

 private:
  struct Definition {
    std::string name;
    std::string text;  ///< empty while it is described
  };
  struct Open {
    size_t definition;
    JsonWriter outer;
  };

  void open(JsonWriter::Layout layout = JsonWriter::Layout::one_line);
  void close() { out_.close_object(); }
  void type(std::initializer_list<std::string_view> types);
  void pair(std::string_view key, std::string_view value);
  void property(const Field& field);
  void required(std::initializer_list<std::string_view> keys);
  void keys_that_must_stand(std::initializer_list<Field> fields, const Companion* companion);
  std::string aside(Describe describe);

  JsonWriter out_;
  std::string_view about_;  ///< of the next schema
  std::vector<Definition> definitions_;
  std::vector<Open> open_;
};

}  // namespace kern::manifest
