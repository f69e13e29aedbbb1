#include "server/api/answer_parser.h"

#include <algorithm>

#include "io/json/json_scan.h"
#include "io/json/ordered_json.h"

namespace celer::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr JsonLimits kCallLimits{.max_bytes = size_t{1} << 20, .max_depth = 64};
constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCallTag = "<tool_call>", kCallEnd = "</tool_call>", kBracketTag = "[TOOL_CALLS]";

bool IsSpace(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// Length of the longest suffix of text that is a proper prefix of tag.
size_t Overlap(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == tag.substr(0, n)) return n;
  return 0;
}

// One call: its name and its arguments as JSON text. False if `json` is not a call.
bool ReadCall(const Json& json, Part* part) {
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string()) return false;
  const char* field = json.contains("arguments") ? "arguments" : "parameters";
  Json arguments = json.value(field, Json::object());
  if (arguments.is_string()) arguments = Json::parse(arguments.get_ref<const std::string&>(), nullptr, false);
  if (!arguments.is_object()) return false;
  part->kind = Part::Kind::kCall;
  part->name = json["name"].get<std::string>();
  part->text = arguments.dump(-1, ' ', false, Json::error_handler_t::replace);
  return true;
}

// The end of the object or array that `text` begins with: behind its closing bracket, or npos if it is
// incomplete.
size_t FindJsonEnd(std::string_view text) {
  int depth = 0;
  size_t end = std::string_view::npos;
  ForEachOutsideStrings(text, [&](size_t i, char c) {
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth <= 0) end = i + 1;
    return end == std::string_view::npos;
  });
  return end;
}

void SkipSpace(std::string_view* text) {
  while (!text->empty() && IsSpace(text->front())) text->remove_prefix(1);
}

bool Skip(std::string_view what, std::string_view* text) {
  SkipSpace(text);
  if (!text->starts_with(what)) return false;
  text->remove_prefix(what.size());
  return true;
}

// {"name": "f", "arguments": {"x": 1 -- an incomplete call. False unless its name is complete.
bool ReadPartialCall(std::string_view text, Part* part) {
  if (!Skip("{", &text) || !Skip("\"name\"", &text) || !Skip(":", &text) || !Skip("\"", &text)) return false;
  size_t end = 0;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  if (end >= text.size()) return false;
  const Json name = Json::parse("\"" + std::string(text.substr(0, end + 1)), nullptr, false);
  if (!name.is_string()) return false;
  *part = {.kind = Part::Kind::kCall, .name = name.get<std::string>(), .partial = true};
  text.remove_prefix(end + 1);
  if (!Skip(",", &text) || !(Skip("\"arguments\"", &text) || Skip("\"parameters\"", &text)) ||
      !Skip(":", &text))
    return true;  // none yet
  SkipSpace(&text);
  if (const size_t whole = FindJsonEnd(text); whole != std::string_view::npos) {
    text = text.substr(0, whole);
    part->partial = false;  // the arguments are complete, only the call's closing bracket is missing
  }
  part->text = text;
  return true;
}

}  // namespace

nlohmann::ordered_json ParsePartialObject(std::string_view text) {
  // Positions at which the text could be truncated and closed, with the closing brackets.
  size_t good = 0;
  std::string open, good_open;
  ForEachOutsideStrings(text, [&](size_t i, char c) {
    if (c == '{' || c == '[') open.insert(open.begin(), c == '{' ? '}' : ']');
    if (std::ssize(open) > kCallLimits.max_depth) return false;
    if ((c == '}' || c == ']') && !open.empty()) open.erase(open.begin());
    const bool after = c == '{' || c == '[' || c == '}' || c == ']';
    if (!after && c != ',') return true;
    good = i + (after ? 1 : 0);
    good_open = open;
    return true;
  });
  auto json = ParseOrderedJson(std::string(text.substr(0, good)) + good_open, "a call", kCallLimits);
  return json && json->is_object() ? std::move(*json) : Json::object();
}

