// Calls in notations of their own for values: Python's, and Gemma's.
#include <algorithm>
#include <optional>

#include "base/utf8.h"
#include "io/json/ordered_json.h"
#include "server/api/call_readers.h"

namespace celer::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDeepest = 64;
constexpr size_t kMostFields = 1000;  // objects look their fields up one by one
constexpr std::string_view kQuote = "<|\"|>";

// What the two notations share: a value is nullopt where the text is not one, or ends before it does.
class ValueReader {
 public:
  explicit ValueReader(std::string_view text) : rest_(text) {}
  virtual ~ValueReader() = default;

  bool AtEnd() {
    SkipSpace(&rest_);
    return rest_.empty();
  }
  bool Take(std::string_view what) { return Skip(what, &rest_); }
  // Letters, digits and what else a name may have.
  std::string_view Name() {
    SkipSpace(&rest_);
    size_t end = 0;
    while (end < rest_.size() && (IsFunctionName(rest_.substr(end, 1)) && rest_[end] != ':')) ++end;
    const std::string_view name = rest_.substr(0, end);
    rest_.remove_prefix(end);
    return name;
  }
  virtual std::optional<Json> Value(int depth) = 0;

 protected:
  std::optional<Json> List(int depth, std::string_view close) {
    Json list = Json::array();
    while (!Take(close)) {
      std::optional<Json> value = Value(depth + 1);
      if (!value) return {};
      list.push_back(std::move(*value));
      if (!Take(",") && !rest_.starts_with(close)) return {};
    }
    return list;
  }
  // true, None, 1.5, ...: up to what ends a value.
  std::optional<Json> Bare() {
    SkipSpace(&rest_);
    const size_t end = std::min(rest_.find_first_of(",)]}\n"), rest_.size());
    if (end == rest_.size()) return {};  // it may go on
    const std::string_view word = StripSpace(rest_.substr(0, end));
    rest_.remove_prefix(end);
    if (word == "True" || word == "true") return true;
    if (word == "False" || word == "false") return false;
    if (word == "None" || word == "null") return nullptr;
    return OtherWord(word);
  }
  virtual std::optional<Json> OtherWord(std::string_view word) {
    Json number = Json::parse(word, nullptr, false);
    return number.is_number() ? std::optional(std::move(number)) : std::nullopt;
  }

  std::string_view rest_;
};

class PythonReader : public ValueReader {
 public:
  using ValueReader::ValueReader;

  std::optional<Json> Value(int depth) override {
    if (depth > kDeepest) return {};
    SkipSpace(&rest_);
    if (rest_.starts_with('"') || rest_.starts_with('\'')) return String();
    if (Take("[")) return List(depth, "]");
    if (Take("(")) return List(depth, ")");
    if (Take("{")) return Dictionary(depth);
    return Bare();
  }

 private:
  std::optional<Json> String() {
    const char quote = rest_.front();
    std::string text;
    size_t i = 1;
    for (; i < rest_.size() && rest_[i] != quote; ++i)
      if (rest_[i] != '\\')
        text += rest_[i];
      else if (++i < rest_.size())
        i += Escape(rest_.substr(i), &text);
    if (i >= rest_.size()) return {};
    rest_.remove_prefix(i + 1);
    return text;
  }

  // What stands behind a backslash; gives how many characters it takes beside the first.
  static size_t Escape(std::string_view text, std::string* out) {
    constexpr std::string_view kLetters = "ntrbf0\n", kMeanings("\n\t\r\b\f\0", 6);
    const char c = text.front();
    if (const size_t at = kLetters.find(c); at < kMeanings.size()) {
      *out += kMeanings[at];
      return 0;
    }
    if (c == '\n') return 0;
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
    uint32_t code = 0;
    size_t i = 1;
    for (; i <= digits && i < text.size() && std::isxdigit(static_cast<unsigned char>(text[i])); ++i)
      code = code * 16 + static_cast<uint32_t>(std::isdigit(static_cast<unsigned char>(text[i]))
                                                   ? text[i] - '0'
                                                   : (text[i] | 32) - 'a' + 10);
    if (digits > 0 && i == digits + 1) {
      utf8::Append(static_cast<char32_t>(code), *out);
      return digits;
    }
    if (c != '\\' && c != '"' && c != '\'') *out += '\\';
    *out += c;
    return 0;
  }

