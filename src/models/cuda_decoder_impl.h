// What CudaDecoder keeps on the GPU; shared by the files that load the weights, run the layers and take
// batches.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda_allocator.h"
#include "core/cuda_status.h"
#include "core/gpu_turns.h"
#include "core/stream.h"
#include "kernels/attention/flash_attention_cuda.h"
#include "kernels/decode_step/decode_batch_cuda.h"
#include "kernels/decode_step/decode_step_cuda.h"
#include "kernels/matmul/gemm_cuda.h"
#include "kernels/matmul/wide_cuda.h"
#include "kernels/moe/moe_cuda.h"
#include "kernels/sample/greedy_cuda.h"
#include "kernels/sample/sample_cuda.h"
#include "models/cuda_decoder.h"
#include "weights/device_weights.h"

namespace celer {

using cuda::DeviceMatrix;
using cuda::kMaxMatvecTokens;

struct DeviceLayer {
  DeviceMatrix q, k, v, o;
  DeviceMatrix gate, up, down;  // of a sparse layer: of the shared expert, or none
  const float* router =
      nullptr;  // [experts, hidden], and one more row that gates the shared expert, if any does
  bool shared_gate = false;
  cuda::ExpertMatrices expert_gate_up, expert_down;
  bool sparse() const { return router != nullptr; }
  const float *attention_norm = nullptr, *ffn_norm = nullptr;
  const float *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;
  const float *q_norm = nullptr, *k_norm = nullptr;
  cuda::DeviceKv kv;
};

// What attention reads and writes other than f32: as in DeviceAttentionArgs.
struct AttentionForm {
  bool narrow_q = false;  // in q's place
  cuda::WideActivations wide = {};
  void* rows = nullptr;
};

constexpr int64_t kLogitRows = 256;

inline bool SameForm(const DeviceMatrix& a, const DeviceMatrix& b) {
  return a.format == b.format && a.group == b.group && a.padded == b.padded;
}

struct CudaDecoder::Impl {
  DecoderConfig config;
  CudaDecoderOptions options;
  std::string device_name;
  std::optional<cuda::DeviceWeights> weights;
  std::optional<Stream> stream;
  std::unique_ptr<GpuTurns> turns;  // of the stream
  std::vector<Buffer> buffers;
  CudaMemoryPlan memory_plan;
  DeviceMatrix embedding, head;
  const float* norm = nullptr;
  std::vector<DeviceLayer> layers;
  const float *rope_cos = nullptr, *rope_sin = nullptr;

  // The batch on the device, and what the host knows to be there.
  int32_t *tokens = nullptr, *positions = nullptr, *sequence = nullptr, *logit_rows = nullptr,
          *table = nullptr, *seq_start = nullptr;
  int64_t table_width = 0;
  std::vector<int32_t> seen_positions, seen_table;  // of a decode step
  // Pinned memory that copies to the device start from, used in turn.
  struct Upload {
    Buffer memory;
    std::optional<Event> done;
  };
  std::array<Upload, 4> uploads;
  size_t next_upload = 0;

  // Activations [max_tokens, ...].
  float *x = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *attention = nullptr, *mid = nullptr,
        *up = nullptr;
  float *logits = nullptr, *partial = nullptr;
  // Of layers with experts: [max_tokens, ...], and of each token for each of its experts.
  float *router_logits = nullptr, *moe_x = nullptr, *shared_out = nullptr;
  float *moe_mid = nullptr, *moe_out = nullptr;
  std::byte *moe_x_bf16 = nullptr, *moe_mid_bf16 = nullptr, *shared_mid_bf16 = nullptr;
  cuda::MoePlan moe_plan;
  std::byte* moe_step_memory = nullptr;
  int32_t *attention_tickets = nullptr, *greedy_tickets = nullptr;
  uint64_t* greedy_best = nullptr;
  bool wide = false;  // whether the products of wide_cuda.h run here
  float* wide_partial = nullptr;
  int32_t* wide_tickets = nullptr;
  // Up to kWideJoined tokens: attention's results; sums of squares of x; whether x_bf16 holds the activations
  // of the next product, but for the division by their norm.
  std::byte* attention_bf16 = nullptr;
  float* wide_squares = nullptr;
  bool wide_prepared = false;
  // For many tokens, where those do not run: weights as rows of bf16.
  std::optional<cuda::Gemm> gemm;
  // Two places for unpacked weights: one is filled on a stream of its own while the other is multiplied with.
  std::optional<Stream> unpack_stream;
  std::array<std::byte*, 2> unpacked = {};
  std::array<std::optional<Event>, 2> unpack_done, multiply_done;
  size_t next_unpack = 0, next_multiply = 0;
  void Unpack(std::span<const DeviceMatrix* const> matrices);
  void UnpackPart(int64_t layer, int part);  // of qkv, o, gate and up, down; nothing beyond the last layer
  std::byte *x_bf16 = nullptr, *gate_up_bf16 = nullptr, *mid_bf16 = nullptr;
  float* qkv_rows = nullptr;
  int64_t longest = 0, sequences = 0;  // of the batch that was uploaded last
  Buffer host_logits;                  // pinned
  // Pinned and mapped: [kHostSlots, kMaxDecode] of the decode steps, then [kLogitRows] of Sample().
  Buffer host_tokens, host_logprobs;
  cuda::SampleRow* sample_rows = nullptr;  // [kLogitRows]
  cuda::SampleArgs SampleRows(int rows) const;
  cuda::GreedyTarget Choice() const;
  void QueueDecode(int count, bool sampled);
  int64_t last_rows = 0;

