// Selecting against a plain sort of the whole row, in double.
#include "engine/sample/sampler_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "base/split_mix.h"
#include "engine/sample/sampler.h"

namespace celer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Kept {
  int32_t token;
  double probability;
};

// docs/sampling.md, step by step: everything sorted, everything in double. `nearest` becomes the least
// distance of a decision from its edge, relative: closer than rounding, either side is right.
std::vector<Kept> Reference(const std::vector<float>& logits, const SamplingParams& p, double* nearest) {
  struct Item {
    int32_t token;
    double logit, probability;
  };
  std::vector<Item> items;
  for (size_t i = 0; i < logits.size(); ++i)
    items.push_back({static_cast<int32_t>(i), double{logits[i]} / double{p.temperature}, 0});
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.logit > b.logit; });
  const auto softmax = [&] {
    double sum = 0;
    for (Item& item : items) sum += item.probability = std::exp(item.logit - items[0].logit);
    for (Item& item : items) item.probability /= sum;
  };
  const auto near = [&](double a, double b) {
    *nearest = std::min(*nearest, std::abs(a - b) / std::max(b, 1e-300));
  };
  softmax();
  if (p.min_p > 0) {
    const double least = double{p.min_p} * items[0].probability;
    for (const Item& item : items) near(item.probability, least);
    std::erase_if(items, [&](const Item& item) { return item.probability < least; });
    softmax();
  }
  if (p.typical_p < 1) {
    double entropy = 0;
    for (const Item& item : items)
      if (item.probability > 0) entropy -= item.probability * std::log(item.probability);
    std::vector<std::pair<double, size_t>> order;
    for (size_t i = 0; i < items.size(); ++i)
      order.emplace_back(std::abs(-std::log(std::max(items[i].probability, 1e-300)) - entropy), i);
    std::sort(order.begin(), order.end());
    double held = 0;
    size_t count = 0;
    while (count < order.size() && held < double{p.typical_p}) {
      held += items[order[count++].second].probability;
      near(held, double{p.typical_p});
    }
    // Tokens as far below the mean as others are above it: which comes first is a matter of rounding.
    if (count < order.size()) near(order[count].first + 1, order[count - 1].first + 1);
    std::vector<size_t> kept;
    for (size_t i = 0; i < count; ++i) kept.push_back(order[i].second);
    std::sort(kept.begin(), kept.end());
    std::vector<Item> out;
    for (const size_t i : kept) out.push_back(items[i]);
    items = out;
    softmax();
  }
  if (p.top_k > 0 && items.size() > static_cast<size_t>(p.top_k)) {
    items.resize(p.top_k);
    softmax();
  }
  if (p.top_p < 1) {
    double held = 0;
    size_t count = 0;
    while (count < items.size() && held < double{p.top_p}) {
      held += items[count++].probability;
      near(held, double{p.top_p});
    }
    items.resize(count);
    softmax();
  }
  std::vector<Kept> out;
  for (const Item& item : items) out.push_back({item.token, item.probability});
  return out;
}

// The hash of sampler.cc: what step 0 of this seed draws.
double UniformOf(uint64_t seed) {
  return static_cast<double>(SplitMix64(SplitMix64(seed)) >> 11) * 0x1p-53;
}

std::vector<float> RandomLogits(std::mt19937& random, size_t vocab, int shape) {
  std::vector<float> logits(vocab);
  std::normal_distribution<float> wide(0, 4), narrow(0, 0.5f);
  std::uniform_int_distribution<int> few(0, 5);
  for (size_t i = 0; i < vocab; ++i) switch (shape) {
      case 0:
        logits[i] = wide(random);
        break;
      case 1:
        logits[i] = narrow(random);
        break;
      case 2:  // many equals
        logits[i] = static_cast<float>(few(random));
        break;
      case 3:  // a few can be chosen at all
        logits[i] = i % 97 == 3 || i + 1 == vocab ? wide(random) : -kInfinity;
        break;
      default:  // further apart than exp() reaches
        logits[i] = 60 * wide(random);
    }
  return logits;
}

