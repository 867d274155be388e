#include <algorithm>
#include <utility>

#include "lines.h"
#include "reader.h"

namespace kern::manifest {
namespace {

std::optional<Axis> parse_axis(std::string_view word) {
  if (word == "rows") return Axis::rows;
  if (word == "groups") return Axis::groups;
  if (word == "ranks") return Axis::ranks;
  return std::nullopt;
}

std::optional<Device> parse_device(std::string_view word) {
  if (word == "host") return Device::host;
  return std::nullopt;
}

void read_constants(Reader& r, Json json, const At& at, std::vector<Constant>& out,
                    std::vector<bool>& whole) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    if (name.empty()) r.problem(here, "a constant has an empty name");
    Constant& constant = out.emplace_back(Constant{std::string(name), 0});
    whole.push_back(value.type() == Json::Type::integer);
    if (value.type() == Json::Type::text)
      r.problem(here, "expected a number, got a string");
    else
      r.real(value, here, constant.value);
  });
}

void read_vars(Reader& r, Json json, const At& at, std::vector<Var>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Var& var = out.emplace_back();
    var.name = name;
    r.object(value, here,
             {{"max", Need::required,
               [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, var.max); }},
              {"axis", Need::nullable,
               [&](Json v, const At& a) {
                 var.axis = Axis::rows;
                 r.word(v, a, "`rows`, `groups` or `ranks`", parse_axis, *var.axis);
               },
               7}});
  });
}

void read_topology(Reader& r, Json json, const At& at, std::vector<Group>& out) {
  r.object(json, at, {{"groups", Need::required, [&](Json groups, const At& here) {
                         r.named(groups, here, [&](std::string_view name, Json size, const At& a) {
                           Group& group = out.emplace_back();
                           group.name = name;
                           r.integer(size, a, 0, kU32Max, group.size);
                         });
                       }}});
}

void read_modules(Reader& r, Json json, const At& at, std::vector<Module>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Module& module = out.emplace_back();
    module.name = name;
    r.object(
        value, here,
        {{"source", Need::required, [&](Json v, const At& a) { r.text(v, a, module.source); }},
         {"sha256", Need::required, [&](Json v, const At& a) { r.text(v, a, module.sha256); }}});
  });
}

void read_cut(Reader& r, Json json, const At& at, Cut& out) {
  r.object(json, at,
           {{"id", Need::required, [&](Json v, const At& a) { r.text(v, a, out.id); }},
            {"stage", Need::required,
             [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, out.stage); }},
            {"stages", Need::required,
             [&](Json v, const At& a) { r.integer(v, a, 0, kIntMax, out.stages); }}});
}

void read_meta(Reader& r, Json json, const At& at, Meta& out) {
  const auto text_into = [&r](std::string& to) {
    return [&r, &to](Json v, const At& a) { r.text(v, a, to); };
  };
  r.object(json, at,
           {{"generator", Need::optional, text_into(out.generator)},
            {"version", Need::optional, text_into(out.version)},
            {"config_sha256", Need::optional, text_into(out.config_sha256)},
            {"layout", Need::optional, text_into(out.layout)},
            {"tokenizer", Need::optional, text_into(out.tokenizer)}});
}

/// What all other keys mean depends on these two, so they are read before everything else.
struct First {
  bool version = false, constants = false;  ///< found
  std::vector<bool> whole;                  ///< which constants were written as integers
};

void read_version(Reader& r, Json value, const At& at, Manifest& m) {
  r.integer(value, at, 0, kU32Max, m.schema_version);
  if (m.schema_version == kOldest || m.schema_version == kNewest)
    r.set_version(m.schema_version);
  else
    r.problem(at, "schema_version {} is not read here; expected {} or {}", m.schema_version,
              kOldest, kNewest);
}

