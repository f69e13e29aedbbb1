// A decode step in one persistent kernel (megakernel), for 1 to 4 tokens of different sequences: embedding,
// all layers, logits and greedy sampling. Its blocks, one on each multiprocessor, hand their results to each
// other through L2 as soon as they exist, and the ring buffer of weights in shared memory runs ahead of them
// across operators and layers: the memory never waits for an operator to end.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/llm/attention/cuda/attention_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/llm/sample/greedy_cuda.h"

namespace celer::cuda {

constexpr int kMaxStepTokens = 4;

// A layer's operators: weights, norms, biases, KV and shapes. The step itself decides
// where x comes from and goes to.
struct DecodeStepLayer {
  MatvecArgs qkv, o, gate_up, down;
  int window = 0;
};

struct DecodeStepArgs {
  std::span<const DecodeStepLayer> layers;
  DeviceBatch batch;
  int heads = 0;
  float scale = 1;
  DeviceMatrix embedding;
  // The logits: weights, norm, out. Where DecodeStepHasHead() is false that product runs after the step.
  MatvecArgs head;
  float* x = nullptr;   // [tokens, hidden], its input then: what the last layer writes
  GreedyTarget choice;  // without pointers: no choice
};

// How many tokens at once this kernel runs of such a model, at most kMaxStepTokens; 0 if its operators have
// to run one by one.
int DecodeStepTokens(const DecodeStepArgs& args);
// Whether the head's format is one that the step multiplies with, too: without it there are neither logits
// nor a choice.
bool DecodeStepHasHead(const DecodeStepArgs& args);
// Up to this many keys of a sequence, its attention is at least as fast as the kernel that shares the keys
// among the query heads of a group.
int DecodeStepKeys(const DecodeStepArgs& args);

// Device memory that the step needs beside its arguments. Filled once, for args.batch.count up to
// DecodeStepTokens; all pointers but those of args.choice must stay as they are.
size_t DecodeStepBytes(const DecodeStepArgs& args);
cudaError_t PrepareDecodeStep(const DecodeStepArgs& args, void* memory);

// args.batch.count tokens, each of its own sequence.
cudaError_t LaunchDecodeStep(const DecodeStepArgs& args, void* memory, cudaStream_t stream);

}  // namespace celer::cuda
