// GEMM for many tokens at once: cuBLASLt multiplies row-major weights.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

#include "base/result.h"
#include "device/buffer.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/shared/cuda/device_matrix.h"

namespace celer::cuda {

// out: bf16 [rows, padded].
cudaError_t LaunchUnpack(const DeviceMatrix& matrix, void* out, cudaStream_t stream);
// Of kFp8 with a scale to a row: codes [rows, padded], scales [rows], as they are.
constexpr bool HasRowCodes(const DeviceMatrix& m) {
  return m.format == Format::kFp8 && m.group == 0;
}
cudaError_t LaunchUnpackCodes(const DeviceMatrix& matrix, void* codes, float* scales, cudaStream_t stream);
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

  // out [tokens, rows] (f32 or bf16, out_stride elements apart) = x [tokens, padded] . w [rows, padded]^T,
  // added to what is there if `add`. Both are bf16, or codes whose scales the caller applies; then rows are a
  // multiple of 16. Sums of int8 are int32 and never added to anything.
  enum class Type : uint8_t { kBf16, kFp8, kInt8 };
  struct Shape {
    Type type = Type::kBf16;
    int64_t rows = 0, tokens = 0, padded = 0;
    bool f32_out = false, add = false;
    int64_t out_stride = 0;
    auto operator<=>(const Shape&) const = default;
  };
  Status Run(const Shape& shape, const void* w, const void* x, void* out, cudaStream_t stream);

  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

 private:
  struct State;
  explicit Gemm(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace celer::cuda
