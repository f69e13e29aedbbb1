// GEMV: products of a weight matrix with the activations of 1 to 8 tokens, at the speed of the memory: the
// core of qkv, gate_up, matmul and logits on the GPU. Weights stream through a ring buffer in shared memory,
// the tensor cores multiply, and the epilogue (norm, bias, rope, KV append, activation, residual) is fused.
//
// A product's value depends on its own token alone, not on the others in the batch. Activations keep 16 bits
// of significand (two bf16, or two int8 under a scale per 128), sums are f32.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/shared/cuda/device_batch.h"
#include "kernels/shared/cuda/device_matrix.h"

namespace celer::cuda {

constexpr int kMaxMatvecTokens = 8;

enum class Epilogue : uint8_t {
  kStore,   // out[token, row] = value (+ bias) (+ residual)
  kGateUp,  // out[token, row] = act(gate (+ bias)) * up (+ bias)
  kQkv,     // rope on q and k; q to out, k and v into the KV
};
enum class DeviceActivation : uint8_t { kSilu, kGelu, kGeluTanh, kRelu, kRelu2 };  // as Activation

struct MatvecArgs {
  DeviceMatrix a, b, c;      // kStore: a; kGateUp: gate, up; kQkv: q, k, v. All of one format and group.
  const float* x = nullptr;  // [tokens, x_stride]
  int64_t x_stride = 0;
  int tokens = 0;                 // 1 .. 8
  const int32_t* rows = nullptr;  // which rows of x, or null for 0 .. tokens - 1
  const float* norm = nullptr;    // [cols]; null without a norm in front
  float eps = 1e-5f;
  Epilogue epilogue = Epilogue::kStore;
  float* out = nullptr;  // [tokens, out_stride]
  int64_t out_stride = 0;
  const float* residual = nullptr;  // [tokens, residual_stride], may be out
  int64_t residual_stride = 0;      // 0: out_stride
  const float* a_bias = nullptr;
  const float* b_bias = nullptr;
  const float* c_bias = nullptr;
  DeviceActivation activation = DeviceActivation::kSilu;
  float swiglu_limit = 0;  // kGateUp: as in kernels/shared/activation; 0: none
  // kQkv
  float *k_out = nullptr, *v_out = nullptr;  // [tokens, out_stride], where k and v go besides the KV, or null
  DeviceBatch batch;
  DeviceKv kv;
  int rope_dim = 0;                 // pairs (i, i + rope_dim / 2)
  const float* rope_cos = nullptr;  // [positions, rope_dim / 2]
  const float* rope_sin = nullptr;
};

// Whether q, k and v of these shapes can be finished inside the product.
bool CanFuseRope(int head_dim, int rope_dim);
// Whether the activations of this many tokens fit into shared memory beside the ring.
bool MatvecFits(Format format, int padded_cols, int tokens);

cudaError_t LaunchMatvec(const MatvecArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
