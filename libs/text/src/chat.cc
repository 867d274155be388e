#include "kern/text/chat.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kern/base/assert.h"

namespace kern::text {
namespace {

constexpr std::string_view kToolsHeading =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n";
constexpr std::string_view kMoreToolsHeading =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n";
constexpr std::string_view kEffortText =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`.";
constexpr std::string_view kMustCallText =
    "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.";
constexpr std::string_view kMustNotCallText =
    "The system is invoked with `tool_choice=none`.\n"
    "You MUST NOT call any tools in the next message.";
constexpr std::string_view kFormatText =
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without "
    "markdown code blocks (```json) or any additional formatting.";
constexpr std::string_view kSchemaText = "\nThe JSON data must match the following schema:\n";

std::string fenced(std::string_view json) {
  return fmt::format("```json\n{}\n```", json);
}

using Attribute = std::pair<std::string_view, std::string>;

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char byte : value) {
    if (byte == '&') {
      out += "&amp;";
    } else if (byte == '"') {
      out += "&quot;";
    } else {
      out += byte;
    }
  }
  return out;
}

/// Writes one conversation. The ids and names of the last assistant's calls, and how many results
/// followed them, decide how tool results are named and numbered.
class Renderer {
 public:
  Renderer(const ChatRequest& request, const ChatStyle& style) : request_(request), style_(style) {}

  Result<std::vector<Segment>> run() {
    if (request_.tools) tool_declaration(kToolsHeading, *request_.tools);
    if (request_.thinking && request_.effort) {
      if (std::ranges::count(style_.efforts, *request_.effort) == 0)
        return fail(Kind::caller, "unsupported thinking_effort={}; supported values are {}",
                    *request_.effort, fmt::join(style_.efforts, ", "));
      system("thinking-effort", fmt::format(fmt::runtime(kEffortText), *request_.effort));
    }
    for (size_t i = 0; i < request_.messages.size();) {
      KERN_TRY(count, with_context(message(i), "message {}", i + 1));
      i += count;
    }
    if (request_.tool_choice == ToolChoice::required) system("tool-choice", kMustCallText);
    if (request_.tool_choice == ToolChoice::none) system("tool-choice", kMustNotCallText);
    response_format();
    if (request_.add_generation_prompt) {
      open("message", {{"role", "assistant"}});
      open(request_.thinking ? "think" : "response");
    }
    return std::move(out_);
  }

 private:
  void control(std::string_view marker) { out_.push_back({std::string(marker), true}); }
  void text(std::string_view body) {
    if (!body.empty()) out_.push_back({std::string(body), false});
  }
  void text(const std::vector<std::string>& parts) {
    for (const std::string& part : parts) text(std::string_view(part));
  }
  void open(std::string_view tag, const std::vector<Attribute>& attributes = {}) {
    control(kOpenMarker);
    text(tag);
    for (const auto& [key, value] : attributes) {
      text(fmt::format(" {}", key));
      text("=\"");
      text(std::string_view(escape_attribute(value)));
      text("\"");
    }
    control(kSeparatorMarker);
  }
  void close(std::string_view tag) {
    control(kCloseMarker);
    text(tag);
    control(kSeparatorMarker);
  }
  void end_message() {
    close("message");
    control(kEndMarker);
  }
  void system(std::string_view type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", std::string(type)}});
    text(body);
    end_message();
  }
  void tool_declaration(std::string_view heading, std::string_view tools) {
    system("tool-declare", std::string(heading) + fenced(tools));
  }
  void response_format() {
    if (request_.response_format == ResponseFormat::json_object)
      system("response-format", fmt::format(fmt::runtime(kFormatText), "json_object"));
    if (request_.response_format == ResponseFormat::json_schema)
      system("response-format", fmt::format(fmt::runtime(kFormatText), "json_schema") +
                                    std::string(kSchemaText) + fenced(request_.response_schema));
  }

  /// Writes the message at `at`, a tool result with all that follow it; says how many were written.
  Result<size_t> message(size_t at) {
    KERN_ASSERT(at < request_.messages.size(), "message {}", at);
    const Message& current = request_.messages[at];
    if (!current.role) return fail(Kind::caller, "{} messages require a role.", style_.family);
    if (*current.role == "tool") return tool_results(at);
    if (*current.role == "assistant") {
      KERN_TRY_VOID(assistant(current));
    } else if (*current.role == "system" && current.tools) {
      tool_declaration(kMoreToolsHeading, *current.tools);
    } else if (*current.role == "user" || *current.role == "system") {
      open_message(current);
      text(current.content);
      end_message();
    } else {
      return fail(Kind::caller,
                  "unknown message role `{}`; expected system, user, assistant or tool",
                  *current.role);
    }
    return size_t{1};
  }

