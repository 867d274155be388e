#include <algorithm>

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

/// Constants may stand anywhere below, so they are read before everything else.
void read_constants_first(Reader& r, Json root, const At& at, Manifest& m) {
  if (root.type() != Json::Type::object) return;
  bool seen = false;
  std::vector<bool> whole;
  root.each_member([&](std::string_view key, Json value) {
    if (key != "constants" || seen) return;
    seen = true;
    read_constants(r, value, at.member(key), m.constants, whole);
  });
  r.set_constants(&m.constants, std::move(whole));
}

/// What keys there are depends on it, so it is read before everything else.
void read_version_first(Reader& r, Json root, const At& at, Manifest& m) {
  if (root.type() != Json::Type::object) return;
  bool seen = false;
  root.each_member([&](std::string_view key, Json value) {
    if (key != "schema_version" || seen) return;
    seen = true;
    const At here = at.member(key);
    r.integer(value, here, 0, kU32Max, m.schema_version);
    if (m.schema_version == kOldest || m.schema_version == kNewest)
      r.set_version(m.schema_version);
    else
      r.problem(here, "schema_version {} is not read here; expected {} or {}", m.schema_version,
                kOldest, kNewest);
  });
}

void read_top(Reader& r, Json root, const At& at, Manifest& m) {
  read_constants_first(r, root, at, m);
  read_version_first(r, root, at, m);
  r.object(
      root, at,
      {{"schema_version", Need::required, [](Json, const At&) {}},
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
       {"constants", Need::optional, [](Json, const At&) {}},
       {"vars", Need::optional, [&](Json v, const At& a) { read_vars(r, v, a, m.vars); }},
       {"topology", Need::nullable, [&](Json v, const At& a) { read_topology(r, v, a, m.groups); }},
       {"states", Need::optional, [&](Json v, const At& a) { read_states(r, v, a, m.states); }},
       {"buffers", Need::required, [&](Json v, const At& a) { read_buffers(r, v, a, m.buffers); }},
       {"modules", Need::required, [&](Json v, const At& a) { read_modules(r, v, a, m.modules); }},
       {"ops", Need::required, [&](Json v, const At& a) { read_ops(r, v, a, m.ops); }},
       {"programs", Need::required,
        [&](Json v, const At& a) { read_programs(r, v, a, m.programs); }}});
}

}  // namespace

tl::expected<Manifest, Diagnostics> parse(std::string_view json) {
  const auto document = JsonDocument::read(json);
  if (!document) {
    std::string sentence = fmt::format("not JSON: {}", document.error());
    if (const size_t line = line_of_break(json); line != 0)
      sentence += fmt::format(" (line {})", line);
    return tl::unexpected<Diagnostics>({{"", std::move(sentence)}});
  }
  Reader reader;
  Manifest manifest;
  read_top(reader, document->root(), At{}, manifest);
  if (reader.ok() && reader.version() < kNewest) upgrade(reader, manifest);
  if (reader.ok()) return manifest;
  Diagnostics diagnostics = reader.take();
  add_lines(json, diagnostics);
  return tl::unexpected<Diagnostics>(std::move(diagnostics));
}

}  // namespace kern::manifest