ToolStyle ToolStyleOf(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != std::string_view::npos; };
  if (!has("tools")) return ToolStyle::kNone;
  if (has(kCallTag)) return ToolStyle::kTags;
  if (has(kBracketTag)) return ToolStyle::kBracket;
  if (has("\"parameters\"") || has("python_tag")) return ToolStyle::kJson;
  return ToolStyle::kNone;
}

bool HasReasoning(std::string_view chat_template) {
  return chat_template.find(kThinkEnd) != std::string_view::npos;
}

AnswerParts::AnswerParts(PartsOptions options) : options_(std::move(options)) {
  if (options_.reasoning && options_.starts_in_reasoning) {
    where_ = Where::kReasoning;
    trim_ = true;
  } else if (!options_.reasoning) {
    where_ = options_.tools == ToolStyle::kJson ? Where::kStart : Where::kContent;
  }
}

std::vector<Part> AnswerParts::Push(std::string_view text) {
  std::vector<Part> out;
  held_ += text;
  Advance(false, &out);
  return out;
}

std::vector<Part> AnswerParts::Finish(bool truncated) {
  std::vector<Part> out;
  truncated_ = truncated;
  // With a forced call, text before its first bracket is the beginning of the call.
  const bool before_call = where_ == Where::kContent || where_ == Where::kStart;
  if (options_.must_call && truncated && before_call && held_.find('{') == std::string::npos) held_.clear();
  Advance(true, &out);
  if (truncated && options_.must_call && where_ != Where::kReasoning && !called_ &&
      !options_.only_tool.empty())
    EmitCall({.kind = Part::Kind::kCall, .name = options_.only_tool, .partial = true}, &out);
  return out;
}

void AnswerParts::Emit(Part::Kind kind, std::string_view text, std::vector<Part>* out) {
  if (trim_) {
    while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
    if (text.empty()) return;
    trim_ = false;
  }
  if (text.empty()) return;
  if (!out->empty() && out->back().kind == kind)
    out->back().text += text;
  else
    out->push_back({.kind = kind, .text = std::string(text)});
}

bool AnswerParts::EmitCalls(std::string_view text, std::vector<Part>* out) {
  const auto parsed = ParseOrderedJson(text, "a call", kCallLimits);
  if (!parsed) return false;
  std::vector<Part> calls;
  const Json list = parsed->is_array() ? *parsed : Json::array({*parsed});
  for (const Json& one : list)
    if (!ReadCall(one, &calls.emplace_back())) return false;
  if (calls.empty()) return false;
  for (Part& call : calls) EmitCall(std::move(call), out);
  return true;
}

void AnswerParts::EmitCall(Part call, std::vector<Part>* out) {
  if (called_ && !options_.parallel) return;
  called_ = true;
  out->push_back(std::move(call));
}

// Calls, the last of which is partial. True if nothing is left to emit as text.
bool AnswerParts::EmitPartialCalls(std::string_view text, std::vector<Part>* out) {
  if (!truncated_) return false;
  SkipSpace(&text);
  if (options_.tools == ToolStyle::kBracket) Skip("[", &text);
  std::vector<Part> calls;
  while (SkipSpace(&text), !text.empty()) {
    const size_t end = FindJsonEnd(text);
    Part& call = calls.emplace_back();
    const bool whole = end != std::string_view::npos;
    bool read = false;
    if (whole) {
      const auto json = ParseOrderedJson(text.substr(0, end), "a call", kCallLimits);
      read = json && ReadCall(*json, &call);
    } else {
      read = ReadPartialCall(text, &call);
    }
    // An answer in JSON may have a name, too.
    if (!options_.must_call && options_.tools == ToolStyle::kJson) read = read && !call.text.empty();
    if (!read) {
      calls.pop_back();
      if (!options_.must_call) return false;
      break;
    }
    text = whole ? text.substr(end) : std::string_view();
    Skip(",", &text);
  }
  if (calls.empty() && !options_.must_call) return false;
  for (Part& call : calls) EmitCall(std::move(call), out);
  return true;
}

