// Products for many tokens at once: the weights are laid out row by row as bf16 in a workspace, and cuBLASLt
// multiplies.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "core/buffer.h"
#include "core/result.h"
#include "kernels/cuda/device_matrix.h"
#include "kernels/matmul/cuda/matvec/matvec_cuda.h"

namespace celer::cuda {

// out: bf16 [rows, padded].
cudaError_t LaunchUnpack(const DeviceMatrix& matrix, void* out, cudaStream_t stream);
// x f32 [tokens, cols] -> out bf16 [tokens, padded], zero beyond cols; with an RMS norm in front if `norm` is
// given.
cudaError_t LaunchToBf16(const float* x, int64_t tokens, int cols, int padded, const float* norm, float eps,
                         void* out, cudaStream_t stream);
// gate_up bf16 [tokens, 2 * cols], gate first -> out bf16 [tokens, padded].
cudaError_t LaunchActivateBf16(const void* gate_up, int64_t tokens, int cols, int padded,
                               DeviceActivation activation, void* out, cudaStream_t stream);

class Gemm {
 public:
  static Result<Gemm> Create(int device);
  Gemm(Gemm&&) noexcept;
  Gemm& operator=(Gemm&&) noexcept;
  ~Gemm();

  // out [tokens, rows] (f32 or bf16, out_stride elements apart) = x bf16 [tokens, padded] . w bf16 [rows,
  // padded]^T, added to what is there if `add`.
  Status Run(const void* w, const void* x, int64_t rows, int64_t tokens, int64_t padded, void* out,
             bool f32_out, int64_t out_stride, bool add, cudaStream_t stream);

  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

 private:
  struct State;
  explicit Gemm(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace celer::cuda
