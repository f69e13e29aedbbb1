// What the strategies of the forward pass have in common: where things are, and the operators that more than
// one of them uses.
#pragma once

#include <span>

#include "device/stream.h"
#include "kernels/llm/attention/cuda/attention_cuda.h"
#include "kernels/llm/decode_step/decode_step_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"
#include "kernels/llm/qkv/qkv_cuda.h"
#include "models/cuda/batch.h"
#include "models/cuda/cuda_lora.h"
#include "models/cuda/fault.h"
#include "models/cuda/marks.h"
#include "models/cuda/memory/workspace.h"
#include "models/cuda/model.h"
#include "models/cuda/ranks.h"
#include "models/cuda/strategy.h"

namespace celer {

using cuda::kMaxMatvecTokens;

// What attention reads and writes other than f32: as in DeviceAttentionArgs.
struct AttentionForm {
  bool narrow_q = false;  // in q's place
  cuda::WgmmaActivations wgmma = {};
  void* rows = nullptr;
};

// Of a product's rows and tokens; none: it has been multiplied with them.
struct ProductScales {
  const float *rows = nullptr, *tokens = nullptr;
  bool integers = false;  // the sums are int32
};

struct CudaOperators {
  const CudaModel& model;
  const CudaShape& shape;
  const CudaMemory& memory;
  const CudaBatch& batch_state;
  const Stream& stream;
  CudaFault& fault;
  CudaMarks& marks;
  const CudaRankOptions* ranks = nullptr;  // null: the model is whole
  // Up to kWgmmaJoined tokens: whether x_bf16 holds the activations of the next product, but for the division
  // by their norm. A product sets it, the next one takes it.
  bool wgmma_prepared = false;
  // Of a batch whose tokens have adapters; else null, and nothing is asked of it.
  CudaLora* lora = nullptr;

  const DecoderConfig& config() const { return model.config; }
  cuda::DeviceActivation activation() const {
    return static_cast<cuda::DeviceActivation>(config().activation);
  }
  void Check(cudaError_t code) { fault.Check(code); }
  void Check(const Status& status) { fault.Check(status); }

  // A product in f32, a few tokens at a time.
  struct Product {
    const DeviceMatrix* a = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    const int32_t* rows = nullptr;
    const float* norm = nullptr;
    float eps = 0;  // of it
    const float* bias = nullptr;
    const float* residual = nullptr;
    float* out = nullptr;
    int64_t out_stride = 0;
  };
  void Multiply(const Product& p, int count);
  void MultiplyTiles(const Product& p, int count);

  // A product of matrices of one width, by Multiply() or by warpgroups, as ByWarpgroups() says.
  struct Projection {
    // Their rows follow each other in `out`.
    std::span<const DeviceMatrix* const> matrices = {};
    const float* x = nullptr;       // [tokens, width of the matrices]
    const int32_t* rows = nullptr;  // which rows of x, or null for the first ones
    const float* norm = nullptr;    // RMSNorm in front
    float eps = 0;                  // of it
    const float* bias = nullptr;    // with one matrix; its rows are out_stride then
    float* out = nullptr;           // [tokens, out_stride]
    int64_t out_stride = 0;
    bool add = false;  // to out
    std::byte* in_bf16 =
        nullptr;  // where warpgroups have x; null: memory.x_bf16, of widths up to shape.input_width()
    bool prepared = false;  // x is there already, as Activations() says
  };
  void Project(const Projection& p, int count);
  // More than a few tokens, or any number where results must not depend on how many there are.
  bool ByWarpgroups(int count) const {
    return shape.wgmma && (shape.deterministic || count > cuda::kMaxStepTokens);
  }
  // Where and how Project() has x for warpgroups; `rows` of all matrices.
  cuda::WgmmaActivations Activations(const Projection& p, int count) const;
  void GateUpByMatvec(const DeviceLayer& w, int count);
  cuda::MatvecArgs QkvArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch) const;
  cuda::MatvecArgs GateUpArgs(const DeviceLayer& w, int count) const;

  // One matrix of all of them, whose rows follow each other in memory; none if they do not.
  static DeviceMatrix Joined(std::span<const DeviceMatrix* const> matrices);

