// The forward pass on a CPU, for all Llama-like families: the coarse operators of a layer, over a ragged
// batch and a paged KV.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "device/aligned_vector.h"
#include "device/group/communicator.h"
#include "device/thread_pool.h"
#include "kernels/llm/batch.h"
#include "kernels/llm/recurrent_state.h"
#include "kernels/llm/streams/streams.h"
#include "models/cpu/cpu_lora.h"
#include "models/cpu/rope.h"
#include "models/layer_watch.h"
#include "models/load/model.h"
#include "models/op_profile.h"

namespace celer {

class CpuDecoder {
 public:
  // All must outlive it.
  CpuDecoder(const Model& model, ThreadPool& pool);
  // Without adapters.
  CpuDecoder(const DecoderConfig& config, const DecoderWeights& weights, ThreadPool& pool);

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
    std::span<const int32_t> draft_slots = {}, certain = {};  // as in RecurrentStates
  };
  // The adapters of each sequence; empty: of none.
  using Lora = std::span<const std::shared_ptr<const LoraMix>>;
  void Forward(const RaggedBatch& batch, std::span<const KvLayerView> kv, float* logits,
               const HiddenRows& hidden, const States& states, Lora lora = {});
  // An error if an adapter is for another model.
  Status CheckLora(const LoraAdapter& adapter) const { return lora_->Check(adapter); }

  // out[tokens, hidden], what the first layer reads of the tokens, alone.
  void EmbedAlone(const RaggedBatch& batch, float* out);
  // The experts of one layer alone: adds to x[tokens, hidden] what they make of it.
  void AddExperts(int64_t layer, float* x, int64_t tokens);

  // Of one rank of several, whose weights are its part of the model: what it shares with the others. Every rank runs
  // every batch; `logits` may be null on those that need none.
  struct Group {
    Communicator* communicator = nullptr;       // must outlive it
    std::span<const int64_t> vocab_parts = {};  // [ranks], tokens that each has; must outlive it
  };
  void set_group(const Group& group);

  // Adds up each operator's time there, until set to nullptr again.
  void set_profile(OpProfile* profile) { profile_ = profile; }
  // Writes what the first layer reads, x[tokens, hidden], in the place of the tokens' embeddings.
  using Input = std::function<void(const RaggedBatch& batch, float* x)>;
  void set_input(Input input) { input_ = std::move(input); }
  // [tokens, hidden], what the last layer left of the batch that ran last.
  std::span<const float> residual(int64_t tokens) const {
    return {work_.x.data(), static_cast<size_t>(tokens * config_.hidden)};
  }
  // For debugging: calls `watch` after each layer; empty ends it.
  void set_watch(LayerWatch watch) { watch_ = std::move(watch); }

