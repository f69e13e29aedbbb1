// A model as data: its configuration and its weights by name. It owns the file they come from and what was
// converted on the way, and runs nothing; models/cpu/cpu_decoder.h and models/cuda/decoder.h do that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/thread_pool.h"
#include "kernels/llm/moe/moe.h"
#include "kernels/llm/weight_view.h"
#include "models/config/decoder_config.h"
#include "models/config/layer_range.h"
#include "models/load/shard.h"
#include "weights/tensor_source.h"
#include "weights/weight_store.h"

namespace celer {

struct RecurrentWeights {
  WeightView q, k, v,
      z;  // of the input: [key_heads * key_dim, hidden] twice, [value_heads * value_dim, hidden] twice
  WeightView b, a;              // [value_heads, hidden]
  const float* conv = nullptr;  // [rows of q, k and v, conv_kernel]
  const float* dt_bias = nullptr;
  std::vector<float> rate;      // [value_heads], exp(A_log)
  const float* norm = nullptr;  // [value_dim]; Mamba-2: [value_heads * value_dim]
  WeightView out;               // [hidden, value_heads * value_dim]
  // Mamba-2 has these instead of q, k, v and b; a is its time step.
  WeightView mixed;                  // x, B and C, as in conv
  const float* conv_bias = nullptr;  // [rows of mixed]
  const float *z_bias = nullptr, *mixed_bias = nullptr,
              *a_bias = nullptr;  // none without RecurrentConfig::bias
  const float* skip = nullptr;    // [value_heads], D
};

struct LatentWeights {
  WeightView q_a, q_b;  // q_b alone without a rank of its own
  WeightView kv_a;      // [kv_rank + rope_dim, hidden]
  WeightView k_b, v_b;  // of all heads: nope_dim and value_dim beside kv_rank
  const float* q_a_norm = nullptr;
  const float* kv_a_norm = nullptr;
};

struct AltUpWeights {
  WeightView router;   // [streams, hidden]
  WeightView predict;  // [streams * streams, streams]
  WeightView correct;  // [streams, streams]
  const float* router_norm = nullptr;
  const float* output_scale = nullptr;  // [hidden]
};

struct LayerWeights {
  // Norms are none where the model has none in that place.
  const float* attention_norm = nullptr;
  const float* attention_norm_bias = nullptr;
  const float* attention_post_norm = nullptr;
  const float* attention_post_norm_bias = nullptr;
  WeightView q, k, v, o;
  const float* q_bias = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* o_bias = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* q_norm_bias = nullptr;
  const float* k_norm_bias = nullptr;
  RecurrentWeights recurrent;
  LatentWeights latent;
  const float* sinks = nullptr;  // [heads]
  const float* ffn_norm = nullptr;
  const float* ffn_norm_bias = nullptr;
  const float* ffn_post_norm = nullptr;
  const float* ffn_post_norm_bias = nullptr;
  ExpertWeights dense;  // of a dense layer; no gate in one that has none
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  WeightView router;                    // of a sparse one
  const float* router_bias = nullptr;   // [experts]
  const float* choice_bias = nullptr;   // [experts]
  const float* expert_scale = nullptr;  // [experts]
  // Of experts beside a dense block: the router's norm, the experts' own, and one behind each branch.
  std::vector<float> router_norm;
  const float* moe_norm = nullptr;
  const float* moe_post_norm = nullptr;
  const float* dense_post_norm = nullptr;
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;  // empty if there is none
  WeightView shared_gate;
  WeightView per_layer_gate, per_layer_out;  // [per_layer_dim, hidden], [hidden, per_layer_dim]
  const float* per_layer_norm = nullptr;
  float scale = 1;
  AltUpWeights altup;
  WeightView laurel_left, laurel_right;  // [laurel_rank, hidden], [hidden, laurel_rank]
  const float* laurel_norm = nullptr;
};

struct DecoderWeights {
  WeightView embedding;
  std::vector<LayerWeights> layers;
  const float* embedding_norm = nullptr;
  const float* embedding_norm_bias = nullptr;
  WeightView positions;                // [position_rows, hidden]; empty if there are none
  WeightView project_in, project_out;  // [hidden, embedding_dim] and back; empty if there are none
  WeightView per_layer_embedding;      // [per_layer_vocab, layers * per_layer_dim]; empty if there is none
  WeightView per_layer_projection;     // [layers * per_layer_dim, hidden]
  const float* per_layer_norm = nullptr;
  std::vector<WeightView> streams_in, streams_out;  // [hidden, hidden] for each stream but the first
  const float* norm = nullptr;                      // none without DecoderConfig::final_norm
  const float* norm_bias = nullptr;
  WeightView head;
  const float* head_bias = nullptr;  // [vocab]
};

struct LoadOptions {
  WeightOptions weights = {};
  bool pack = true;  // for the matmul variant in use; without it weights stay as they lie in the file
  // Matrices that a file holds in fp8 stay so, for devices that multiply with it; else they become floats.
  bool keep_fp8 = false;
  std::filesystem::path pack_cache = {};  // a folder to keep packed weights in; empty: they are not kept
  ShardOf shard = {};                     // of several ranks: only its part is read
  // Only these layers, the embedding if the first one is among them, and the head if the last one is.
  LayerRange layers = {};
  bool experts_alone = false;  // of these layers, with their router and norms
};

class Model {
 public:
  // A Hugging Face folder, a GGUF file or a llama2.c checkpoint. The pool is needed for loading alone.
  static Result<Model> Load(const std::filesystem::path& path, const LoadOptions& options, ThreadPool& pool);

  // Of a rank's part: its own heads, widths, tokens; of some layers: those.
  const DecoderConfig& config() const { return config_; }
  const DecoderConfig& whole_config() const { return whole_config_ ? *whole_config_ : config_; }
  // [ranks], how many tokens of the vocabulary each has; empty: there is one rank.
  const std::vector<int64_t>& vocab_parts() const { return vocab_parts_; }
  const DecoderWeights& weights() const { return weights_; }
  const std::string& path() const { return source_->path(); }

  // What one decode step must read of the weights, all experts of a mixture counted as far as one token uses
  // them.
  int64_t active_bytes() const;
  const std::map<std::string, int64_t>& bytes_by_format() const { return store_->bytes_by_format(); }
  int64_t owned_bytes() const { return store_->owned_bytes(); }
  const WeightPlan& plan() const { return store_->plan(); }  // of LoadOptions::weights, packed or not

  // Of a model that is cut: a hash of its file's tensors, the same wherever the same file is.
  int64_t fingerprint() const { return fingerprint_; }

  // Drops the resident pages of the mapped file (madvise); they are read again on demand.
  void DropPages() const;

 private:
  Model() = default;
  Status Cut(bool gguf, const std::string& embedding, const ShardOf& of, WeightPlan* plan);
  void KeepLayers(const LayerRange& layers);

  DecoderConfig config_;
  std::optional<DecoderConfig> whole_config_;  // of a model that is cut
  std::vector<int64_t> vocab_parts_;
  int64_t fingerprint_ = 0;
  std::unique_ptr<TensorSource> source_;  // keeps the mapping that weights_ point into
  std::unique_ptr<WeightStore> store_;    // keeps what was converted
  DecoderWeights weights_;
};

// The configuration alone, of anything Model::Load takes or a bare config.json; reads no weights.
Result<DecoderConfig> LoadDecoderConfig(const std::filesystem::path& path);

}  // namespace celer
