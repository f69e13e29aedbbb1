#include "models/load/gguf_reader.h"

#include <algorithm>
#include <cmath>

#include "io/file/printable.h"

namespace celer {

Error GgufReader::Missing(const std::string& key) const {
  return Error::Corrupt(path_, ": metadata key '", Whole(key), "' is missing");
}

Error GgufReader::WrongKind(const std::string& key, const char* expected) const {
  const GgufValue* value = file_.FindValue(Whole(key));
  return Error::Corrupt(path_, ": metadata key '", Whole(key), "' is ", Printable(value->ToText(4), 60), " (",
                        value->TypeName(), "), expected ", expected);
}

Result<int64_t> GgufReader::Int(const std::string& key) const {
  if (!Has(key)) return Missing(key);
  const auto value = file_.GetInt(Whole(key));
  if (!value) return WrongKind(key, "an integer");
  return *value;
}

Result<int64_t> GgufReader::Int(const std::string& key, int64_t if_missing) const {
  if (!Has(key)) return if_missing;
  return Int(key);
}

Result<double> GgufReader::Float(const std::string& key) const {
  if (!Has(key)) return Missing(key);
  const auto value = file_.GetFloat(Whole(key));
  if (!value || !std::isfinite(*value)) return WrongKind(key, "a number");
  return *value;
}

Result<double> GgufReader::Float(const std::string& key, double if_missing) const {
  if (!Has(key)) return if_missing;
  return Float(key);
}

Result<std::string> GgufReader::String(const std::string& key, std::string if_missing) const {
  if (!Has(key)) return if_missing;
  const auto value = file_.GetString(Whole(key));
  if (!value) return WrongKind(key, "a string");
  return std::string(*value);
}

Result<int64_t> GgufReader::SameInAllLayers(const std::string& key, int64_t layers) const {
  const GgufValue* value = file_.FindValue(Whole(key));
  if (!value || value->type != GgufType::kArray) return Int(key);
  const auto numbers = file_.GetIntArray(Whole(key));
  if (!numbers || static_cast<int64_t>(numbers->size()) != layers)
    return WrongKind(key, ("an integer, or one for each of " + std::to_string(layers) + " layers").c_str());
  const auto [low, high] = std::minmax_element(numbers->begin(), numbers->end());
  if (*low != *high)
    return Error::Unsupported(path_, ": metadata key '", Whole(key), "' is ", *low, " in some layers and ",
                              *high, " in others; only models with the same in all layers are supported");
  return *low;
}

Result<std::vector<int64_t>> GgufReader::InLayers(const std::string& key, int64_t layers) const {
  const GgufValue* value = file_.FindValue(Whole(key));
  if (!value || value->type != GgufType::kArray) {
    CELER_ASSIGN(const int64_t number, Int(key));
    return std::vector<int64_t>(layers, number);
  }
  const auto numbers = file_.GetIntArray(Whole(key));
  if (!numbers || std::ssize(*numbers) != layers)
    return WrongKind(key, ("an integer, or one for each of " + std::to_string(layers) + " layers").c_str());
  return std::vector<int64_t>(numbers->begin(), numbers->end());
}

Result<std::vector<int64_t>> GgufReader::InOwnLayers(const std::string& key, int64_t layers) const {
  constexpr int64_t kMostLayers = 8192;
  CELER_ASSIGN(const int64_t all, Int("block_count"));
  if (all < layers || all > kMostLayers)
    return Error::Corrupt(path_, ": ", all, " layers, ", layers, " of them the model's own");
  CELER_ASSIGN(std::vector<int64_t> numbers, InLayers(key, all));
  numbers.resize(layers);
  return numbers;
}

Result<int64_t> GgufReader::SameWhereAny(const std::string& key, int64_t layers) const {
  CELER_ASSIGN(const std::vector<int64_t> numbers, InOwnLayers(key, layers));
  int64_t same = 0;
  for (const int64_t number : numbers) {
    if (number != 0 && same != 0 && number != same)
      return Error::Unsupported(path_, ": metadata key '", Whole(key), "' is ", same, " in some layers and ",
                                number, " in others; only models with the same in all layers are supported");
    if (number != 0) same = number;
  }
  return same;
}

Result<std::vector<bool>> GgufReader::WindowedLayers(int64_t layers, int64_t default_period) const {
  const std::string key = "attention.sliding_window_pattern";
  std::vector<bool> windowed;
  const GgufValue* value = file_.FindValue(Whole(key));
  if (!value || value->type != GgufType::kArray) {
    CELER_ASSIGN(const int64_t period, Int(key, default_period));
    if (period < 0) return WrongKind(key, "0 or more");
    for (int64_t i = 0; i < layers; ++i) windowed.push_back(period == 0 || i % period < period - 1);
    return windowed;
  }
  const auto flags = file_.GetIntArray(Whole(key));
  if (!flags || static_cast<int64_t>(flags->size()) != layers)
    return WrongKind(key, ("a period, or a bool for each of " + std::to_string(layers) + " layers").c_str());
  for (const int64_t flag : *flags) windowed.push_back(flag != 0);
  return windowed;
}

}  // namespace celer
