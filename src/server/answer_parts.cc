#include "server/answer_parts.h"

#include <algorithm>

#include "io/ordered_json.h"

namespace celer::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCallTag = "<tool_call>", kCallEnd = "</tool_call>", kBracketTag = "[TOOL_CALLS]";

bool IsSpace(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// How many of the last bytes of text may be the beginning of tag.
size_t Overlap(std::string_view text, std::string_view tag) {
  for (size_t n = std::min(text.size(), tag.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == tag.substr(0, n)) return n;
  return 0;
}

// One call: its name and its arguments as JSON text. False if it is none.
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

}  // namespace

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

AnswerParts::AnswerParts(PartsOptions options) : options_(options) {
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

std::vector<Part> AnswerParts::Finish() {
  std::vector<Part> out;
  Advance(true, &out);
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
  const auto parsed = ParseOrderedJson(text, "a call", {.max_bytes = size_t{1} << 20, .max_depth = 64});
  if (!parsed) return false;
  std::vector<Part> calls;
  const Json list = parsed->is_array() ? *parsed : Json::array({*parsed});
  for (const Json& one : list)
    if (!ReadCall(one, &calls.emplace_back())) return false;
  if (calls.empty()) return false;
  called_ = true;
  out->insert(out->end(), calls.begin(), calls.end());
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
        if (EmitCalls(json, out)) {
          trim_ = true;
        } else {  // no call after all: it stays what the model said
          Emit(Part::Kind::kContent, std::string(kCallTag) + json + (ended ? std::string(kCallEnd) : ""),
               out);
        }
        if (last && held_.empty()) return;
        continue;
      }
      case Where::kWhole:
        if (!last) return;
        if (!EmitCalls(held_, out))
          Emit(Part::Kind::kContent,
               (options_.tools == ToolStyle::kBracket ? std::string(kBracketTag) : "") + held_, out);
        held_.clear();
        return;
    }
  }
}

}  // namespace celer::server
