// What FinishQkvArgs has no place for: qk-norms other than RMSNorm over each head before rope, queries scaled by
// their position, heads without rope, queries among their gates.
#pragma once

#include "kernels/llm/qkv/qkv_cuda.h"

namespace celer::cuda {

struct FinishQkvGeneralArgs {
  // Neither narrow_in nor integer_in, nor scales; rope_dim 0: nothing rotates. With row_norm q_out is not q.
  FinishQkvArgs base;
  int q_head_stride = 0;  // from one head of q to the next; 0: head_dim
  // As in QkNormForm. Norms have [head_dim], [heads * head_dim] with row_norm or own_norms.
  bool row_norm = false;
  bool own_norms = false;
  bool layer_norm = false;
  bool norm_after_rope = false;
  const float *q_norm_bias = nullptr,
              *k_norm_bias = nullptr;  // of layer_norm, as long as the norms; may be none
  const float* q_scale = nullptr;      // [positions]; may be none
};
cudaError_t LaunchFinishQkvGeneral(const FinishQkvGeneralArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
