// Runs a model on a GPU.
//
// A step of single tokens whose successors are sampled is one captured graph: the GPU chooses the tokens, and
// the next such step of the same sequences takes them from there without asking the host. Any other step is
// launched kernel by kernel, and its rows are sampled, or its logits copied, before the step after it begins.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/loop/step_batch.h"
#include "engine/runners/cuda_sampler.h"
#include "engine/runners/group/cuda_rank.h"
#include "engine/runners/group/group_command.h"
#include "engine/runners/runner.h"
#include "models/cuda/decoder.h"
#include "models/cuda/memory/kv.h"
#include "models/cuda/memory/states.h"

namespace celer {

class CudaGroup;

class CudaRunner : public Runner {
 public:
  // `threads` are those that loaded the weights. `blocks`: of the pool, where others have less than there is room for here;
  // 0: as many as the decoder has planned.
  static Result<std::unique_ptr<CudaRunner>> Make(std::unique_ptr<CudaDecoder> decoder,
                                                  const CudaDecoderOptions& options, int64_t host_blocks,
                                                  int threads, int64_t blocks = 0);
  // Rank 0 of several.
  CudaRunner(CudaRank rank, const CudaDecoderOptions& options, int threads, std::unique_ptr<CudaGroup> group);
  ~CudaRunner() override;

  const Info& info() const override { return info_; }
  Status CheckLora(const LoraMix& mix) const override;
  Status Queue(std::span<const Slice> slices) override;
  Result<StepOutput> Take() override;
  void DropQueued() override {
    queued_.clear();
    decoding_.clear();
  }
  bool RunsAhead(std::span<const Slice> slices) const override;

  Status CopyBlocks(std::span<const BlockCopy> copies) override;
  Status SwapOut(std::span<const BlockCopy> copies) override;
  Status SwapIn(std::span<const BlockCopy> copies) override;
  Status ClearBlocks(std::span<const int32_t> blocks) override;
  Status CopyStates(std::span<const BlockCopy> copies) override;
  Result<int64_t> BlockBytes() const override;
  Status ReadBlocks(std::span<const int32_t> blocks, std::span<std::byte> out) override;
  Status WriteBlocks(std::span<const int32_t> blocks, std::span<const std::byte> bytes) override;

  std::vector<OperatorWork> Work(const StepShape& shape) const override;
  void set_profile(OpProfile* profile) override;
  void set_watch(LayerWatch watch) override { decoder_->set_watch(std::move(watch)); }

 private:
  struct Queued {
    struct Row {  // a slice with kSample
      int64_t sequence, position;
      Sampler* sampler;
    };
    std::vector<Row> sampled;
    bool decode = false;  // its tokens are still on the GPU
    bool done = false;
    StepOutput output;
    std::vector<float> logits;  // that output.logits points at, unless it is the decoder's own memory
    std::vector<float> hidden;
  };

  bool IsDecode(std::span<const Slice> slices) const;
  bool LoraFits(std::span<const Slice> slices) const;
  Status QueueDecode(std::span<const Slice> slices);
  Status RunBatches(std::span<const Slice> slices, Queued* step);
  Status TakeHidden(std::span<const Slice> slices, Queued* step);
  Status FinishBatch(std::span<const Slice> slices, bool on_device, bool only, Queued* step);
  // Waits for the tokens of a decode step.
  Status Complete(Queued* step);
  std::vector<CudaSampler::Row> SamplerRows(std::span<const Slice> slices) const;

  Status QueueOnOne(std::span<const Slice> slices);
  // An own error ends the group; an error of the group is one of this step.
  Status WithGroup(Status own);
  // The other ranks do the same with their blocks.
  void Tell(GroupCommand::Kind kind, std::span<const BlockCopy> copies, std::span<const int32_t> blocks = {});

  std::unique_ptr<CudaGroup> group_;  // none: this is the only rank
  // Both outlive the decoder, which waits for its last step.
  std::unique_ptr<CudaKv> kv_;
  std::unique_ptr<CudaStates> states_;  // none: the model has no recurrent layers
  std::unique_ptr<CudaDecoder> decoder_;
  CudaSampler sampler_;
  bool queues_ahead_;
  Info info_;
  std::deque<Queued> queued_;
  std::vector<int64_t> decoding_;  // the sequences of the decode step queued last, if it was last
  std::unordered_map<int64_t, int32_t> chosen_;  // by the step completed last
  std::vector<float> taken_logits_, taken_hidden_;
};

}  // namespace celer
