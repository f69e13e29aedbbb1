// All layers of a decode step in one persistent kernel, for up to 16 tokens; up to 8 have an instance of
// their own. As in decode_step_cuda.h the ring buffer of weights runs ahead across operators and layers.
// Activations are written as bf16, in the fragment order of the tensor cores, so that no block converts them:
// each fetches them by bulk copies as soon as a counter says that they are complete.
#pragma once

#include "kernels/llm/decode_step/decode_step_cuda.h"

namespace celer::cuda {

constexpr int kMaxBatchTokens = 16;

// How many tokens of such a model this kernel should run at once: 0 if it does not run the model, 8 where the
// table of its layers leaves no room for more.
int DecodeBatchTokens(const DecodeStepArgs& args);
// The most keys that a sequence may have: its attention does not split sequences.
int DecodeBatchKeys();

// As in decode_step_cuda.h, for args.batch.count up to kMaxBatchTokens.
size_t DecodeBatchBytes(const DecodeStepArgs& args);
cudaError_t PrepareDecodeBatch(const DecodeStepArgs& args, void* memory);
uint32_t* DecodeBatchCounter(const DecodeStepArgs& args, void* memory);
cudaError_t LaunchDecodeBatch(const DecodeStepArgs& args, void* memory, cudaStream_t stream);

}  // namespace celer::cuda
