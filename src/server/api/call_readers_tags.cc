// Calls whose arguments stand between tags, each written without quotes.
#include "server/api/call_readers.h"

namespace celer::server {
namespace {

using Json = nlohmann::ordered_json;

// Objects look their fields up one by one, so that very many would take long.
constexpr size_t kMostArguments = 1000;

// The tags of one syntax.
struct Tags {
  std::string_view begin, begin_end;  // around the name: <function= and >
  std::string_view key, key_end;      // around an argument's name
  std::string_view value_end;
  std::string_view end;  // of the call
};

constexpr Tags kFunctionTags = {"<function=", ">", "<parameter=", ">", "</parameter>", "</function>"};
constexpr Tags kInvokeTags = {"<invoke name=", ">", "<parameter name=", ">", "</parameter>", "</invoke>"};

std::string_view Unquoted(std::string_view text) {
  text = StripSpace(text);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') && text.back() == text.front())
    text = text.substr(1, text.size() - 2);
  return text;
}

// Without the line break after the opening tag and the one before the closing tag.
std::string_view OwnLines(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// The arguments up to the end of the call. kCut: the text ends before that.
ReadState ReadArguments(const Tags& tags, std::string_view name, const Json& tools, std::string_view* text,
                        Json* arguments) {
  while (true) {
    if (Skip(tags.end, text)) return ReadState::kWhole;
    if (!Skip(tags.key, text)) {
      SkipSpace(text);
      const bool prefix = tags.key.starts_with(*text) || tags.end.starts_with(*text);
      return prefix ? ReadState::kCut : ReadState::kOther;
    }
    std::string_view key, value;
    if (!TakeUntil(tags.key_end, text, &key) || !TakeUntil(tags.value_end, text, &value))
      return ReadState::kCut;
    if (arguments->size() >= kMostArguments) return ReadState::kOther;
    const std::string field(Unquoted(key));
    (*arguments)[field] = UnquotedArgument(OwnLines(value), tools, name, field);
  }
}

bool ReadTagged(const Tags& tags, const CallBlock& block, std::vector<Part>* calls) {
  std::string_view text = StripSpace(block.text);
  if (text.starts_with('{') || text.starts_with('[')) return ReadJsonCalls(block, calls);
  bool any = false;
  while (SkipSpace(&text), !text.empty()) {
    std::string_view name;
    if (!Skip(tags.begin, &text) || !TakeUntil(tags.begin_end, &text, &name)) return any && block.cut;
    name = Unquoted(name);
    if (!IsFunctionName(name)) return false;
    SkipSpace(&text);
    if (std::string_view json; text.starts_with('{')) {
      const bool whole = TakeUntil(tags.end, &text, &json);
      if (!AddJsonCall(name, whole ? json : text, block.cut && !whole, calls)) return false;
      if (!whole) return true;
      any = true;
      continue;
    }
    Json arguments = Json::object();
    const ReadState read = ReadArguments(tags, name, block.tools, &text, &arguments);
    // A block that has ended has its last call complete, also without the tag.
    if (read == ReadState::kOther) return false;
    AddCall(name, arguments, read == ReadState::kCut && block.cut, calls);
    if (read == ReadState::kCut) return block.cut || text.empty();
    any = true;
  }
  return any;
}

}  // namespace

bool ReadFunctionTags(const CallBlock& block, std::vector<Part>* calls) {
  return ReadTagged(kFunctionTags, block, calls);
}

bool ReadInvokes(const CallBlock& block, std::vector<Part>* calls) {
  return ReadTagged(kInvokeTags, block, calls);
}

bool ReadArgKeys(const CallBlock& block, std::vector<Part>* calls) {
  std::string_view text = StripSpace(block.text);
  if (text.starts_with('{') || text.starts_with('[')) return ReadJsonCalls(block, calls);
  const size_t end = std::min(text.find('<'), text.size());
  const std::string_view name = StripSpace(text.substr(0, end));
  if (!IsFunctionName(name)) return false;
  text.remove_prefix(end);
  Json arguments = Json::object();
  while (SkipSpace(&text), !text.empty()) {
    std::string_view key, value;
    if (!Skip("<arg_key>", &text) || !TakeUntil("</arg_key>", &text, &key) || !Skip("<arg_value>", &text) ||
        !TakeUntil("</arg_value>", &text, &value)) {
      if (!block.cut) return false;
      AddCall(name, arguments, true, calls);
      return true;
    }
    if (arguments.size() >= kMostArguments) return false;
    const std::string field(StripSpace(key));
    arguments[field] = UnquotedArgument(value, block.tools, name, field);
  }
  AddCall(name, arguments, block.cut, calls);
  return true;
}

}  // namespace celer::server
