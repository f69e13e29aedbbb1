#include "engine/sample/sampler_select.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "kernels/shared/simd.h"

namespace celer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kSortable = 64;  // fewer candidates are sorted at once
constexpr size_t kBuckets = 1024;

// Four vectors at a time: enough to hide that each operation waits for the one before it.
constexpr size_t kVectors = 4, kLanes = Simd::kLanes, kStep = kVectors * kLanes;
static_assert(LogitRow::kBlock % kStep == 0);

// (logits[i] - max) * inverse_temperature of a step, then its weights.
struct Step {
  Simd::F scaled[kVectors], weight[kVectors];

  Step(const float* logits, float max, float inverse_temperature) {
    for (size_t v = 0; v < kVectors; ++v)
      weight[v] = scaled[v] = Simd::Mul(Simd::Sub(Simd::Load(logits + v * kLanes), Simd::Set(max)),
                                        Simd::Set(inverse_temperature));
    ExpNonPositive(weight);
  }
};

double SumOf(const Simd::F (&lanes)[kVectors]) {
  static_assert(kVectors == 4);
  return double{Simd::Sum(Simd::Add(Simd::Add(lanes[0], lanes[1]), Simd::Add(lanes[2], lanes[3])))};
}

}  // namespace

bool Before(const Candidate& a, const Candidate& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

void LogitRow::Reset(std::span<const float> logits) {
  logits_ = logits;
  block_max_.clear();
  max_ = -kInfinity;
  size_t begin = 0;
  for (; begin + kBlock <= logits.size(); begin += kBlock) {
    Simd::F max[kVectors];
    for (size_t v = 0; v < kVectors; ++v) max[v] = Simd::Load(logits.data() + begin + v * kLanes);
    for (size_t i = kStep; i < kBlock; i += kStep)
      for (size_t v = 0; v < kVectors; ++v)
        max[v] = Simd::Max(max[v], Simd::Load(logits.data() + begin + i + v * kLanes));
    block_max_.push_back(Simd::MaxOf(Simd::Max(Simd::Max(max[0], max[1]), Simd::Max(max[2], max[3]))));
  }
  if (begin < logits.size())
    block_max_.push_back(*std::max_element(logits.begin() + static_cast<int64_t>(begin), logits.end()));
  for (const float m : block_max_) max_ = std::max(max_, m);
}

int32_t LogitRow::Largest() const {
  size_t at = 0;
  while (block_max_[at] != max_) ++at;
  for (at *= kBlock; logits_[at] != max_;) ++at;
  return static_cast<int32_t>(at);
}

LogitRow::Sums LogitRow::SumWeights(float inverse_temperature, bool weighted_logit) const {
  Sums sums;
  // What is behind the end of the row is -infinity, which weighs nothing.
  const auto block = [&](const float* logits) {
    Simd::F weight[kVectors], weighted[kVectors];
    for (size_t v = 0; v < kVectors; ++v) weight[v] = weighted[v] = Simd::Set(0);
    for (size_t i = 0; i < kBlock; i += kStep) {
      const Step step(logits + i, max_, inverse_temperature);
      for (size_t v = 0; v < kVectors; ++v) {
        weight[v] = Simd::Add(weight[v], step.weight[v]);
        if (!weighted_logit) continue;
        // No further than where weights end: 0 times infinity is not a number.
        const Simd::F near = Simd::Max(step.scaled[v], Simd::Set(-128));
        weighted[v] = Simd::Fma(step.weight[v], near, weighted[v]);
      }
    }
    sums.weight += SumOf(weight);
    sums.weighted_logit += SumOf(weighted);
  };
  size_t begin = 0;
  for (; begin + kBlock <= logits_.size(); begin += kBlock) block(logits_.data() + begin);
  if (begin < logits_.size()) block(LastBlock(begin).data());
  return sums;
}

std::array<float, LogitRow::kBlock> LogitRow::LastBlock(size_t begin) const {
  std::array<float, kBlock> out;
  out.fill(-kInfinity);
  std::copy(logits_.begin() + static_cast<int64_t>(begin), logits_.end(), out.begin());
  return out;
}

float LogitRow::ReachedBy(size_t count) {
  // As many blocks have a largest logit of at least this.
  if (count == 0 || count > block_max_.size()) return -kInfinity;
  scratch_ = block_max_;
  const auto nth = scratch_.begin() + static_cast<int64_t>(count - 1);
  std::nth_element(scratch_.begin(), nth, scratch_.end(), std::greater<>());
  return *nth;
}

void LogitRow::Gather(float least, float inverse_temperature, std::vector<Candidate>* out) const {
  size_t count = 0;
  for (size_t b = 0; b < block_max_.size(); ++b) {
    if (!(block_max_[b] >= least)) continue;
    const size_t begin = b * kBlock;
    const bool whole = begin + kBlock <= logits_.size();
    const std::array<float, kBlock> last = whole ? std::array<float, kBlock>() : LastBlock(begin);
    const float* const logits = whole ? logits_.data() + begin : last.data();
    float weights[kBlock];
    for (size_t i = 0; i < kBlock; i += kStep) {
      const Step step(logits + i, max_, inverse_temperature);
      for (size_t v = 0; v < kVectors; ++v) Simd::Store(weights + i + v * kLanes, step.weight[v]);
    }
    if (out->size() < count + kBlock) out->resize(2 * count + kBlock);
    Candidate* const to = out->data();
    for (size_t i = 0; i < kBlock; ++i) {
      // Written in any case, counted if it belongs there: no branch to mispredict.
      to[count] = {static_cast<int32_t>(begin + i), logits[i], weights[i], -logits[i]};
      count += static_cast<size_t>(logits[i] >= least) & static_cast<size_t>(weights[i] > 0);
    }
  }
  out->resize(count);
}

size_t TakeUntil(std::span<Candidate> candidates, double target, bool exceed) {
  const auto reached = [&](double held) { return exceed ? held > target : held >= target; };
  // The candidates before `begin` are among the first, those from `end` on are not.
  size_t begin = 0, end = candidates.size();
  double before = 0;  // the weight of those before `begin`
  std::vector<uint16_t> bucket_of;
  while (end - begin > kSortable) {
    const auto part = candidates.subspan(begin, end - begin);
    // In buckets by rank; where all ranks are equal, by token.
    float low = kInfinity, high = -kInfinity;
    int32_t first = part[0].token, last = part[0].token;
    for (const Candidate& c : part) {
      low = std::min(low, c.rank);
      high = std::max(high, c.rank);
      first = std::min(first, c.token);
      last = std::max(last, c.token);
    }
    const bool by_token = low == high;
    const double scale = static_cast<double>(kBuckets) / (by_token ? last - first + 1.0 : double{high} - low);
    // Rounding keeps the order: what is larger is never in an earlier bucket.
    const auto bucket = [&](const Candidate& c) {
      const double at = (by_token ? static_cast<double>(c.token - first) : double{c.rank} - low) * scale;
      return std::min(kBuckets - 1, static_cast<size_t>(at));
    };
    // Two sums, in turn: neighbours in the row are often neighbours in rank, and an addition would have to
    // wait for the one before it.
    std::array<std::array<double, kBuckets>, 2> weight = {};
    bucket_of.resize(part.size());
    for (size_t i = 0; i < part.size(); ++i) {
      const size_t b = bucket(part[i]);
      bucket_of[i] = static_cast<uint16_t>(b);
      weight[i % 2][b] += double{part[i].weight};
    }
    double held = before;
    size_t crossing = 0;
    for (; crossing < kBuckets; ++crossing) {
      const double more = weight[0][crossing] + weight[1][crossing];
      if (reached(held + more)) break;
      held += more;
    }
    if (crossing == kBuckets) return candidates.size() + 1;

    // Earlier buckets first, then the one it is in.
    size_t front = 0, middle = 0;
    for (size_t i = 0; i < part.size(); ++i) {
      if (bucket_of[i] > crossing) continue;
      std::swap(part[middle], part[i]);
      std::swap(bucket_of[middle], bucket_of[i]);
      if (bucket_of[middle] < crossing) {
        std::swap(part[front], part[middle]);
        std::swap(bucket_of[front], bucket_of[middle]);
        ++front;
      }
      ++middle;
    }
    before = held;
    end = begin + middle;
    begin += front;
  }
  std::sort(candidates.begin() + static_cast<int64_t>(begin), candidates.begin() + static_cast<int64_t>(end),
            Before);
  for (; begin < end; ++begin) {
    before += double{candidates[begin].weight};
    if (reached(before)) return begin + 1;
  }
  // Here if nothing is left to take; or because sums in another order round otherwise.
  return end < candidates.size() ? end : candidates.size() + 1;
}

void SortFirst(std::span<Candidate> candidates, size_t count) {
  const auto begin = candidates.begin(), middle = begin + static_cast<int64_t>(count);
  if (count < candidates.size()) std::nth_element(begin, middle, candidates.end(), Before);
  std::sort(begin, middle, Before);
}

}  // namespace celer
