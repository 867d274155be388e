#include "kern/text/tool_calls.h"

#include <algorithm>
#include <utility>

#include "kern/base/assert.h"
#include "kern/text/chat.h"
#include "kern/text/json_text.h"

namespace kern::text {
namespace {

constexpr std::string_view kBlanks = " \t\n\r";
constexpr std::string_view kMarkerTexts[] = {kOpenMarker, kCloseMarker, kSeparatorMarker,
                                             kEndMarker};

std::string unescape_attribute(std::string_view value) {
  std::string out(value);
  // &quot; first: `&amp;quot;` stands for the five letters.
  for (const auto& [from, to] :
       {std::pair<std::string_view, std::string_view>{"&quot;", "\""}, {"&amp;", "&"}}) {
    for (size_t at = out.find(from); at != std::string::npos; at = out.find(from, at + to.size()))
      out.replace(at, from.size(), to);
  }
  return out;
}

/// The value of `key="…"` in a tag's attributes; empty when it is not there.
std::string find_attribute(std::string_view attributes, std::string_view key) {
  while (true) {
    const size_t equals = attributes.find("=\"");
    if (equals == std::string_view::npos) return {};
    const size_t end = attributes.find('"', equals + 2);
    if (end == std::string_view::npos) return {};
    const std::string_view before = attributes.substr(0, equals);
    const size_t blank = before.find_last_of(kBlanks);
    const std::string_view name =
        blank == std::string_view::npos ? before : before.substr(blank + 1);
    if (name == key) return unescape_attribute(attributes.substr(equals + 2, end - equals - 2));
    attributes.remove_prefix(end + 1);
  }
}

/// A tag's leading name and what follows it.
std::pair<std::string_view, std::string_view> split_tag(std::string_view tag) {
  const size_t start = std::min(tag.find_first_not_of(kBlanks), tag.size());
  tag.remove_prefix(start);
  const size_t end = std::min(tag.find_first_of(" \t\n\r"), tag.size());
  return {tag.substr(0, end), tag.substr(end)};
}

}  // namespace

OutputParser::OutputParser(OutputStart start)
    : place_(start == OutputStart::think      ? Place::think
             : start == OutputStart::response ? Place::response
                                              : Place::before) {}

void OutputParser::text(std::string_view delta, std::vector<OutputEvent>& events) {
  if (place_ == Place::done || delta.empty()) return;
  if (tag_ == Tag::none) {
    body(delta, events);
  } else {
    tag_text_ += delta.substr(0, kTagBytesMax - std::min(kTagBytesMax, tag_text_.size()));
  }
}

void OutputParser::marker(Marker marker, std::vector<OutputEvent>& events) {
  if (place_ == Place::done) return;
  switch (marker) {
    case Marker::separator:
      // Alone it means nothing; inside a value it may be what the model wanted to say.
      if (tag_ == Tag::none) {
        if (place_ == Place::argument || place_ == Place::json) body(kSeparatorMarker, events);
        return;
      }
      end_tag(true, events);
      return;
    case Marker::open:
    case Marker::close:
      end_tag(false, events);
      tag_ = marker == Marker::open ? Tag::open : Tag::close;
      return;
    case Marker::end:
      end_tag(false, events);
      place_ = Place::done;
      return;
  }
}

void OutputParser::finish(std::vector<OutputEvent>& events) {
  if (place_ == Place::done) return;
  end_tag(false, events);
  place_ = Place::done;
}

void OutputParser::body(std::string_view text, std::vector<OutputEvent>& events) {
  switch (place_) {
    case Place::think:
      events.emplace_back(ReasoningDelta{std::string(text)});
      return;
    case Place::response:
      events.emplace_back(ContentDelta{std::string(text)});
      return;
    case Place::before: {
      // An answer that opened no channel is still an answer.
      const size_t start = text.find_first_not_of(kBlanks);
      if (start == std::string_view::npos) return;
      place_ = Place::response;
      events.emplace_back(ContentDelta{std::string(text.substr(start))});
      return;
    }
    case Place::argument:
      KERN_ASSERT(!arguments_.empty());
      arguments_.back().text += text;
      return;
    case Place::json:
      raw_arguments_ += text;
      return;
    default:
      return;
  }
}

/// Inside a value only the tags that end it are tags; any other is part of the value.
bool OutputParser::tag_is_body(std::string_view name) const {
  if (place_ != Place::argument && place_ != Place::json) return false;
  if (tag_ == Tag::open) return true;
  const bool ends_it = name == (place_ == Place::argument ? "argument" : "json");
  return !ends_it && name != "call" && name != "tools" && name != "message";
}

void OutputParser::end_tag(bool separated, std::vector<OutputEvent>& events) {
  if (tag_ == Tag::none) return;
  const std::string tag_text = std::exchange(tag_text_, {});
  const auto [name, rest] = split_tag(tag_text);
  const Tag tag = tag_;
  KERN_ASSERT(tag_text.size() <= kTagBytesMax, "{} bytes", tag_text.size());
  if (tag_is_body(name)) {
    tag_ = Tag::none;
    body(tag == Tag::open ? kOpenMarker : kCloseMarker, events);
    body(tag_text, events);
    if (separated) body(kSeparatorMarker, events);
    return;
  }
  tag_ = Tag::none;
  if (tag == Tag::close) {
    close_tag(name, events);
    return;
  }
  open_tag(name, rest);
  // Without a separator the text of a channel ran into its tag.
  const bool is_channel = name == "think" || name == "response";
  if (!separated && is_channel && !rest.empty()) body(rest, events);
}

void OutputParser::open_tag(std::string_view name, std::string_view attributes) {
  if (name == "think") {
    place_ = Place::think;
  } else if (name == "response") {
    place_ = Place::response;
  } else if (name == "tools") {
    // Only the first section counts.
    tools_over_ = tools_seen_;
    tools_seen_ = true;
    place_ = tools_over_ ? Place::other : Place::tools;
  } else if (name == "call" && !tools_over_) {
    tools_seen_ = true;
    place_ = Place::call;
    call_name_ = find_attribute(attributes, "tool");
    arguments_.clear();
    raw_arguments_.clear();
    has_raw_arguments_ = false;
  } else if (name == "argument" && place_ == Place::call) {
    place_ = Place::argument;
    arguments_.push_back(
        {find_attribute(attributes, "key"), find_attribute(attributes, "type"), {}});
  } else if (name == "json" && place_ == Place::call) {
    place_ = Place::json;
    has_raw_arguments_ = true;
    raw_arguments_.clear();
  } else if (place_ != Place::think && place_ != Place::response && place_ != Place::before) {
    place_ = Place::other;
  }
}

void OutputParser::close_tag(std::string_view name, std::vector<OutputEvent>& events) {
  const bool in_call = place_ == Place::call || place_ == Place::argument || place_ == Place::json;
  if (in_call && (name == "argument" || name == "json")) {
    place_ = Place::call;
  } else if (in_call && name == "call") {
    end_call(events);
    place_ = Place::tools;
  } else if (name == "think" && place_ == Place::think) {
    place_ = Place::before;
  } else if (name == "tools" || name == "message") {
    tools_over_ = tools_over_ || (name == "tools" && tools_seen_);
    place_ = Place::between;
  } else if (name == "response" || place_ == Place::other) {
    place_ = Place::between;
  }
}

void OutputParser::end_call(std::vector<OutputEvent>& events) {
  KERN_ASSERT(!tools_over_);
  if (call_name_.empty()) return;
  events.emplace_back(CalledTool{calls_++, std::exchange(call_name_, {}), call_arguments()});
}

std::string OutputParser::call_arguments() const {
  KERN_ASSERT(has_raw_arguments_ || raw_arguments_.empty());
  if (has_raw_arguments_) return raw_arguments_;
  std::string out = "{";
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& argument = arguments_[i];
    // Of a repeated key the last value counts, at its first place.
    const auto same_key = [&](const Argument& other) { return other.key == argument.key; };
    const auto begin = arguments_.begin();
    if (std::any_of(begin, begin + static_cast<std::ptrdiff_t>(i), same_key)) continue;
    const std::string& text =
        std::ranges::find_if(arguments_.rbegin(), arguments_.rend(), same_key)->text;
    const std::string& type =
        std::ranges::find_if(arguments_.rbegin(), arguments_.rend(), same_key)->type;
    if (out.size() > 1) out += ", ";
    out += quote_json(argument.key) + ": ";
    out += type != "string" && is_json(text) ? text : quote_json(text);
  }
  return out + "}";
}

