#include "models/cpu/cpu_predictor.h"

#include "base/check.h"
#include "kernels/llm/embed/embed.h"
#include "kernels/llm/matmul/matmul.h"
#include "kernels/llm/rms_norm/rms_norm.h"

namespace celer {

CpuPredictor::CpuPredictor(std::shared_ptr<const Predictor> predictor, ThreadPool& pool)
    : predictor_(std::move(predictor)),
      pool_(&pool),
      decoder_(predictor_->config, predictor_->weights, pool) {
  decoder_.set_input([this](const RaggedBatch& batch, float* x) { Join(batch, x); });
}

void CpuPredictor::Forward(const RaggedBatch& batch, std::span<const float> before,
                           std::span<const KvLayerView> kv, float* logits,
                           const CpuDecoder::HiddenRows& hidden) {
  CELER_CHECK_EQ(std::ssize(before), batch.token_count() * predictor_->config.hidden);
  before_ = before;
  decoder_.Forward(batch, kv, logits, hidden);
}

void CpuPredictor::Join(const RaggedBatch& batch, float* x) {
  const DecoderConfig& c = predictor_->config;
  const int64_t tokens = batch.token_count(), width = c.hidden;
  joined_.resize(static_cast<size_t>(2 * tokens * width));
  embedded_.resize(static_cast<size_t>(tokens * width));
  Embed({.tokens = batch.tokens,
         .table = predictor_->weights.embedding,
         .scale = c.embedding_scale,
         .out = embedded_.data(),
         .pool = pool_});
  for (int64_t t = 0; t < tokens; ++t) {
    RmsNormArgs norm{.eps = c.norm_eps, .rows = 1, .cols = width};
    norm.x = embedded_.data() + t * width;
    norm.weight = predictor_->embedding_norm;
    norm.out = joined_.data() + 2 * t * width;
    RmsNorm(norm);
    norm.x = before_.data() + t * width;
    norm.weight = predictor_->hidden_norm;
    norm.out += width;
    RmsNorm(norm);
  }
  Matmul({.x = joined_.data(), .tokens = tokens, .pool = pool_},
         {.w = predictor_->join, .out = x, .out_stride = width});
}

}  // namespace celer
