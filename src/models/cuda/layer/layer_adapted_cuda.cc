// A layer's products with what LoRA adapters add to them.
#include "kernels/llm/gate_up/gate_up_cuda.h"
#include "kernels/llm/rms_norm/norm_cuda.h"
#include "models/cuda/layer/layer_strategy.h"

namespace celer {
namespace {

// More are faster by cuBLASLt, as in strategy.cc.
constexpr int kRowsTokens = 24;

bool ByRows(const CudaOperators& op, int count) {
  return op.shape.rows && !op.shape.deterministic && count > kRowsTokens;
}

}  // namespace

void GeneralStrategy::Multiply(const DeviceLayer& w, DeviceLayer::Part part,
                               const CudaOperators::Projection& p, int count) {
  if (rows_ && ByRows(op_, count)) return rows_->Project(w, part, p, count);
  op_.Project(p, count);
}

void GeneralStrategy::AdaptedQkv(const DeviceLayer& w, const Normed& in, int count) {
  constexpr LoraPart kParts[] = {LoraPart::kQ, LoraPart::kK, LoraPart::kV};
  const DecoderConfig& c = config();
  const DeviceMatrix* const projections[] = {&w.q, &w.k, &w.v};
  CudaLora::Product adapted{.parts = kParts,
                            .layer = LayerOf(w),
                            .x = in.x,
                            .cols = static_cast<int>(c.hidden),
                            .norm = in.norm,
                            .eps = c.norm_eps,
                            .stride = op_.shape.qkv_width()};
  float* to = m_.qkv_rows;
  for (size_t i = 0; i < std::size(projections); to += projections[i]->rows, ++i)
    adapted.outs[i] = {.rows = projections[i]->rows, .product = to};
  op_.lora->Shrink(adapted, count);
  Multiply(w, DeviceLayer::kQkv,
           {.matrices = projections,
            .x = in.x,
            .norm = in.norm,
            .eps = c.norm_eps,
            .out = m_.qkv_rows,
            .out_stride = op_.shape.qkv_width()},
           count);
  op_.lora->Expand(adapted, count);
}

// Up alone where there is no gate.
void GeneralStrategy::AdaptedGateUp(const DeviceLayer& w, const Normed& in, int count) {
  constexpr LoraPart kParts[] = {LoraPart::kUp, LoraPart::kGate};
  const DecoderConfig& c = config();
  const DeviceMatrix *const gate[] = {&w.gate}, *const up[] = {&w.up};
  const CudaLora::Product adapted{
      .parts = std::span(kParts).first(w.gate ? 2 : 1),
      .layer = LayerOf(w),
      .x = in.x,
      .cols = static_cast<int>(c.hidden),
      .norm = in.norm,
      .eps = c.norm_eps,
      .outs = {{{.rows = w.up.rows, .product = m_.up}, {.rows = w.gate.rows, .product = m_.mid}}},
      .stride = w.up.rows};
  op_.lora->Shrink(adapted, count);
  CudaOperators::Projection product{.matrices = gate,
                                    .x = in.x,
                                    .norm = in.norm,
                                    .eps = c.norm_eps,
                                    .out = m_.mid,
                                    .out_stride = w.up.rows};
  if (w.gate) Multiply(w, DeviceLayer::kGateUp, product, count);
  product.prepared = w.gate && w.gate.padded == w.up.padded;
  product.matrices = up;
  product.out = m_.up;
  Multiply(w, DeviceLayer::kGateUp, product, count);
  const bool plain = w.gate && !w.gate_bias && !w.up_bias,
             rows =
                 rows_ && ByRows(op_, count) && w.down.padded == w.up.rows;  // which down reads as they are
  if (plain && op_.lora->ExpandActivate(adapted, count,
                                        {.activation = op_.activation(),
                                         .limit = config().swiglu_limit,
                                         .out = m_.mid,
                                         .out_bf16 = rows ? m_.mid_bf16 : nullptr})) {
    mid_prepared_ = rows;
    return;
  }
  mid_prepared_ = false;
  op_.lora->Expand(adapted, count);
  Activate(w, count);
}

// The product stands alone until what is added to it is there.
void GeneralStrategy::AdaptedBranch(const DeviceLayer& w, LoraPart part, CudaOperators::Projection p,
                                    const float* post_norm, int count) {
  const auto hidden = static_cast<int>(config().hidden);
  if (part == LoraPart::kDown) p.prepared = std::exchange(mid_prepared_, false);
  p.out = m_.branch;
  p.out_stride = hidden;
  const CudaLora::Product adapted{
      .parts = {&part, 1},
      .layer = LayerOf(w),
      .x = p.x,
      .cols = p.matrices[0]->cols,
      .outs = {{{.rows = hidden, .product = m_.branch, .bias = std::exchange(p.bias, nullptr)}}},
      .stride = hidden,
      .add_to = post_norm ? nullptr : m_.x};
  op_.lora->Shrink(adapted, count);
  Multiply(w, part == LoraPart::kDown ? DeviceLayer::kDown : DeviceLayer::kOutput, p, count);
  op_.lora->Expand(adapted, count);
  normed_by_ = nullptr;
  if (post_norm) AddNormedBranch(post_norm, count);
}

// `in`: where q, k, v, z, b and a of each token follow each other.
void GeneralStrategy::AdaptRecurrent(const DeviceLayer& w, float* in, int64_t stride, int count) {
  constexpr LoraPart kParts[] = {LoraPart::kStateQ, LoraPart::kStateK, LoraPart::kStateV,
                                 LoraPart::kStateZ, LoraPart::kStateB, LoraPart::kStateA};
  const std::array<const DeviceMatrix*, 6> inputs = w.recurrent.Inputs();
  constexpr size_t kAtOnce = 3;
  for (size_t first = 0; first < inputs.size(); first += kAtOnce) {
    CudaLora::Product adapted{.parts = std::span(kParts).subspan(first, kAtOnce),
                              .layer = LayerOf(w),
                              .x = m_.x,
                              .cols = static_cast<int>(config().hidden),
                              .norm = w.attention_norm,
                              .eps = config().norm_eps,
                              .stride = stride};
    for (size_t i = 0; i < kAtOnce; in += inputs[first + i]->rows, ++i)
      adapted.outs[i] = {.rows = inputs[first + i]->rows, .product = in};
    op_.lora->Add(adapted, count);
  }
}

}  // namespace celer