OutputReader::OutputReader(const Tokenizer& tokenizer, OutputStart start)
    : detokenizer_(tokenizer, Specials::skip), parser_(start) {
  for (size_t i = 0; i < std::size(kMarkerTexts); ++i)
    marker_ids_[i] = tokenizer.find_special(kMarkerTexts[i]).value_or(-1);
}

std::vector<OutputEvent> OutputReader::push(TokenId id) {
  std::vector<OutputEvent> events;
  const auto* found = std::ranges::find(marker_ids_, id);
  if (id < 0 || found == std::end(marker_ids_)) {
    parser_.text(detokenizer_.push(id), events);
    return events;
  }
  parser_.text(detokenizer_.finish(), events);
  parser_.marker(static_cast<Marker>(found - std::begin(marker_ids_)), events);
  return events;
}

std::vector<OutputEvent> OutputReader::finish() {
  std::vector<OutputEvent> events;
  parser_.text(detokenizer_.finish(), events);
  parser_.finish(events);
  return events;
}

void Output::add(const OutputEvent& event) {
  if (const auto* thought = std::get_if<ReasoningDelta>(&event)) reasoning += thought->text;
  if (const auto* answer = std::get_if<ContentDelta>(&event)) content += answer->text;
  if (const auto* call = std::get_if<CalledTool>(&event)) calls.push_back(*call);
}

Output read_output(const Tokenizer& tokenizer, std::span<const TokenId> ids, OutputStart start) {
  OutputReader reader(tokenizer, start);
  Output out;
  for (const TokenId id : ids) {
    for (const OutputEvent& event : reader.push(id)) out.add(event);
  }
  for (const OutputEvent& event : reader.finish()) out.add(event);
  return out;
}

}  // namespace kern::text
