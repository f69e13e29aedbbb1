// Calibration text on a GPU: the hidden states of all windows stay in its memory and pass through one layer
// at a time, in f32, some windows at once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/thread_pool.h"
#include "kernels/llm/matmul/cuda/gemm/gemm_f32_cuda.h"
#include "models/load/model.h"
#include "quantize/llm/calibrate.h"
#include "quantize/llm/fold.h"
#include "quantize/llm/layer/cuda_memory.h"
#include "quantize/llm/quantize.h"

namespace celer {

// One layer in the memory of a GPU.
struct CudaLayer {
  struct Matrix {
    int64_t rows = 0, cols = 0;
    CudaArray<float> values;  // [rows, cols]
  };
  struct Vector {
    CudaArray<float> values;
    bool present = false;
    const float* get() const { return present ? values.get() : nullptr; }
  };
  std::array<Matrix, kProjections> matrices;
  Vector attention_norm, ffn_norm, q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias, q_norm,
      k_norm;

  Status UploadVectors(const LayerFloats& layer, Allocator& memory);
  Status UploadMatrix(const LayerFloats& layer, Projection p, Allocator& memory);
};

// The sums over one input: x^T x, of which the upper half counts, and |x|.
struct CudaGram {
  int64_t cols = 0;
  CudaArray<float> sums;         // [cols, cols]
  CudaArray<double> magnitudes;  // [cols]
};

class CudaCalibration {
 public:
  static Result<std::unique_ptr<CudaCalibration>> Make(const Model& model, const CalibrationText& text,
                                                       cuda::GemmF32& gemm, Allocator& memory,
                                                       ThreadPool& pool);

  int64_t tokens() const { return windows_ * window_; }

  // The text through layer `index`, up to what the last matrix reads. `grams` start from nothing.
  Status Observe(const CudaLayer& layer, int64_t index, std::array<CudaGram, kLayerInputs>* grams);
  // The hidden states become those behind the layer. An error if they are not finite.
  Status Advance(const CudaLayer& layer, int64_t index);

  Result<AlignedVector<float>> States() const;  // [tokens(), hidden]

 private:
  CudaCalibration(const DecoderConfig& config, cuda::GemmF32& gemm, Allocator& memory)
      : config_(config), gemm_(gemm), memory_(memory) {}

  // Windows [begin, end) pass through the layer; what is behind it stays in state_.
  Status Run(const CudaLayer& layer, int64_t index, int64_t begin, int64_t end,
             std::array<CudaGram, kLayerInputs>* grams);
  Status Multiply(const CudaLayer& layer, Projection p, const float* x, const CudaLayer::Vector& bias,
                  bool add, float* out);
  Status Attend(const CudaLayer& layer, int64_t index);
  // Queries [first, last) of one window, of every group's g-th head.
  Status AttendPart(int64_t index, int64_t window, int64_t g, int64_t first, int64_t last);
  Status AddTo(CudaGram* gram, const float* x);

  const DecoderConfig& config_;
  cuda::GemmF32& gemm_;
  Allocator& memory_;
  int64_t window_ = 0, windows_ = 0, at_once_ = 0, score_queries_ = 0;
  int64_t now_ = 0;     // tokens of the windows that are passing
  CudaArray<float> x_;  // [tokens(), hidden]
  CudaArray<float> cos_, sin_;
  CudaArray<unsigned long long> not_finite_;
  // Of the windows that are passing.
  CudaArray<float> state_, normed_, q_, k_, v_, attention_, gate_, up_, scores_;
};

}  // namespace celer
