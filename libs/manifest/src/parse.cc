#include <algorithm>
#include <utility>

#include "lines.h"
#include "reader.h"

namespace kern::manifest {
namespace {

void read_constants(Reader& r, Json json, const At& at, std::vector<Constant>& out,
                    std::vector<bool>& whole) {
  const auto read = [&](std::string_view name, Json value, const At& here) {
    Constant& constant = out.emplace_back(Constant{std::string(name), 0});
    r.number(value, here, constant.value);
    whole.push_back(!r.describing() && value.type() == Json::Type::integer);
  };
  r.named(json, at, read, EmptyName::refused);
}

void read_vars(Reader& r, Json json, const At& at, std::vector<Var>& out) {
  r.named(json, at, [&](std::string_view name, Json value, const At& here) {
    Var& var = out.emplace_back();
    var.name = name;
    r.object(value, here, "var",
             {{"max", Need::required, "the largest value; the least is 1", r.into(var.max)},
              {"axis", Need::nullable,
               "what of a call it counts: rows of this rank, sequences, "
               "or rows of every rank",
               [&](Json v, const At& a) {
                 r.word(v, a, "`rows`, `groups` or `ranks`", kAxes, var.axis.emplace(Axis::rows));
               },
               7}});
  });
}

void read_topology(Reader& r, Json json, const At& at, std::vector<Group>& out) {
  r.object(json, at, "topology",
           {{"groups", Need::required, "sets of ranks that load this manifest, with their sizes",
             [&](Json groups, const At& here) {
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
    r.object(value, here, "module",
             {{"source", Need::required, "a file name, https://… or hf:org/repo/path[@rev]",
               r.into(module.source)},
              {"sha256", Need::required, "of its bytes, 64 hex digits", r.into(module.sha256)}});
  });
}

void read_cut(Reader& r, Json json, const At& at, Cut& out) {
  r.object(json, at, "cut",
           {{"id", Need::required, "of the uncut manifest and where it was cut", r.into(out.id)},
            {"stage", Need::required, "which stage this is, from 0", r.into(out.stage)},
            {"stages", Need::required, "how many there are", r.into(out.stages)}});
}

void read_meta(Reader& r, Json json, const At& at, Meta& out) {
  r.object(json, at, "meta",
           {{"generator", Need::optional, "the program that wrote it", r.into(out.generator)},
            {"version", Need::optional, "of the generator", r.into(out.version)},
            {"config_sha256", Need::optional, "of the model's config", r.into(out.config_sha256)},
            {"layout", Need::optional, "how the model is divided", r.into(out.layout)},
            {"tokenizer", Need::optional, "of the model", r.into(out.tokenizer)}});
}

void read_uses(Reader& r, Json json, const At& at, std::vector<std::string>& out) {
  r.texts(json, at, out, 1);
}

void read_device(Reader& r, Json json, const At& at, Device& out) {
  static constexpr std::string_view kWords[] = {"host"};  // cuda is what stands nowhere
  if (r.word_at(json, at, "`host`", kWords)) out = Device::host;
}

/// What all other keys mean depends on these two, so they are read before everything else.
struct First {
  bool version = false, constants = false;  ///< found
  std::vector<bool> whole;                  ///< which constants were written as integers
};

void read_version(Reader& r, Json value, const At& at, Manifest& m) {
  if (value.type() == Json::Type::text)
    return r.problem(at, "expected {} or {}, got `{}`", kOldest, kNewest, value.text());
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

Diagnostics not_json(std::string_view json, const NotJson& failure) {
  std::string sentence = fmt::format("not JSON: {}", failure.reason);
  if (const size_t line = failure.line != 0 ? failure.line : line_of_break(json); line != 0)
    sentence += fmt::format(" (line {})", line);
  return {{"", std::move(sentence)}};
}

}  // namespace

bool read_manifest(Reader& r, Json root, const At& at, Manifest& m, bool whole) {
  const First first = r.describing() ? First() : read_first(r, root, at, m, whole);
  bool version_stands = first.version, constants_stand = first.constants;
  const auto version = [&](Json, const At&) {
    version_stands = true;
    if (r.describing()) r.exactly(kNewest);
  };
  const auto constants = [&](Json v, const At& a) {
    constants_stand = true;
    std::vector<bool> integers;
    if (r.describing()) read_constants(r, v, a, m.constants, integers);
  };
  r.object(
      root, at, "manifest",
      {{"schema_version", Need::required, "of this format", version},
       {"model", Need::required, "a label", r.into(m.model)},
       {"uses", Need::optional, "the extensions it needs, each listed and each used",
        r.into(m.uses, read_uses), 7},
       {"device", Need::optional, "where it runs, if not on a GPU; extension `host`",
        r.into(m.device, read_device), 7},
       {"meta", Need::optional, "where it comes from, for people; extension `meta`",
        r.into(m.meta, read_meta), 7},
       {"cut", Need::nullable, "the stage of a pipeline that this is", r.into(m.cut, read_cut), 7},
       {"constants", Need::optional, "numbers that may stand by name wherever a number stands",
        constants},
       {"vars", Need::optional, "integers that the caller gives at each call",
        r.into(m.vars, read_vars)},
       {"topology", Need::nullable, "the groups of ranks", r.into(m.groups, read_topology)},
       {"states", Need::optional, "memory that outlives a call, by its size",
        r.into(m.states, read_states)},
       {"buffers", Need::required, "typed tensors", r.into(m.buffers, read_buffers)},
       {"modules", Need::required, "compiled code", r.into(m.modules, read_modules)},
       {"ops", Need::required, "typed interfaces and the launches that implement them",
        r.into(m.ops, read_ops)},
       {"programs", Need::required, "straight lists of calls", r.into(m.programs, read_programs)}});
  return version_stands == first.version && constants_stand == first.constants;
}

tl::expected<Manifest, Diagnostics> parse(std::string_view json) {
  const auto document = JsonDocument::read(json);
  if (!document) return tl::unexpected<Diagnostics>(not_json(json, document.error()));
  Reader reader;
  Manifest manifest;
  if (!read_manifest(reader, document->root(), At{}, manifest, false)) {
    reader = Reader();
    manifest = Manifest();
    read_manifest(reader, document->root(), At{}, manifest, true);
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
