// Runs a model's layer for multi-token prediction on this machine's cores (Runner::TakePredictor). A step runs when it is
// taken.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/loop/step_batch.h"
#include "engine/runners/runner.h"
#include "models/cpu/cpu_predictor.h"

namespace celer {

class CpuPredictorRunner final : public Runner {
 public:
  // The pool must outlive it.
  CpuPredictorRunner(std::shared_ptr<const Predictor> predictor, ThreadPool& pool, KvCache kv,
                     KvFormat kv_format, int64_t context);

  const Info& info() const override { return info_; }
  // Slices that sample nothing.
  Status Queue(std::span<const Slice> slices) override;
  Result<StepOutput> Take() override;
  void DropQueued() override { queued_.reset(); }
  bool RunsAhead(std::span<const Slice>) const override { return false; }

  // With no step queued.
  Status CopyBlocks(std::span<const BlockCopy> copies) override;
  Status SwapOut(std::span<const BlockCopy> copies) override;
  Status SwapIn(std::span<const BlockCopy> copies) override;
  Status ClearBlocks(std::span<const int32_t> blocks) override;

  std::vector<OperatorWork> Work(const StepShape& shape) const override;
  void set_profile(OpProfile* profile) override { predictor_.set_profile(profile); }
  void set_watch(LayerWatch) override {}

 private:
  CpuPredictor predictor_;
  KvCache kv_;
  Info info_;
  std::optional<StepBatch> queued_;
  std::vector<float> before_, logits_, hidden_;
};

}  // namespace celer
