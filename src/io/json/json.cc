#include "io/json/json.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <system_error>

#include "io/file/printable.h"
#include "io/json/json_scan.h"
#include "io/json/ordered_json.h"

namespace celer {
namespace {

// Deepest nesting of brackets outside strings. The text need not be valid: this only bounds the parser's
// work.
int MaxDepth(std::string_view text) {
  int depth = 0, deepest = 0;
  ForEachOutsideStrings(text, [&](size_t, char c) {
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if (c == '}' || c == ']') --depth;
    return true;
  });
  return deepest;
}

std::string Short(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Where the parser stops at a number that no double can hold. It takes everything else.
template <class Json>
struct NumberFinder : nlohmann::json_sax<Json> {
  using typename nlohmann::json_sax<Json>::binary_t;
  using typename nlohmann::json_sax<Json>::number_float_t;
  using typename nlohmann::json_sax<Json>::number_integer_t;
  using typename nlohmann::json_sax<Json>::number_unsigned_t;
  using typename nlohmann::json_sax<Json>::string_t;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string& last_token,
                   const nlohmann::detail::exception&) override {
    byte = position;
    token = last_token;
    return false;
  }
  size_t byte = 0;
  std::string token;
};

template <class Json>
Result<Json> Parse(std::string_view text, std::string_view source, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return Error::Corrupt(source, ": ", text.size(), " bytes of JSON, at most ", limits.max_bytes,
                          " are accepted");
  if (const int depth = MaxDepth(text); depth > limits.max_depth)
    return Error::Corrupt(source, ": JSON nested ", depth, " deep, at most ", limits.max_depth,
                          " is accepted");
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const typename Json::parse_error& error) {
    return Error::Corrupt(source, ": not valid JSON at byte ", error.byte);
  } catch (const typename Json::exception&) {
    NumberFinder<Json> found;
    Json::sax_parse(text.begin(), text.end(), &found);
    return Error::Corrupt(source, ": the number ", Printable(found.token, 40), " at byte ", found.byte,
                          " is too large, expected one that fits 64 bits");
  }
}

}  // namespace

Result<nlohmann::json> ParseJson(std::string_view text, std::string_view source, const JsonLimits& limits) {
  return Parse<nlohmann::json>(text, source, limits);
}

Result<nlohmann::ordered_json> ParseOrderedJson(std::string_view text, std::string_view source,
                                                const JsonLimits& limits) {
  return Parse<nlohmann::ordered_json>(text, source, limits);
}

