#pragma once

#include <memory>

#include "device/thread_pool.h"
#include "engine/kv/kv_cache.h"
#include "engine/runners/place/stage.h"
#include "models/cpu/cpu_decoder.h"
#include "models/load/model.h"

namespace celer {

class CpuStage : public Stage {
 public:
  // `model` has the layers of this stage alone; `first` of all stages. The pool must outlive it.
  CpuStage(std::unique_ptr<const Model> model, KvCache kv, KvFormat kv_format, bool first, ThreadPool& pool);

  const Info& info() const override { return info_; }
  Status Run(const RaggedBatch& batch, float* x) override;

  // What the first of all layers reads: x[tokens, hidden].
  void Embed(const RaggedBatch& batch, float* x) { decoder_.EmbedAlone(batch, x); }
  std::span<const KvLayerView> kv() const { return kv_.layers(); }

  Status CopyBlocks(std::span<const BlockCopy> copies) override;
  Status SwapOut(std::span<const BlockCopy> copies) override;
  Status SwapIn(std::span<const BlockCopy> copies) override;
  Status ClearBlocks(std::span<const int32_t> blocks) override;
  Status DiscardKv() override;

  std::vector<OperatorWork> Work(const StepShape& shape) const override;
  void set_profile(OpProfile* profile) override { decoder_.set_profile(profile); }
  void set_watch(LayerWatch watch) override { decoder_.set_watch(std::move(watch)); }

 private:
  std::unique_ptr<const Model> model_;
  KvCache kv_;
  int64_t kv_bytes_per_token_;
  CpuDecoder decoder_;
  Info info_;
  const float* input_ = nullptr;  // of the batch that runs
};

}  // namespace celer
