// The forward pass on a GPU: embedding, layers and logits of the batch that CudaBatch sent, by the strategy
// that strategy.h chooses for it.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>

#include "device/buffer.h"
#include "models/cuda/fused_step.h"
#include "models/cuda/host/crossing.h"
#include "models/cuda/layer/layer_strategy.h"
#include "models/layer_watch.h"

namespace celer {

class CudaForward {
 public:
  explicit CudaForward(CudaOperators& op);
  // `gemm`: where weights are unpacked for it.
  Status Make(int device, std::optional<cuda::Gemm> gemm);
  Status UseKv() { return fused_.Prepare(); }  // once the layers have theirs

  bool decodes_in_one_kernel() const { return fused_.runs(); }
  void set_watch(LayerWatch watch) { watch_ = std::move(watch); }
  bool watched() const { return static_cast<bool>(watch_); }
  // As CudaDecoder::set_experts().
  using Experts = std::function<Status(int64_t layer, float* x, int64_t tokens)>;
  void set_experts(Experts experts) { experts_ = std::move(experts); }
  // Whether what is run from now on is queued as a whole, with AnswerExperts() behind it, instead of waiting in the middle
  // for experts that are elsewhere. Of up to so many tokens.
  void set_queued(bool queued) { queued_ = queued; }
  int64_t max_queued() const;
  // Experts that are elsewhere can come here (CudaModel::fed), and do in passes that are run while `feeds` is set.
  void set_feed(cuda::WeightFeed* feed) { feed_ = feed; }
  void set_feeds(bool feeds) { feeds_ = feeds; }
  // Called in front of every layer, and behind it.
  struct Around {
    std::function<Status(int64_t layer)> before, after;
  };
  void set_around(Around around) { around_ = std::move(around); }
  // Of a queued pass, which is launched: the host's part.
  Status AnswerExperts(int count);

  // What decides about a batch, and about a decode step. Its longest sequence has `most_keys` in the end.
  CudaFacts BatchFacts(int count, int rows, int64_t most_keys) const;
  CudaFacts StepFacts(int count, int64_t most_keys) const;

  // A batch with logits for the tokens that were asked for. `strategy` is one that fits. Without an embedding x is there.
  void Run(ForwardStrategy strategy, int count, int rows);
  // Of a model without a head: what the last layer leaves stays in x.
  void RunLayers(ForwardStrategy strategy, int count) { EmbedAndLayers(strategy, count); }
  // A decode step, all of whose tokens have logits. With `choice` it may choose the most likely tokens
  // itself; returns whether it did.
  bool RunStep(ForwardStrategy strategy, int count, const cuda::GreedyTarget* choice);

 private:
  CudaFacts Facts(int count, int rows) const;
  void EmbedAndLayers(ForwardStrategy strategy, int count);
  void Embed(int count, uint32_t* step = nullptr);
  void Layers(LayerStrategy& by, int count);
  void Watch(int64_t layer, int count);
  void RunMoe(const DeviceLayer& w, int64_t layer, int count);
  void ExpertsElsewhere(int64_t layer, int count);
  Status RunExperts(int64_t layer, float* x, int64_t count) const;
  LayerStrategy& Layerwise(ForwardStrategy strategy);

  CudaOperators& op_;
  FusedStep fused_;
  MatvecStrategy matvec_;
  WgmmaStrategy wgmma_;
  JoinedStrategy joined_;
  GeneralStrategy general_;
  std::unique_ptr<GemmStrategy> gemm_;
  std::unique_ptr<CodesStrategy> codes_;
  LayerWatch watch_;
  Experts experts_;
  bool queued_ = false, feeds_ = false;
  cuda::WeightFeed* feed_ = nullptr;  // of experts
  Around around_;
  CudaCrossing crossing_;  // of queued passes
  Buffer waiting_x_;       // pinned: x on its way to experts elsewhere, of others
};

}  // namespace celer
