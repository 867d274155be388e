// From the JSON of a request to the plain structs of chat.h. What it refuses it names by its place:
// "message 2: tool call 1: …".
#include <algorithm>

#include "json.h"
#include "kern/base/assert.h"
#include "kern/text/chat.h"

namespace kern::text {
namespace {

using Type = Json::Type;

/// An optional string member; null counts as absent.
Result<std::optional<std::string>> read_string(const Json& object, std::string_view key) {
  const Json* member = object.find_value(key);
  if (member == nullptr) return std::optional<std::string>();
  if (member->type != Type::string)
    return fail(Kind::caller, "`{}`: expected a string, got {}", key, type_name(member->type));
  return std::optional<std::string>(member->text);
}

Result<std::optional<bool>> read_bool(const Json& object, std::string_view key) {
  const Json* member = object.find_value(key);
  if (member == nullptr) return std::optional<bool>();
  if (member->type != Type::boolean)
    return fail(Kind::caller, "`{}`: expected a boolean, got {}", key, type_name(member->type));
  return std::optional<bool>(member->is_true());
}

/// A tools array as sorted compact JSON; nothing when it is absent, null or empty.
Result<std::optional<std::string>> read_tools(const Json& object) {
  const Json* tools = object.find_value("tools");
  if (tools == nullptr) return std::optional<std::string>();
  if (tools->type != Type::array)
    return fail(Kind::caller, "`tools`: expected an array, got {}", type_name(tools->type));
  for (size_t i = 0; i < tools->items.size(); ++i) {
    if (tools->items[i].type != Type::object)
      return fail(Kind::caller, "`tools`: item {}: expected an object, got {}", i + 1,
                  type_name(tools->items[i].type));
  }
  if (tools->items.empty()) return std::optional<std::string>();
  return std::optional<std::string>(print_json(*tools, JsonStyle::sorted_compact));
}

/// A string, or an array of {"type": "text", "text": …} parts.
Result<std::vector<std::string>> read_content(const Json& message) {
  std::vector<std::string> parts;
  const Json* content = message.find_value("content");
  if (content == nullptr) return parts;
  if (content->type == Type::string) {
    parts.push_back(content->text);
    return parts;
  }
  if (content->type != Type::array)
    return fail(Kind::caller, "`content`: expected a string or an array of parts, got {}",
                type_name(content->type));
  for (size_t i = 0; i < content->items.size(); ++i) {
    const Json& part = content->items[i];
    if (part.type != Type::object)
      return fail(Kind::caller, "`content`: part {}: expected an object, got {}", i + 1,
                  type_name(part.type));
    KERN_TRY(type, with_context(read_string(part, "type"), "`content`: part {}", i + 1));
    if (type && *type != "text")
      return fail(Kind::caller, "`content`: part {}: expected type `text`, got `{}`", i + 1, *type);
    KERN_TRY(text, with_context(read_string(part, "text"), "`content`: part {}", i + 1));
    if (!text) return fail(Kind::caller, "`content`: part {}: it has no `text`", i + 1);
    parts.push_back(std::move(*text));
  }
  return parts;
}

/// An object, or a string that holds one; any other string stays as it is.
Result<void> read_arguments(const Json& function, const ChatStyle& style, ToolCall& call) {
  const Json* arguments = function.find_value("arguments");
  if (arguments == nullptr) return {};
  KERN_ASSERT(call.arguments.empty() && !call.raw_arguments);
  if (arguments->type == Type::object) {
    for (size_t i = 0; i < arguments->items.size(); ++i) {
      const Json& value = arguments->items[i];
      call.arguments.push_back(
          {arguments->keys[i], std::string(type_name(value.type)),
           value.type == Type::string ? value.text : print_json(value, JsonStyle::spaced)});
    }
    return {};
  }
  if (arguments->type != Type::string)
    return fail(Kind::caller, "{} tool call arguments must be a mapping or a JSON object string.",
                style.family);
  if (arguments->text.empty()) return {};
  std::optional<std::vector<JsonMember>> members = parse_members(arguments->text);
  if (!members) {
    call.raw_arguments = arguments->text;
    return {};
  }
  for (JsonMember& member : *members)
    call.arguments.push_back(
        {std::move(member.key), std::string(type_name(member.type)), std::move(member.text)});
  return {};
}

Result<ToolCall> read_call(const Json& json, const ChatStyle& style) {
  if (json.type != Type::object)
    return fail(Kind::caller, "{} tool calls must be mappings.", style.family);
  const Json* wrapped = json.find("function");
  const Json& function = wrapped != nullptr && wrapped->type == Type::object ? *wrapped : json;
  ToolCall call;
  KERN_TRY(id, read_string(json, "id"));
  KERN_TRY(name, read_string(function, "name"));
  call.id = std::move(id);
  call.name = std::move(name);
  KERN_TRY_VOID(read_arguments(function, style, call));
  return call;
}

Result<std::vector<ToolCall>> read_calls(const Json& message, const ChatStyle& style) {
  std::vector<ToolCall> calls;
  const Json* list = message.find_value("tool_calls");
  if (list == nullptr) return calls;
  if (list->type != Type::array)
    return fail(Kind::caller, "`tool_calls`: expected an array, got {}", type_name(list->type));
  for (size_t i = 0; i < list->items.size(); ++i) {
    KERN_TRY(call, with_context(read_call(list->items[i], style), "tool call {}", i + 1));
    calls.push_back(std::move(call));
  }
  return calls;
}

Result<Message> read_message(const Json& json, const ChatStyle& style) {
  if (json.type != Type::object)
    return fail(Kind::caller, "expected an object, got {}", type_name(json.type));
  Message message;
  KERN_TRY(role, read_string(json, "role"));
  message.role = std::move(role);
  KERN_TRY(content, read_content(json));
  message.content = std::move(content);
  KERN_TRY(name, read_string(json, "name"));
  message.name = std::move(name);
  KERN_TRY(reasoning_content, read_string(json, "reasoning_content"));
  KERN_TRY(reasoning, read_string(json, "reasoning"));
  const bool has_content = reasoning_content && !reasoning_content->empty();
  message.reasoning = std::move(has_content ? reasoning_content : reasoning);
  KERN_TRY(calls, read_calls(json, style));
  message.tool_calls = std::move(calls);
  KERN_TRY(tools, read_tools(json));
  message.tools = std::move(tools);
  KERN_TRY(tool, read_string(json, "tool"));
  message.tool = std::move(tool);
  KERN_TRY(call_id, read_string(json, json.find("tool_call_id") ? "tool_call_id" : "id"));
  message.tool_call_id = std::move(call_id);
  return message;
}

Result<void> read_tool_choice(const Json& root, ChatRequest& out) {
  const Json* choice = root.find_value("tool_choice");
  if (choice == nullptr) return {};
  if (choice->type == Type::object) {
    const Json* function = choice->find("function");
    const Json* name = function != nullptr ? function->find("name") : nullptr;
    if (name == nullptr || name->type != Type::string)
      return fail(Kind::caller, "`tool_choice`: expected `function.name` to be a string");
    out.tool_choice = ToolChoice::named;
    out.named_tool = name->text;
    return {};
  }
  if (choice->type == Type::string && choice->text == "auto") {
    out.tool_choice = ToolChoice::automatic;
  } else if (choice->type == Type::string && choice->text == "none") {
    out.tool_choice = ToolChoice::none;
  } else if (choice->type == Type::string && choice->text == "required") {
    out.tool_choice = ToolChoice::required;
  } else {
    return fail(Kind::caller, "`tool_choice`: expected auto, none, required or an object, got `{}`",
                choice->type == Type::string ? choice->text : type_name(choice->type));
  }
  return {};
}

Result<void> read_response_format(const Json& root, ChatRequest& out) {
  const Json* format = root.find_value("response_format");
  if (format == nullptr) return {};
  if (format->type != Type::object)
    return fail(Kind::caller, "`response_format`: expected an object, got {}",
                type_name(format->type));
  KERN_TRY(type, with_context(read_string(*format, "type"), "`response_format`"));
  if (!type || *type == "text") return {};
  if (*type == "json_object") {
    out.response_format = ResponseFormat::json_object;
    return {};
  }
  if (*type != "json_schema")
    return fail(Kind::caller,
                "`response_format`: expected type text, json_object or json_schema, got `{}`",
                *type);
  const Json* wrapper = format->find_value("json_schema");
  if (wrapper == nullptr) return fail(Kind::caller, "`response_format`: it has no `json_schema`");
  const Json* schema = wrapper->find("schema");
  if (schema == nullptr) schema = wrapper->find("json_schema");
  if (schema == nullptr) schema = wrapper;
  out.response_format = ResponseFormat::json_schema;
  out.response_schema = print_json(*schema, JsonStyle::sorted_compact);
  return {};
}

/// {"type": "enabled" | "disabled"} or a boolean.
Result<void> read_thinking(const Json& object, ChatRequest& out) {
  const Json* thinking = object.find_value("thinking");
  if (thinking == nullptr) return {};
  if (thinking->type == Type::boolean) {
    out.thinking = thinking->is_true();
    return {};
  }
  const Json* type = thinking->find("type");
  const bool is_string = type != nullptr && type->type == Type::string;
  if (!is_string || (type->text != "enabled" && type->text != "disabled"))
    return fail(Kind::caller, "`thinking`: expected type enabled or disabled, got `{}`",
                is_string ? std::string_view(type->text) : type_name(thinking->type));
  out.thinking = type->text == "enabled";
  return {};
}

/// `key` names the effort; an explicit null leaves the effort message out.
Result<void> read_effort(const Json& object, std::string_view key, bool null_leaves_out,
                         const ChatStyle& style, ChatRequest& out) {
  const Json* effort = object.find(key);
  if (effort == nullptr) return {};
  if (effort->type == Type::null) {
    if (null_leaves_out) out.effort.reset();
    return {};
  }
  const bool is_known =
      effort->type == Type::string && std::ranges::count(style.efforts, effort->text) > 0;
  if (!is_known)
    return fail(
        Kind::caller, "`{}`: expected one of {}, got `{}`", key, fmt::join(style.efforts, ", "),
        effort->type == Type::string ? std::string_view(effort->text) : type_name(effort->type));
  out.effort = effort->text;
  return {};
}

/// The later of these win: reasoning_effort, thinking, chat_template_kwargs.
Result<void> read_thoughts(const Json& root, const ChatStyle& style, ChatRequest& out) {
  KERN_ASSERT(!style.efforts.empty(), "a style without efforts");
  out.effort = style.default_effort;
  const Json* effort = root.find("reasoning_effort");
  if (effort != nullptr && effort->type == Type::string && effort->text == "none") {
    out.thinking = false;
  } else {
    KERN_TRY_VOID(read_effort(root, "reasoning_effort", false, style, out));
  }
  KERN_TRY_VOID(read_effort(root, "thinking_effort", true, style, out));
  KERN_TRY_VOID(read_thinking(root, out));
  const Json* extra = root.find_value("chat_template_kwargs");
  if (extra == nullptr) return {};
  if (extra->type != Type::object)
    return fail(Kind::caller, "`chat_template_kwargs`: expected an object, got {}",
                type_name(extra->type));
  KERN_TRY_VOID(with_context(read_effort(*extra, "thinking_effort", true, style, out),
                             "`chat_template_kwargs`"));
  KERN_TRY_VOID(with_context(read_thinking(*extra, out), "`chat_template_kwargs`"));
  return {};
}

}  // namespace

Result<ChatRequest> parse_chat_json(std::string_view json, const ChatStyle& style) {
  KERN_TRY(root, parse_json(json, "request"));
  if (root.type != Type::object)
    return fail(Kind::caller, "request: expected an object, got {}", type_name(root.type));
  const Json* messages = root.find_value("messages");
  if (messages == nullptr || messages->type != Type::array)
    return fail(Kind::caller, "`messages`: expected an array, got {}",
                messages == nullptr ? "none" : type_name(messages->type));
  if (messages->items.empty())
    return fail(Kind::caller, "`messages`: expected at least one, got none");
  ChatRequest out;
  for (size_t i = 0; i < messages->items.size(); ++i) {
    KERN_TRY(message, with_context(read_message(messages->items[i], style), "message {}", i + 1));
    out.messages.push_back(std::move(message));
  }
  KERN_TRY(tools, read_tools(root));
  out.tools = std::move(tools);
  KERN_TRY_VOID(read_tool_choice(root, out));
  KERN_TRY_VOID(read_response_format(root, out));
  KERN_TRY_VOID(read_thoughts(root, style, out));
  KERN_TRY(prompt, read_bool(root, "add_generation_prompt"));
  out.add_generation_prompt = prompt.value_or(true);
  return out;
}

}  // namespace kern::text
