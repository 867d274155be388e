#pragma once
/// The chat renderer of the XTML format: a conversation becomes a list of segments, in which only
/// the four markers are control text; tag names, attributes and bodies are ordinary text, each
/// encoded by itself, so that nothing a client writes can become a control token. Thread safety:
/// pure functions over plain values. Determinism: depends on the request and the style alone. Does
/// not: tokenize, truncate, fetch images, or judge sampling parameters.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kern/text/tokenizer.h"

namespace kern::text {

inline constexpr std::string_view kOpenMarker = "<|open|>";
inline constexpr std::string_view kCloseMarker = "<|close|>";
inline constexpr std::string_view kSeparatorMarker = "<|sep|>";
inline constexpr std::string_view kEndMarker = "<|end_of_msg|>";

/// One argument of a past call: `text` is the decoded string, or the JSON literal of any other
/// type.
struct ToolArgument {
  std::string key;
  std::string type;  ///< string, number, boolean, null, object, array
  std::string text;
  friend bool operator==(const ToolArgument&, const ToolArgument&) = default;
};

struct ToolCall {
  std::optional<std::string> id;
  std::optional<std::string> name;
  std::vector<ToolArgument> arguments;
  std::optional<std::string> raw_arguments;  ///< text that is no JSON object; rendered as it is
};

struct Message {
  std::optional<std::string> role;   ///< system, user, assistant, tool
  std::vector<std::string> content;  ///< text parts
  std::optional<std::string> name;
  std::optional<std::string> reasoning;
  std::vector<ToolCall> tool_calls;
  std::optional<std::string> tools;  ///< sorted compact JSON: a system message that adds tools
  std::optional<std::string> tool;   ///< of a tool result: the tool's name
  std::optional<std::string> tool_call_id;  ///< of a tool result
};

enum class ToolChoice { automatic, none, required, named };
enum class ResponseFormat { text, json_object, json_schema };

struct ChatRequest {
  std::vector<Message> messages;
  std::optional<std::string> tools;  ///< sorted compact JSON of a non-empty array
  ToolChoice tool_choice = ToolChoice::automatic;
  std::string named_tool;  ///< when tool_choice is named
  ResponseFormat response_format = ResponseFormat::text;
  std::string response_schema;  ///< sorted compact JSON, when response_format is json_schema
  bool thinking = true;
  std::optional<std::string> effort;  ///< nothing: the effort message is left out
  bool add_generation_prompt = true;
};

/// What the format leaves to the model family that uses it.
struct ChatStyle {
  std::string family;  ///< named in error sentences, as in "<family> messages require a role."
  std::vector<std::string> efforts = {"low", "high", "max"};
  std::string default_effort = "max";
};

/// Reads the chat part of a request body: messages, tools, tool_choice, response_format,
/// reasoning_effort ("none" turns thinking off), thinking ({"type": "enabled" | "disabled"} or a
/// bool), thinking_effort, chat_template_kwargs {thinking, thinking_effort}, add_generation_prompt.
/// Other keys are ignored. Numbers keep their literal text. Failures are kind caller and name the
/// place.
Result<ChatRequest> parse_chat_json(std::string_view json, const ChatStyle& style);

/// The conversation as segments; a missing role, an unknown role or effort, a call without a name
/// and a tool result nobody can name fail with kind caller and the context "message N", counted
/// from 1.
Result<std::vector<Segment>> render_chat(const ChatRequest& request, const ChatStyle& style);

/// The segments' text joined: what the model sees, spelled out.
std::string join(std::span<const Segment> segments);

}  // namespace kern::text