 private:
  // The operators of layer `w`, on the workspace.
  void Embed(const RaggedBatch& batch);
  void EmbedTokens(const RaggedBatch& batch);
  void Qkv(int64_t layer, const RaggedBatch& batch, const KvLayerView& kv);
  void Attention(const RaggedBatch& batch, const KvLayerView& kv, int64_t window, const float* sinks);
  // In the place of Qkv, and after Attention, of latent attention (cpu_latent.cc).
  void LatentQkv(const LayerWeights& w, const RaggedBatch& batch, const KvLayerView& kv);
  void LatentValues(const LayerWeights& w, int64_t tokens);
  // A recurrent layer in the place of attention, up to the output projection (cpu_recurrent.cc).
  void Recurrent(const LayerWeights& w, const RaggedBatch& batch, const RecurrentStates& states);
  RecurrentStates ProjectAndConvolve(const LayerWeights& w, const RaggedBatch& batch,
                                     std::span<const MatmulOutput> outputs, float* convolved,
                                     const RecurrentStates& states);
  void GatedDelta(const LayerWeights& w, const RaggedBatch& batch, const RecurrentStates& states);
  void Mamba2Layer(const LayerWeights& w, const RaggedBatch& batch, const RecurrentStates& states);
  void Output(const LayerWeights& w, int64_t tokens);
  // `cut` as in GateUpArgs.
  void GateUp(const LayerWeights& w, int64_t tokens, std::optional<float> cut);
  void Down(const LayerWeights& w, int64_t tokens);
  // Adds to the residual, or to `to` if there is one.
  void Moe(const LayerWeights& w, int64_t tokens, float* to = nullptr);
  void MoeBesideDense(const LayerWeights& w, int64_t tokens);  // cpu_beside_dense.cc
  // Embeddings of each layer's own (cpu_per_layer.cc). PerLayer adds what layer `layer` makes of them, with a gate that
  // reads x, to `copies` streams from `to` on.
  void EmbedPerLayer(const RaggedBatch& batch);
  void PerLayer(int64_t layer, const float* x, int64_t tokens, float* to, int64_t copies);
  // Several residual streams (cpu_streams.cc), of which x holds the one that a layer works on.
  StreamsArgs Streams(int64_t tokens);
  void SplitStreams(int64_t tokens);
  void JoinStreams(int64_t tokens);
  void StreamModes(const LayerWeights& w, const float* x, int64_t tokens);
  void Predict(const LayerWeights& w, int64_t tokens);
  void Correct(int64_t layer, int64_t tokens);
  // A linear branch beside attention: made before it, added behind it.
  void Laurel(const LayerWeights& w, int64_t tokens);
  void AddLaurel(int64_t tokens);
  void FinishLayer(int64_t layer, int64_t tokens);
  void Logits(const RaggedBatch& batch, float* logits);
  // With the other ranks (cpu_group.cc). A failure ends the group, and what is computed from there on is of no use.
  std::span<const int32_t> OwnTokens(std::span<const int32_t> tokens);
  void JoinEmbeddings(std::span<const int32_t> tokens, int64_t width, float* embedded);
  void SumOverRanks(float* values, int64_t count);
  void JoinLogits(int64_t rows, float* logits);
  int64_t Vocabulary() const { return group_ ? group_->vocab : config_.vocab; }
  // The last norm and the projection to the embedding's width.
  void ProjectOut(std::span<const int32_t> rows);
  void Hidden(const HiddenRows& rows);

  // A branch's last projection, from x, added to the residual: through a norm where the model has one there.
  // Scales x where the model scales its branches.
  void AddBranch(float* x, const WeightView& w, const float* bias, const float* post_norm,
                 const float* post_norm_bias, int64_t tokens);

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

  std::optional<CpuLora> lora_;
  LowRankBatch added_;  // of the step that runs
  const DecoderConfig& config_;
  const DecoderWeights& weights_;
  ThreadPool* pool_;
  RopeTable rope_;
  std::optional<RopeTable> local_rope_;    // of layers with a sliding window, where they have their own
  std::vector<float> ones_;                // [head_dim], weights of norms that have none
  std::vector<std::optional<float>> cut_;  // [layers], as in GateUpArgs
  std::vector<float> alibi_slopes_;        // [heads], of models with ALiBi
  OpProfile* profile_ = nullptr;
  LayerWatch watch_;
  Input input_;
  struct InGroup : Group {
    int64_t vocab = 0, first_token = 0;  // of all ranks; of this one
  };
  std::optional<InGroup> group_;

  // Scratch for the largest batch seen so far.
  struct Workspace {
    AlignedVector<float> x, q, k, v, attention, up, mid;
    AlignedVector<float> latent_q;              // [tokens, q_rank], then [tokens, heads, nope_dim + rope_dim]
    AlignedVector<float> gated;                 // queries and gates
    AlignedVector<float> mixed, z, a, b;        // of recurrent layers
    AlignedVector<float> branch;                // of models that norm what a branch adds
    AlignedVector<float> sparse;                // what experts beside a dense block give
    AlignedVector<float> per_layer, projected;  // [tokens, layers, per_layer_dim]
    AlignedVector<float> streams;               // [streams, tokens, hidden]
    AlignedVector<float> modes, coefficients;   // [tokens, streams], [tokens, streams, streams]
    AlignedVector<float> laurel, laurel_low;    // [tokens, hidden], [tokens, laurel_rank]
    std::vector<int32_t> known_tokens;          // that the embeddings of each layer's own have
    AlignedVector<float> part_logits, all_logits;  // of ranks
    std::vector<int32_t> own_tokens;
    AlignedVector<float> narrow;            // rows of a projected embedding, or of what the head reads
    std::vector<int32_t> all_rows, mix_of;  // of those rows
    Angles angles, local_angles;
    std::vector<float> query_scale;  // [tokens], of models that scale queries by position
    std::vector<int32_t> lengths;
  } work_;
};

}  // namespace celer
