// A model whose layers are on several devices: stages in front, and the last layers with the output head in a Runner of
// their own, which asks for what its first layer reads. So all that a Runner does with logits and tokens is done there, and
// this one adds what the stages need to know: block copies, swaps and clears.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/thread_pool.h"
#include "engine/runners/place/cpu_experts.h"
#include "engine/runners/place/stage.h"
#include "engine/runners/runner.h"

namespace celer {

class PlacedRunner : public Runner {
 public:
  // `config` is that of the whole model. There may be no stage in front, where only experts are elsewhere.
  PlacedRunner(const DecoderConfig& config, std::shared_ptr<ThreadPool> pool,
               std::vector<std::unique_ptr<Stage>> stages);
  // It has as many blocks as the stages, and asks Input() for what its first layer reads. `experts`: of the stages, or of it.
  void set_last(std::unique_ptr<Runner> last, int64_t kv_bytes_per_token,
                std::vector<std::unique_ptr<CpuExperts>> experts);

  // What the stages and the last runner use, until they are gone.
  void Keep(std::shared_ptr<const void> kept) { kept_.push_back(std::move(kept)); }

  // Runs the stages: x[tokens, hidden] is what the last of them leaves. An error is one of the step, too.
  Status Input(const RaggedBatch& batch, float* x);
  ThreadPool& pool() { return *pool_; }

  const Info& info() const override { return info_; }
  Status CheckLora(const LoraMix& mix) const override;
  Status Queue(std::span<const Slice> slices) override;
  Result<StepOutput> Take() override;
  void DropQueued() override;
  // The stages in front need the token.
  bool RunsAhead(std::span<const Slice>) const override { return false; }

  Status CopyBlocks(std::span<const BlockCopy> copies) override;
  Status SwapOut(std::span<const BlockCopy> copies) override;
  Status SwapIn(std::span<const BlockCopy> copies) override;
  Status ClearBlocks(std::span<const int32_t> blocks) override;
  Status DiscardKv() override;

  std::vector<OperatorWork> Work(const StepShape& shape) const override;
  void set_profile(OpProfile* profile) override;
  void set_watch(LayerWatch watch) override;

 private:
  // Now, or once the last of the steps that are queued has been taken or dropped.
  Status InOrder(std::function<Status()> operation);
  Status RunOperations(std::vector<std::function<Status()>>* operations);

  std::vector<std::shared_ptr<const void>> kept_;
  DecoderConfig config_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<std::unique_ptr<CpuExperts>> experts_;  // those that use them go first
  std::vector<std::unique_ptr<Stage>> stages_;
  std::unique_ptr<Runner> last_;
  Info info_;
  std::deque<std::vector<std::function<Status()>>> queued_;  // what follows each step
  Status failed_;
};

}  // namespace celer
