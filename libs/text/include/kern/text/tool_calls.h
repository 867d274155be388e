#pragma once
/// Reads what a model writes in the XTML format: ids (or text and markers) in, deltas of reasoning
/// and content and whole tool calls out. Tolerant where models are sloppy: a channel marker ends a
/// thought that was not closed, a marker that lost its separator still counts, one that is cut off
/// at the end never leaks, and nothing behind the end of the message is read. However the output is
/// cut into pieces, the events joined are the same. Thread safety: one thread each. Ownership /
/// lifetime: an OutputReader's tokenizer must outlive it. Determinism: depends on the ids alone.
/// Does not: know which tools exist, check arguments against a schema, or invent call ids.

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kern/text/detokenizer.h"

namespace kern::text {

struct ReasoningDelta {
  std::string text;
  friend bool operator==(const ReasoningDelta&, const ReasoningDelta&) = default;
};
struct ContentDelta {
  std::string text;
  friend bool operator==(const ContentDelta&, const ContentDelta&) = default;
};
/// A call whose closing tag was seen.
struct CalledTool {
  int32_t index = 0;  ///< counted from 0 in the order of the output
  std::string name;
  std::string arguments;  ///< a JSON object; literals of numbers as the model wrote them
  friend bool operator==(const CalledTool&, const CalledTool&) = default;
};
using OutputEvent = std::variant<ReasoningDelta, ContentDelta, CalledTool>;

/// Where the prompt left off: inside an opened think or response channel, or inside none.
enum class OutputStart { think, response, outside };
enum class Marker { open, close, separator, end };

/// The grammar alone: text deltas and markers in.
class OutputParser {
 public:
  static constexpr size_t kTagBytesMax = 65536;  ///< what lies behind in an unclosed tag is dropped

  explicit OutputParser(OutputStart start);
  void text(std::string_view delta, std::vector<OutputEvent>& events);
  void marker(Marker marker, std::vector<OutputEvent>& events);
  /// The output ends here, whole or cut; a call without its closing tag is dropped.
  void finish(std::vector<OutputEvent>& events);
  /// The message is over: nothing that follows is read.
  bool done() const { return place_ == Place::done; }

 private:
  enum class Place { think, response, before, between, tools, call, argument, json, other, done };
  enum class Tag { none, open, close };
  struct Argument {
    std::string key;
    std::string type;
    std::string text;
  };

  void body(std::string_view text, std::vector<OutputEvent>& events);
  void end_tag(bool separated, std::vector<OutputEvent>& events);
  void open_tag(std::string_view name, std::string_view attributes);
  void close_tag(std::string_view name, std::vector<OutputEvent>& events);
  bool tag_is_body(std::string_view name) const;
  void end_call(std::vector<OutputEvent>& events);
  std::string call_arguments() const;

  Place place_;
  Tag tag_ = Tag::none;
  std::string tag_text_;
  bool tools_seen_ = false;
  bool tools_over_ = false;
  int32_t calls_ = 0;
  std::string call_name_;
  std::vector<Argument> arguments_;
  std::string raw_arguments_;
  bool has_raw_arguments_ = false;
};

/// Ids in, events out: a detokenizer and the grammar. Only ids of the markers are markers; their
/// spelling in ordinary text is text.
class OutputReader {
 public:
  OutputReader(const Tokenizer& tokenizer, OutputStart start);
  std::vector<OutputEvent> push(TokenId id);
  std::vector<OutputEvent> finish();
  bool done() const { return parser_.done(); }

 private:
  Detokenizer detokenizer_;
  OutputParser parser_;
  TokenId marker_ids_[4];  ///< by Marker; -1 where the vocabulary has none
};

/// A whole answer.
struct Output {
  std::string reasoning;
  std::string content;
  std::vector<CalledTool> calls;
  void add(const OutputEvent& event);
  friend bool operator==(const Output&, const Output&) = default;
};
/// The same as pushing every id and joining the events.
Output read_output(const Tokenizer& tokenizer, std::span<const TokenId> ids, OutputStart start);

}  // namespace kern::text
