// The forward pass on a CPU, for all Llama-like families: the coarse operators of a layer, over a ragged
// batch and a paged KV.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "device/aligned_vector.h"
#include "device/thread_pool.h"
#include "kernels/llm/batch.h"
#include "kernels/llm/recurrent_state.h"
#include "models/cpu/rope.h"
#include "models/layer_watch.h"
#include "models/load/model.h"
#include "models/op_profile.h"

namespace celer {

class CpuDecoder {
 public:
  // Both must outlive it.
  CpuDecoder(const Model& model, ThreadPool& pool);

  const Model& model() const { return model_; }

  // Runs the batch: appends its keys and values to `kv` (one view per layer) and writes the logits of
  // batch.logit_rows to logits[rows, vocab]. All logits of a row are NaN if the last layer's output,
  // or the sum of its squares, is not finite.
  void Forward(const RaggedBatch& batch, std::span<const KvLayerView> kv, float* logits) {
    Forward(batch, kv, logits, {});
  }
  // And the last norm's output of some tokens, NaN likewise.
  struct HiddenRows {
    std::span<const int32_t> tokens = {};  // indices into batch.tokens
    float* out = nullptr;                  // [rows, hidden]
  };
  void Forward(const RaggedBatch& batch, std::span<const KvLayerView> kv, float* logits,
               const HiddenRows& hidden) {
    Forward(batch, kv, logits, hidden, {});
  }
  // The states of recurrent layers, which a model that has some needs.
  struct States {
    std::span<float* const> layers = {};  // [layers], slot 0 of each; none for other layers
    int64_t stride = 0;                   // floats from one slot to the next
    std::span<const int32_t> slots = {};  // [seqs]
  };
  void Forward(const RaggedBatch& batch, std::span<const KvLayerView> kv, float* logits,
               const HiddenRows& hidden, const States& states);

  // Adds up each operator's time there, until set to nullptr again.
  void set_profile(OpProfile* profile) { profile_ = profile; }
  // For debugging: calls `watch` after each layer; empty ends it.
  void set_watch(LayerWatch watch) { watch_ = std::move(watch); }

 private:
  // The operators of layer `w`, on the workspace.
  void Embed(const RaggedBatch& batch);
  void Qkv(int64_t layer, const RaggedBatch& batch, const KvLayerView& kv);
  void Attention(const RaggedBatch& batch, const KvLayerView& kv, int64_t window, const float* sinks);
  // In the place of Qkv, and after Attention, of latent attention (cpu_latent.cc).
  void LatentQkv(const LayerWeights& w, const RaggedBatch& batch, const KvLayerView& kv);
  void LatentValues(const LayerWeights& w, int64_t tokens);
  // A recurrent layer in the place of attention, up to the output projection.
  void Recurrent(const LayerWeights& w, const RaggedBatch& batch, const RecurrentStates& states);
  void Output(const LayerWeights& w, int64_t tokens);
  void GateUp(const LayerWeights& w, int64_t tokens);
  void Down(const LayerWeights& w, int64_t tokens);
  void Moe(const LayerWeights& w, int64_t tokens);
  void Logits(const RaggedBatch& batch, float* logits);
  void Hidden(const HiddenRows& rows);

  // A branch's last projection, from x, added to the residual: through a norm where the model has one there.
  // Scales x where the model scales its branches.
  void AddBranch(float* x, const WeightView& w, const float* bias, const float* post_norm, int64_t tokens);

  // cos and sin of a batch's positions.
  struct Angles {
    AlignedVector<float> cos, sin;
  };
  void FillAngles(const RopeConfig& config, const RopeTable& table, const RaggedBatch& batch, Angles* angles);
  void EnsureWorkspace(int64_t tokens);
  void Watch(int64_t layer, int64_t tokens) const;
  void FillQueryScale(const RaggedBatch& batch);
  // How long the sequence of each token is taken to be; empty when nothing depends on it.
  std::span<const int32_t> RopeLengths(const RopeConfig& rope, const RaggedBatch& batch);

  const Model& model_;
  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  ThreadPool* pool_;
  RopeTable rope_;
  std::optional<RopeTable> local_rope_;  // of layers with a sliding window, where they have their own
  OpProfile* profile_ = nullptr;
  LayerWatch watch_;

  // Scratch for the largest batch seen so far.
  struct Workspace {
    AlignedVector<float> x, q, k, v, attention, up, mid;
    AlignedVector<float> latent_q;        // [tokens, q_rank], then [tokens, heads, nope_dim + rope_dim]
    AlignedVector<float> gated;           // queries and gates
    AlignedVector<float> mixed, z, a, b;  // of recurrent layers
    AlignedVector<float> branch;          // of models that norm what a branch adds
    Angles angles, local_angles;
    std::vector<float> query_scale;  // [tokens], of models that scale queries by position
    std::vector<int32_t> lengths;
  } work_;
};

}  // namespace celer
