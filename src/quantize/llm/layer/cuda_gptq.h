// GPTQ over matrices in a GPU's memory; as gptq.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/llm/matmul/cuda/gemm/gemm_f32_cuda.h"
#include "quantize/llm/gptq.h"
#include "quantize/llm/int_tensor.h"
#include "quantize/llm/layer/cuda_calibration.h"
#include "quantize/llm/layer/cuda_memory.h"

namespace celer {

// Serves one input after the other; its memory is kept between them.
class CudaGptq {
 public:
  CudaGptq(cuda::GemmF32& gemm, Allocator& memory) : gemm_(gemm), memory_(memory) {}

  // The inputs of the matrices that follow. `name` is for the error if H has no inverse.
  Status Prepare(const CudaGram& gram, int64_t tokens, const GptqOptions& options, const std::string& name);
  // The matrix is replaced by its dequantized values.
  Result<IntTensor> Quantize(CudaLayer::Matrix* m, const Target& target);

 private:
  cuda::GemmF32& gemm_;
  Allocator& memory_;
  int64_t cols_ = 0;
  CudaArray<int32_t> order_;
  CudaArray<float> importance_, u_, hessian_;
  CudaArray<float> ordered_, errors_;
  CudaArray<uint16_t> scales_;
  CudaArray<uint8_t> zeros_, codes_;
  CudaArray<uint32_t> words_;
};

// The mean squares of an input's columns.
Result<std::vector<float>> MeanSquaresOf(const CudaGram& gram, int64_t tokens);

}  // namespace celer