SamplingParams RandomParams(std::mt19937& random) {
  const auto one_of = [&](std::initializer_list<float> values) {
    return values.begin()[std::uniform_int_distribution<size_t>(0, values.size() - 1)(random)];
  };
  SamplingParams p;
  p.temperature = one_of({0.1f, 0.7f, 0.8f, 1.0f, 1.7f, 30.0f});
  p.top_k = static_cast<int>(one_of({0, 0, 0, 1, 7, 40, 3000}));
  p.top_p = one_of({1, 1, 1, 0.95f, 0.5f, 0.001f});
  p.min_p = one_of({0, 0, 0, 0.05f, 0.4f, 1});
  p.typical_p = one_of({1, 1, 1, 0.95f, 0.3f});
  return p;
}

std::string Text(const SamplingParams& p) {
  return "temperature " + std::to_string(p.temperature) + " top-k " + std::to_string(p.top_k) + " top-p " +
         std::to_string(p.top_p) + " min-p " + std::to_string(p.min_p) + " typical-p " +
         std::to_string(p.typical_p);
}

TEST(SamplerSelect, DrawsWhatASortOfTheWholeRowDraws) {
  std::mt19937 random(1);
  int64_t draws = 0, undecided = 0;
  for (const size_t vocab :
       {size_t{1}, size_t{2}, size_t{63}, size_t{64}, size_t{65}, size_t{1000}, size_t{5003}})
    for (int shape = 0; shape < 5; ++shape)
      for (int round = 0; round < 12; ++round) {
        const std::vector<float> logits = RandomLogits(random, vocab, shape);
        SamplingParams params = RandomParams(random);
        double nearest = 1;
        const std::vector<Kept> kept = Reference(logits, params, &nearest);
        for (uint64_t i = 0; i < 25; ++i) {
          params.seed = random();
          const int32_t token = Sampler(params, {}).Next(logits).token;
          double target = UniformOf(params.seed), edge = nearest;
          size_t at = 0;
          for (double held = 0; at < kept.size(); ++at) {
            held += kept[at].probability;
            edge = std::min(edge, std::abs(held - target));
            if (held > target) break;
          }
          ++draws;
          if (edge < 1e-5) {
            ++undecided;
            continue;
          }
          ASSERT_LT(at, kept.size());
          ASSERT_EQ(token, kept[at].token) << Text(params) << ", vocabulary " << vocab << ", shape " << shape;
        }
      }
  EXPECT_LT(undecided, draws / 5);  // equals stand at exactly the same share more often than others
  RecordProperty("undecided", static_cast<int>(undecided));
}

TEST(SamplerSelect, FollowsTheDistribution) {
  std::mt19937 random(2);
  for (int round = 0; round < 20; ++round) {
    const std::vector<float> logits = RandomLogits(random, 300, round % 2);
    SamplingParams params = RandomParams(random);
    double nearest = 1;
    const std::vector<Kept> kept = Reference(logits, params, &nearest);
    if (nearest < 1e-5) continue;
    constexpr int kDraws = 4000;
    std::map<int32_t, int> counts;
    for (int i = 0; i < kDraws; ++i) {
      params.seed = static_cast<uint64_t>(i) + 1000003u * static_cast<uint64_t>(round);
      ++counts[Sampler(params, {}).Next(logits).token];
    }
    // Chi-square; tokens that are rare share one cell.
    double chi = 0, rare = 0, rare_count = 0;
    int cells = 0;
    const auto cell = [&](double count, double expected) {
      chi += (count - expected) * (count - expected) / expected;
      ++cells;
    };
    for (const Kept& k : kept) {
      const double expected = kDraws * k.probability;
      const double count = counts.contains(k.token) ? counts[k.token] : 0;
      counts.erase(k.token);
      if (expected >= 5) {
        cell(count, expected);
      } else {
        rare += expected;
        rare_count += count;
      }
    }
    EXPECT_TRUE(counts.empty()) << "tokens that " << Text(params) << " does not keep";
    if (rare >= 5) cell(rare_count, rare);
    const double freedom = std::max(1, cells - 1);
    EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom) + 5) << Text(params);
  }
}

