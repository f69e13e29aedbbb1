// The architecture of a Llama-like decoder as data. Nothing about a family is chosen at compile time: a
// family's file fills this in from a config.json or from GGUF metadata, and one forward pass runs it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "celer/limits.h"
#include "kernels/llm/rope/rope_layout.h"
#include "kernels/shared/activation/activation_kind.h"

namespace celer {

struct RopeConfig {
  enum class Scaling : uint8_t { kNone, kLinear, kLlama3, kYarn, kDynamic, kLongRope };

  double theta = 10000;
  RopeLayout layout = RopeLayout::kHalf;
  int64_t dim = 0;  // leading dimensions of a head that rotate
  Scaling scaling = Scaling::kNone;
  double factor = 1;
  double original_positions = 0;  // all but linear: positions of the training before extension
  double low_freq_factor = 1;     // llama3
  double high_freq_factor = 4;    // llama3
  double beta_fast = 32;          // yarn
  double beta_slow = 1;           // yarn
  bool truncate = true;           // yarn: the ramp begins and ends at whole dimensions
  double attention_factor = 1;    // yarn, longrope: multiplies cos and sin
  // longrope, [dim / 2] each: divide each frequency, the long ones in sequences beyond original_positions.
  std::vector<float> short_factors, long_factors;
  std::vector<float> freq_factors;  // GGUF's rope_freqs: divides each frequency; empty if none
  int64_t turning_pairs = 0;        // of the dim / 2, the first ones: the others stand still. 0: all turn

  // Whether the angles of a position depend on how long its sequence is.
  bool DependsOnLength() const { return scaling == Scaling::kDynamic || scaling == Scaling::kLongRope; }
};

enum class NormKind : uint8_t { kRms, kLayer };

// Which numbers of a query or key one qk-norm spans. kOwn: a head, and each head has weights of its own.
enum class QkNormSpan : uint8_t { kHead, kRow, kOwn };

// Multiplies the queries of position p by 1 + beta * log(1 + floor((p + offset) / positions)); none if beta is
// 0.
struct QueryScale {
  double beta = 0;
  double positions = 1;
  int64_t offset = 0;
  bool without_rope = false;  // in the layers that do not rotate alone
};

// What layers may have each for itself.
struct LayerShape {
  int64_t head_dim = 0, kv_heads = 0;
  int64_t intermediate = 0;      // of the dense feed-forward block
  int64_t kv_from = 0;           // the layer whose keys and values it reads: itself, or an earlier one
  bool values_are_keys = false;  // one projection gives keys and values, which are normed each in its own way
};

// Several residual streams, one of which each layer works on: it predicts them all first, and afterwards corrects
// the others by what it has made of this one.
struct AltUpConfig {
  int64_t streams = 0;  // 0: one residual and no more
  int64_t active = 0;
  bool scale_output = true;  // what per-layer embeddings work on is the active stream times weights
};

// From an expert's router logit to its score. kSparseMixer: the best two, each weighed by the softmax over the logits
// close to it.
enum class RouterScore : uint8_t { kSoftmax, kSigmoid, kSparseMixer };

struct MoeConfig : ExpertShape {
  int64_t intermediate = 0;  // of one expert
  bool normalize_top = true;
  std::vector<bool> sparse_layer;  // [layers]: which layers have experts, the others are dense
  RouterScore score = RouterScore::kSoftmax;
  bool router_bias = false;  // added to the router's logits
  bool choice_bias = false;  // added to the scores for choosing experts, not to their weights
  // Experts in equal groups: only those of the best `groups_used` groups are chosen. A group is as good as its
  // best expert, or as the sum of its best two.
  int64_t groups = 1;
  int64_t groups_used = 1;
  bool group_by_best_two = false;
  float normalize_eps =
      0;  // added to the sum (or its lower bound, with normalize_floor) that weights are divided by
  bool normalize_floor = false;
  float routed_scale = 1;    // multiplies the weights of the chosen experts
  bool shared_gated = true;  // sigmoid of a gate scales the shared expert
  bool expert_bias = false;  // of gate, up and down of each expert
  float jitter = 0;          // sparse mixer: logits are close within 2 * jitter, relatively
  // A dense block works beside the experts. Each has norms of its own, before the one behind their sum, and the
  // router has its own norm; weights are multiplied with a factor of their expert.
  bool beside_dense = false;
  bool weight_on_input = false;  // a chosen expert's weight multiplies what it reads, not what it gives
};

enum class RecurrentKind : uint8_t { kGatedDelta, kMamba2 };

// Layers that keep a state of fixed size instead of keys and values: a gated delta net, or Mamba-2, whose groups with
// their B and C are the key heads here.
struct RecurrentConfig {
  RecurrentKind kind = RecurrentKind::kGatedDelta;
  std::vector<bool> layer;  // [layers]: which ones; empty: none
  int64_t conv_kernel = 0;
  int64_t key_heads = 0, key_dim = 0;
  int64_t value_heads = 0, value_dim = 0;
  // Mamba-2.
  bool conv_bias = false;
  bool bias = false;          // of the projections
  int64_t norm_groups = 1;    // parts of the values that are normed each for itself
  float step_min = 0;         // of the time steps
  float step_max = 0;         // 0: none
  bool tiled_values = false;  // value head h has key head h % key_heads, else h / (value_heads / key_heads)
};

// Multi-head latent attention: the KV of a token is one row of kv_rank + rope_dim numbers, shared by all heads. Its
// configuration has one kv head of that head_dim, which is key and value.
struct LatentConfig {
  int64_t kv_rank = 0;                                // 0: none
  int64_t q_rank = 0;                                 // 0: queries are projected at once
  int64_t nope_dim = 0, rope_dim = 0, value_dim = 0;  // of a head
};

struct DecoderConfig : ModelShape {
  std::string family;        // "llama", as in models/config/family.h
  std::string architecture;  // what the file calls it, for messages
  int64_t max_positions = 0;
  float norm_eps = 1e-5f;
  RopeConfig rope;
  std::optional<RopeConfig> local_rope;  // of the layers with a sliding window, where they have their own
  std::vector<bool> rope_layer;          // [layers]: which layers rotate; empty: all
  bool o_bias = false;                   // of the output projection
  bool mlp_bias = false;                 // of gate, up and down in dense layers
  bool head_bias = false;                // of the output head
  Activation activation = Activation::kSilu;
  float swiglu_limit = 0;  // clamped SwiGLU: bounds of gate and up

