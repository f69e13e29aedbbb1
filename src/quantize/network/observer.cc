#include "quantize/network/observer.h"

#include <algorithm>
#include <cmath>

namespace celer::ptq {
namespace {

constexpr int64_t kHalf = 4096;       // bins on each side: the largest value lies in the outer half of them
constexpr double kMovingShare = 0.1;  // of the newest sample in a moving average

struct MethodName {
  RangeMethod method;
  const char* name;
};
constexpr MethodName kMethods[] = {{RangeMethod::kMinMax, "minmax"},
                                   {RangeMethod::kAverage, "average"},
                                   {RangeMethod::kPercentile, "percentile"},
                                   {RangeMethod::kKl, "kl"},
                                   {RangeMethod::kMse, "mse"}};

}  // namespace

Result<RangeMethod> ParseRangeMethod(std::string_view text) {
  for (const MethodName& row : kMethods)
    if (text == row.name) return row.method;
  return Error::Invalid("method '", text, "': expected minmax, average, percentile, kl or mse");
}

const char* Name(RangeMethod method) {
  for (const MethodName& row : kMethods)
    if (row.method == method) return row.name;
  return "?";
}

void Observer::Widen(double magnitude) {
  if (limit_ == 0) {
    limit_ = std::exp2(std::ceil(std::log2(magnitude)));
    bins_.assign(2 * kHalf, 0);
  }
  while (magnitude > limit_) {
    std::vector<uint64_t> joined(2 * kHalf, 0);
    for (int64_t i = 0; i < 2 * kHalf; ++i)
      joined[static_cast<size_t>(((i - kHalf) >> 1) + kHalf)] += bins_[i];
    bins_ = std::move(joined);
    limit_ *= 2;
  }
}

Status Observer::Add(std::span<const float> values) {
  if (values.empty()) return {};
  // Of NaN and infinity this is NaN.
  float low = values[0], high = values[0], odd = 0;
  for (const float x : values) {
    low = std::min(low, x);
    high = std::max(high, x);
    odd += x * 0.0f;
  }
  if (odd != 0 || std::isnan(odd)) return Error::Invalid("has values that are not finite");
  const double share = samples_ == 0 ? 1.0 : kMovingShare;
  average_low_ += share * (double{low} - average_low_);
  average_high_ += share * (double{high} - average_high_);
  low_ = samples_ == 0 ? double{low} : std::min(low_, double{low});
  high_ = samples_ == 0 ? double{high} : std::max(high_, double{high});
  ++samples_;
  count_ += values.size();
  const double magnitude = std::max(std::abs(double{low}), std::abs(double{high}));
  if (magnitude < 1e-30) {
    zeros_ += values.size();
    return {};
  }
  Widen(magnitude);
  const auto per_unit = static_cast<float>(static_cast<double>(kHalf) / limit_);
  uint64_t zeros = 0;
  for (const float x : values) {
    if (x == 0) {
      ++zeros;
      continue;
    }
    const auto bin = static_cast<int32_t>(std::floor(x * per_unit)) + static_cast<int32_t>(kHalf);
    ++bins_[static_cast<size_t>(std::clamp<int32_t>(bin, 0, 2 * kHalf - 1))];
  }
  zeros_ += zeros;
  return {};
}

Range Observer::Percentile(double percent, bool symmetric) const {
  const double width = limit_ / kHalf;
  const double outside = (1 - percent / 100) * static_cast<double>(count_);
  if (symmetric) {
    double left = outside;
    int64_t i = kHalf - 1;
    for (; i >= 0; --i) {
      left -= static_cast<double>(bins_[kHalf + i] + bins_[kHalf - 1 - i]);
      if (left < 0) break;
    }
    const double top = static_cast<double>(i + 1) * width;
    return {std::max(low_, -top), std::min(high_, top)};
  }
  // Half of the outliers are clipped at each end; a side without values keeps its zero.
  double above = outside / 2, below = outside / 2;
  int64_t high = 2 * kHalf - 1, low = 0;
  for (; high >= kHalf; --high)
    if ((above -= static_cast<double>(bins_[high])) < 0) break;
  for (; low < kHalf; ++low)
    if ((below -= static_cast<double>(bins_[low])) < 0) break;
  return {std::max(low_, static_cast<double>(low - kHalf) * width),
          std::min(high_, static_cast<double>(high + 1 - kHalf) * width)};
}

Range Observer::Choose(const RangeOptions& options) const {
  const Range all{std::min(low_, 0.0), std::max(high_, 0.0)};
  const bool symmetric = options.type == ActivationType::kI8Symmetric;
  if (limit_ == 0) return all;
  const Histogram histogram{bins_, kHalf, limit_ / kHalf};
  Range out = all;
  switch (options.method) {
    case RangeMethod::kMinMax:
      break;
    case RangeMethod::kAverage:
      out = {average_low_, average_high_};
      break;
    case RangeMethod::kPercentile:
      out = Percentile(options.percentile, symmetric);
      break;
    case RangeMethod::kKl:
      out = KlRange(histogram, all, symmetric);
      break;
    case RangeMethod::kMse:
      out = MseRange(histogram, all, options.type, options.power_of_two);
      break;
  }
  return {std::min(out.low, 0.0), std::max(out.high, 0.0)};
}

}  // namespace celer::ptq
