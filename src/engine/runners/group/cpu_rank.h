// A model on this machine's cores with its memory: the whole of it, or one rank's part.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/options.h"
#include "device/thread_pool.h"
#include "engine/kv/kv_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/runners/group/stage_facts.h"
#include "engine/runners/group/stage_link.h"
#include "models/load/model.h"
#include "models/load/predictor.h"

namespace celer {

struct SharedWeights;

// Of what is free, for keys and values where nothing is said: other programs use a CPU's memory, too.
inline constexpr double kCpuShare = 0.5;
// What is free once the weights of all ranks are resident; a part of the mapping may not have been read yet.
int64_t CpuRoom(const Model& model, int64_t ranks);
Status CheckKvFits(const DecoderConfig& config, KvFormat format);
// A sentence if options ask for what GPUs alone do.
Status CheckRunsOnCpu(const EngineOptions& options);

struct CpuRank {
  std::shared_ptr<ThreadPool> pool;  // with other parts of a model that run on this CPU
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Predictor> predictor;
  KvCache kv;
  StateCache states;
  KvFormat kv_format = DType::kF16;
  int64_t context = 0;
  LayerRange layers = {};  // of several stages: those that are here
  std::vector<StageFacts> other_stages = {};
  // Of all ranks together.
  int threads = 0;
  int64_t weight_bytes = 0;  // read by one decode step
  int64_t kv_bytes_per_token = 0;
  std::map<std::string, int64_t> bytes_by_format;
};

// One rank with all of a model, out of its parts.
CpuRank MakeWholeRank(std::shared_ptr<ThreadPool> pool, Model model, KvCache kv, KvFormat kv_format,
                      int64_t context, StateCache states = {});

// The ranks of a group that share this machine's memory.
struct RanksHere {
  StageLink* link = nullptr;  // null: there is one rank, and no group
  int64_t count = 1;          // on this machine, of the whole group
};

// Reads the model, or the rank's part of it; all ranks at once. An error does not end the group yet. Without a group what
// is in `shared` is taken from there.
Result<CpuRank> LoadCpuRank(const EngineOptions& options, int64_t kv_host_blocks,
                            std::unique_ptr<ThreadPool> pool, const RanksHere& ranks,
                            SharedWeights* shared = nullptr);

}  // namespace celer