  // Scalars.
  float embedding_scale = 1;
  bool embedding_scale_rounded = false;  // to the type that the embedding is stored in, if it is a float
  float residual_scale = 1;              // of what a branch adds to the residual
  float logit_scale = 1;                 // multiplies the logits
  float logit_softcap = 0;               // cap * tanh(logit / cap); 0: none
  float attention_scale = 0;             // of scores; 0: 1 / sqrt(head_dim)
  float attention_softcap = 0;
  QueryScale query_scale;
  bool attention_sinks = false;  // one more logit for each head in the softmax, without a value

  // Norms.
  NormKind norm = NormKind::kRms;
  bool norm_bias = false;
  bool pre_norm = true;    // of the input of attention and of the feed-forward block
  bool post_norm = false;  // of their outputs, before these are added to the residual
  QkNormSpan qk_norm_span = QkNormSpan::kHead;
  NormKind qk_norm_kind = NormKind::kRms;
  bool qk_norm_after_rope = false;
  bool qk_norm_weights = true;  // without them, only layers with rope have the norm
  bool v_norm = false;          // RMSNorm of each head's values, without weights
  bool embedding_norm = false;
  bool residual_norm = false;  // of the residual after each branch is added
  bool final_norm = true;      // before the output head

  // Attention and the feed-forward block read the same input, and both are added to the residual. Each has a norm of
  // its own with parallel_norms, else they share one.
  bool parallel_block = false;
  bool parallel_norms = false;

  // Positions without rope: a table of this many rows (0: none) whose first row is for position -offset.
  int64_t position_rows = 0;
  int64_t position_offset = 0;

