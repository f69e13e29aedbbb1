#include "models/rope.h"

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
  if (wavelength < shortest) return frequency;
  if (wavelength > longest) return frequency / rope.factor;
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
  double low = std::max(std::floor(dimension_of(rope.beta_fast)), 0.0);
  double high = std::min(std::ceil(dimension_of(rope.beta_slow)), dim - 1);
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(index) - low) / (high - low), 0.0, 1.0);
  return frequency / rope.factor * ramp + frequency * (1 - ramp);
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& rope) {
  const int64_t half = rope.dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope.dim));
    switch (rope.scaling) {
      case RopeConfig::Scaling::kNone:
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
    }
    if (!rope.freq_factors.empty()) frequency /= rope.freq_factors[static_cast<size_t>(i)];
    frequencies_.push_back(static_cast<float>(frequency));
  }
  if (rope.scaling == RopeConfig::Scaling::kYarn)
    attention_factor_ = static_cast<float>(
        rope.attention_factor > 0 ? rope.attention_factor
                                  : (rope.factor <= 1 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0));
}

void RopeTable::Fill(std::span<const int32_t> positions, float* cos, float* sin) const {
  for (const int32_t position : positions) {
    for (const float frequency : frequencies_) {
      // In float, as the models were trained and as the reference implementations run.
      const float angle = static_cast<float>(position) * frequency;
      *cos++ = std::cos(angle) * attention_factor_;
      *sin++ = std::sin(angle) * attention_factor_;
    }
  }
}

}  // namespace celer
