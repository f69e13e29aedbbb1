#include <algorithm>

#include "base/device.h"
#include "engine/runners/place/cuda_stage.h"

namespace celer {

Result<std::unique_ptr<CudaStage>> CudaStage::Make(std::unique_ptr<CudaDecoder> decoder,
                                                   const CudaDecoderOptions& options, int64_t blocks,
                                                   int64_t host_blocks) {
  CELER_ASSIGN(std::unique_ptr<CudaKv> kv,
               CudaKv::Make(options.device, decoder->config(), options.kv, blocks, host_blocks));
  CELER_RETURN_IF_ERROR(decoder->UseKv(*kv));
  return std::unique_ptr<CudaStage>(new CudaStage(std::move(decoder), std::move(kv)));
}

CudaStage::CudaStage(std::unique_ptr<CudaDecoder> decoder, std::unique_ptr<CudaKv> kv)
    : kv_(std::move(kv)), decoder_(std::move(decoder)) {
  info_ = {.device = Device::Cuda(decoder_->device()).ToString() + " (" + decoder_->device_name() + ")",
           .layers = decoder_->config().layers,
           .weight_bytes = decoder_->active_bytes(),
           .bytes_by_format = decoder_->bytes_by_format()};
  decoder_->set_input([this](const RaggedBatch& batch, float* x) -> Status {
    std::copy_n(input_, batch.token_count() * decoder_->config().hidden, x);
    return {};
  });
}

Status CudaStage::Run(const RaggedBatch& batch, float* x) {
  input_ = x;
  RaggedBatch layers_alone = batch;
  layers_alone.logit_rows = {};
  CELER_RETURN_IF_ERROR(decoder_->Forward(layers_alone));
  CELER_ASSIGN(const std::span<const float> left, decoder_->Residual());
  std::copy(left.begin(), left.end(), x);
  return {};
}

Status CudaStage::CopyBlocks(std::span<const BlockCopy> copies) {
  return kv_->Copy(copies, decoder_->stream());
}
Status CudaStage::SwapOut(std::span<const BlockCopy> copies) {
  return kv_->SwapOut(copies, decoder_->stream());
}
Status CudaStage::SwapIn(std::span<const BlockCopy> copies) {
  return kv_->SwapIn(copies, decoder_->stream());
}
Status CudaStage::ClearBlocks(std::span<const int32_t> blocks) {
  return kv_->Clear(blocks, decoder_->stream());
}

}  // namespace celer
