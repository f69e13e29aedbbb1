#include "models/load/shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "models/load/model_loader.h"
#include "models/load/request_list.h"

namespace celer {
namespace {

constexpr int kMostRanks = 64;

// What is split. Each is one number of the configuration.
enum class Split : uint8_t { kHeads, kKvHeads, kWidth, kExpertWidth, kSharedWidth, kVocabulary };
constexpr Split kSplits[] = {Split::kHeads,       Split::kKvHeads,     Split::kWidth,
                             Split::kExpertWidth, Split::kSharedWidth, Split::kVocabulary};

int64_t& NumberOf(DecoderConfig& config, Split split) {
  switch (split) {
    case Split::kHeads:
      return config.heads;
    case Split::kKvHeads:
      return config.kv_heads;
    case Split::kWidth:
      return config.intermediate;
    case Split::kExpertWidth:
      return config.moe.intermediate;
    case Split::kSharedWidth:
      return config.moe.shared_intermediate;
    case Split::kVocabulary:
      break;
  }
  return config.vocab;
}
int64_t NumberOf(const DecoderConfig& config, Split split) {
  DecoderConfig copy = config;
  return NumberOf(copy, split);
}

// A tensor that is split: its extent along one axis is `each` for each of the numbers.
struct Dependence {
  std::string name;
  Shape whole;
  Split split;
  bool columns = false;
  int64_t each = 0;
};

Result<std::vector<TensorRequest>> Requests(const DecoderConfig& config, bool gguf,
                                            const std::string& embedding, const TensorSource& source) {
  const auto has = [&](const std::string& name) { return source.Find(name) != nullptr; };
  RequestList list(has, has);
  if (const auto read = ReadDecoder(config, gguf, embedding, list); !read) return read.error();
  return list.Take();
}

// Found by asking the loader again, with one number doubled: no family's names are needed for it.
Result<std::vector<Dependence>> DependencesOf(const DecoderConfig& config, bool gguf,
                                              const std::string& embedding, const TensorSource& source) {
  CELER_ASSIGN(const auto whole, Requests(config, gguf, embedding, source));
  std::vector<Dependence> out;
  std::vector<bool> seen(whole.size());
  for (const Split split : kSplits) {
    DecoderConfig larger = config;
    int64_t& number = NumberOf(larger, split);
    const int64_t before = number;
    if (before == 0) continue;
    number *= 2;
    CELER_ASSIGN(const auto requests, Requests(larger, gguf, embedding, source));
    if (requests.size() != whole.size())
      return Error::Unsupported("`tensor_parallel_size`: ", source.path(),
                                ": a model that has other tensors at each size cannot be split");
    for (size_t i = 0; i < whole.size(); ++i) {
      const Shape &a = whole[i].part.shape, &b = requests[i].part.shape;
      if (a == b) continue;
      const int rank = a.rank(), last = rank - 1, before_last = rank - 2;
      const bool columns = rank > 1 && a[last] != b[last];
      const int axis = rank == 1 || columns ? last : before_last;
      std::vector<int64_t> dims(a.dims().begin(), a.dims().end());
      dims[static_cast<size_t>(axis)] *= 2;
      if (seen[i] || Shape(std::span<const int64_t>(dims)) != b || a[axis] % before != 0)
        return Error::Unsupported("`tensor_parallel_size`: ", source.path(), ": tensor '", whole[i].part.name,
                                  "' cannot be split over several ranks yet");
      seen[i] = true;
      out.push_back({whole[i].part.name, a, split, columns, a[axis] / before});
    }
  }
  return out;
}

// Where parts may begin: multiples of this many of the number, so that no block of a weight format is cut.
struct Steps {
  int64_t of[std::size(kSplits)] = {1, 1, 1, 1, 1, 1};
  int64_t& operator[](Split split) { return of[static_cast<size_t>(split)]; }
  int64_t operator[](Split split) const { return of[static_cast<size_t>(split)]; }
};

Steps StepsOf(const std::vector<Dependence>& dependences, const WeightPlan& plan) {
  Steps steps;
  for (const Dependence& each : dependences) {
    const PlannedWeight* const weight = plan.Find(each.name);
    if (!each.columns || !weight) continue;
    const int64_t columns = weight->ColumnStep();
    // The least count whose columns are whole steps.
    int64_t& step = steps[each.split];
    step = std::lcm(step, columns / std::gcd(columns, each.each));
  }
  return steps;
}

// Of a number that may be split unevenly: as few units as any other rank, or one more. Large units as long as there are
// enough: kernels like them.
struct Range {
  int64_t begin = 0, count = 0;
};
Range Uneven(int64_t number, int64_t step, int rank, int size) {
  constexpr int64_t kLike = 64;
  const int64_t large = std::lcm(step, kLike), unit = number / large >= size ? large : step;
  const int64_t units = (number + unit - 1) / unit;
  const auto at = [&](int64_t r) { return std::min(number, units * r / size * unit); };
  return {at(rank), at(rank + 1) - at(rank)};
}

bool IsHeads(Split split) {
  return split == Split::kHeads || split == Split::kKvHeads;
}

// Whether a group of that size works; else why not.
std::optional<std::string> Misfit(const DecoderConfig& config, const Steps& steps, int size) {
  const int64_t heads = config.heads, kv = config.kv_heads;
  if (heads % size != 0) return fmt::format("{} attention heads do not divide", heads);
  if (kv % size != 0 && size % kv != 0) return fmt::format("{} KV heads do not divide", kv);
  if (const int64_t step = steps[Split::kHeads]; heads / size % step != 0)
    return fmt::format(
        "{} attention heads for each rank are cut inside of a block of the weight format, which "
        "holds {}",
        heads / size, step);
  for (const Split split : kSplits) {
    const int64_t number = NumberOf(config, split), step = steps[split];
    if (!IsHeads(split) && number > 0 && (number + step - 1) / step < size)
      return fmt::format("a width of {} has {} blocks of the weight format", number,
                         (number + step - 1) / step);
  }
  return {};
}

Range RangeOf(const DecoderConfig& config, const Steps& steps, Split split, const ShardOf& of) {
  const int64_t number = NumberOf(config, split);
  if (!IsHeads(split)) return Uneven(number, steps[split], of.rank, of.size);
  // KV heads of which there are fewer than ranks are on several of them.
  const int64_t count = std::max<int64_t>(number / of.size, 1);
  return {number * of.rank / of.size, count};
}

Result<Shard> SplitBy(const DecoderConfig& config, const std::vector<Dependence>& dependences,
                      const Steps& steps, const ShardOf& of) {
  if (const auto why = Misfit(config, steps, of.size)) {
    std::string works;
    for (int size = 1; size <= kMostRanks; ++size)
      if (!Misfit(config, steps, size)) works += fmt::format("{}{}", works.empty() ? "" : ", ", size);
    return Error::Invalid("`tensor_parallel_size` ", of.size, ": ", *why, "; sizes that work: ", works);
  }
  Shard shard{.config = config, .slices = {}, .vocab = {}};
  for (const Split split : kSplits)
    if (NumberOf(config, split) > 0) NumberOf(shard.config, split) = RangeOf(config, steps, split, of).count;
  for (const Dependence& each : dependences) {
    const Range range = RangeOf(config, steps, each.split, of);
    shard.slices[each.name] = {.whole = each.whole,
                               .columns = each.columns,
                               .begin = range.begin * each.each,
                               .count = range.count * each.each};
  }
  for (int r = 0; r < of.size; ++r)
    shard.vocab.push_back(RangeOf(config, steps, Split::kVocabulary, {r, of.size}).count);
  return shard;
}

}  // namespace

Status CheckSplits(const DecoderConfig& c) {
  const bool gate_sparse =
      std::any_of(c.gate_sparsity.begin(), c.gate_sparsity.end(), [](float share) { return share > 0; });
  const struct {
    bool has;
    const char* what;
  } features[] = {
      {c.IsLatent(), "latent attention"},
      {!c.recurrent.layer.empty(), "recurrent layers"},
      {!c.layer_shapes.empty(), "layers of several shapes"},
      {c.qk_norm && c.qk_norm_span != QkNormSpan::kHead,
       "a norm over the queries of all heads, or with weights of each head"},
      {c.alibi_max > 0, "ALiBi"},
      {c.moe.experts > 0 && c.moe.expert_bias, "biases of experts"},
      {c.moe.experts > 0 && c.moe.beside_dense, "experts beside a dense block"},
      {c.per_layer_dim > 0, "embeddings of each layer"},
      {c.altup.streams > 0 || c.laurel_rank > 0 || gate_sparse, "several residual streams"},
  };
  for (const auto& [has, what] : features)
    if (has)
      return Error::Unsupported("`tensor_parallel_size`: the model '", c.architecture, "' has ", what,
                                ", which cannot be split over several ranks yet; run it on one");
  return {};
}

Result<Shard> PlanShard(const DecoderConfig& config, const ShardOf& of) {
  CELER_RETURN_IF_ERROR(CheckSplits(config));
  return SplitBy(config, {}, {}, of);
}

Result<Shard> PlanShard(const DecoderConfig& config, bool gguf, const std::string& embedding,
                        const TensorSource& source, const WeightPlan& plan, const ShardOf& of) {
  CELER_RETURN_IF_ERROR(CheckSplits(config));
  CELER_ASSIGN(const std::vector<Dependence> dependences, DependencesOf(config, gguf, embedding, source));
  return SplitBy(config, dependences, StepsOf(dependences, plan), of);
}

}  // namespace celer
