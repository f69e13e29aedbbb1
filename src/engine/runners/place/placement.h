// Where the layers of a model go: a plan, made before anything is allocated, out of what each device has room for and what
// the user has fixed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/device.h"
#include "base/result.h"
#include "celer/options.h"
#include "engine/runners/place/place_patterns.h"
#include "models/config/layer_range.h"

namespace celer {

// What the plan is made of, in bytes.
struct PlacementFacts {
  struct Layer {
    int64_t weights = 0;   // on a GPU, with experts
    int64_t experts = 0;   // of that
    int64_t kv_block = 0;  // of its keys and values
  };
  struct Gpu {
    int index = 0;
    int64_t room = 0;    // for weights, keys and values: what may be taken, less workspace and staging
    int64_t memory = 0;  // that may be taken; 0: what is free
  };
  std::vector<Layer> layers;
  int64_t embedding = 0, head = 0;  // on a GPU; a head that is the embedding counts where it is alone
  bool tied = false;
  std::vector<Gpu> gpus;  // those of PlacementOptions::devices, or the one device, in their order
  int64_t kv_blocks = 0;  // there must be room for, at least
  // What sending the weights of layers, or of experts, for every prompt takes of a GPU; 0: that is not possible.
  int64_t fed_layers = 0, fed_experts = 0;
};

// Stages in the order in which a batch passes them.
struct Placement {
  struct Stage {
    Device device;
    LayerRange layers;
    std::vector<bool> cpu_experts = {};  // of which of its layers the experts are on the CPU; empty: of none
    int64_t weights = 0;                 // bytes on a GPU; 0 on the CPU, which reads the mapped file
    int64_t kv = 0;                      // for PlacementFacts::kv_blocks
    int64_t memory = 0;                  // that may be taken there, as PlacementFacts::Gpu::memory
  };
  std::vector<Stage> stages;
  int64_t stream_from = 0;  // batches of so many tokens are computed on the GPU alone; 0: none are

  bool alone() const { return stages.size() == 1 && stages[0].cpu_experts.empty(); }
  // "layers 0 to 19 on cpu; 20 to 31 and the head on cuda:0: weights 1.62 GiB, KV 64.0 MiB of 3.42 GiB"
  std::string ToString(const PlacementFacts& facts) const;
};

// An error names what fits instead. `placed`: what patterns have found; its layers' devices are those of `asked` then, in the
// order of facts.gpus.
Result<Placement> PlanPlacement(const PlacementOptions& asked, const PlacementFacts& facts,
                                const PlacedTensors& placed = {});
// Layers that patterns have placed, as devices of the options and how many layers each of them has.
Result<PlacementOptions> WithPlacedLayers(PlacementOptions asked, const PlacedTensors& placed);

// What of a plan can be sent to its GPU for prompts: the layers of a CPU in front of one GPU; experts.
bool StreamsLayers(const Placement& placement, const PlacementFacts& facts);
bool StreamsExperts(const Placement& placement, const PlacementFacts& facts);

// From how many tokens on sending is faster than computing on the CPU.
struct StreamSpeeds {
  double sent_bytes = 0, host_bytes_per_s = 0;  // to the GPU
  double macs = 0, cpu_flops = 0;               // of each token on the CPU
};
int64_t StreamFrom(const StreamSpeeds& speeds);

// `plan`, with room for what is sent where that is wanted and possible: with stream_prompts auto, where it takes no more than an
// eighth of a GPU, and `from` is no more than `chunk`, the tokens of the largest batches.
Result<Placement> WithStreaming(const Placement& plan, const PlacementOptions& asked,
                                const PlacementFacts& facts, const PlacedTensors& placed, int64_t from,
                                int64_t chunk);

// `parts` whole numbers near `total` times these shares, which add up to it; at least one each.
std::vector<int64_t> Portions(int64_t total, const std::vector<double>& shares);

}  // namespace celer
