#include "engine/runners/group/cpu_rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "device/cpu_allocator.h"
#include "engine/runners/group/stage_layers.h"
#include "engine/runners/make_runner.h"
#include "engine/runners/runner_options.h"
#include "models/recurrent_state.h"

namespace celer {
namespace {

Result<int64_t> SumOverRanks(Communicator* group, int64_t mine) {
  return group ? SumOfNumbers(*group, mine) : mine;
}

Result<int64_t> LeastOfRanks(Communicator* group, int64_t mine) {
  return group ? LeastOfNumbers(*group, mine) : mine;
}

// Waits until the slowest rank has read its part.
Status MeetLoaded(Communicator* group, const Model& model) {
  if (!group) return {};
  CELER_RETURN_IF_ERROR(group->Barrier(Communicator::Wait::kIdle));
  CELER_ASSIGN(const std::vector<int64_t> files, GatherNumbers(*group, model.fingerprint()));
  for (size_t r = 1; r < files.size(); ++r)
    if (files[r] != files[0])
      return Error::Invalid("rank ", r, " has read another model than rank 0; all ranks need the same file (",
                            model.path(), ")");
  return {};
}

// What rank 0 wants of the KV counts for all: other processes have the same flags, but not what a command made of them.
struct Wanted {
  int64_t context = 0, sequences = 0, kv_bytes = 0, kv_host_memory = 0, kv_host_blocks = 0;
  double kv_share = 0;
};

Status Agree(Communicator* group, int64_t block_bytes, EngineOptions* options, int64_t* kv_host_blocks) {
  if (!group) return {};
  Wanted wanted = {.context = options->context,
                   .sequences = options->sequences,
                   .kv_bytes = options->kv_memory.bytes,
                   .kv_host_memory = options->kv_host_memory,
                   .kv_host_blocks = *kv_host_blocks,
                   .kv_share = options->kv_memory.share};
  CELER_RETURN_IF_ERROR(group->Broadcast(std::as_writable_bytes(std::span(&wanted, 1)), 0));
  options->context = wanted.context;
  options->sequences = wanted.sequences;
  // What is given is for all ranks together, and each has its share of every block.
  CELER_ASSIGN(const int64_t all_block_bytes, SumOfNumbers(*group, block_bytes));
  const auto share_of = [&](int64_t bytes) {
    return static_cast<int64_t>(static_cast<double>(bytes) * static_cast<double>(block_bytes) /
                                static_cast<double>(all_block_bytes));
  };
  options->kv_memory = {.bytes = share_of(wanted.kv_bytes), .share = wanted.kv_share};
  options->kv_host_memory = share_of(wanted.kv_host_memory);
  *kv_host_blocks = wanted.kv_host_blocks;
  return {};
}

// Bytes by name, of all ranks together: the stages of a pipeline need not have the same formats.
Result<std::map<std::string, int64_t>> SumByName(Communicator* group,
                                                 const std::map<std::string, int64_t>& mine) {
  if (!group) return mine;
  constexpr size_t kNumber = sizeof(int64_t);
  std::vector<std::byte> message;
  for (const auto& [name, bytes] : mine) {
    const auto number = std::as_bytes(std::span(&bytes, 1)), text = std::as_bytes(std::span(name));
    message.insert(message.end(), number.begin(), number.end());
    message.insert(message.end(), text.begin(), text.end());
    message.push_back(std::byte{0});
  }
  CELER_ASSIGN(const auto messages, GatherMessages(*group, message));
  std::map<std::string, int64_t> all;
  for (const std::vector<std::byte>& each : messages)
    for (size_t at = 0; at + kNumber < each.size();) {
      int64_t bytes = 0;
      std::memcpy(&bytes, each.data() + at, kNumber);
      const auto begin = each.begin() + static_cast<int64_t>(at + kNumber);
      const auto end = std::find(begin, each.end(), std::byte{0});
      all[std::string(reinterpret_cast<const char*>(&*begin), static_cast<size_t>(end - begin))] += bytes;
      at = static_cast<size_t>(end - each.begin()) + 1;
    }
  return all;
}

// Of each stage; one stage has all.
Result<std::vector<LayerRange>> LayersOfStages(const EngineOptions& options, const StageLink* link) {
  if (!link || link->stages() == 1) return std::vector<LayerRange>(1);
  CELER_ASSIGN(const DecoderConfig config, LoadDecoderConfig(options.model));
  return StageLayers(config, link->stages(), options.placement.split);
}

}  // namespace

int64_t CpuRoom(const Model& model, int64_t ranks) {
  int64_t mapped = -model.owned_bytes();
  for (const auto& [format, bytes] : model.bytes_by_format()) mapped += bytes;
  return static_cast<int64_t>(std::min(AvailableHostBytes(), TotalHostBytes())) -
         std::max<int64_t>(mapped, 0) * ranks;
}

Status CheckKvFits(const DecoderConfig& config, KvFormat format) {
  const int64_t block = Info(format.dtype).block;
  for (int64_t i = 0; i < config.layers; ++i)
    if (config.HeadDim(i) % block != 0)
      return Error::Unsupported("`kv` int4 shares a scale among ", block,
                                " values, and the heads of this model have ", config.HeadDim(i),
                                "; take `kv` int8");
  return {};
}

Status CheckRunsOnCpu(const EngineOptions& options) {
  if (options.model.starts_with(kRandomModel))
    return Error::Unsupported(options.model,
                              ": weights are made up on a GPU only; write a file with celer synth instead");
  if (options.activations != Activations::k16Bit)
    return Error::Unsupported("`activations` ", Name(options.activations), " runs on CUDA only");
  if (options.weights.format == WeightFormat::kFp8)
    return Error::Unsupported("`weights` ", options.weights.ToString(),
                              " runs on CUDA only; int8 takes as many bits on the CPU");
  return {};
}

CpuRank MakeWholeRank(std::shared_ptr<ThreadPool> pool, Model model, KvCache kv, KvFormat kv_format,
                      int64_t context, StateCache states) {
  CpuRank rank;
  rank.threads = pool->size();
  rank.weight_bytes = model.active_bytes();
  rank.bytes_by_format = model.bytes_by_format();
  rank.kv_bytes_per_token = KvBytesPerToken(model.config(), kv_format);
  rank.pool = std::move(pool);
  rank.model = std::make_shared<const Model>(std::move(model));
  rank.kv = std::move(kv);
  rank.states = std::move(states);
  rank.kv_format = kv_format;
  rank.context = context;
  return rank;
}

Result<CpuRank> LoadCpuRank(const EngineOptions& given, int64_t kv_host_blocks,
                            std::unique_ptr<ThreadPool> pool, const RanksHere& ranks, SharedWeights* shared) {
  EngineOptions options = given;
  CELER_RETURN_IF_ERROR(CheckRunsOnCpu(options));
  StageLink* const link = ranks.link;
  Communicator* const group = link ? &link->all() : nullptr;
  const ShardOf shard = link ? ShardOf{link->share(), link->shares()} : ShardOf{};
  if (group && DraftsWithPredictor(options.speculation))
    return Error::Unsupported(
        "`speculation` mtp does not run on several ranks yet; use lookup or a draft model");
  CpuRank out;
  CELER_ASSIGN(const std::vector<LayerRange> stages, LayersOfStages(options, link));
  out.layers = stages[link ? static_cast<size_t>(link->stage()) : 0];
  out.pool = std::move(pool);
  SharedWeights alone;
  if (!shared || group) shared = &alone;
  if (!shared->model) {
    CELER_ASSIGN(Model loaded, Model::Load(options.model,
                                           {.weights = options.weights,
                                            .pack_cache = options.pack_cache,
                                            .shard = shard,
                                            .layers = out.layers},
                                           *out.pool));
    shared->model = std::make_shared<const Model>(std::move(loaded));
  }
  out.model = shared->model;
  CELER_RETURN_IF_ERROR(MeetLoaded(group, *out.model));
  const DecoderConfig& config = out.model->config();
  out.kv_format = FormatOf(options.kv);
  CELER_RETURN_IF_ERROR(CheckKvFits(config, out.kv_format));
  int64_t block_bytes = KvBlockBytes(config, out.kv_format);
  CELER_RETURN_IF_ERROR(Agree(group, block_bytes, &options, &kv_host_blocks));
  CELER_ASSIGN(out.context, ContextFor(options, config));
  if (DraftsWithPredictor(options.speculation)) {
    if (!shared->predictor) {
      CELER_ASSIGN(Predictor loaded, LoadPredictor(*out.model, options.weights, *out.pool));
      shared->predictor = std::make_shared<const Predictor>(std::move(loaded));
    }
    out.predictor = shared->predictor;
    block_bytes += KvBlockBytes(out.predictor->config, out.kv_format);
  }
  // Before the first of them takes its part: pages count as taken only once they are written.
  if (!shared->room) shared->room = CpuRoom(*out.model, ranks.count);
  const int64_t room = *shared->room / (ranks.count * shared->replicas);
  CELER_ASSIGN(KvPlan plan, PlanWithin(BudgetFor(options, out.context), room, kCpuShare, block_bytes,
                                       StateBytes(config.recurrent)));
  CELER_ASSIGN(plan.blocks, LeastOfRanks(group, plan.blocks));
  CELER_ASSIGN(const int64_t host_blocks, LeastOfRanks(group, HostBlocks(options, config, kv_host_blocks)));
  auto kv = KvCache::Make(config, out.kv_format, plan.blocks, CpuAllocator(), host_blocks);
  if (!kv)
    return kv.error().WithContext("keys and values of " + std::to_string(plan.blocks * kKvBlockTokens) +
                                  " tokens (lower `kv_memory` or `context`)");
  out.kv = std::move(*kv);
  auto states = StateCache::Make(config.recurrent, plan.states, CpuAllocator());
  if (!states)
    return states.error().WithContext("states of " + std::to_string(plan.states) +
                                      " sequences (lower `kv_memory`)");
  out.states = std::move(*states);
  CELER_ASSIGN(const int64_t threads, SumOverRanks(group, out.pool->size()));
  out.threads = static_cast<int>(threads);
  CELER_ASSIGN(out.weight_bytes, SumOverRanks(group, out.model->active_bytes()));
  CELER_ASSIGN(out.kv_bytes_per_token, SumOverRanks(group, KvBytesPerToken(config, out.kv_format)));
  CELER_ASSIGN(out.bytes_by_format, SumByName(group, out.model->bytes_by_format()));
  if (link && link->stages() > 1) {
    CELER_ASSIGN(out.other_stages,
                 GatherStages(*link, *out.model, KvBytesPerToken(config, out.kv_format), stages));
  }
  return out;
}

}  // namespace celer
