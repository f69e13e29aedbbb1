// What machines cost, as the user's file says. celer knows no prices.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace celer::cli {

struct Prices {
  std::string date, currency, source;    // as the file says; the source may be empty
  std::map<std::string, double> hourly;  // of one device, by the machine's name

  // {"date": "2026-11-01", "currency": "USD", "source": "...", "per_hour": {"h200": 3.5, "rtx4090-tensor": 0.4}}. A
  // machine that celer does not know is an error, and so is a price that is not positive.
  static Result<Prices> Parse(std::string_view text, const std::string& source);
  static Result<Prices> Read(const std::filesystem::path& path);

  std::optional<double> Of(const std::string& machine) const;
};

}  // namespace celer::cli
