// A model's weights in the memory of a GPU: the matrices and vectors of each layer, as the kernels want them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "celer/options.h"
#include "device/buffer.h"
#include "kernels/llm/matmul/cuda/gemm/codes_cuda.h"
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "kernels/shared/cuda/device_batch.h"
#include "kernels/shared/cuda/device_matrix.h"
#include "models/load/model.h"
#include "models/lora/places.h"
#include "models/step_work.h"
#include "weights/device_weights.h"
#include "weights/weight_feed.h"

namespace celer {

using cuda::DeviceMatrix;

// As RecurrentWeights.
struct DeviceRecurrent {
  DeviceMatrix q, k, v, z, b, a, out;
  const float *conv = nullptr, *dt_bias = nullptr, *rate = nullptr, *norm = nullptr;
  float* states = nullptr;  // slot 0 of a CudaStates
  int64_t slot_stride = 0;
  std::array<const DeviceMatrix*, 6> Inputs() const { return {&q, &k, &v, &z, &b, &a}; }
};

// As LatentWeights.
struct DeviceLatent {
  DeviceMatrix q_a, q_b, kv_a;  // no q_a where queries have no rank
  DeviceMatrix k_b, v_b;        // of all heads
  const float *q_a_norm = nullptr, *kv_a_norm = nullptr;
};

struct DeviceLayer {
  DeviceMatrix q, k, v, o;
  // Of a sparse layer: of a shared expert apart, or none; no gate in a plain MLP.
  DeviceMatrix gate, up, down;
  const float* router =
      nullptr;  // [experts, hidden], and one more row that gates the shared expert, if any does
  bool shared_gate = false;
  int shared_experts = 0;  // that a shared expert is cut into; they follow the others
  const float *router_bias = nullptr, *choice_bias = nullptr;  // [experts]
  cuda::ExpertMatrices expert_gate_up, expert_down;
  bool experts_elsewhere = false;  // a sparse layer whose experts run on another device, with its router
  bool sparse() const { return router != nullptr || experts_elsewhere; }
  const float *attention_norm = nullptr, *ffn_norm = nullptr;
  const float *attention_norm_bias = nullptr, *ffn_norm_bias = nullptr;
  const float *attention_post_norm = nullptr, *ffn_post_norm = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr, *o_bias = nullptr;
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  const float *q_norm_bias = nullptr, *k_norm_bias = nullptr;
  const float* sinks = nullptr;  // [heads]
  DeviceRecurrent recurrent;
  DeviceLatent latent;
  cuda::DeviceKv kv;  // of a CudaKv
  // The matrices a second time, as rows of bf16 that cuBLASLt reads, those of a part below each other; null
  // where the model does not keep them (CudaModel::KeepRows).
  enum Part { kQkv, kOutput, kGateUp, kDown, kParts };
  std::array<const std::byte*, kParts> rows = {};
  std::array<const float*, kParts> row_scales = {};  // where rows are codes instead
};

// Row i of a matrix of q or k on the GPU is row [i] of the file's; empty if they are the same.
std::vector<int32_t> HeadRowOrder(const DecoderConfig& config, const LoraPlace& place, int64_t rows);

// Whether one kernel can take both.
inline bool SameForm(const DeviceMatrix& a, const DeviceMatrix& b) {
  return a.format == b.format && a.group == b.group && a.padded == b.padded;
}

struct CudaModel {
  // As the passes here run it, of the file's. They keep the residual divided by the file's residual_scale, so that
  // branches add to it as they are: the embedding's scale and norm_eps, which is that of norms of the residual, are
  // divided likewise, and residual_scale is 1.
  DecoderConfig config;
  bool general = false;                 // !HasPlainLayers of the file's configuration
  float residual_scale = 1;             // the file's
  float branch_eps = 0;                 // of all other norms, such as those of queries and keys
  std::vector<bool> experts_elsewhere;  // of which layers; empty: of none
  bool ExpertsElsewhere(size_t layer) const { return !experts_elsewhere.empty() && experts_elsewhere[layer]; }
  // What is sent again for every prompt: of these layers the experts are elsewhere, or all of the layers is; by layer, empty
  // where nothing is fed. The layers' matrices are in the slot then in which they arrive.
  std::vector<DeviceLayer> fed;
  std::optional<cuda::DeviceWeights> weights;
  DeviceMatrix embedding, head;  // none where other devices have the first layers, or the last
  DeviceMatrix positions;        // learned ones
  const float *norm = nullptr, *norm_bias = nullptr;
  const float *embedding_norm = nullptr, *embedding_norm_bias = nullptr;
  const float* head_bias = nullptr;
  std::vector<DeviceLayer> layers;

  void Configure(const DecoderConfig& of_file);

