// Runs a model on this machine's cores. A step runs when it is taken.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.h"
#include "engine/kv/state_cache.h"
#include "engine/loop/step_batch.h"
#include "engine/runners/group/cpu_group.h"
#include "engine/runners/group/cpu_rank.h"
#include "engine/runners/runner.h"
#include "models/cpu/cpu_decoder.h"

namespace celer {

class CpuRunner : public Runner {
 public:
  // The KV must have room for the longest sequence. With `group` it is rank 0 of several, which run every step with it;
  // without, several runners may share a model.
  explicit CpuRunner(CpuRank rank, std::unique_ptr<GroupLeader> group = nullptr);

  const Info& info() const override { return info_; }
  Status CheckLora(const LoraMix& mix) const override;
  Status Queue(std::span<const Slice> slices) override;
  Result<StepOutput> Take() override;
  void DropQueued() override;
  bool RunsAhead(std::span<const Slice>) const override { return false; }

  Status CopyBlocks(std::span<const BlockCopy> copies) override;
  Status SwapOut(std::span<const BlockCopy> copies) override;
  Status SwapIn(std::span<const BlockCopy> copies) override;
  Status ClearBlocks(std::span<const int32_t> blocks) override;
  Status CopyStates(std::span<const BlockCopy> copies) override;
  Result<int64_t> BlockBytes() const override;
  Status ReadBlocks(std::span<const int32_t> blocks, std::span<std::byte> out) override;
  Status WriteBlocks(std::span<const int32_t> blocks, std::span<const std::byte> bytes) override;
  Status DiscardKv() override;

  std::unique_ptr<Runner> TakePredictor() override { return std::move(predictor_); }
  // What the first layer reads, where layers in front of it run elsewhere.
  void set_input(CpuDecoder::Input input) { decoder_.set_input(std::move(input)); }
  void set_predictor(std::unique_ptr<Runner> predictor) { predictor_ = std::move(predictor); }

  std::vector<OperatorWork> Work(const StepShape& shape) const override;
  void set_profile(OpProfile* profile) override;
  void set_watch(LayerWatch watch) override;

  // Of a pipeline: into so many tokens at least a step is cut, so that the stages work at the same time.
  void set_micro_batch(int64_t tokens) { micro_batch_ = tokens; }

 private:
  struct Queued {
    // What becomes of a slice's rows.
    struct Part {
      int64_t sequence, first_token, rows;
      Sampler* sampler;  // null: the rows are returned as logits
    };
    StepBatch batch;
    std::vector<Part> parts;
    std::vector<std::function<void()>> after;  // block copies and swaps that follow it
  };
  Status RunStep(const StepBatch& batch);                   // into logits_ and hidden_
  std::vector<Sampler::Choice> Sample(const Queued& step);  // one for each part that has a sampler
  Status InOrder(std::function<void()> block_operation);
  // The others do it, too.
  void Tell(const GroupCommand& command) {
    if (group_) group_->Send(command);
  }

  std::shared_ptr<ThreadPool> pool_;
  std::shared_ptr<const Model> model_;
  std::unique_ptr<GroupLeader> group_;  // none: all of the model is here
  CpuDecoder decoder_;
  KvCache kv_;
  StateCache states_;
  Info info_;
  std::vector<StageFacts> other_stages_;
  int64_t kv_bytes_per_token_ = 0;  // of this rank
  int64_t micro_batch_ = 0;
  bool watched_ = false;
  OpProfile* profile_ = nullptr;
  std::unique_ptr<Runner> predictor_;  // until it is taken
  std::deque<Queued> queued_;
  std::unordered_map<int64_t, int32_t> chosen_;  // by the step taken last
  std::vector<float> logits_, hidden_;
};

}  // namespace celer
