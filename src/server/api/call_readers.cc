#include "server/api/call_readers.h"

#include <algorithm>

#include "io/json/json_scan.h"
#include "io/json/ordered_json.h"

namespace celer::server {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// One call: its name and its arguments as JSON text. False if `json` is not a call.
bool ReadCall(const Json& json, Part* part) {
  if (!json.is_object()) return false;
  const char* const name = json.contains("name") ? "name" : "tool_name";
  if (!json.contains(name) || !json[name].is_string()) return false;
  const char* const field = json.contains("arguments") ? "arguments" : "parameters";
  Json arguments = json.value(field, Json::object());
  if (arguments.is_string()) arguments = Json::parse(arguments.get_ref<const std::string&>(), nullptr, false);
  if (!arguments.is_object()) return false;
  *part = {.kind = Part::Kind::kCall, .text = Dump(arguments), .name = json[name].get<std::string>()};
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

// Skips a JSON string. False if it is incomplete.
bool TakeString(std::string_view* text, std::string* value) {
  if (!Skip("\"", text)) return false;
  size_t end = 0;
  while (end < text->size() && (*text)[end] != '"') end += (*text)[end] == '\\' ? 2 : 1;
  if (end >= text->size()) return false;
  const Json json = Json::parse("\"" + std::string(text->substr(0, end + 1)), nullptr, false);
  if (!json.is_string()) return false;
  *value = json.get<std::string>();
  text->remove_prefix(end + 1);
  return true;
}

// {"name": "f", "arguments": {"x": 1 -- an incomplete call. False unless its name is complete.
bool ReadPartialCall(std::string_view text, Part* part) {
  std::string id, name;
  if (!Skip("{", &text)) return false;
  // Cohere numbers its calls.
  if (Skip("\"tool_call_id\"", &text) && !(Skip(":", &text) && TakeString(&text, &id) && Skip(",", &text)))
    return false;
  if (!(Skip("\"name\"", &text) || Skip("\"tool_name\"", &text)) || !Skip(":", &text) ||
      !TakeString(&text, &name))
    return false;
  *part = {.kind = Part::Kind::kCall, .name = std::move(name), .partial = true};
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

// Calls one after the other; with `cut` the last may be partial.
bool ReadEachCall(std::string_view text, bool cut, std::vector<Part>* calls) {
  Skip("[", &text);
  while (SkipSpace(&text), !text.empty()) {
    const size_t end = FindJsonEnd(text);
    const bool whole = end != std::string_view::npos;
    Part call;
    bool read = false;
    if (whole) {
      const auto json = ParseOrderedJson(text.substr(0, end), "a call", kCallLimits);
      read = json && ReadCall(*json, &call);
    } else if (cut) {
      read = ReadPartialCall(text, &call);
    }
    if (!read) return false;
    calls->push_back(std::move(call));
    text = whole ? text.substr(end) : std::string_view();
    Skip(",", &text);
  }
  return !calls->empty();
}

// Whether the schema of an argument allows values of a type; true if it does not say.
bool Allows(const Json& schema, std::string_view type) {
  const auto it = schema.find("type");
  if (it == schema.end()) {
    for (const char* const any : {"anyOf", "oneOf"})
      if (const auto choices = schema.find(any); choices != schema.end() && choices->is_array())
        return std::any_of(choices->begin(), choices->end(),
                           [&](const Json& one) { return one.is_object() && Allows(one, type); });
    return true;
  }
  if (it->is_array()) return std::find(it->begin(), it->end(), Json(type)) != it->end();
  return *it == type;
}

const char* TypeOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::object:
      return "object";
    case Json::value_t::array:
      return "array";
    case Json::value_t::boolean:
      return "boolean";
    case Json::value_t::null:
      return "null";
    case Json::value_t::number_float:
      return "number";
    default:
      return value.is_number() ? "integer" : "string";
  }
}

// The schema of an argument of one of the tools, or null.
const Json& SchemaOf(const Json& tools, std::string_view function, const std::string& key) {
  static const Json kNone;
  if (!tools.is_array()) return kNone;
  for (const Json& tool : tools) {
    if (!tool.is_object() || !tool.contains("function")) continue;
    const Json& fields = tool["function"];
    if (!fields.is_object() || !fields.contains("name") || fields["name"] != function) continue;
    const Json* schema = &fields;
    for (const std::string& field : {std::string("parameters"), std::string("properties"), key}) {
      const auto it = schema->find(field);
      if (it == schema->end() || !it->is_object()) return kNone;
      schema = &*it;
    }
    return *schema;
  }
  return kNone;
}

}  // namespace

bool IsSpace(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

std::string_view StripSpace(std::string_view text) {
  SkipSpace(&text);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
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

bool TakeUntil(std::string_view end, std::string_view* text, std::string_view* before) {
  const size_t at = text->find(end);
  if (at == std::string_view::npos) return false;
  *before = text->substr(0, at);
  text->remove_prefix(at + end.size());
  return true;
}

bool IsFunctionName(std::string_view name) {
  constexpr size_t kLongest = 256;
  return !name.empty() && name.size() <= kLongest && std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' || c == '/' ||
           c == ':';
  });
}