  std::optional<Json> Dictionary(int depth) {
    Json object = Json::object();
    while (!Take("}")) {
      SkipSpace(&rest_);
      if (!(rest_.starts_with('"') || rest_.starts_with('\'')) || object.size() >= kMostFields) return {};
      const std::optional<Json> key = String();
      if (!key || !Take(":")) return {};
      std::optional<Json> value = Value(depth + 1);
      if (!value) return {};
      object[key->get<std::string>()] = std::move(*value);
      if (!Take(",") && !rest_.starts_with('}')) return {};
    }
    return object;
  }
};

class GemmaReader : public ValueReader {
 public:
  using ValueReader::ValueReader;

  std::optional<Json> Value(int depth) override {
    if (depth > kDeepest) return {};
    if (Take(kQuote)) {
      std::string_view text;
      if (!TakeUntil(kQuote, &rest_, &text)) return {};
      return std::string(text);
    }
    if (Take("[")) return List(depth, "]");
    if (!Take("{")) return Bare();
    Json object = Json::object();
    while (!Take("}"))
      if (!Field(depth, &object)) return {};
    return object;
  }

  bool Field(int depth, Json* object) {
    std::string_view key;
    Take(kQuote);
    if (!TakeUntil(":", &rest_, &key) || object->size() >= kMostFields) return false;
    key = StripSpace(key);
    if (key.ends_with(kQuote)) key.remove_suffix(kQuote.size());
    std::optional<Json> value = Value(depth + 1);
    if (!value) return false;
    (*object)[std::string(key)] = std::move(*value);
    return Take(",") || rest_.starts_with('}') || AtEnd();
  }

 private:
  std::optional<Json> OtherWord(std::string_view word) override {
    const std::optional<Json> number = ValueReader::OtherWord(word);
    return number ? *number : Json(std::string(word));
  }
};

// name(key=value, ...) up to its closing bracket.
ReadState ReadPythonCall(PythonReader* reader, std::vector<Part>* calls) {
  const std::string_view name = reader->Name();
  if (name.empty()) return ReadState::kOther;
  if (!reader->Take("(")) return reader->AtEnd() ? ReadState::kCut : ReadState::kOther;
  Json arguments = Json::object();
  while (!reader->Take(")")) {
    const std::string_view key = reader->Name();
    if (!key.empty() && arguments.size() < kMostFields && reader->Take("="))
      if (std::optional<Json> value = reader->Value(0)) {
        arguments[std::string(key)] = std::move(*value);
        if (reader->Take(",")) continue;
        if (reader->Take(")")) break;
      }
    AddCall(name, arguments, true, calls);
    return ReadState::kCut;
  }
  AddCall(name, arguments, false, calls);
  return ReadState::kWhole;
}

}  // namespace

bool ReadPythonCalls(const CallBlock& block, std::vector<Part>* calls) {
  const std::string_view text = StripSpace(block.text);
  // A call may also be written as JSON.
  if (text.starts_with('{') || text.starts_with("[{")) return ReadJsonCalls(block, calls);
  PythonReader reader(text);
  const bool list = reader.Take("[");
  bool any = false;
  while (!reader.AtEnd()) {
    if (any && list && reader.Take("]")) return reader.AtEnd();
    const ReadState read = ReadPythonCall(&reader, calls);
    if (read != ReadState::kWhole) return read == ReadState::kCut && block.cut;
    any = true;
    reader.Take(",");
  }
  return any && (!list || block.cut);
}

bool ReadGemmaCalls(const CallBlock& block, std::vector<Part>* calls) {
  const std::string_view text = StripSpace(block.text);
  if (text.starts_with('{') || text.starts_with('[')) return ReadJsonCalls(block, calls);
  GemmaReader reader(text);
  if (!reader.Take("call:")) return false;
  const std::string_view name = reader.Name();
  if (name.empty()) return false;
  Json arguments = Json::object();
  bool whole = false;
  if (reader.Take("{"))
    while (!(whole = reader.Take("}")) && reader.Field(0, &arguments)) {
    }
  if (!whole && !block.cut) return false;
  AddCall(name, arguments, !whole, calls);
  return whole ? reader.AtEnd() : true;
}

}  // namespace celer::server
