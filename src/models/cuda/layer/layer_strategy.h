// A layer's operators in one of the ways that strategy.h lists: those that launch a layer operator by
// operator. All of them are called in the same order.
#pragma once

#include <array>
#include <memory>
#include <optional>

#include "kernels/llm/latent/cuda/latent_cuda.h"
#include "kernels/llm/matmul/cuda/gemm/codes_cuda.h"
#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"
#include "models/cuda/operators.h"

namespace celer {

class LayerStrategy {
 public:
  explicit LayerStrategy(CudaOperators& op) : op_(op), m_(op.memory) {}
  virtual ~LayerStrategy() = default;
  LayerStrategy(const LayerStrategy&) = delete;
  LayerStrategy& operator=(const LayerStrategy&) = delete;

  using Batch = cuda::DeviceBatch;
  virtual void Begin() {}  // in front of the first layer
  // norm, q, k and v, their norms, rope; k and v into the KV
  virtual void Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) = 0;
  virtual void Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) = 0;
  virtual void Output(const DeviceLayer& w, const Batch& batch) = 0;                 // and the residual
  virtual void GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) = 0;  // of dense layers
  virtual void Down(const DeviceLayer& w, const Batch& batch, int64_t layer) = 0;    // and the residual

 protected:
  using Sums = CudaOperators::Part;
  static constexpr Sums kOutput = Sums::kOutput, kDown = Sums::kDown;
  const DecoderConfig& config() const { return op_.config(); }

  CudaOperators& op_;
  const CudaMemory& m_;
};

// Products in f32 of a few tokens at a time.
class MatvecStrategy : public LayerStrategy {
 public:
  using LayerStrategy::LayerStrategy;
  void Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Output(const DeviceLayer& w, const Batch& batch) override;
  void GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Down(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
};

// cuBLASLt. Where the model does not keep its weights as rows of bf16, they become that on a stream of their
// own, one product ahead.
class GemmStrategy : public LayerStrategy {
 public:
  // An error where there is no cuBLASLt.
  static Result<std::unique_ptr<GemmStrategy>> Make(int device, CudaOperators& op, cuda::Gemm gemm);
  void Begin() override;
  void Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Output(const DeviceLayer& w, const Batch& batch) override;
  void GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Down(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  // A product in f32 of neighbours among a part's matrices, where the model keeps rows.
  void Project(const DeviceLayer& w, DeviceLayer::Part part, const CudaOperators::Projection& p, int count);

 private:
  GemmStrategy(CudaOperators& op, cuda::Gemm gemm) : LayerStrategy(op), gemm_(std::move(gemm)) {}

  using Part = DeviceLayer::Part;
  using enum DeviceLayer::Part;
  static std::span<const DeviceMatrix* const> Of(const DeviceLayer& w, Part part,
                                                 std::array<const DeviceMatrix*, 7>& all);
  void Unpack(int64_t layer, Part part);  // nothing beyond the last layer, or where the model keeps rows
  // With the rows that the model keeps, or with what was unpacked for this part.
  void Multiply(const DeviceLayer& w, Part part, const std::byte* x_rows, int64_t tokens, void* out,
                bool f32_out, int64_t out_stride, bool add);
  void ToBf16(const float* from, int64_t tokens, int64_t cols, int padded, const float* norm);
  bool Direct(const DeviceLayer& w, const Batch& batch);  // attention writes what o reads

  cuda::Gemm gemm_;
  std::optional<Stream> unpack_stream_;
  // Two places: one is filled while the other is multiplied with.
  std::array<std::optional<Event>, 2> unpack_done_, multiply_done_;
  size_t next_unpack_ = 0, next_multiply_ = 0;
};

// cuBLASLt with weights and activations of 8 bits.
class CodesStrategy : public LayerStrategy {
 public:
  CodesStrategy(CudaOperators& op, cuda::Gemm gemm, cuda::Code code)
      : LayerStrategy(op), gemm_(std::move(gemm)), code_(code) {}
  void Begin() override;
  void Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Output(const DeviceLayer& w, const Batch& batch) override;
  void GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Down(const DeviceLayer& w, const Batch& batch, int64_t layer) override;

 private:
  using Part = DeviceLayer::Part;
  // What all products but down read, and what that one reads.
  cuda::CodeRows Input() const;
  cuda::CodeRows Mid() const;
  // Sums of codes: f32, or bf16; int32 of integers.
  void Multiply(const DeviceLayer& w, Part part, int64_t rows, int64_t padded, const void* codes,
                int64_t tokens, void* out, bool f32_out);
  void ToCodes(float* x, int64_t cols, int padded, const cuda::CodeSums& sums, const float* norm,
               int64_t tokens, const cuda::CodeRows& out);

  cuda::Gemm gemm_;
  cuda::Code code_;
  bool prepared_ = false;  // Input() holds what the next q, k and v read
};

// Warpgroup products for many tokens.
class WgmmaStrategy : public LayerStrategy {
 public:
  using LayerStrategy::LayerStrategy;
  void Begin() override;
  void Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Output(const DeviceLayer& w, const Batch& batch) override;
  void GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Down(const DeviceLayer& w, const Batch& batch, int64_t layer) override;