  // One sentence if there are more experts than the kernels take.
  static Status CheckMoe(const DecoderConfig& config);
  // What the matrices will take in `store`.
  static int64_t PlannedBytes(const Model& host, const cuda::DeviceWeights& store,
                              const std::vector<bool>& experts_elsewhere = {});
  // Of one of its layers, and of the experts among that.
  struct LayerBytes {
    int64_t all = 0, experts = 0;
  };
  static LayerBytes PlannedLayer(const Model& host, const LayerWeights& layer,
                                 const cuda::DeviceWeights& store);
  static int64_t PlannedBytes(const DecoderConfig& config, const cuda::DeviceWeights& store);  // random ones
  // How many experts of the others' size a shared one makes; 0: it stays apart.
  static int64_t SharedExperts(const MoeConfig& moe);
  // With what is added to its logits and scores.
  static int64_t RouterBytes(const DecoderConfig& config) {
    const MoeConfig& moe = config.moe;
    return 4 * ((moe.experts + 1) * config.hidden + (moe.router_bias + moe.choice_bias) * moe.experts);
  }
  // What random experts are made from: gpt-oss publishes MXFP4.
  static DType RandomExpertType(const DecoderConfig& config) {
    const bool blocks = config.moe.intermediate % 32 == 0 && config.hidden % 32 == 0;
    return config.family == "gpt_oss" && blocks ? DType::kMxfp4 : DType::kBf16;
  }
  static int64_t ExpertBiasBytes(const DecoderConfig& config, int64_t experts) {
    return config.moe.expert_bias ? 4 * experts * (2 * config.moe.intermediate + config.hidden) : 0;
  }

  // Into `weights`.
  Status Load(const Model& host);
  // Of layers whose experts are elsewhere, these with their router as parts of `feed`. `host` outlives it.
  Status FeedExperts(const Model& host, cuda::WeightFeed* feed);
  // All layers of `host`, which has neither embedding nor head, as parts of `feed`, in the place of Load().
  Status FeedLayers(const Model& host, cuda::WeightFeed* feed);
  // What a slot of either takes.
  static int64_t FedExpertsBytes(const Model& host, const cuda::DeviceWeights& store,
                                 const std::vector<bool>& experts_elsewhere);
  static int64_t FedLayerBytes(const Model& host, const cuda::DeviceWeights& store);
  Status LoadRandom();

  // Whether rows would be what the matrices are, and what they would take.
  bool CanKeepRows() const;
  static int64_t RowBytes(const DecoderConfig& config);
  Status KeepRows(int device, cudaStream_t stream);
  // The same as codes of 8 bits, with a scale for each row; one sentence if that cannot be.
  static Status CheckCodes(const DecoderConfig& config, Activations activations);
  static int64_t CodeBytes(const DecoderConfig& config);
  Status KeepCodes(int device, cuda::Code code, cudaStream_t stream);

  int64_t active_bytes() const;  // that a step of one sequence reads
  StepMatrices Matrices() const;

 private:
  // What the loader has scaled like the branch that it is added to.
  Result<const float*> UploadUnscaled(const float* values, int64_t n);
  Status UploadLayer(const LayerWeights& l, int64_t layer, DeviceLayer* d);
  Status UploadAttention(const LayerWeights& l, int64_t layer, DeviceLayer* d);
  Status UploadLatent(const LayerWeights& l, DeviceLayer* d);  // in its place
  Status RandomLatent(const float* ones, DeviceLayer* d);
  // Of one layer, but for the output projection.
  static int64_t LatentBytes(const LatentWeights& w, const cuda::DeviceWeights& store);
  static int64_t LatentBytes(const DecoderConfig& config, const cuda::DeviceWeights& store);
  Status UploadFfn(const LayerWeights& l, DeviceLayer* d);
  // model_recurrent_cuda.cc
  Status UploadRecurrent(const LayerWeights& l, DeviceLayer* d);
  Status RandomRecurrent(const std::function<DeviceMatrix(int64_t, int64_t)>& plan, DeviceLayer* d);
  // Rows and columns of the inputs, as DeviceRecurrent::Inputs(), and then of the output.
  static std::vector<std::pair<int64_t, int64_t>> RecurrentShapes(const DecoderConfig& config);
  static void SetRecurrent(std::span<const DeviceMatrix> inputs, const DeviceMatrix& output,
                           DeviceRecurrent* to);
  Status UploadExperts(const LayerWeights& l, DeviceLayer* d);
  static std::vector<ExpertWeights> CutShared(const LayerWeights& l, const MoeConfig& moe,
                                              const cuda::DeviceWeights& store);
  Status UploadExpertBiases(const LayerWeights& l, DeviceLayer* d);
  Status UploadRouter(const LayerWeights& l, DeviceLayer* d);
  Status RandomRouter(DeviceLayer* d);
  Status RandomExperts(const std::function<DeviceMatrix(int64_t, int64_t, DType)>& plan, DeviceLayer* d);

  std::vector<Buffer> rows_;  // of the layers
};

}  // namespace celer
