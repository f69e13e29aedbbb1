// JSON files with bounds, and getters whose errors name the file and the field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/escape.h"
#include "base/result.h"

namespace celer {

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;  // tokenizer.json of a large vocabulary is about 35 MB
  int max_depth = 64;
};

// `source` is what error sentences call the text.
Result<nlohmann::json> ParseJson(std::string_view text, std::string_view source,
                                 const JsonLimits& limits = {});
// Infinity and NaN, which Python writes into JSON files, become {"__float__": "Infinity"}, as in those of newer
// versions of transformers.
Result<nlohmann::json> ReadJsonFile(const std::filesystem::path& path, const JsonLimits& limits = {});

// As text, on one line or with this indent. What is not UTF-8 becomes U+FFFD: nothing is thrown. A terminal
// can show it (base/escape.h).
template <class Json>  // nlohmann::json or ordered_json
std::string JsonText(const Json& value, int indent = -1) {
  return EscapedJson(value.dump(indent, ' ', false, Json::error_handler_t::replace));
}

// A whole text file of at most max_bytes.
Result<std::string> ReadTextFile(const std::filesystem::path& path, size_t max_bytes);

// Reads fields of one JSON object. A field that is missing or null gives nullopt (Find*) or an error (Get*);
// a field of the wrong type is always an error.
class JsonFields {
 public:
  // `object` outlives this; `where` is the file, or the file and the path to the object: "config.json:
  // 'rope'".
  static Result<JsonFields> Of(const nlohmann::json& object, std::string where);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  const nlohmann::json* Find(std::string_view key) const;  // nullptr when missing or null

  Result<std::optional<int64_t>> FindInt(std::string_view key) const;
  Result<std::optional<double>> FindDouble(std::string_view key) const;
  Result<std::optional<bool>> FindBool(std::string_view key) const;
  Result<std::optional<std::string>> FindString(std::string_view key) const;

  // Integers must lie in [min, max].
  Result<int64_t> GetInt(std::string_view key, int64_t min, int64_t max) const;
  Result<int64_t> GetInt(std::string_view key, int64_t min, int64_t max, int64_t if_missing) const;
  Result<double> GetDouble(std::string_view key) const;
  Result<double> GetDouble(std::string_view key, double if_missing) const;
  Result<bool> GetBool(std::string_view key, bool if_missing) const;
  Result<std::string> GetString(std::string_view key) const;
  Result<std::string> GetString(std::string_view key, std::string if_missing) const;
  Result<std::vector<int64_t>> GetInts(std::string_view key) const;  // an integer, or an array of integers
  Result<JsonFields> GetObject(std::string_view key) const;

  const nlohmann::json& json() const { return *object_; }
  const std::string& where() const { return where_; }

 private:
  JsonFields(const nlohmann::json& object, std::string where) : object_(&object), where_(std::move(where)) {}
  Error Missing(std::string_view key) const;
  Error WrongType(std::string_view key, const nlohmann::json& value, std::string_view expected) const;

  const nlohmann::json* object_;
  std::string where_;
};

}  // namespace celer
