#include "kernels/llm/qkv/qkv_cuda.h"
#include "models/cuda/layer/layer_strategy.h"

namespace celer {

void MatvecStrategy::Qkv(const DeviceLayer& w, const Batch& batch, int64_t) {
  const DecoderConfig& c = config();
  const int dim = static_cast<int>(c.head_dim), rope_dim = static_cast<int>(c.rope.dim);
  const int64_t q_width = op_.shape.q_width(), kv_width = op_.shape.kv_width();
  // An i8 row needs its largest value first.
  if (batch.count <= kMaxMatvecTokens && !w.q_norm && w.kv.dtype != DType::kI8 && SameForm(w.q, w.k) &&
      SameForm(w.q, w.v) && cuda::CanFuseRope(dim, rope_dim) &&
      cuda::MatvecFits(w.q.format, w.q.padded, batch.count)) {
    return op_.Check(cuda::LaunchMatvec(op_.QkvArgs(w, batch), op_.stream.get()));
  }
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  if (const DeviceMatrix all = CudaOperators::Joined(projections); all && m_.qkv_rows) {
    op_.Multiply({.a = &all,
                  .x = m_.x,
                  .x_stride = c.hidden,
                  .norm = w.attention_norm,
                  .eps = c.norm_eps,
                  .out = m_.qkv_rows,
                  .out_stride = q_width + 2 * kv_width},
                 batch.count);
    return op_.FinishQkvRows(w, batch);
  }
  const auto project = [&](const DeviceMatrix& matrix, const float* bias, float* out, int64_t width) {
    op_.Multiply({.a = &matrix,
                  .x = m_.x,
                  .x_stride = c.hidden,
                  .norm = w.attention_norm,
                  .eps = c.norm_eps,
                  .bias = bias,
                  .out = out,
                  .out_stride = width},
                 batch.count);
  };
  project(w.q, w.q_bias, m_.q, q_width);
  project(w.k, w.k_bias, m_.k, kv_width);
  project(w.v, w.v_bias, m_.v, kv_width);
  cuda::FinishQkvArgs finish;
  finish.batch = batch;
  finish.kv = w.kv;
  finish.q = m_.q, finish.k = m_.k, finish.v = m_.v;
  finish.q_out = m_.q;
  finish.q_stride = q_width, finish.kv_stride = kv_width;
  finish.heads = static_cast<int>(c.heads);
  finish.q_norm = w.q_norm, finish.k_norm = w.k_norm;
  finish.eps = c.norm_eps;
  finish.rope_dim = rope_dim;
  finish.rope_cos = m_.rope_cos, finish.rope_sin = m_.rope_sin;
  op_.Check(cuda::LaunchFinishQkv(finish, op_.stream.get()));
}

void MatvecStrategy::Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) {
  op_.Attention(w, batch, layer);
}

void MatvecStrategy::Output(const DeviceLayer& w, const Batch& batch) {
  op_.Multiply({.a = &w.o,
                .x = m_.attention,
                .x_stride = op_.shape.q_width(),
                .residual = op_.AddsToX() ? m_.x : nullptr,
                .out = op_.Sum(kOutput),
                .out_stride = config().hidden},
               batch.count);
  op_.JoinRanks(kOutput, batch.count);
}

void MatvecStrategy::GateUp(const DeviceLayer& w, const Batch& batch, int64_t) {
  op_.GateUpByMatvec(w, batch.count);
}

void MatvecStrategy::Down(const DeviceLayer& w, const Batch& batch, int64_t) {
  op_.Multiply({.a = &w.down,
                .x = m_.mid,
                .x_stride = config().intermediate,
                .residual = op_.AddsToX() ? m_.x : nullptr,
                .out = op_.Sum(kDown),
                .out_stride = config().hidden},
               batch.count);
  op_.JoinRanks(kDown, batch.count);
}

}  // namespace celer
