// One forward pass for all Llama-like families: the five coarse operators of a layer, over a ragged batch and
// a paged KV.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/aligned_vector.h"
#include "core/result.h"
#include "core/thread_pool.h"
#include "kernels/batch.h"
#include "kernels/moe/moe.h"
#include "kernels/weight_view.h"
#include "models/decoder_config.h"
#include "models/op_profile.h"
#include "models/rope.h"
#include "weights/tensor_source.h"
#include "weights/weight_store.h"

namespace celer {

struct LayerWeights {
  const float* attention_norm = nullptr;
  WeightView q, k, v, o;
  const float* q_bias = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* ffn_norm = nullptr;
  ExpertWeights dense;  // of a dense layer
  WeightView router;    // of a sparse one
  std::vector<ExpertWeights> experts;
  ExpertWeights shared;  // empty if there is none
  WeightView shared_gate;
};

struct DecoderWeights {
  WeightView embedding;
  std::vector<LayerWeights> layers;
  const float* norm = nullptr;
  WeightView head;
};

struct LoadOptions {
  WeightOptions weights = {};
  bool pack = true;  // for the matmul variant in use; without it weights stay as they lie in the file
  std::filesystem::path pack_cache = {};  // a folder to keep packed weights in; empty: they are not kept
};

class Decoder {
 public:
  // A Hugging Face folder, a GGUF file or a llama2.c checkpoint.
  static Result<Decoder> Load(const std::filesystem::path& path, const LoadOptions& options,
                              ThreadPool& pool);

  const DecoderConfig& config() const { return config_; }
  const DecoderWeights& weights() const { return weights_; }
  const std::string& path() const { return source_->path(); }

  // Runs the batch: appends its keys and values to `kv` (one view per layer) and writes the logits of
  // batch.logit_rows to logits[rows, vocab].
  void Forward(const RaggedBatch& batch, std::span<const KvLayerView> kv, float* logits);

  // Adds up each operator's time there, until set to nullptr again.
  void set_profile(OpProfile* profile) { profile_ = profile; }

  // What one decode step must read of the weights, all experts of a mixture counted as far as one token uses
  // them.
  int64_t active_bytes() const;
  const std::map<std::string, int64_t>& bytes_by_format() const { return store_->bytes_by_format(); }
  int64_t owned_bytes() const { return store_->owned_bytes(); }

 private:
  Decoder() = default;
  void EnsureWorkspace(int64_t tokens);

  DecoderConfig config_;
  std::unique_ptr<TensorSource> source_;  // keeps the mapping that weights_ point into
  std::unique_ptr<WeightStore> store_;    // keeps what was converted
  DecoderWeights weights_;
  std::optional<RopeTable> rope_;
  ThreadPool* pool_ = nullptr;
  OpProfile* profile_ = nullptr;

  // Scratch for the largest batch seen so far.
  struct Workspace {
    AlignedVector<float> x, q, k, v, attention, up, mid, cos, sin;
  } work_;
};

// The configuration alone, of anything Decoder::Load takes or a bare config.json; reads no weights.
Result<DecoderConfig> LoadDecoderConfig(const std::filesystem::path& path);

}  // namespace celer
