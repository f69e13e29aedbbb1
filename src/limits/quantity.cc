#include "limits/quantity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/result.h"

namespace celer {
namespace {

constexpr double kAbsurd = 1e24;

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Splits "24.5GiB" into 24.5 and "GiB"; the number must be positive and finite.
Result<double> LeadingNumber(std::string_view& text, std::string_view what) {
  const std::string_view whole = text;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range)
    return Error::Invalid(what, " ", whole, ": the number is too large or too small");
  if (error != std::errc()) return Error::Invalid(what, " '", whole, "': not a number");
  if (std::isnan(value) || std::isinf(value))
    return Error::Invalid(what, " ", whole, ": must be a finite number");
  if (value <= 0) return Error::Invalid(what, " ", whole, ": must be above 0");
  text.remove_prefix(end - text.data());
  text = Trim(text);
  return value;
}

// "G" or "Gi" to its factor; nullopt for anything else. The empty prefix is 1.
std::optional<double> PrefixFactor(std::string_view prefix, Units units) {
  if (prefix.empty()) return 1.0;
  constexpr std::string_view kPrefixes = "kMGTP";
  const char letter = prefix[0] == 'K' ? 'k' : prefix[0];
  const size_t power = kPrefixes.find(letter);
  if (power == std::string_view::npos) return std::nullopt;
  const bool binary = prefix.size() == 2 && prefix[1] == 'i';
  if (prefix.size() > 1 && !binary) return std::nullopt;
  return std::pow(binary || units == Units::kBinary ? 1024.0 : 1000.0, double(power + 1));
}

Result<double> ParseWithUnit(std::string_view text, Units units, std::string_view what,
                             std::string_view suffix, std::string_view example) {
  text = Trim(text);
  const std::string_view whole = text;
  CELER_ASSIGN(const double number, LeadingNumber(text, what));
  std::optional<double> factor;
  if (text.ends_with(suffix)) factor = PrefixFactor(text.substr(0, text.size() - suffix.size()), units);
  if (!factor) {
    if (text.empty())
      return Error::Invalid(what, " ", whole, ": the unit is missing, write it like ", example);
    return Error::Invalid(what, " ", whole, ": unknown unit '", text, "', write it like ", example);
  }
  if (!(number * *factor < kAbsurd)) return Error::Invalid(what, " ", whole, ": no machine has that much");
  return number * *factor;
}

struct Scale {
  double factor;
  const char* unit;
};

// `digits` significant digits in plain notation; digits before the point are never cut.
std::string Significant(double value, int digits) {
  // The exponent after rounding, so that 0.9999 becomes 1.00 and not 1.000.
  const std::string scientific = fmt::format("{:.{}e}", value, digits - 1);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  return fmt::format("{:.{}f}", value, std::clamp(digits - 1 - exponent, 0, 9));
}

template <size_t N>
std::string WithScale(double value, const std::array<Scale, N>& scales, int digits) {
  const Scale* chosen = &scales.back();
  for (const Scale& scale : scales)
    if (std::abs(value) >= scale.factor * 0.9995) {
      chosen = &scale;
      break;
    }
  return Significant(value / chosen->factor, digits) + chosen->unit;
}

constexpr double kKi = 1024.0, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi;

}  // namespace

Result<double> ParseBytes(std::string_view text, Units units, std::string_view what) {
  return ParseWithUnit(text, units, what, "B", "24GiB");
}

Result<double> ParseBytesPerSecond(std::string_view text, Units units, std::string_view what) {
  return ParseWithUnit(text, units, what, "B/s", "1008GB/s");
}

Result<double> ParsePositive(std::string_view text, double max, std::string_view what) {
  text = Trim(text);
  const std::string_view whole = text;
  CELER_ASSIGN(const double number, LeadingNumber(text, what));
  if (!text.empty()) return Error::Invalid(what, " '", whole, "': not a number");
  if (number > max) return Error::Invalid(what, " ", whole, ": must be at most ", max);
  return number;
}

Result<int64_t> ParseCount(std::string_view text, int64_t max, std::string_view what) {
  text = Trim(text);
  const std::string_view whole = text;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string limit = FormatCount(max);
  if (error == std::errc::result_out_of_range)
    return Error::Invalid(what, " ", whole, ": must be from 1 to ", limit);
  if (error != std::errc()) return Error::Invalid(what, " '", whole, "': not a whole number");
  text.remove_prefix(end - text.data());
  const bool thousand = text == "k" || text == "K" || text == "Ki";
  if (!text.empty() && !thousand) return Error::Invalid(what, " '", whole, "': not a whole number");
  if (value < 1 || value > (thousand ? max / 1024 : max))
    return Error::Invalid(what, " ", whole, ": must be from 1 to ", limit);
  return thousand ? value * 1024 : value;
}

int64_t Floor(double value) {
  return static_cast<int64_t>(std::floor(std::clamp(value, -9e18, 9e18)));
}

std::string FormatBytes(double bytes, Units units) {
  if (units == Units::kBinary)
    return WithScale(
        bytes, std::array<Scale, 5>{{{kTi, " TiB"}, {kGi, " GiB"}, {kMi, " MiB"}, {kKi, " KiB"}, {1, " B"}}},
        3);
  return WithScale(
      bytes, std::array<Scale, 5>{{{1e12, " TB"}, {1e9, " GB"}, {1e6, " MB"}, {1e3, " kB"}, {1, " B"}}}, 3);
}

std::string FormatBandwidth(double bytes_per_s, Units units) {
  // GB/s however many, as data sheets and people have it.
  const double giga = units == Units::kBinary ? kGi : 1e9;
  return Significant(bytes_per_s / giga, 3) + " GB/s";
}

std::string FormatFlops(double flops_per_s, Units units) {
  const double tera = units == Units::kBinary ? kTi : 1e12;
  if (flops_per_s >= tera * 0.9995) return Significant(flops_per_s / tera, 4) + " TFLOP/s";
  const double giga = units == Units::kBinary ? kGi : 1e9;
  return Significant(flops_per_s / giga, 4) + " GFLOP/s";
}

std::string FormatSeconds(double seconds) {
  return WithScale(seconds, std::array<Scale, 4>{{{1, " s"}, {1e-3, " ms"}, {1e-6, " us"}, {1e-9, " ns"}}},
                   3);
}

std::string FormatNumber(double value) {
  return Significant(value, 3);
}

std::string FormatCount(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t start = count < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > start + 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string FormatParams(double params, Units units) {
  const double mega = units == Units::kBinary ? kMi : 1e6, giga = units == Units::kBinary ? kGi : 1e9;
  return params >= 0.9995 * giga ? fmt::format("{:.2f}B", params / giga)
                                 : Significant(params / mega, 3) + "M";
}

}  // namespace celer
