// Recurrent layers on a CPU, up to the output projection.
#include <span>

#include "kernels/llm/causal_conv/causal_conv.h"
#include "kernels/llm/delta_rule/delta_rule.h"
#include "kernels/llm/low_rank/adapted.h"
#include "kernels/llm/mamba2/mamba2.h"
#include "models/cpu/cpu_decoder.h"
#include "models/recurrent_state.h"

namespace celer {

void CpuDecoder::Recurrent(const LayerWeights& w, const RaggedBatch& batch, const RecurrentStates& states) {
  config_.recurrent.kind == RecurrentKind::kMamba2 ? Mamba2Layer(w, batch, states)
                                                   : GatedDelta(w, batch, states);
}

// Returns where the layer's matrices are: behind the state of the convolution.
RecurrentStates CpuDecoder::ProjectAndConvolve(const LayerWeights& w, const RaggedBatch& batch,
                                               std::span<const MatmulOutput> outputs, float* convolved,
                                               const RecurrentStates& states) {
  const RecurrentConfig& r = config_.recurrent;
  Matmul({.x = work_.x.data(),
          .tokens = batch.token_count(),
          .norm = w.attention_norm,
          .eps = config_.norm_eps,
          .outputs = outputs,
          .pool = pool_},
         added_);
  CausalConv({.batch = batch,
              .w = w.recurrent.conv,
              .bias = w.recurrent.conv_bias,
              .channels = ConvChannels(r),
              .kernel = r.conv_kernel,
              .x = convolved,
              .states = states,
              .pool = pool_});
  RecurrentStates matrices = states;
  matrices.data += ConvStateFloats(r);
  return matrices;
}

void CpuDecoder::GatedDelta(const LayerWeights& w, const RaggedBatch& batch, const RecurrentStates& states) {
  const RecurrentConfig& r = config_.recurrent;
  const RecurrentWeights& weights = w.recurrent;
  float *const qkv = work_.mixed.data(), *const z = work_.z.data(), *const a = work_.a.data(),
               *const b = work_.b.data();
  const int64_t keys = weights.k.rows, channels = ConvChannels(r);
  const MatmulOutput outputs[] = {{.w = weights.q, .out = qkv, .out_stride = channels},
                                  {.w = weights.k, .out = qkv + keys, .out_stride = channels},
                                  {.w = weights.v, .out = qkv + 2 * keys, .out_stride = channels},
                                  {.w = weights.z, .out = z, .out_stride = weights.z.rows},
                                  {.w = weights.a, .out = a, .out_stride = weights.a.rows},
                                  {.w = weights.b, .out = b, .out_stride = weights.b.rows}};
  const RecurrentStates matrices = ProjectAndConvolve(w, batch, outputs, qkv, states);
  DeltaRule({.batch = batch,
             .key_heads = r.key_heads,
             .key_dim = r.key_dim,
             .value_heads = r.value_heads,
             .value_dim = r.value_dim,
             .tiled_values = r.tiled_values,
             .qkv = qkv,
             .z = z,
             .a = a,
             .b = b,
             .rate = weights.rate.data(),
             .dt_bias = weights.dt_bias,
             .norm = weights.norm,
             .eps = config_.norm_eps,
             .states = matrices,
             .out = work_.attention.data(),
             .pool = pool_});
}

void CpuDecoder::Mamba2Layer(const LayerWeights& w, const RaggedBatch& batch, const RecurrentStates& states) {
  const RecurrentConfig& r = config_.recurrent;
  const RecurrentWeights& weights = w.recurrent;
  float *const mixed = work_.mixed.data(), *const z = work_.z.data(), *const dt = work_.a.data();
  const int64_t channels = ConvChannels(r);
  const MatmulOutput outputs[] = {
      {.w = weights.z, .bias = weights.z_bias, .out = z, .out_stride = weights.z.rows},
      {.w = weights.mixed, .bias = weights.mixed_bias, .out = mixed, .out_stride = channels},
      {.w = weights.a, .bias = weights.a_bias, .out = dt, .out_stride = weights.a.rows}};
  const RecurrentStates matrices = ProjectAndConvolve(w, batch, outputs, mixed, states);
  Mamba2({.batch = batch,
          .groups = r.key_heads,
          .state_dim = r.key_dim,
          .heads = r.value_heads,
          .head_dim = r.value_dim,
          .xbc = mixed,
          .z = z,
          .dt = dt,
          .decay = work_.b.data(),
          .rate = weights.rate.data(),
          .dt_bias = weights.dt_bias,
          .skip = weights.skip,
          .step_min = r.step_min,
          .step_max = r.step_max,
          .norm = weights.norm,
          .norm_groups = r.norm_groups,
          .eps = config_.norm_eps,
          .states = matrices,
          .out = work_.attention.data(),
          .pool = pool_});
}

}  // namespace celer