  void open_message(const Message& current) {
    std::vector<Attribute> attributes = {{"role", *current.role}};
    if (current.name && !current.name->empty()) attributes.emplace_back("name", *current.name);
    open("message", attributes);
  }

  Result<void> assistant(const Message& current) {
    KERN_ASSERT(current.role);
    calls_ = &current.tool_calls;
    results_ = 0;
    open_message(current);
    if (request_.thinking) {
      open("think");
      // Thoughts of blanks only count as none.
      if (current.reasoning &&
          current.reasoning->find_first_not_of(" \t\n\v\f\r") != std::string::npos)
        text(std::string_view(*current.reasoning));
      close("think");
    }
    open("response");
    text(current.content);
    close("response");
    if (!current.tool_calls.empty()) {
      open("tools");
      for (size_t i = 0; i < current.tool_calls.size(); ++i)
        KERN_TRY_VOID(with_context(call(current.tool_calls[i], i + 1), "tool call {}", i + 1));
      close("tools");
    }
    end_message();
    return {};
  }

  Result<void> call(const ToolCall& call, size_t index) {
    if (!call.name)
      return fail(Kind::caller, "{} tool calls require a function name.", style_.family);
    open("call", {{"tool", *call.name}, {"index", fmt::to_string(index)}});
    if (call.raw_arguments) {
      open("json", {{"type", "object"}});
      text(std::string_view(*call.raw_arguments));
      close("json");
    }
    for (const ToolArgument& argument : call.arguments) {
      open("argument", {{"key", argument.key}, {"type", argument.type}});
      text(std::string_view(argument.text));
      close("argument");
    }
    close("call");
    return {};
  }

  /// The run of tool results that begins at `at`. When every one names a call by its id they take
  /// the order and the names of the calls; else they stay as they are.
  Result<size_t> tool_results(size_t at) {
    std::map<std::string_view, size_t> places;
    for (size_t i = 0; calls_ != nullptr && i < calls_->size(); ++i) {
      if ((*calls_)[i].id) places.try_emplace(*(*calls_)[i].id, i);
    }
    struct Row {
      size_t call;
      size_t message;
    };
    std::vector<Row> rows;
    bool all_match = true;
    size_t end = at;
    for (; end < request_.messages.size(); ++end) {
      const Message& result = request_.messages[end];
      if (!result.role || *result.role != "tool") break;
      const auto found = result.tool_call_id ? places.find(*result.tool_call_id) : places.end();
      all_match = all_match && found != places.end();
      rows.push_back({found != places.end() ? found->second : 0, end});
    }
    KERN_ASSERT(end > at);
    KERN_ASSERT(rows.size() == end - at && (!all_match || calls_ != nullptr));
    if (all_match) std::ranges::stable_sort(rows, {}, &Row::call);
    for (const Row& row : rows) {
      const Message& result = request_.messages[row.message];
      ++results_;
      const std::optional<std::string> name =
          all_match ? (*calls_)[row.call].name : unmatched_name(result);
      if (!name)
        return with_context(
            Result<size_t>(
                fail(Kind::caller,
                     "{} tool messages need a resolvable tool name: carry `tool`/`name`, "
                     "or match a preceding assistant tool_call by order.",
                     style_.family)),
            "tool result {}", row.message - at + 1);
      open("message", {{"role", "tool"}, {"tool", *name}, {"index", fmt::to_string(results_)}});
      text(result.content);
      end_message();
    }
    return end - at;
  }

  /// What a result calls itself, or the call at its place.
  std::optional<std::string> unmatched_name(const Message& result) const {
    KERN_ASSERT(results_ > 0);
    if (result.tool) return result.tool;
    if (result.name) return result.name;
    if (calls_ != nullptr && results_ <= calls_->size()) return (*calls_)[results_ - 1].name;
    return std::nullopt;
  }

  const ChatRequest& request_;
  const ChatStyle& style_;
  std::vector<Segment> out_;
  const std::vector<ToolCall>* calls_ = nullptr;  ///< of the last assistant message
  size_t results_ = 0;                            ///< tool results since then
};

}  // namespace

Result<std::vector<Segment>> render_chat(const ChatRequest& request, const ChatStyle& style) {
  return Renderer(request, style).run();
}

std::string join(std::span<const Segment> segments) {
  std::string out;
  for (const Segment& segment : segments) out += segment.text;
  return out;
}

}  // namespace kern::text