void AddCall(std::string_view name, const Json& arguments, bool partial, std::vector<Part>* calls) {
  std::string text = Dump(arguments.is_object() ? arguments : Json::object());
  if (partial) {
    text.pop_back();
    if (!arguments.empty()) text += ',';  // what is there is complete
  }
  calls->push_back(
      {.kind = Part::Kind::kCall, .text = std::move(text), .name = std::string(name), .partial = partial});
}

bool AddJsonCall(std::string_view name, std::string_view json, bool cut, std::vector<Part>* calls) {
  if (!IsFunctionName(name)) return false;
  json = StripSpace(json);
  if (const auto arguments = ParseOrderedJson(json, "a call", kCallLimits);
      arguments && arguments->is_object()) {
    AddCall(name, *arguments, false, calls);
    return true;
  }
  if (!cut || !(json.empty() || json.starts_with('{'))) return false;
  const size_t end = FindJsonEnd(json);
  if (end != std::string_view::npos && ParseOrderedJson(json.substr(0, end), "a call", kCallLimits))
    return AddJsonCall(name, json.substr(0, end), false, calls);
  calls->push_back(
      {.kind = Part::Kind::kCall, .text = std::string(json), .name = std::string(name), .partial = true});
  return true;
}

Json UnquotedArgument(std::string_view text, const Json& tools, std::string_view function,
                      const std::string& key) {
  const Json& schema = SchemaOf(tools, function, key);
  const bool known = schema.is_object();
  if (known && Allows(schema, "string") && schema.contains("type") && schema["type"].is_string())
    return std::string(text);
  const std::string_view bare = StripSpace(text);
  if (bare == "True" || bare == "False") return bare == "True";
  if (bare == "None") return nullptr;
  auto value = ParseOrderedJson(bare, "an argument", kCallLimits);
  if (!value || value->is_string()) return std::string(text);
  const char* const type = TypeOf(*value);
  const bool fits = !known || Allows(schema, type) || (value->is_number() && Allows(schema, "number"));
  return fits || !Allows(schema, "string") ? std::move(*value) : Json(std::string(text));
}

bool ReadJsonCalls(const CallBlock& block, std::vector<Part>* calls) {
  const auto parsed = ParseOrderedJson(block.text, "a call", kCallLimits);
  if (!parsed) return ReadEachCall(block.text, block.cut, calls);
  const Json list = parsed->is_array() ? *parsed : Json::array({*parsed});
  std::vector<Part> read;
  for (const Json& one : list)
    if (!ReadCall(one, &read.emplace_back())) return false;
  calls->insert(calls->end(), std::make_move_iterator(read.begin()), std::make_move_iterator(read.end()));
  return !list.empty();
}

bool ReadListCalls(const CallBlock& block, std::vector<Part>* calls) {
  const std::string list = "[" + std::string(block.text);
  return ReadJsonCalls({.text = list, .tools = block.tools, .cut = block.cut}, calls);
}

bool ReadBracketCalls(const CallBlock& block, std::vector<Part>* calls) {
  std::string_view text = StripSpace(block.text);
  if (text.empty() || text.starts_with('[') || text.starts_with('{')) return ReadJsonCalls(block, calls);
  while (!text.empty()) {
    std::string_view one = text;
    const bool last = !TakeUntil("[TOOL_CALLS]", &text, &one);
    if (last) text = {};
    const size_t end = one.find_first_of("[{");
    const std::string_view name = StripSpace(one.substr(0, end));
    one = end == std::string_view::npos ? std::string_view() : one.substr(end);
    if (one.starts_with("[CALL_ID]")) one.remove_prefix(std::min(one.find("[ARGS]"), one.size()));
    const bool cut = block.cut && last;
    if (!Skip("[ARGS]", &one) && cut && !one.starts_with('{')) one = {};  // a tag that is cut
    if (!AddJsonCall(name, one, cut, calls)) return false;
  }
  return true;
}

bool ReadDeepSeekCall(const CallBlock& block, std::vector<Part>* calls) {
  std::string_view text = block.text, name;
  if (!TakeUntil("<｜tool▁sep｜>", &text, &name))
    return block.cut && AddJsonCall(StripSpace(text), "", true, calls);
  name = StripSpace(name);
  if (name != "function") return AddJsonCall(name, text, block.cut, calls);
  // V3 and R1: the name on a line of its own, and a fence around the JSON.
  if (!TakeUntil("\n", &text, &name)) return block.cut && AddJsonCall(StripSpace(text), "", true, calls);
  constexpr std::string_view kFence = "```json";
  text = StripSpace(text);
  if (text.starts_with(kFence))
    text.remove_prefix(kFence.size());
  else if (block.cut && kFence.starts_with(text))
    text = {};
  while (text.ends_with('`')) text.remove_suffix(1);
  return AddJsonCall(StripSpace(name), text, block.cut, calls);
}

bool ReadKimiCall(const CallBlock& block, std::vector<Part>* calls) {
  std::string_view text = block.text, name;
  const bool whole = TakeUntil("<|tool_call_argument_begin|>", &text, &name);
  if (!whole) name = text, text = {};
  name = StripSpace(name);
  if (name.starts_with("functions.")) name.remove_prefix(std::string_view("functions.").size());
  name = name.substr(0, name.rfind(':'));  // without its number
  return (whole || block.cut) && AddJsonCall(name, text, block.cut, calls);
}

}  // namespace celer::server