  // [2 * sampled + in one kernel, sequences]
  std::array<std::array<cudaGraphExec_t, kMaxDecode + 1>, 4> graphs = {};
  std::array<std::optional<Event>, cuda::kHostSlots> step_done;

  ~Impl() {
    for (const auto& by_count : graphs)
      for (cudaGraphExec_t graph : by_count)
        if (graph) cudaGraphExecDestroy(graph);
    if (stream) (void)stream->Synchronize();
  }

  cuda::DeviceKv KvShape() const {  // without memory
    return {nullptr,
            nullptr,
            options.kv,
            static_cast<int>(config.kv_heads),
            static_cast<int>(config.head_dim),
            cuda::DeviceKv::PaddedDim(options.kv, config.head_dim)};
  }
  // The widest layer that runs as a dense one.
  int64_t ffn_width() const { return std::max(config.intermediate, config.moe.shared_intermediate); }
  int64_t kv_bytes_per_token() const { return config.layers * 2 * KvShape().block_bytes() / cuda::kKvBlock; }
  int64_t workspace_bytes() const;
  int64_t bf16_bytes(int64_t rows, int64_t cols) const;
  int64_t moe_bytes() const;
  int64_t step_bytes() const;      // of the step in one kernel
  int64_t sampling_bytes() const;  // what CudaSampler may take

  // Zeros.
  template <class T>
  Result<T*> Own(int64_t count) {
    CELER_ASSIGN(Allocator * allocator, CudaAllocator(options.device));
    CELER_ASSIGN(Buffer buffer,
                 Buffer::Allocate(*allocator, static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T)));
    CELER_RETURN_IF_ERROR(CudaStatus(cudaMemset(buffer.data(), 0, buffer.size()), "clearing GPU memory"));
    T* data = reinterpret_cast<T*>(buffer.data());
    buffers.push_back(std::move(buffer));
    return data;
  }
  Status Allocate();
  Status AllocateMoe();
  // `weight_bytes`: what the model's matrices take in a store.
  Status PlanAndCheck(const std::function<int64_t(const cuda::DeviceWeights&)>& weight_bytes);
  Status LoadFrom(const Decoder& host);
  Status LoadRandom();
  Status CheckMoe() const;
  Status UploadExperts(const LayerWeights& l, DeviceLayer* d);
  Status UploadRouter(const LayerWeights& l, DeviceLayer* d);
  int64_t router_bytes() const { return 4 * (config.moe.experts + 1) * config.hidden; }
  void MoeInputToBf16(const DeviceMatrix& by, int count);
  void SharedExpert(const DeviceLayer& w, int count);
  Status RandomExperts(const std::function<DeviceMatrix(int64_t, int64_t)>& plan, DeviceLayer* d);
  Status Start();

  Status UploadBatch(const RaggedBatch& batch);
  Result<std::byte*> Pinned(int64_t bytes, Upload** used);
  Status Copy(void* to, const void* from, int64_t bytes);

  void Check(cudaError_t code) {
    if (code != cudaSuccess && fault == cudaSuccess) fault = code;
  }
  cudaError_t fault = cudaSuccess;