bool AnswerParts::Until(std::string_view tag, Part::Kind kind, bool last, std::vector<Part>* out) {
  const size_t at = held_.find(tag);
  if (at != std::string::npos) {
    std::string_view before = std::string_view(held_).substr(0, at);
    // The line break that stands before a tag belongs to it.
    while (!before.empty() && IsSpace(before.back())) before.remove_suffix(1);
    Emit(kind, before, out);
    held_.erase(0, at + tag.size());
    return true;
  }
  size_t keep = last ? 0 : Overlap(held_, tag);
  // White space may stand before a tag that is still to come.
  if (!last)
    while (keep < held_.size() && IsSpace(held_[held_.size() - keep - 1])) ++keep;
  Emit(kind, std::string_view(held_).substr(0, held_.size() - keep), out);
  held_.erase(0, held_.size() - keep);
  return false;
}

void AnswerParts::Advance(bool last, std::vector<Part>* out) {
  while (true) {
    switch (where_) {
      case Where::kStart: {
        const size_t first =
            static_cast<size_t>(std::find_if_not(held_.begin(), held_.end(), IsSpace) - held_.begin());
        const std::string_view rest = std::string_view(held_).substr(first);
        if (rest.empty() && !last) return;
        if (options_.reasoning) {
          if (rest.starts_with(kThink)) {
            held_.erase(0, first + kThink.size());
            where_ = Where::kReasoning;
            trim_ = true;
            continue;
          }
          if (!last && kThink.starts_with(rest)) return;
        }
        const bool whole = options_.tools == ToolStyle::kJson && rest.starts_with('{');
        where_ = whole ? Where::kWhole : Where::kContent;
        continue;
      }
      case Where::kReasoning:
        if (!Until(kThinkEnd, Part::Kind::kReasoning, last, out)) return;
        options_.reasoning = false;
        trim_ = true;
        where_ = options_.tools == ToolStyle::kJson ? Where::kStart : Where::kContent;
        continue;
      case Where::kContent: {
        if (options_.tools != ToolStyle::kTags && options_.tools != ToolStyle::kBracket) {
          Emit(Part::Kind::kContent, held_, out);
          held_.clear();
          return;
        }
        const bool tags = options_.tools == ToolStyle::kTags;
        // White space around calls is not content.
        if (called_ && std::all_of(held_.begin(), held_.end(), IsSpace)) {
          if (last) held_.clear();
          return;
        }
        if (!Until(tags ? kCallTag : kBracketTag, Part::Kind::kContent, last, out)) return;
        where_ = tags ? Where::kCall : Where::kWhole;
        continue;
      }
      case Where::kCall: {
        const size_t end = held_.find(kCallEnd);
        if (end == std::string::npos && !last) return;
        const std::string json = held_.substr(0, end);
        const bool ended = end != std::string::npos;
        held_.erase(0, ended ? end + kCallEnd.size() : held_.size());
        where_ = Where::kContent;
        if (EmitCalls(json, out) || (!ended && EmitPartialCalls(json, out))) {
          trim_ = true;
        } else {  // not a call after all: emitted as text
          Emit(Part::Kind::kContent, std::string(kCallTag) + json + (ended ? std::string(kCallEnd) : ""),
               out);
        }
        if (last && held_.empty()) return;
        continue;
      }
      case Where::kWhole:
        if (!last) return;
        if (!EmitCalls(held_, out) && !EmitPartialCalls(held_, out))
          Emit(Part::Kind::kContent,
               (options_.tools == ToolStyle::kBracket ? std::string(kBracketTag) : "") + held_, out);
        held_.clear();
        return;
    }
  }
}

}  // namespace celer::server