/// Looks down to the first key that they matter to; to the end only when `whole`, which walks the
/// text once more.
First read_first(Reader& r, Json root, const At& at, Manifest& m, bool whole) {
  static constexpr std::string_view kHead[] = {"schema_version", "model", "uses",     "device",
                                               "meta",           "cut",   "constants"};
  First first;
  if (root.type() != Json::Type::object) return first;
  root.each_member_while([&](std::string_view key, Json value) {
    if (key == "constants" && !std::exchange(first.constants, true))
      read_constants(r, value, at.member(key), m.constants, first.whole);
    if (key == "schema_version" && !std::exchange(first.version, true))
      read_version(r, value, at.member(key), m);
    return whole || std::find(std::begin(kHead), std::end(kHead), key) != std::end(kHead);
  });
  r.set_constants(&m.constants, first.whole);
  return first;
}

/// Whether everything was read with what it depends on known.
bool read_top(Reader& r, Json root, const At& at, Manifest& m, bool whole) {
  const First first = read_first(r, root, at, m, whole);
  bool version = first.version, constants = first.constants;
  r.object(
      root, at,
      {{"schema_version", Need::required, [&](Json, const At&) { version = true; }},
       {"model", Need::required, [&](Json v, const At& a) { r.text(v, a, m.model); }},
       {"uses", Need::optional,
        [&](Json v, const At& a) {
          r.texts(v, a, m.uses);
          if (m.uses.empty()) r.problem(a, "an empty `uses` says nothing; leave it out");
        },
        7},
       {"device", Need::optional,
        [&](Json v, const At& a) { r.word(v, a, "`host`", parse_device, m.device); }, 7},
       {"meta", Need::optional, [&](Json v, const At& a) { read_meta(r, v, a, m.meta.emplace()); },
        7},
       {"cut", Need::nullable, [&](Json v, const At& a) { read_cut(r, v, a, m.cut.emplace()); }, 7},
       {"constants", Need::optional, [&](Json, const At&) { constants = true; }},
       {"vars", Need::optional, [&](Json v, const At& a) { read_vars(r, v, a, m.vars); }},
       {"topology", Need::nullable, [&](Json v, const At& a) { read_topology(r, v, a, m.groups); }},
       {"states", Need::optional, [&](Json v, const At& a) { read_states(r, v, a, m.states); }},
       {"buffers", Need::required, [&](Json v, const At& a) { read_buffers(r, v, a, m.buffers); }},
       {"modules", Need::required, [&](Json v, const At& a) { read_modules(r, v, a, m.modules); }},
       {"ops", Need::required, [&](Json v, const At& a) { read_ops(r, v, a, m.ops); }},
       {"programs", Need::required,
        [&](Json v, const At& a) { read_programs(r, v, a, m.programs); }}});
  return version == first.version && constants == first.constants;
}

Diagnostics not_json(std::string_view json, std::string_view reason) {
  std::string sentence = fmt::format("not JSON: {}", reason);
  if (const size_t line = line_of_break(json); line != 0)
    sentence += fmt::format(" (line {})", line);
  return {{"", std::move(sentence)}};
}

}  // namespace

tl::expected<Manifest, Diagnostics> parse(std::string_view json) {
  const auto document = JsonDocument::read(json);
  if (!document) return tl::unexpected<Diagnostics>(not_json(json, document.error()));
  Reader reader;
  Manifest manifest;
  if (!read_top(reader, document->root(), At{}, manifest, false)) {
    reader = Reader();
    manifest = Manifest();
    read_top(reader, document->root(), At{}, manifest, true);
  }
  if (const auto reason = document->finish())
    return tl::unexpected<Diagnostics>(not_json(json, *reason));
  if (reader.ok() && reader.version() < kNewest) upgrade(reader, manifest);
  if (reader.ok()) return manifest;
  Diagnostics diagnostics = reader.take();
  add_lines(json, diagnostics);
  return tl::unexpected<Diagnostics>(std::move(diagnostics));
}

}  // namespace kern::manifest