  struct Product {
    const DeviceMatrix* a = nullptr;
    const float* x = nullptr;
    int64_t x_stride = 0;
    const int32_t* rows = nullptr;
    const float* norm = nullptr;
    const float* bias = nullptr;
    const float* residual = nullptr;
    float* out = nullptr;
    int64_t out_stride = 0;
  };
  void Multiply(const Product& p, int tokens_now);
  void Qkv(const DeviceLayer& w, const cuda::DeviceBatch& batch);
  void Attention(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer,
                 const AttentionForm& form = {});
  // Whether attention can write the activations of o.
  bool AttentionWritesBf16(const DeviceLayer& w, const cuda::DeviceBatch& batch) const {
    return w.o.padded == config.heads * config.head_dim &&
           (UsesFlash(w, batch) ? config.head_dim % 32 == 0 : batch.count <= cuda::kAttentionTokens);
  }
  bool UsesFlash(const DeviceLayer& w, const cuda::DeviceBatch& batch) const {
    return batch.count > kMaxMatvecTokens && longest > 1 && !options.exact && cuda::FlashAttentionRuns(w.kv);
  }
  void GateUp(const DeviceLayer& w, int tokens_now);
  void Moe(const DeviceLayer& w, int count);
  void Run(int count, int rows, bool gather);
  void MultiplyHead(int rows, bool gather);  // the logits of x
  // All layers of a decode step in one kernel, for models that it can run.
  std::vector<cuda::DecodeStepLayer> step_layers;  // empty if it cannot
  std::byte* step_memory = nullptr;
  int step_tokens = 0;                // at once
  std::byte* batch_memory = nullptr;  // of decode_batch_cuda.h; null if that cannot
  int64_t most_keys = 0;              // of the sequences of the step that is queued
  cuda::DecodeStepArgs StepArgs(int count) const;
  // More tokens than the other kernel has room for.
  bool UsesBatchStep(int count) const {
    return batch_memory && count > step_tokens && count <= cuda::kMaxBatchTokens &&
           most_keys <= cuda::DecodeBatchKeys();
  }
  // A decode step has one token of each sequence.
  bool UsesWholeStep(int count) const {
    if (options.launch != StepLaunch::kFused || profile || step_layers.empty()) return false;
    return UsesBatchStep(count) || (count <= step_tokens && most_keys <= cuda::DecodeStepKeys(StepArgs(1)));
  }
  Status PrepareStep();
  bool UsesWide(int count) const { return wide && count > cuda::kMaxStepTokens; }
  // Up to eight tokens keep 16 bits of their activations.
  cuda::WideActivations WideRows(std::byte* memory, int64_t rows, int64_t count, int padded) const {
    if (count <= kMaxMatvecTokens) return {memory, 16, padded, 2};
    return {memory, cuda::WideTile(rows, count), padded, 1};
  }
  void MultiplyWide(std::span<const DeviceMatrix* const> matrices, cuda::WideArgs args);
  void LayerWide(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer);
  // For up to kWideJoined tokens.
  void LayerJoined(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer);
  void QkvJoined(const DeviceLayer& w, const cuda::DeviceBatch& batch);
  cuda::WideArgs NormedArgs(int count, const DeviceMatrix& m, const float* by);
  void LogitsWide(int rows, const int32_t* of);
  void FinishQkvRows(const DeviceLayer& w, const cuda::DeviceBatch& batch, bool narrow_q = false,
                     bool narrow_rows = false);
  bool UsesGemm(int count) const { return gemm && count > kMaxMatvecTokens && !UsesWide(count); }
  void LayerByGemm(const DeviceLayer& w, const cuda::DeviceBatch& batch, int64_t layer);
  void MultiplyByGemm(std::span<const DeviceMatrix* const> matrices, const std::byte* x_rows,
                      int64_t tokens_now, void* out, bool f32_out, int64_t out_stride, bool add);
  void Check(const Status& status) {
    if (!status && !problem) problem = status.error();
  }
  std::optional<Error> problem;
  Status TakeFault(const char* what) {
    const cudaError_t code = std::exchange(fault, cudaSuccess);
    if (problem) return *std::exchange(problem, std::nullopt);
    return CudaStatus(code, what);
  }
  int64_t unpacked_elements() const;
  bool Unpacks() const { return !options.exact && !wide; }

  // With a profile, an event in front of every operator.
  OpProfile* profile = nullptr;
  std::vector<Event> mark_events;
  std::vector<Op> marks;  // the operator that begins at each event; the first two events measure themselves
  bool marks_captured = false;
  void BeginMarks(bool captured);
  void Mark(Op op) {
    if (profile) RecordMark(op);
  }
  void RecordMark(Op op);
  Status TakeMarks();

  cuda::MatvecArgs QkvArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch) const;
  cuda::MatvecArgs GateUpArgs(const DeviceLayer& w, int tokens_now) const;
  cuda::DeviceAttentionArgs AttentionArgs(const DeviceLayer& w, const cuda::DeviceBatch& batch,
                                          int64_t layer) const;
  cuda::DeviceBatch Batch(int count) const {
    return {tokens, positions, sequence, table, static_cast<int>(table_width), count};
  }
};

}  // namespace celer
