// All layers of a model for 1 to 4 tokens in one persistent kernel. The operators are those of matvec_cuda.h
// and attention_cuda.h and give the same bits; instead of kernels that follow each other, the blocks wait for
// each other at a counter, so the ring of weights never runs dry between operators.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention_cuda.h"
#include "kernels/matmul/matvec_cuda.h"

namespace celer::cuda {

constexpr int kMaxStepLayers = 96;

// What differs between layers.
struct StepLayer {
  const std::byte *q, *k, *v, *o, *gate, *up, *down;
  const std::byte *q_scales, *k_scales, *v_scales, *o_scales, *gate_scales, *up_scales, *down_scales;
  const float *attention_norm, *ffn_norm, *q_bias, *k_bias, *v_bias;
  std::byte *k_cache, *v_cache;
  int64_t window;
};

struct DecodeStepArgs {
  // Of layer 0; all layers have these shapes, and all matrices one format and group.
  MatvecArgs qkv, o, gate_up, down;
  DeviceAttentionArgs attention;
  const StepLayer* layers = nullptr;  // in host memory
  int layer_count = 0;
  uint32_t* counter = nullptr;  // zero at the start
};

// Whether there is a kernel for this; the shapes of layer 0 decide.
bool CanDecodeStep(const DecodeStepArgs& args);
// Parameters of all layers in device memory, made once for a batch of so many tokens.
size_t DecodeStepTableBytes(int layer_count);
cudaError_t FillDecodeStepTable(const DecodeStepArgs& args, void* table);
cudaError_t LaunchDecodeStep(const DecodeStepArgs& args, const void* table, cudaStream_t stream);

}  // namespace celer::cuda
