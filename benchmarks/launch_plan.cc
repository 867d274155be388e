#include "launch_plan.h"

#include <algorithm>
#include <sstream>

namespace launch_bench {
namespace {

using kern::Kind;
using kern::Result;

bool take(std::istringstream& in, std::array<uint32_t, 3>& three) {
  return static_cast<bool>(in >> three[0] >> three[1] >> three[2]);
}

/// Whether the line is whole.
bool read_buffer(std::istringstream& in, Row& row) {
  BufferLine line;
  std::string kind;
  if (!(in >> line.name >> line.bytes >> kind >> line.fill)) return false;
  line.shared = kind == "shared";
  row.buffers.push_back(line);
  return line.bytes > 0 && (kind == "shared" || kind == "own");
}

bool read_launch(std::istringstream& in, std::vector<LaunchLine>& to) {
  LaunchLine line;
  if (!(in >> line.module >> line.entry) || !take(in, line.shape.grid) ||
      !take(in, line.shape.block) || !take(in, line.shape.cluster) ||
      !(in >> line.shape.shared_bytes))
    return false;
  for (std::string arg; in >> arg;) line.args.push_back(arg);
  to.push_back(line);
  return true;
}

bool read_product(std::istringstream& in, Row& row) {
  ProductLine line;
  int f32 = 0, adds = 0;
  kern::cuda::Product& p = line.product;
  if (!(in >> p.n >> p.k >> p.a_stride >> p.c_stride >> f32 >> adds >> line.rows >> line.rows_max >>
        line.a >> line.w >> line.c))
    return false;
  p.c_is_f32 = f32 != 0, p.accumulates = adds != 0;
  row.products.push_back(line);
  return true;
}

bool read_row(std::istringstream& in, std::vector<Row>& rows) {
  Row row;
  if (!(in >> row.id >> row.sets) || row.sets == 0) return false;
  if (!(in >> row.ranks)) row.ranks = 1;
  rows.push_back(row);
  return row.ranks > 0;
}

}  // namespace

Result<std::vector<Row>> read_plan(std::istream& in) {
  std::vector<Row> rows;
  for (std::string text; std::getline(in, text);) {
    std::istringstream words(text);
    std::string word;
    if (!(words >> word) || word == "end") continue;
    bool whole = true;
    if (word == "machine") {
      rows.push_back({.id = word});
    } else if (word == "row") {
      whole = read_row(words, rows);
    } else if (rows.empty()) {
      whole = false;
    } else if (word == "buffer") {
      whole = read_buffer(words, rows.back());
    } else if (word == "launch" || word == "prepare") {
      whole = read_launch(words, word == "launch" ? rows.back().launches : rows.back().prepare);
    } else {
      whole = word == "product" && read_product(words, rows.back());
    }
    if (!whole)
      return kern::fail(Kind::caller, "`{}`: expected a line as launch_plan.h says", text);
  }
  return rows;
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, by);) parts.push_back(part);
  return parts;
}

}  // namespace launch_bench