  // q, k and v from the rows of their common product.
  cuda::FinishQkvArgs FinishArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch) const;
  void FinishQkvRows(const DeviceLayer& w, const cuda::DeviceBatch& batch, bool narrow_q = false,
                     bool narrow_rows = false, const ProductScales& scales = {});

  void Attention(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer,
                 const AttentionForm& form = {});
  bool UsesFlash(const DeviceLayer& w, const cuda::DeviceBatch& batch);
  // Whether attention reads queries in 16 bits.
  bool UsesNarrowQueries(const DeviceLayer& w, const cuda::DeviceBatch& batch);
  // Whether attention can write the activations of o.
  bool AttentionWritesBf16(const DeviceLayer& w, const cuda::DeviceBatch& batch);

  // Warpgroup products of the same activations; matrices that differ in form go one by one.
  void MultiplyWgmma(std::span<const DeviceMatrix* const> matrices, cuda::WgmmaArgs args);
  // Up to eight tokens keep 16 bits of their activations.
  cuda::WgmmaActivations WgmmaRows(std::byte* to, int64_t rows, int64_t count, int padded) const {
    // Tiles of 16 multiply otherwise than all larger ones.
    if (shape.deterministic) return {to, std::max(32, cuda::WgmmaTile(rows, count)), padded, 1, true};
    if (count <= kMaxMatvecTokens) return {to, 16, padded, 2};
    return {to, cuda::WgmmaTile(rows, count), padded, 1};
  }
  // For a product of x under a norm: with what the product in front prepared, or with activations made here.
  cuda::WgmmaArgs NormedArgs(int count, const DeviceMatrix& m, const float* by);

  int64_t LayerOf(const DeviceLayer& w) const { return &w - model.layers.data(); }
  // The layer's experts, added to x.
  void Moe(const DeviceLayer& w, int count);
  // `rows` rows of logits: of the tokens that logit_rows names (`gather`), or of the first ones.
  void Head(int rows, bool gather);

  // Of one rank of several (ranks_cuda.cc) what ends a branch, and the embedding, is its part of a sum over all ranks: a
  // product goes to Sum() instead of being added to x, and JoinRanks() adds the parts up, into x or as `to`. Alone a
  // branch adds to x, and JoinRanks() does nothing. Parts that follow each other are different ones.
  enum class Part : uint8_t { kOutput, kDown, kEmbedding };
  bool AddsToX() const { return ranks == nullptr; }
  bool first_rank() const { return ranks == nullptr || ranks->rank == 0; }
  int first_token() const;  // of this rank's part of the vocabulary
  float* Sum(Part part) const;
  void JoinRanks(Part part, int count, float* to = nullptr);
  void ClearSum(Part part, int count);  // zeros, for what can only add
  void JoinLogits(int rows);
  // What rank 0 chose, to all others.
  void ShareTokens(int count);

 private:
  int SeparateSingles() const;
  void MoeStep(const DeviceLayer& w, int count);
  void MoeGrouped(const DeviceLayer& w, int job_tokens, const cuda::MoePlan& plan);
  void MoeJobs(const DeviceLayer& w, int job_tokens, const cuda::MoePlan& plan);
  void SharedExpert(const DeviceLayer& w, int count);
  bool GroupsSharedExpert(const DeviceLayer& w, int count);
  // moe_adapted_cuda.cc, of a batch with adapters that change these: each product apart, and what its tokens add to it.
  bool AdaptsExperts() const { return lora && lora->TouchesExperts(); }
  void AdaptRouter(const DeviceLayer& w, int count);
  void AdaptedExperts(const DeviceLayer& w, bool grouped, int job_tokens, int count,
                      const cuda::MoePlan& plan);
  void AdaptedSharedExpert(const DeviceLayer& w, int count);
  void ExpertProduct(const cuda::ExpertMatrices& w, const std::byte* x, float* out, bool grouped,
                     int job_tokens, const cuda::MoePlan& plan, int tokens = 0);
  void HeadByWgmma(int rows, const int32_t* of);
  void HeadOfGeneral(int rows, const int32_t* of);
};

}  // namespace celer
