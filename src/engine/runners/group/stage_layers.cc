#include "engine/runners/group/stage_layers.h"

#include <algorithm>
#include <limits>
#include <string>

#include "celer/limits.h"
#include "engine/runners/place/placement.h"

namespace celer {
namespace {

// Consecutive parts of costs[] whose largest sum is as small as can be.
std::vector<int64_t> EvenParts(const std::vector<int64_t>& costs, int parts) {
  const size_t n = costs.size(), count = static_cast<size_t>(parts);
  std::vector<int64_t> before(n + 1);
  for (size_t i = 0; i < n; ++i) before[i + 1] = before[i] + costs[i];
  // Of the first i layers in p parts: the largest sum, and where the last part begins.
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> best(count + 1, std::vector<int64_t>(n + 1, kNever));
  std::vector<std::vector<size_t>> from(count + 1, std::vector<size_t>(n + 1));
  best[0][0] = 0;
  for (size_t p = 1; p <= count; ++p)
    for (size_t i = p; i <= n; ++i)
      for (size_t begin = p - 1; begin < i; ++begin) {
        if (best[p - 1][begin] == kNever) continue;
        const int64_t largest = std::max(best[p - 1][begin], before[i] - before[begin]);
        if (largest < best[p][i]) {
          best[p][i] = largest;
          from[p][i] = begin;
        }
      }
  std::vector<int64_t> sizes(count);
  for (size_t p = count, end = n; p > 0; end = from[p][end], --p)
    sizes[p - 1] = static_cast<int64_t>(end - from[p][end]);
  return sizes;
}

}  // namespace

Result<std::vector<LayerRange>> StageLayers(const DecoderConfig& config, int stages,
                                            const std::vector<double>& split) {
  const std::string option = "`pipeline_parallel_size` " + std::to_string(stages);
  if (const Status cuts = CheckLayersPart(config); !cuts) return cuts.error().WithContext(option);
  if (stages > config.layers)
    return Error::Invalid(option, ": the model has ", config.layers, " layers, and each stage needs one");
  if (!split.empty() && std::ssize(split) != stages)
    return Error::Invalid("`split` has ", split.size(), " parts, and `pipeline_parallel_size` is ", stages);
  std::vector<int64_t> counts;
  if (!split.empty()) {
    counts = Portions(config.layers, split);
  } else {
    std::vector<int64_t> costs;
    for (int64_t i = 0; i < config.layers; ++i) {
      const LlmParams params = CountParams(ToLlmShape(SliceLayers(config, {.first = i, .count = 1}), ""));
      costs.push_back(params.layers_active + (i + 1 == config.layers ? params.lm_head : 0));
    }
    counts = EvenParts(costs, stages);
  }
  std::vector<LayerRange> ranges;
  int64_t first = 0;
  for (const int64_t count : counts) {
    ranges.push_back({.first = first, .count = count});
    first += count;
    bool attends = false;
    for (int64_t i = ranges.back().first; i < first; ++i) attends |= config.HasAttention(i);
    if (!attends)
      return Error::Invalid(option, ": layers ", ranges.back().first, " to ", first - 1,
                            " have no attention, and a stage needs one layer that has; give other shares by "
                            "`split`");
  }
  return ranges;
}

}  // namespace celer
