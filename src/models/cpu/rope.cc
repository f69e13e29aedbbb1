#include "models/cpu/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace celer {
namespace {

// Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, and those between blended.
double Llama3(const RopeConfig& rope, double frequency) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const double longest = rope.original_positions / rope.low_freq_factor;
  const double shortest = rope.original_positions / rope.high_freq_factor;
  if (wavelength > longest) return frequency / rope.factor;
  if (wavelength < shortest) return frequency;
  const double blend = (rope.original_positions / wavelength - rope.low_freq_factor) /
                       (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - blend) * frequency / rope.factor + blend * frequency;
}

// YaRN: dimensions that turn often within the original context are kept, those that turn less than once are
// interpolated, with a linear ramp between.
double Yarn(const RopeConfig& rope, double frequency, int64_t index) {
  const auto dim = static_cast<double>(rope.dim);
  const auto dimension_of = [&](double rotations) {
    return dim * std::log(rope.original_positions / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(index) - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

// Dynamic NTK: a larger base, so that the longest wavelength grows with the sequence.
double DynamicTheta(const RopeConfig& rope, double length) {
  if (length <= rope.original_positions) return rope.theta;
  const auto dim = static_cast<double>(rope.dim);
  return rope.theta *
         std::pow(rope.factor * length / rope.original_positions - (rope.factor - 1), dim / (dim - 2));
}

}  // namespace

std::vector<float> RopeTable::Frequencies(double length) const {
  const RopeConfig& rope = config_;
  const double theta =
      rope.scaling == RopeConfig::Scaling::kDynamic ? DynamicTheta(rope, length) : rope.theta;
  const std::vector<float>& long_or_short =
      length > rope.original_positions ? rope.long_factors : rope.short_factors;
  std::vector<float> out;
  for (int64_t i = 0; i < rope.dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope.dim));
    switch (rope.scaling) {
      case RopeConfig::Scaling::kNone:
      case RopeConfig::Scaling::kDynamic:
        break;
      case RopeConfig::Scaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeConfig::Scaling::kLlama3:
        frequency = Llama3(rope, frequency);
        break;
      case RopeConfig::Scaling::kYarn:
        frequency = Yarn(rope, frequency, i);
        break;
      case RopeConfig::Scaling::kLongRope:
        frequency /= long_or_short[i];
        break;
    }
    if (!rope.freq_factors.empty()) frequency /= rope.freq_factors[i];
    if (rope.turning_pairs > 0 && i >= rope.turning_pairs) frequency = 0;
    out.push_back(static_cast<float>(frequency));
  }
  return out;
}

RopeTable::RopeTable(const RopeConfig& rope)
    : config_(rope),
      frequencies_(Frequencies(rope.original_positions)),
      attention_factor_(static_cast<float>(rope.attention_factor)) {
  if (rope.scaling == RopeConfig::Scaling::kLongRope)
    long_frequencies_ = Frequencies(rope.original_positions + 1);
}

void RopeTable::Fill(std::span<const int32_t> positions, std::span<const int32_t> lengths, float* cos,
                     float* sin) const {
  std::vector<float> grown;  // dynamic: the frequencies of one length beyond the original positions
  int32_t grown_length = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    std::span<const float> frequencies = frequencies_;
    if (config_.DependsOnLength() && !lengths.empty() && lengths[i] > config_.original_positions) {
      if (config_.scaling == RopeConfig::Scaling::kDynamic && grown_length != lengths[i]) {
        grown_length = lengths[i];
        grown = Frequencies(grown_length);
      }
      frequencies = config_.scaling == RopeConfig::Scaling::kDynamic ? grown : long_frequencies_;
    }
    for (const float frequency : frequencies) {
      // In float, as the models were trained and as the reference implementations run.
      const float angle = static_cast<float>(positions[i]) * frequency;
      *cos++ = std::cos(angle) * attention_factor_;
      *sin++ = std::sin(angle) * attention_factor_;
    }
  }
}

float QueryFactor(const QueryScale& scale, int64_t position) {
  const double times = std::floor(static_cast<double>(position + scale.offset) / scale.positions);
  return static_cast<float>(1 + scale.beta * std::log(1 + times));
}

}  // namespace celer
