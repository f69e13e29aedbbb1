// Affine quantization to 8-bit integers and back: q = saturate(round(x / scale) + zero), x' = scale (q -
// zero).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"

namespace celer::ptq {

// The type of quantized activations. Weights are always symmetric i8.
enum class ActivationType : uint8_t {
  kU8,           // 0 to 255 with a zero point
  kI8,           // -128 to 127 with a zero point
  kI8Symmetric,  // -127 to 127 around zero
};
Result<ActivationType> ParseActivationType(std::string_view text);  // "u8", "i8", "i8-sym"
const char* Name(ActivationType type);

struct Range {
  double low = 0, high = 0;  // zero is always inside: padding and what Relu cuts off stay exact

  Range With(const Range& other) const;
  bool operator==(const Range&) const = default;
};

struct Grid {
  float scale = 1;
  int32_t zero = 0;
  DType dtype = DType::kU8;
  int32_t lowest = 0, highest = 255;

  double Round(double x) const;  // the nearest real that the grid has
  bool operator==(const Grid&) const = default;
};
// `power_of_two`: the next larger scale that is one, so that rescaling is a shift.
Grid GridFor(const Range& range, ActivationType type, bool power_of_two);

// Weights as [outer, channels, inner], with one scale per channel; one channel: one scale for all.
struct ChannelLayout {
  int64_t outer = 1, channels = 1, inner = 1;

  int64_t channel(int64_t i) const { return i / inner % channels; }
};

struct QuantizedWeights {
  std::vector<int8_t> q;
  std::vector<float> scale;  // by channel
};
// `least_scale`, by channel or empty: below it a bias would not fit into 32 bits.
QuantizedWeights QuantizeWeights(std::span<const float> weights, const ChannelLayout& layout,
                                 bool power_of_two, std::span<const double> least_scale);
// MSE-optimal clipping: the scale of each channel, at most what spans its largest weight, for which sum (w -
// w')^2 is least.
QuantizedWeights FitWeights(std::span<const float> weights, const ChannelLayout& layout);

}  // namespace celer::ptq
