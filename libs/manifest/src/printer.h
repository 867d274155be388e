#pragma once
/// Writes a manifest part by part; print.cc has the declarations, print_code.cc what runs.
/// Thread safety: one thread.

#include <string>
#include <string_view>
#include <vector>

#include "json_writer.h"
#include "kern/manifest/types.h"

namespace kern::manifest {

class Printer {
 public:
  std::string print(const Manifest& m);

 private:
  void top(const Manifest& m);
  void provenance(const Meta& meta);
  void vars(const Manifest& m);
  void state(const State& s);
  void buffer(const Buffer& b);
  void domain(const Domain& d);
  void segment(const BindSegment& s, int64_t index);
  void series(const Series& s);
  void range(std::string_view key, const RangeTable& table);
  void op(const Op& op);
  void launch(const Launch& launch);
  void launch_arg(const LaunchArg& arg);
  void pack(const Pack& pack);
  void field(const PackField& field);
  void tensormap(const Tensormap& map);
  void program(const Program& p);
  void call(const Call& call);
  void call_arg(const CallArg& arg);
  void batch(const Batch& batch);

  void expr(const Expr& e);
  void bound(std::string_view key, const std::optional<Bound>& bound);
  void literal(const Literal& literal);
  void shape(const std::vector<Dim>& shape);
  void params(const std::vector<ParamType>& params);
  void integers(std::string_view key, const std::vector<int64_t>& values);
  void texts(std::string_view key, const std::vector<std::string>& values);
  void text(std::string_view key, std::string_view value) {
    w_.key(key);
    w_.text(value);
  }
  void integer(std::string_view key, int64_t value) {
    w_.key(key);
    w_.integer(value);
  }
  void flag(std::string_view key, bool value) {
    if (!value) return;
    w_.key(key);
    w_.boolean(true);
  }

  JsonWriter w_;
};

}  // namespace kern::manifest