TEST(SamplerSelect, SumsAndCandidatesAreThoseOfTheRow) {
  std::mt19937 random(3);
  LogitRow row;
  for (const size_t vocab : {size_t{1}, size_t{64}, size_t{129}, size_t{4097}})
    for (int shape = 0; shape < 5; ++shape) {
      const std::vector<float> logits = RandomLogits(random, vocab, shape);
      row.Reset(logits);
      const float max = *std::max_element(logits.begin(), logits.end());
      EXPECT_EQ(row.max(), max);
      EXPECT_EQ(row.Largest(), std::max_element(logits.begin(), logits.end()) - logits.begin());
      double weight = 0, weighted = 0;
      for (const float logit : logits) {
        const double scaled = (double{logit} - max) * 0.7, w = std::exp(scaled);
        weight += w;
        if (w > 0) weighted += w * scaled;
      }
      const auto sums = row.SumWeights(0.7f, true);
      EXPECT_NEAR(sums.weight, weight, 1e-6 * weight);
      EXPECT_NEAR(sums.weighted_logit, weighted, 1e-6 * (1 + weight - weighted));
      EXPECT_NEAR(row.SumWeights(0.7f, false).weight, weight, 1e-6 * weight);

      std::vector<Candidate> found;
      for (const size_t count : {size_t{1}, size_t{3}, size_t{64}}) {
        const float least = row.ReachedBy(count);
        const auto reach = std::count_if(logits.begin(), logits.end(), [&](float l) { return l >= least; });
        EXPECT_GE(static_cast<size_t>(reach), std::min(count, vocab));
        row.Gather(least, 0.7f, &found);
        std::vector<int32_t> expected, tokens;
        for (size_t i = 0; i < vocab; ++i)
          if (logits[i] >= least && (logits[i] - max) * 0.7f >= -87.3f)
            expected.push_back(static_cast<int32_t>(i));
        for (const Candidate& c : found) tokens.push_back(c.token);
        EXPECT_EQ(tokens, expected);
      }
    }
}

TEST(SamplerSelect, TakeUntilPutsTheFirstOnesFirst) {
  std::mt19937 random(4);
  for (const size_t count : {size_t{0}, size_t{1}, size_t{64}, size_t{65}, size_t{3000}})
    for (int shape = 0; shape < 3; ++shape)
      for (const double share : {0.0, 0.01, 0.5, 0.999, 1.5}) {
        std::vector<Candidate> candidates;
        for (size_t i = 0; i < count; ++i) {
          const float rank =
              shape == 0 ? static_cast<float>(random() % 100000) : static_cast<float>(i % (shape * 3 - 2));
          candidates.push_back({static_cast<int32_t>(i), -rank, 1 + static_cast<float>(random() % 8), rank});
        }
        std::shuffle(candidates.begin(), candidates.end(), random);
        std::vector<Candidate> sorted = candidates;
        std::sort(sorted.begin(), sorted.end(), Before);
        double total = 0;
        for (const Candidate& c : candidates) total += double{c.weight};
        for (const bool exceed : {false, true}) {
          const double target = std::floor(share * total);  // whole numbers: sums are exact in any order
          size_t expected = 0;
          for (double held = 0; expected <= count && (exceed ? held <= target : held < target); ++expected)
            held += expected < count ? double{sorted[expected].weight} : kInfinity;
          if (expected == 0 && count > 0) expected = 1;  // one at least
          if (count == 0) expected = 1;
          std::vector<Candidate> now = candidates;
          const size_t taken = TakeUntil(now, target, exceed);
          ASSERT_EQ(taken, expected) << count << " " << shape << " " << share << " " << exceed;
          if (taken == 0 || taken > count) continue;
          EXPECT_EQ(now[taken - 1].token, sorted[taken - 1].token);
          std::vector<int32_t> a, b;
          for (size_t i = 0; i < taken; ++i) {
            a.push_back(now[i].token);
            b.push_back(sorted[i].token);
          }
          std::sort(a.begin(), a.end());
          std::sort(b.begin(), b.end());
          EXPECT_EQ(a, b);
        }
      }
}

}  // namespace
}  // namespace celer
