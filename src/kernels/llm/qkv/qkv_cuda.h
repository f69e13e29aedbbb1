// The part of qkv after the projections, where it could not be done inside them: qk-norm, rope and the append
// to the paged KV.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/shared/cuda/device_batch.h"

namespace celer::cuda {

struct FinishQkvArgs {
  DeviceBatch batch;
  DeviceKv kv;
  const void* q = nullptr;  // f32 [count, q_stride], heads * head_dim of them
  const void* k = nullptr;  // [count, kv_stride]
  const void* v = nullptr;
  bool narrow_in = false;   // they have 16 bits, as narrow_q_out; where FinishTakesNarrow()
  bool integer_in = false;  // or are int32
  int64_t q_stride = 0, kv_stride = 0;
  // If given, what the values are to be multiplied with first: scales of the rows of q, k and v, which follow
  // each other, and of the tokens.
  const float* row_scales = nullptr;
  const float* token_scales = nullptr;
  float* q_out = nullptr;         // [count, heads, head_dim], may be q
  void* narrow_q_out = nullptr;   // instead of q_out; as in DeviceAttentionArgs
  const float* q_bias = nullptr;  // added first, where the products did not
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  int heads = 0;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float eps = 1e-5f;
  int rope_dim = 0;
  const float* rope_cos = nullptr;  // [positions, rope_dim / 2]
  const float* rope_sin = nullptr;
};
bool FinishTakesNarrow(const DeviceKv& kv, int rope_dim);
cudaError_t LaunchFinishQkv(const FinishQkvArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
