#include "trace.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <map>
#include <set>

namespace kern::replay {

namespace dom = simdjson::dom;

namespace {

std::string_view type_name(dom::element_type type) {
  switch (type) {
    case dom::element_type::ARRAY:
      return "an array";
    case dom::element_type::OBJECT:
      return "an object";
    case dom::element_type::STRING:
      return "a string";
    case dom::element_type::BOOL:
      return "a boolean";
    case dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

Result<dom::object> object_of(dom::element element) {
  dom::object object;
  if (element.get_object().get(object) != simdjson::SUCCESS)
    return fail(Kind::caller, "expected an object, got {}", type_name(element.type()));
  return object;
}

Result<dom::array> array_of(dom::element element) {
  dom::array array;
  if (element.get_array().get(array) != simdjson::SUCCESS)
    return fail(Kind::caller, "expected an array, got {}", type_name(element.type()));
  return array;
}

Result<uint64_t> number_of(dom::element element, uint64_t least, uint64_t most) {
  uint64_t number = 0;
  if (element.get_uint64().get(number) != simdjson::SUCCESS || number < least || number > most)
    return fail(
        Kind::caller, "expected a whole number from {} to {}, got {}", least, most,
        element.is_number() ? simdjson::minify(element) : std::string(type_name(element.type())));
  return number;
}

// Refuses members that are not among `known` or come twice, and a missing one of `required`.
Result<void> check_members(dom::object object, const std::set<std::string_view>& known,
                           const std::set<std::string_view>& required) {
  std::set<std::string_view> seen;
  for (const auto [key, value] : object) {
    if (!known.contains(key))
      return fail(Kind::caller, "unknown member `{}`; known are {}", key, fmt::join(known, ", "));
    if (!seen.insert(key).second) return fail(Kind::caller, "`{}` comes twice", key);
  }
  for (const std::string_view key : required)
    if (!seen.contains(key)) return fail(Kind::caller, "`{}` is missing", key);
  return {};
}

Result<SharedPrefix> read_shared(dom::element element) {
  KERN_TRY(object, object_of(element));
  KERN_TRY_VOID(check_members(object, {"name", "tokens"}, {"name", "tokens"}));
  SharedPrefix shared;
  std::string_view name;
  if (object["name"].get_string().get(name) != simdjson::SUCCESS || name.empty())
    return fail(Kind::caller, "`name`: expected a string that is not empty");
  shared.name = name;
  KERN_TRY(tokens, with_context(number_of(object["tokens"].value_unsafe(), 1, kSessionTokensMax),
                                "`tokens`"));
  shared.tokens = static_cast<uint32_t>(tokens);
  return shared;
}

Result<Turn> read_turn(dom::element element) {
  KERN_TRY(object, object_of(element));
  KERN_TRY_VOID(check_members(object, {"think_ms", "prompt", "answer"}, {"prompt", "answer"}));
  Turn turn;
  for (const auto [key, value] : object) {
    const bool time = key == "think_ms";
    KERN_TRY(number,
             with_context(number_of(value, time ? 0 : 1, time ? kTimeMaxMs : kSessionTokensMax),
                          "`{}`", key));
    if (time)
      turn.think_ms = number;
    else
      (key == "prompt" ? turn.prompt : turn.answer) = static_cast<uint32_t>(number);
  }
  return turn;
}

// Every item of an array by `read`, the place of a bad one in its context.
template <class T, class Read>
Result<std::vector<T>> read_items(dom::element element, std::string_view what, Read&& read) {
  KERN_TRY(array, with_context(array_of(element), "`{}`", what));
  std::vector<T> items;
  for (const dom::element item : array) {
    KERN_TRY(one,
             with_context(with_context(read(item), "item {}", items.size() + 1), "`{}`", what));
    items.push_back(std::move(one));
  }
  return items;
}

Result<Session> read_session(dom::element element) {
  KERN_TRY(object, object_of(element));
  KERN_TRY_VOID(check_members(object, {"at_ms", "shared", "turns"}, {"at_ms", "turns"}));
  Session session;
  KERN_TRY(at_ms,
           with_context(number_of(object["at_ms"].value_unsafe(), 0, kTimeMaxMs), "`at_ms`"));
  session.at_ms = at_ms;
  if (dom::element shared; object["shared"].get(shared) == simdjson::SUCCESS) {
    KERN_TRY(prefixes, read_items<SharedPrefix>(shared, "shared", read_shared));
    session.shared = std::move(prefixes);
  }
  KERN_TRY(turns, read_items<Turn>(object["turns"].value_unsafe(), "turns", read_turn));
  session.turns = std::move(turns);
  if (session.turns.empty()) return fail(Kind::caller, "`turns`: expected at least one, got none");
  uint64_t tokens = 0;
  for (const SharedPrefix& one : session.shared) tokens += one.tokens;
  for (const Turn& turn : session.turns) tokens += uint64_t{turn.prompt} + turn.answer;
  if (tokens > kSessionTokensMax)
    return fail(Kind::caller, "a session of {} tokens, at most {}", tokens, kSessionTokensMax);
  return session;
}

Result<Session> parse_line(dom::parser& parser, std::string_view line) {
  dom::element element;
  if (const auto error = parser.parse(line.data(), line.size()).get(element))
    return fail(Kind::caller, "expected one JSON object, got: {}", simdjson::error_message(error));
  return read_session(element);
}

// A name stands for the same tokens in every line.
Result<void> check_names(const Session& session, std::map<std::string, uint32_t>& lengths) {
  for (const SharedPrefix& one : session.shared) {
    const uint32_t before = lengths.emplace(one.name, one.tokens).first->second;
    if (before != one.tokens)
      return fail(Kind::caller, "`shared`: `{}` has {} tokens here and {} in an earlier line",
                  one.name, one.tokens, before);
  }
  return {};
}

}  // namespace

Result<Trace> parse_trace(std::string_view text) {
  Trace trace;
  dom::parser parser;
  std::map<std::string, uint32_t> lengths;
  uint64_t turns = 0;
  for (uint64_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    KERN_TRY(session, with_context(parse_line(parser, text.substr(0, end)), "line {}", number));
    KERN_TRY_VOID(with_context(check_names(session, lengths), "line {}", number));
    turns += session.turns.size();
    if (number > kSessionsMax || turns > kTurnsMax)
      return fail(Kind::caller, "line {}: a trace has at most {} sessions and {} turns", number,
                  kSessionsMax, kTurnsMax);
    trace.push_back(std::move(session));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (trace.empty()) return fail(Kind::caller, "a trace has at least one line, got none");
  return trace;
}

std::string print(const Session& session) {
  std::string out = fmt::format("{{\"at_ms\":{},\"shared\":[", session.at_ms);
  for (const SharedPrefix& one : session.shared) {
    if (out.back() == '}') out += ',';
    out += "{\"name\":\"";
    for (const char c : one.name) {
      if (c == '"' || c == '\\')
        out += {'\\', c};
      else if (static_cast<unsigned char>(c) < 0x20)
        out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
      else
        out += c;
    }
    out += fmt::format("\",\"tokens\":{}}}", one.tokens);
  }
  out += "],\"turns\":[";
  for (const Turn& turn : session.turns)
    out += fmt::format("{}{{\"think_ms\":{},\"prompt\":{},\"answer\":{}}}",
                       out.back() == '}' ? "," : "", turn.think_ms, turn.prompt, turn.answer);
  return out + "]}\n";
}

}  // namespace kern::replay
