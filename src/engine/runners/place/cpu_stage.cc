#include "engine/runners/place/cpu_stage.h"

#include <algorithm>

#include "models/step_work.h"

namespace celer {

CpuStage::CpuStage(std::unique_ptr<const Model> model, KvCache kv, KvFormat kv_format, bool first,
                   ThreadPool& pool)
    : model_(std::move(model)),
      kv_(std::move(kv)),
      kv_bytes_per_token_(KvBytesPerToken(model_->config(), kv_format)),
      decoder_(*model_, pool) {
  info_ = {.device = "cpu",
           .layers = model_->config().layers,
           .weight_bytes = model_->active_bytes(),
           .bytes_by_format = model_->bytes_by_format()};
  if (first) return;
  decoder_.set_input([this](const RaggedBatch& batch, float* x) {
    std::copy_n(input_, batch.token_count() * model_->config().hidden, x);
  });
}

Status CpuStage::Run(const RaggedBatch& batch, float* x) {
  input_ = x;
  RaggedBatch layers_alone = batch;
  layers_alone.logit_rows = {};
  decoder_.Forward(layers_alone, kv_.layers(), nullptr);
  const std::span<const float> left = decoder_.residual(batch.token_count());
  std::copy(left.begin(), left.end(), x);
  return {};
}

Status CpuStage::CopyBlocks(std::span<const BlockCopy> copies) {
  kv_.Copy(copies);
  return {};
}
Status CpuStage::SwapOut(std::span<const BlockCopy> copies) {
  kv_.SwapOut(copies);
  return {};
}
Status CpuStage::SwapIn(std::span<const BlockCopy> copies) {
  kv_.SwapIn(copies);
  return {};
}
Status CpuStage::ClearBlocks(std::span<const int32_t> blocks) {
  kv_.Clear(blocks);
  return {};
}

Status CpuStage::DiscardKv() {
  kv_.Discard();
  model_->DropPages();
  return {};
}

std::vector<OperatorWork> CpuStage::Work(const StepShape& shape) const {
  return CountStep(model_->config(), MatricesOf(model_->weights()), kv_bytes_per_token_, shape);
}

}  // namespace celer
