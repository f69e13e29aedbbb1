// Static memory planning: the offsets of a graph's values in one arena, for given input shapes. Values whose
// live ranges do not overlap share bytes; an elementwise operator may work in place, on an input that dies
// with it; a reshape aliases its input, a slice can be a view of it, and the inputs of a Concat are written
// where they will stand.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "device/thread_pool.h"
#include "graph/run/program.h"

namespace celer::graph {

struct PlannedNode {
  enum class How : uint8_t {
    kPlanned,  // shapes are known: memory is in the arena
    kView,     // the outputs are the first input's memory, or parts of it
    kFolded,   // computed while planning: nothing is left to do
    kDynamic,  // shapes come with the data: memory is taken while it runs
  };
  How how = How::kDynamic;
  KernelFn kernel = nullptr;
  std::string_view kernel_name = "reference";
  Prepared prepared = {};
  int64_t workspace = -1;           // where it is in the arena; -1: none
  std::vector<int64_t> parts = {};  // of a view: where each output begins in the input, in bytes
};

struct MemoryPlan {
  std::vector<Shape> inputs;       // what it was made for
  std::vector<DType> input_types;  //
  std::vector<PlannedNode> nodes;
  std::vector<Data> frame;      // by value: folded ones with elements, planned ones with shapes
  std::vector<int64_t> offset;  // by value: into the arena; -1: not there
  std::vector<bool> transient;  // by value: made by a dynamic node, and gone after its last use
  int64_t arena_bytes = 0;      // what the plan needs
  int64_t naive_bytes = 0;      // each planned value with memory of its own
  int64_t live_bytes = 0;       // the most that is alive at once: no plan can need less
  double flops = 0;             // of planned nodes
  std::vector<double> node_flops;
  std::vector<double> node_bytes;  // what a planned node reads and writes, each value once
};

// `inputs` are by the order of the graph's inputs; their elements are not read.
Result<MemoryPlan> PlanMemory(const CompiledGraph& graph, std::vector<Data> inputs, ThreadPool& pool,
                              PackCache& packs);

// Offsets for blocks that are live from node `first` to node `last`. Greedy by size: largest first, each at
// the lowest offset where nothing overlaps it. Returns the bytes needed.
struct Block {
  int64_t bytes;
  int32_t first, last;
  int64_t offset = 0;
};
int64_t PlaceBlocks(std::vector<Block>& blocks);

// The first fast kernel that fits; none: the reference serves it.
const FastKernel* ChooseKernel(const Operator& op, const InferContext& context);

}  // namespace celer::graph
