// A model's weights in the memory of a GPU: the matrices and vectors of each layer, as the kernels want them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "celer/options.h"
#include "device/buffer.h"
#include "kernels/llm/matmul/cuda/gemm/codes_cuda.h"
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "kernels/shared/cuda/device_batch.h"
#include "kernels/shared/cuda/device_matrix.h"
#include "models/load/model.h"
#include "models/step_work.h"
#include "weights/device_weights.h"

namespace celer {

using cuda::DeviceMatrix;

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
  cuda::DeviceKv kv;  // of a CudaKv
  // The matrices a second time, as rows of bf16 that cuBLASLt reads, those of a part below each other; null
  // where the model does not keep them (CudaModel::KeepRows).
  enum Part { kQkv, kOutput, kGateUp, kDown, kParts };
  std::array<const std::byte*, kParts> rows = {};
  std::array<const float*, kParts> row_scales = {};  // where rows are codes instead
};

// Whether one kernel can take both.
inline bool SameForm(const DeviceMatrix& a, const DeviceMatrix& b) {
  return a.format == b.format && a.group == b.group && a.padded == b.padded;
}

struct CudaModel {
  DecoderConfig config;
  std::optional<cuda::DeviceWeights> weights;
  DeviceMatrix embedding, head;
  const float* norm = nullptr;
  std::vector<DeviceLayer> layers;

  // One sentence if there are more experts than the kernels take.
  static Status CheckMoe(const DecoderConfig& config);
  // What the matrices will take in `store`.
  static int64_t PlannedBytes(const Model& host, const cuda::DeviceWeights& store);
  static int64_t PlannedBytes(const DecoderConfig& config, const cuda::DeviceWeights& store);  // random ones
  static int64_t RouterBytes(const DecoderConfig& config) {
    return 4 * (config.moe.experts + 1) * config.hidden;
  }

  // Into `weights`.
  Status Load(const Model& host);
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
  Status UploadExperts(const LayerWeights& l, DeviceLayer* d);
  Status UploadRouter(const LayerWeights& l, DeviceLayer* d);
  Status RandomExperts(const std::function<DeviceMatrix(int64_t, int64_t)>& plan, DeviceLayer* d);

  std::vector<Buffer> rows_;  // of the layers
};

}  // namespace celer