  // ALiBi: to the score of a key is added the head's slope times how far it lies behind; the slopes fall to
  // 2^-alibi_max. 0: none.
  float alibi_max = 0;
  bool alibi_rounded = false;  // slopes and slope times position to bf16, before the scale of the scores
  float qkv_clip = 0;          // queries, keys and values are cut to +-qkv_clip; 0: none
  int64_t embedding_dim =
      0;  // width of the embedding if it is projected to `hidden`, and back before the head

  // [layers]: which ones have attention or a recurrent state, and which a feed-forward block; empty: all.
  std::vector<bool> mixer_layer, ffn_layer;

  int64_t sliding_window = 0;            // 0: full attention
  std::vector<bool> windowed_layer;      // [layers]: which layers the window applies to
  bool chunked_window = false;           // it begins at the last multiple of its size
  std::vector<LayerShape> layer_shapes;  // [layers]; empty: all have the shape of the model

  // Another embedding, of this many numbers for each layer (0: none), which a gate of each layer reads last.
  int64_t per_layer_dim = 0;
  int64_t per_layer_vocab = 0;       // tokens beyond take row 0
  float per_layer_scale = 1;         // of that embedding; rounded like the other one's
  bool layer_scale = false;          // a number of each layer multiplies its output
  std::vector<float> gate_sparsity;  // [layers]: the share of a gate that is cut off, 0: none; empty: none
  AltUpConfig altup;
  int64_t laurel_rank = 0;  // of a linear branch beside attention; 0: none
  MoeConfig moe;
  RecurrentConfig recurrent;
  LatentConfig latent;
  bool output_gate =
      false;  // attention's output times sigmoid of a gate, which the rows of q hold beside each head
  std::vector<std::string> warnings;  // what the file says and nothing here uses, a sentence each

  bool IsRecurrent(int64_t layer) const { return !recurrent.layer.empty() && recurrent.layer[layer]; }
  bool IsLatent() const { return latent.kv_rank > 0; }
  bool HasMixer(int64_t layer) const { return mixer_layer.empty() || mixer_layer[layer]; }
  bool HasFfn(int64_t layer) const { return ffn_layer.empty() || ffn_layer[layer]; }
  // Keys and values are kept for these.
  bool HasAttention(int64_t layer) const { return HasMixer(layer) && !IsRecurrent(layer); }
  bool Rotates(int64_t layer) const { return rope_layer.empty() || rope_layer[layer]; }
  int64_t HeadDim(int64_t layer) const {
    return layer_shapes.empty() ? head_dim : layer_shapes[layer].head_dim;
  }
  int64_t KvHeads(int64_t layer) const {
    return layer_shapes.empty() ? kv_heads : layer_shapes[layer].kv_heads;
  }
  int64_t Intermediate(int64_t layer) const {
    return layer_shapes.empty() ? intermediate : layer_shapes[layer].intermediate;
  }
  int64_t KvFrom(int64_t layer) const { return layer_shapes.empty() ? layer : layer_shapes[layer].kv_from; }
  bool ValuesAreKeys(int64_t layer) const {
    return !layer_shapes.empty() && layer_shapes[layer].values_are_keys;
  }
  // The widest of any layer.
  int64_t MaxHeadDim() const;
  int64_t MaxKvWidth() const;
  int64_t MaxIntermediate() const;
  bool IsSparse(int64_t layer) const { return moe.experts > 0 && moe.sparse_layer[layer]; }
  int64_t Window(int64_t layer) const {
    return sliding_window > 0 && windowed_layer[layer] ? sliding_window : 0;
  }
};

// One sentence if the numbers cannot be those of a model: zero, negative, absurd, or not fitting one another.
Status Validate(const DecoderConfig& config, const std::string& path);

// One sentence if the GPU's forward pass lacks something that the model needs within `context` positions.
Status CheckRunsOnGpu(const DecoderConfig& config, int64_t context);

// A Llama-like model of that shape, for benchmarks without a file.
DecoderConfig FromLlmShape(const LlmShape& shape);
// What counts for its cost (celer/limits.h): of layers that are not all alike, the kinds.
LlmShape ToLlmShape(const DecoderConfig& config, const std::string& name);

}  // namespace celer
