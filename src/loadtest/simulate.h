// An engine on a machine that is only modelled, and how well the model fits a machine that is here.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "celer/engine.h"
#include "engine/cost/step_cost.h"
#include "engine/runners/simulated_runner.h"

namespace celer::cli {

// A model as far as it is needed to tell what its steps cost.
struct CostedModel {
  DecoderConfig config;
  StepCost cost;
  int64_t resident_bytes = 0;  // of the weights in memory, all experts and the embedding
  int64_t kv_bytes_per_token = 0;
};

// MODEL is a name of celer limits --list, or what ResolveModelPath finds; of a file only the sizes are read.
Result<CostedModel> LoadCostedModel(const std::string& model, const EngineOptions& options);

// The same in two parts, for those who want several types of KV, or to say what arithmetic a device computes in.
struct ModelSizes {
  DecoderConfig config;
  StepMatrices matrices;
};
Result<ModelSizes> LoadModelSizes(const std::string& model, const WeightOptions& weights);
CostedModel CostModel(const ModelSizes& sizes, KvType kv);

// What an engine on this machine would have: the KV takes what `options` says, else 90 % of the memory that
// the weights leave.
struct SimulatedEngine {
  std::unique_ptr<Engine> engine;
  SimulatedRunner* runner = nullptr;  // the engine's
};
// `seconds` says what a step takes; without it, StepTime does. `runs_ahead`: as GPUs do, a step that only decodes is queued
// before the one in front of it has ended, so that a prompt that comes meanwhile waits for both.
using StepSeconds = std::function<double(std::span<const SliceShape>)>;
Result<SimulatedEngine> MakeSimulatedEngine(const CostedModel& model, const Machine& machine,
                                            const Efficiency& efficiency, const EngineOptions& options,
                                            StepSeconds seconds = nullptr, bool runs_ahead = false);
// With the KV, the context and the steps' costs of an engine that is there. `measured` corrects them (StepTime::Correct).
SimulatedEngine SimulateEngine(const Engine& engine, const DecoderConfig& config, const Machine& machine,
                               const Efficiency& efficiency, const EngineOptions& options,
                               std::span<const MeasuredStep> measured = {});

// The first steps of an engine are slower: pages are touched for the first time.
Status WarmUp(Engine& engine);

// Steps of several kinds, timed, as far as context, chunks and KV allow: prompts of several lengths and later pieces of
// them, answers of 1 to 16 sequences (on a GPU 128) near the beginning and further on, and both together.
inline constexpr int64_t kMeasuredPositions = 1100;  // for all of them
Result<std::vector<MeasuredStep>> MeasureSteps(Engine& engine, const EngineOptions& options);

// |model / measured - 1| of each step.
std::vector<double> FitErrors(const StepTime& time, const std::vector<MeasuredStep>& steps);

}  // namespace celer::cli
