#include <fmt/core.h>

#include "command.h"
#include "kern/manifest/schema.h"

namespace kern::app {

namespace po = boost::program_options;

int cmd_schema(const Arguments& arguments) {
  const Usage usage{
      "kern schema",
      "Prints the JSON Schema (2020-12) of a manifest of schema_version 7, extensions "
      "included.\nIt says what is well-formed, as `kern verify --parse-only` does; "
      "what is right, only\n`kern verify` says.",
      ""};
  po::variables_map values;
  if (const auto over = read_options(arguments, usage, {}, values)) return *over;
  fmt::print("{}", manifest::schema());
  return kOk;
}

}  // namespace kern::app
