// Quantities as people write them: "24GiB", "1008GB/s", "82.58 TFLOP/s", "13.1 ms".
#pragma once

#include <string>
#include <string_view>

#include "celer/limits.h"

namespace celer {

// SI prefixes k M G T P are powers of 1000 with Units::kSi and of 1024 with Units::kBinary; Ki Mi Gi Ti Pi
// are always powers of 1024. A bare number has no unit and is refused, as are zero, negative and absurd
// values. `what` starts the error sentence: "--memory".
Result<double> ParseBytes(std::string_view text, Units units, std::string_view what);
Result<double> ParseBytesPerSecond(std::string_view text, Units units, std::string_view what);

// A plain positive finite number of at most `max`.
Result<double> ParsePositive(std::string_view text, double max, std::string_view what);
// A whole number from 1 to `max`; 4k, 4K and 4Ki are 4096, since contexts are spoken of that way.
Result<int64_t> ParseCount(std::string_view text, int64_t max, std::string_view what);

// The nearest whole number below, or the largest there is: results may be absurd where flags were.
int64_t Floor(double value);

// Three or four significant digits with the unit that fits.
std::string FormatBytes(double bytes, Units units = Units::kSi);  // "14.2 GB", binary "13.2 GiB"
std::string FormatBandwidth(double bytes_per_s,
                            Units units = Units::kSi);                  // "1008 GB/s"; binary divides by 2^30
std::string FormatFlops(double flops_per_s, Units units = Units::kSi);  // "82.58 TFLOP/s"
std::string FormatSeconds(double seconds);                              // "13.1 ms", "820 us"
std::string FormatNumber(double value);                                 // "61.7", "1.00", "6354"
std::string FormatCount(int64_t count);                                 // "22,072"
std::string FormatParams(double params, Units units = Units::kSi);      // "7.10B"; binary B = 2^30

}  // namespace celer
