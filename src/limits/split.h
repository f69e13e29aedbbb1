// A model that is on a GPU and a CPU, or on several GPUs, which take turns at every step: each reads its part of the
// weights and of the keys and values at its own bandwidth.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "celer/limits.h"

namespace celer {

struct MachineShare {
  Machine machine;
  double share = 0;  // of what a step reads and computes; all add up to 1
};
// As one machine: what it reads in a second is what all of them read by turns. Peaks are those that all of them have.
// `waiting_s`: for each byte that is read besides, while something crosses from one to another.
Machine TakingTurns(std::span<const MachineShare> parts, double waiting_s = 0);
// Of a GPU beside a CPU, for one crossing: measured, or what is usual.
double CrossingSeconds(const Machine& gpu);

struct SplitQuery {
  int64_t context = 0;                     // tokens of each sequence, whose KV has to fit beside the layers
  std::optional<int64_t> gpu_layers = {};  // the last ones; unset: as many as fit
  int64_t cpu_experts = 0;                 // of the first so many layers
};

struct SplitLimit {
  int64_t gpu_layers = 0;
  double gpu_bytes = 0, cpu_bytes = 0;  // that one decode step reads
  double gpu_s = 0, cpu_s = 0;          // reading them
  double resident = 0;                  // bytes on the GPU, weights and KV
  double crossing_s = 0;                // activations on their way
  double seconds() const { return gpu_s + cpu_s + crossing_s; }
};

// A decode step of layers on a CPU, layers and the head on a GPU. All layers count as alike. Arithmetic is not
// counted. Nothing if the layers asked for, or none at all, fit into `gpu.memory_bytes`.
std::optional<SplitLimit> SplitDecode(const LlmShape& shape, const Machine& gpu, const Machine& cpu,
                                      const LlmSetup& setup, const SplitQuery& query);

}  // namespace celer
