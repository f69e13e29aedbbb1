#include "engine/text/prompter_hide.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace celer {
namespace {

using Json = nlohmann::ordered_json;

// Roles that templates know. Others are refused: "<|" + role + "|>" is how some templates write a control
// token.
constexpr std::array<std::string_view, 16> kRoles = {
    "system",    "developer",  "user",     "assistant",  "tool",        "function",
    "ipython",   "model",      "document", "documents",  "observation", "tool_response",
    "tool_call", "tool_calls", "context",  "environment"};

// Keys, and values of "type", that templates look for: a mark at their edge would hide them from the
// template.
constexpr std::array<std::string_view, 38> kFieldWords = {"role",        "content",
                                                          "type",        "text",
                                                          "name",        "function",
                                                          "functions",   "id",
                                                          "tool_calls",  "tool_call_id",
                                                          "arguments",   "parameters",
                                                          "properties",  "required",
                                                          "description", "enum",
                                                          "items",       "object",
                                                          "string",      "array",
                                                          "number",      "integer",
                                                          "boolean",     "null",
                                                          "reasoning",   "reasoning_content",
                                                          "thinking",    "image",
                                                          "image_url",   "input_text",
                                                          "output_text", "documents",
                                                          "title",       "default",
                                                          "anyOf",       "format",
                                                          "strict",      "return"};

template <size_t n>
bool IsOneOf(std::string_view text, const std::array<std::string_view, n>& words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

constexpr char32_t kFirstPrivate = 0x100000;  // U+100000 to U+10FFFD are for private use

}  // namespace

SpecialStrings::SpecialStrings(const Tokenizer& tokenizer, std::string_view template_source) {
  const auto take = [&](std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      const utf8::CodePoint c = utf8::Decode(text.substr(at));
      if (c.valid && c.value >= kFirstPrivate) taken_.insert(c.value);
      at += c.length;
    }
  };
  take(template_source);
  std::vector<std::string_view> strings;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (tokenizer.IsSpecial(id) && !tokenizer.Piece(id).empty()) strings.push_back(tokenizer.Piece(id));
  for (const std::string_view text : strings) {
    all_.Insert(text, 0);
    longest_ = std::max(longest_, text.size());
    take(text);
    for (size_t n = 1; n < text.size(); ++n) beginnings_.emplace(text.substr(0, n));
  }
  // A part of a template ends where an expression or a block begins, or at the quote of a string literal.
  std::set<std::string_view> opened;
  for (const std::string_view end : {"{{", "{%", "'", "\""})
    for (size_t at = 0; (at = template_source.find(end, at)) != std::string_view::npos; ++at)
      for (size_t n = 1; n <= std::min(at, longest_); ++n)
        if (const auto tail = template_source.substr(at - n, n); beginnings_.contains(tail))
          opened.insert(tail);
  for (const std::string_view begin : opened)
    for (const std::string_view text : strings)
      if (text.size() > begin.size() && text.starts_with(begin)) rests_.emplace(text.substr(begin.size()));
}

size_t SpecialStrings::LongestAt(std::string_view text) const {
  size_t longest = 0;
  all_.ForEachPrefix(text, [&](size_t length, int32_t) { longest = length; });
  return longest;
}

bool SpecialStrings::EndsWithSpecialPrefix(std::string_view text) const {
  for (size_t n = 1; n <= std::min(text.size(), longest_); ++n)
    if (beginnings_.contains(text.substr(text.size() - n))) return true;
  return false;
}

bool SpecialStrings::TemplateMayComplete(std::string_view text) const {
  return !text.empty() && std::any_of(rests_.begin(), rests_.end(), [&](const std::string& rest) {
    return rest.starts_with(text) || text.starts_with(rest);
  });
}

Status SpecialHider::HideMessages(Json* messages) {
  if (!messages->is_array()) return Hide(messages);
  for (Json& message : *messages) {
    Json role;
    if (message.is_object() && message.contains("role")) role = message["role"];
    CELER_RETURN_IF_ERROR(Hide(&message, 2));
    if (role.is_null()) continue;
    if (!role.is_string()) return Error::Invalid("a message's role must be a string, not ", role.type_name());
    const auto& name = role.get_ref<const std::string&>();
    if (!IsOneOf(name, kRoles)) {
      std::string known;
      for (const std::string_view one : kRoles) known += (known.empty() ? "" : ", ") + std::string(one);
      return Error::Invalid("a message's role is '", name.substr(0, 64), "', which is not one of ", known);
    }
    message["role"] = role;
  }
  return {};
}

Status SpecialHider::Hide(Json* value, int depth) {
  if (depth > kMaxDepth) return Error::Invalid("the conversation nests deeper than ", kMaxDepth, " levels");
  if (value->is_string()) {
    CELER_ASSIGN(std::string text, HideIn(value->get_ref<const std::string&>()));
    *value = std::move(text);
  } else if (value->is_array()) {
    for (Json& item : *value) CELER_RETURN_IF_ERROR(Hide(&item, depth + 1));
  } else if (value->is_object()) {
    Json out = Json::object();
    for (auto& [key, item] : value->items()) {
      std::string safe_key = key;
      if (!IsOneOf(key, kFieldWords)) {
        CELER_ASSIGN(safe_key, HideIn(key));
      }
      const bool known_type =
          key == "type" && item.is_string() && IsOneOf(item.get_ref<const std::string&>(), kFieldWords);
      if (!known_type) CELER_RETURN_IF_ERROR(Hide(&item, depth + 1));
      out[std::move(safe_key)] = std::move(item);
    }
    *value = std::move(out);
  }
  return {};
}

Result<std::string> SpecialHider::HideIn(std::string_view text) {
  std::string out;
  if (special_.TemplateMayComplete(text)) {
    CELER_ASSIGN(out, MarkFor(""));
  }
  for (size_t at = 0; at < text.size();) {
    size_t length = special_.LongestAt(text.substr(at));
    if (length == 0 && static_cast<unsigned char>(text[at]) == 0xF4) {  // how marks begin
      const utf8::CodePoint c = utf8::Decode(text.substr(at));
      if (c.valid && c.value >= kFirstMark) length = c.length;
    }
    if (length == 0) {
      out += text[at++];
      continue;
    }
    CELER_ASSIGN(const std::string mark, MarkFor(text.substr(at, length)));
    out += mark;
    at += length;
  }
  if (special_.EndsWithSpecialPrefix(text)) {
    CELER_ASSIGN(const std::string edge, MarkFor(""));
    out += edge;
  }
  return out;
}

Result<std::string> SpecialHider::MarkFor(std::string_view hidden) {
  auto it = marks_.find(hidden);
  if (it == marks_.end()) {
    while (special_.taken().contains(next_)) ++next_;
    if (next_ > kLastMark)
      return Error::Invalid("the conversation has more than ", marks_.size(),
                            " different control tokens and private-use characters in it");
    it = marks_.emplace(std::string(hidden), next_).first;
    hidden_.emplace(next_++, std::string(hidden));
  }
  std::string mark;
  utf8::Append(it->second, mark);
  return mark;
}

SpecialHider::Revealed SpecialHider::Reveal(std::string_view text) const {
  Revealed out;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) == 0xF4) {
      const utf8::CodePoint c = utf8::Decode(text.substr(at));
      if (const auto it = hidden_.find(c.value); c.valid && it != hidden_.end()) {
        const size_t begin = out.text.size();
        out.text += it->second;
        out.plain.push_back({begin, out.text.size()});
        at += c.length;
        continue;
      }
    }
    out.text += text[at++];
  }
  return out;
}

}  // namespace celer
