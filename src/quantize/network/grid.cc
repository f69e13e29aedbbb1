#include "quantize/network/grid.h"

#include <algorithm>
#include <cmath>

namespace celer::ptq {
namespace {

// Smaller ones would leave f32's normal numbers when they are multiplied.
constexpr double kLeastScale = 1e-18;

float ScaleOf(double scale, bool power_of_two) {
  if (!(scale > kLeastScale)) scale = kLeastScale;
  if (power_of_two) scale = std::exp2(std::ceil(std::log2(scale)));
  return static_cast<float>(scale);
}

}  // namespace

Result<ActivationType> ParseActivationType(std::string_view text) {
  if (text == "u8") return ActivationType::kU8;
  if (text == "i8") return ActivationType::kI8;
  if (text == "i8-sym") return ActivationType::kI8Symmetric;
  return Error::Invalid("activations '", text, "': expected u8, i8 or i8-sym");
}

const char* Name(ActivationType type) {
  switch (type) {
    case ActivationType::kU8:
      return "u8";
    case ActivationType::kI8:
      return "i8";
    case ActivationType::kI8Symmetric:
      return "i8-sym";
  }
  return "?";
}

Range Range::With(const Range& other) const {
  return {std::min(low, other.low), std::max(high, other.high)};
}

double Grid::Round(double x) const {
  const double q = std::clamp(std::nearbyint(x / double{scale}) + zero, double(lowest), double(highest));
  return (q - zero) * double{scale};
}

Grid GridFor(const Range& range, ActivationType type, bool power_of_two) {
  const double low = std::min(range.low, 0.0), high = std::max(range.high, 0.0);
  Grid grid;
  if (type == ActivationType::kI8Symmetric) {
    grid.dtype = DType::kI8;
    grid.lowest = -127, grid.highest = 127;
    grid.scale = low == high ? 1.0f : ScaleOf(std::max(-low, high) / 127, power_of_two);
    return grid;
  }
  grid.dtype = type == ActivationType::kU8 ? DType::kU8 : DType::kI8;
  grid.lowest = type == ActivationType::kU8 ? 0 : -128;
  grid.highest = grid.lowest + 255;
  grid.scale = low == high ? 1.0f : ScaleOf((high - low) / 255, power_of_two);
  const double zero = grid.lowest - std::nearbyint(low / double{grid.scale});
  grid.zero = static_cast<int32_t>(std::clamp(zero, double(grid.lowest), double(grid.highest)));
  return grid;
}

QuantizedWeights QuantizeWeights(std::span<const float> weights, const ChannelLayout& layout,
                                 bool power_of_two, std::span<const double> least_scale) {
  const auto channels = static_cast<size_t>(layout.channels);
  std::vector<double> largest(channels, 0.0);
  const auto count = static_cast<int64_t>(weights.size());
  for (int64_t i = 0; i < count; ++i) {
    double& top = largest[layout.channel(i)];
    top = std::max(top, std::abs(double{weights[i]}));
  }
  QuantizedWeights out;
  for (size_t c = 0; c < channels; ++c) {
    const double least = least_scale.empty() ? 0.0 : least_scale[c];
    out.scale.push_back(
        largest[c] == 0 && least == 0 ? 1.0f : ScaleOf(std::max(largest[c] / 127, least), power_of_two));
  }
  out.q.reserve(weights.size());
  for (int64_t i = 0; i < count; ++i) {
    const double scale = double{out.scale[layout.channel(i)]};
    const double q = std::nearbyint(double{weights[i]} / scale);
    out.q.push_back(static_cast<int8_t>(std::clamp(q, -127.0, 127.0)));
  }
  return out;
}

QuantizedWeights FitWeights(std::span<const float> weights, const ChannelLayout& layout) {
  constexpr float kParts[] = {0.97f, 0.94f, 0.91f, 0.88f, 0.85f, 0.82f,
                              0.79f, 0.75f, 0.7f,  0.65f, 0.6f,  0.5f};
  QuantizedWeights out = QuantizeWeights(weights, layout, false, {});
  const auto count = static_cast<int64_t>(weights.size());
  const auto errors = [&](const std::vector<float>& scale) {
    std::vector<float> inverse;
    for (const float one : scale) inverse.push_back(1 / one);
    // In squared steps, of one row of the layout at a time, whose channels lie side by side.
    std::vector<double> sum(scale.size(), 0.0);
    std::vector<float> row(scale.size());
    for (int64_t begin = 0; begin < count; begin += layout.channels * layout.inner) {
      std::fill(row.begin(), row.end(), 0.0f);
      const float* w = weights.data() + begin;
      for (size_t c = 0; c < scale.size(); ++c)
        for (int64_t i = 0; i < layout.inner; ++i, ++w) {
          const float steps = *w * inverse[c];
          const float miss = std::clamp(std::nearbyint(steps), -127.0f, 127.0f) - steps;
          row[c] += miss * miss;
        }
      for (size_t c = 0; c < scale.size(); ++c) sum[c] += double{row[c]};
    }
    for (size_t c = 0; c < scale.size(); ++c) sum[c] *= double{scale[c]} * double{scale[c]};
    return sum;
  };
  const std::vector<float> widest = out.scale;
  std::vector<double> best = errors(widest);
  for (const float part : kParts) {
    std::vector<float> scale = widest;
    for (float& one : scale) one *= part;
    const std::vector<double> now = errors(scale);
    for (size_t c = 0; c < scale.size(); ++c)
      if (now[c] < best[c]) best[c] = now[c], out.scale[c] = scale[c];
  }
  for (int64_t i = 0; i < count; ++i) {
    const float scale = out.scale[layout.channel(i)];
    out.q[i] = static_cast<int8_t>(std::clamp(std::nearbyint(weights[i] / scale), -127.0f, 127.0f));
  }
  return out;
}

}  // namespace celer::ptq
