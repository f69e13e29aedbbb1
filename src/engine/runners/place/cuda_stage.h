#pragma once

#include <memory>

#include "engine/runners/place/stage.h"
#include "models/cuda/decoder.h"
#include "models/cuda/memory/kv.h"

namespace celer {

class CudaStage : public Stage {
 public:
  // `decoder` has the layers of this stage and no output head. `blocks` and `host_blocks` as in CudaRunner::Make().
  static Result<std::unique_ptr<CudaStage>> Make(std::unique_ptr<CudaDecoder> decoder,
                                                 const CudaDecoderOptions& options, int64_t blocks,
                                                 int64_t host_blocks);

  const Info& info() const override { return info_; }
  Status Run(const RaggedBatch& batch, float* x) override;

  Status CopyBlocks(std::span<const BlockCopy> copies) override;
  Status SwapOut(std::span<const BlockCopy> copies) override;
  Status SwapIn(std::span<const BlockCopy> copies) override;
  Status ClearBlocks(std::span<const int32_t> blocks) override;

  std::vector<OperatorWork> Work(const StepShape& shape) const override { return decoder_->Work(shape); }
  void set_profile(OpProfile* profile) override { decoder_->set_profile(profile); }
  void set_watch(LayerWatch watch) override { decoder_->set_watch(std::move(watch)); }

 private:
  CudaStage(std::unique_ptr<CudaDecoder> decoder, std::unique_ptr<CudaKv> kv);

  std::unique_ptr<CudaKv> kv_;  // outlives the decoder
  std::unique_ptr<CudaDecoder> decoder_;
  Info info_;
  const float* input_ = nullptr;  // of the batch that runs
};

}  // namespace celer