Result<std::string> ReadTextFile(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return Error::NotFound(path.string(), ": no such file");
  if (status.type() == std::filesystem::file_type::none)
    return Error::Io(path.string(), ": cannot be examined: ", error.message());
  if (std::filesystem::is_directory(status))
    return Error::Invalid(path.string(), ": is a folder, expected a file");
  if (!std::filesystem::is_regular_file(status))
    return Error::Invalid(path.string(), ": is not a regular file");
  std::ifstream in(path, std::ios::binary);
  if (!in) return Error::Io(path.string(), ": cannot be opened: ", std::strerror(errno));
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return Error::Io(path.string(), ": cannot be examined: ", error.message());
  if (size > max_bytes)
    return Error::Corrupt(path.string(), ": ", size, " bytes, at most ", max_bytes, " are accepted");
  std::string text(static_cast<size_t>(size), '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (static_cast<uintmax_t>(in.gcount()) != size)
    return Error::Io(path.string(), ": only ", in.gcount(), " of ", size, " bytes could be read");
  return text;
}

namespace {

std::string WithNamedFloats(const std::string& text) {
  std::string out;
  size_t done = 0;
  ForEachOutsideStrings(text, [&](size_t at, char c) {
    if (c != 'I' && c != 'N') return true;
    for (const std::string_view name : {"Infinity", "NaN"})
      if (text.compare(at, name.size(), name) == 0) {
        const bool negative = at > done && text[at - 1] == '-';
        out.append(text, done, at - done - (negative ? 1 : 0));
        out += std::string("{\"__float__\":\"") + (negative ? "-" : "") + std::string(name) + "\"}";
        done = at + name.size();
      }
    return true;
  });
  return out.append(text, done);
}

}  // namespace

Result<nlohmann::json> ReadJsonFile(const std::filesystem::path& path, const JsonLimits& limits) {
  CELER_ASSIGN(const std::string text, ReadTextFile(path, limits.max_bytes));
  auto json = ParseJson(text, path.string(), limits);
  if (json || (text.find("Infinity") == text.npos && text.find("NaN") == text.npos)) return json;
  auto named = ParseJson(WithNamedFloats(text), path.string(), limits);
  return named ? std::move(named) : std::move(json);
}

Result<JsonFields> JsonFields::Of(const nlohmann::json& object, std::string where) {
  if (!object.is_object())
    return Error::Corrupt(where, ": expected a JSON object, found ", object.type_name());
  return JsonFields(object, std::move(where));
}

const nlohmann::json* JsonFields::Find(std::string_view key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

Error JsonFields::Missing(std::string_view key) const {
  return Error::Corrupt(where_, ": '", key, "' is missing");
}

Error JsonFields::WrongType(std::string_view key, const nlohmann::json& value,
                            std::string_view expected) const {
  return Error::Corrupt(where_, ": '", key, "' is ", Short(value), ", expected ", expected);
}

Result<std::optional<int64_t>> JsonFields::FindInt(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (!value) return std::optional<int64_t>();
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
    return WrongType(key, *value, "an integer below 2^63");
  if (value->is_number_integer()) return std::optional<int64_t>(value->get<int64_t>());
  // Some files write 1e6 or 4096.0 where an integer is meant; 2^53 bounds what a double holds exactly.
  if (value->is_number_float()) {
    const double number = value->get<double>();
    if (std::isfinite(number) && std::abs(number) <= 0x1p53 && number == std::floor(number))
      return std::optional<int64_t>(static_cast<int64_t>(number));
  }
  return WrongType(key, *value, "an integer");
}

Result<std::optional<double>> JsonFields::FindDouble(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (!value) return std::optional<double>();
  if (!value->is_number() || !std::isfinite(value->get<double>())) return WrongType(key, *value, "a number");
  return std::optional<double>(value->get<double>());
}

Result<std::optional<bool>> JsonFields::FindBool(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (!value) return std::optional<bool>();
  if (!value->is_boolean()) return WrongType(key, *value, "true or false");
  return std::optional<bool>(value->get<bool>());
}

Result<std::optional<std::string>> JsonFields::FindString(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (!value) return std::optional<std::string>();
  if (!value->is_string()) return WrongType(key, *value, "a string");
  return std::optional<std::string>(value->get<std::string>());
}

Result<int64_t> JsonFields::GetInt(std::string_view key, int64_t min, int64_t max) const {
  CELER_ASSIGN(const auto value, FindInt(key));
  if (!value) return Missing(key);
  if (*value < min || *value > max)
    return Error::Corrupt(where_, ": '", key, "' is ", *value, ", expected ", min, " to ", max);
  return *value;
}

Result<int64_t> JsonFields::GetInt(std::string_view key, int64_t min, int64_t max, int64_t if_missing) const {
  if (!Has(key)) return if_missing;
  return GetInt(key, min, max);
}

Result<double> JsonFields::GetDouble(std::string_view key) const {
  CELER_ASSIGN(const auto value, FindDouble(key));
  if (!value) return Missing(key);
  return *value;
}

Result<double> JsonFields::GetDouble(std::string_view key, double if_missing) const {
  CELER_ASSIGN(const auto value, FindDouble(key));
  return value.value_or(if_missing);
}

Result<bool> JsonFields::GetBool(std::string_view key, bool if_missing) const {
  CELER_ASSIGN(const auto value, FindBool(key));
  return value.value_or(if_missing);
}

Result<std::string> JsonFields::GetString(std::string_view key) const {
  CELER_ASSIGN(auto value, FindString(key));
  if (!value) return Missing(key);
  return *std::move(value);
}

Result<std::string> JsonFields::GetString(std::string_view key, std::string if_missing) const {
  CELER_ASSIGN(auto value, FindString(key));
  return value ? *std::move(value) : std::move(if_missing);
}

Result<std::vector<int64_t>> JsonFields::GetInts(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (!value) return Missing(key);
  std::vector<int64_t> out;
  const auto add = [&out](const nlohmann::json& item) {
    const bool fits = item.is_number_integer() &&
                      !(item.is_number_unsigned() && item.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
    if (fits) out.push_back(item.get<int64_t>());
    return fits;
  };
  bool good = true;
  if (value->is_array()) {
    for (const nlohmann::json& item : *value) good = good && add(item);
  } else {
    good = add(*value);
  }
  if (!good) return WrongType(key, *value, "an integer or an array of integers");
  return out;
}

Result<JsonFields> JsonFields::GetObject(std::string_view key) const {
  const nlohmann::json* value = Find(key);
  if (!value) return Missing(key);
  if (!value->is_object()) return WrongType(key, *value, "an object");
  return JsonFields(*value, where_ + ": '" + std::string(key) + "'");
}

}  // namespace celer