 private:
  cuda::WgmmaActivations Activations(const float* from, int64_t cols, const DeviceMatrix& m,
                                     const float* norm, int64_t rows, int count);
};

// Warpgroup products for up to kWgmmaJoined tokens, each of which also does what lies between it and the next
// one. Apart from WgmmaStrategy: there that is a kernel of its own, which the step of a few tokens would
// notice, and tiles of many tokens have no room for it.
class JoinedStrategy : public LayerStrategy {
 public:
  using LayerStrategy::LayerStrategy;
  void Begin() override;
  void Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Output(const DeviceLayer& w, const Batch& batch) override;
  void GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Down(const DeviceLayer& w, const Batch& batch, int64_t layer) override;

 private:
  // A product that is added to x, and prepares the next one under its norm.
  void AddToX(const DeviceMatrix& matrix, const cuda::WgmmaActivations& from, const float* next_norm,
              int padded, int count, Sums sum);
  cuda::WgmmaActivations Attended(const DeviceLayer& w, int count) const;
  cuda::WgmmaActivations MidRows(const DeviceLayer& w, int count) const;
};

// Any batch of layers that are not Llama's. Products of a few tokens in f32, of more by warpgroups; what lies between
// them is fused where a layer's form allows it.
class GeneralStrategy : public LayerStrategy {
 public:
  using LayerStrategy::LayerStrategy;
  void Begin() override;
  void Qkv(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Attention(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Output(const DeviceLayer& w, const Batch& batch) override;
  void GateUp(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  void Down(const DeviceLayer& w, const Batch& batch, int64_t layer) override;
  // For many tokens with adapters, where the model keeps rows.
  void set_rows(GemmStrategy* rows) { rows_ = rows; }

 private:
  // layer_latent_cuda.cc: queries and the row of the KV; attention over it and the values of each head.
  void LatentQkv(const DeviceLayer& w, const Batch& batch, int64_t layer);
  void LatentAttention(const DeviceLayer& w, const Batch& batch, int64_t layer);
  // What the projections made: queries of all heads, and rows of the KV.
  struct LatentRows {
    float *q, *kv;
    int64_t q_stride, kv_stride;
  };
  LatentRows ProjectLatent(const DeviceLayer& w, int count);
  void AttendLatent(const DeviceLayer& w, cuda::LatentAttentionArgs args, int first, int count);
  // layer_recurrent_cuda.cc: in place of both, up to the input of the output projection.
  void Recurrent(const DeviceLayer& w, const Batch& batch, int64_t layer);

  // x under a norm of the residual: what is left to do of it by a product, or x itself under LayerNorm.
  struct Normed {
    const float* x;
    const float* norm;  // RMSNorm in front of the product; null: none
  };
  Normed Norm(const float* weight, const float* bias, int count);
  struct Rope {
    int dim = 0;  // 0: the layer does not rotate
    const float *cos = nullptr, *sin = nullptr;
  };
  Rope RopeOf(int64_t layer) const;
  // q, k and v of one product, with their rope, into place.
  bool FinishesInProduct(const DeviceLayer& w, int count, int64_t layer) const;
  void FinishQkv(const DeviceLayer& w, const Batch& batch, int64_t layer);
  // Whether attention leaves what the output projection reads in bf16.
  bool AttendsForProduct(const DeviceLayer& w, const Batch& batch);
  bool GateUpJoins(const DeviceLayer& w) const;
  // Gate and up of one form, to mid_bf16; or one after the other, to m_.mid.
  void GateUpByWarpgroups(const DeviceLayer& w, const Normed& in, int count);
  void GateAndUp(const DeviceLayer& w, const Normed& in, int count);
  void Activate(const DeviceLayer& w, int count);  // m_.mid and m_.up to m_.mid
  // What the next product reads, once a branch is added to x through a norm: x under its norm.
  struct Next {
    const float* norm = nullptr;
    cuda::WgmmaActivations to = {};  // no data: the next product makes it
  };
  Next NextOfOutput(const DeviceLayer& w, int count) const;
  Next NextOfDown(int64_t layer, int count) const;
  // A branch's last projection, added to the residual: through a norm where the model has one there.
  void AddBranch(CudaOperators::Projection p, const float* post_norm, const Next& next, int count, Sums sum);

  // Adds the norm of what a branch left to x.
  void AddNormedBranch(const float* post_norm, int count);
  // layer_adapted_cuda.cc, of a batch with adapters: each product apart, in f32, and what its tokens add to it.
  void AdaptedQkv(const DeviceLayer& w, const Normed& in, int count);
  void AdaptedGateUp(const DeviceLayer& w, const Normed& in, int count);
  void AdaptedBranch(const DeviceLayer& w, LoraPart part, CudaOperators::Projection p, const float* post_norm,
                     int count);
  void AdaptRecurrent(const DeviceLayer& w, float* in, int64_t stride, int count);
  void Multiply(const DeviceLayer& w, DeviceLayer::Part part, const CudaOperators::Projection& p, int count);
  int64_t LayerOf(const DeviceLayer& w) const { return op_.LayerOf(w); }

  // Whether a few tokens' products are those of JoinedStrategy, but for queries, keys and values.
  bool Joins(int count) const;
  void JoinedQkv(const DeviceLayer& w, const Batch& batch, int64_t layer);

  JoinedStrategy joined_{op_};
  GemmStrategy* rows_ = nullptr;      // none: the model keeps no rows
  const float* normed_by_ = nullptr;  // the weights under which m_.normed is x
  bool x_prepared_ = false;           // x_bf16 is what the next product reads
  bool mid_prepared_ = false;         // mid_bf16 is what down reads
};

}  // namespace celer
