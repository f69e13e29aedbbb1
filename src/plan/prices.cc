#include "plan/prices.h"

#include <fmt/format.h>

#include <cmath>

#include "io/json/json.h"
#include "plan/machines.h"

namespace celer::cli {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr double kMostPerHour = 1e6;

}  // namespace

Result<Prices> Prices::Parse(std::string_view text, const std::string& source) {
  CELER_ASSIGN(const nlohmann::json json, ParseJson(text, source));
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, source));
  Prices prices;
  CELER_ASSIGN(prices.date, fields.GetString("date"));
  CELER_ASSIGN(prices.currency, fields.GetString("currency", "USD"));
  CELER_ASSIGN(prices.source, fields.GetString("source", ""));
  CELER_ASSIGN(const JsonFields hourly, fields.GetObject("per_hour"));
  for (const auto& [name, value] : hourly.json().items()) {
    std::string machine = "this";
    if (name != machine) {
      const auto found = PlanMachines::BuiltIn().Find(name);
      if (!found) return found.error().WithContext(source + ": 'per_hour'");
      machine = found->machine.name;
    }
    const double price = value.is_number() ? value.get<double>() : std::nan("");
    if (!(price > 0 && price <= kMostPerHour))
      return Error::Invalid(source, ": the price of '", name, "' is ", JsonText(value),
                            ", expected a number above 0 and up to ", kMostPerHour);
    if (!prices.hourly.emplace(machine, price).second)
      return Error::Invalid(source, ": two prices of '", machine, "'; leave one of them out");
  }
  if (prices.hourly.empty()) return Error::Invalid(source, ": 'per_hour' names no machine");
  return prices;
}

Result<Prices> Prices::Read(const std::filesystem::path& path) {
  CELER_ASSIGN(const std::string text, ReadTextFile(path, kMaxBytes));
  return Parse(text, path.string());
}

std::optional<double> Prices::Of(const std::string& machine) const {
  const auto it = hourly.find(machine);
  return it == hourly.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace celer::cli
