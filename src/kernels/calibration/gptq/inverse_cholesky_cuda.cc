#include "kernels/calibration/gptq/inverse_cholesky_cuda.h"

#include <algorithm>

#include "device/buffer.h"
#include "device/cuda_status.h"
#include "kernels/calibration/gptq/gptq_cuda.h"

namespace celer::cuda {
namespace {

constexpr int64_t kBlock = kFactorBlock;

struct Work {
  GemmF32& gemm;
  float* a;  // becomes R, of which the upper half counts
  float* u;
  int64_t n;
  float* inverses;  // [blocks, kBlock, kBlock]: of the blocks on R's diagonal
  float* panel;     // [n, kBlock]
  int* failed;
  cudaStream_t stream;

  int64_t blocks() const { return (n + kBlock - 1) / kBlock; }
  int64_t Size(int64_t block) const { return std::min(kBlock, n - block * kBlock); }
  const float* InverseOf(int64_t block) const { return inverses + block * kBlock * kBlock; }
};

Status CopyBlock(float* to, int64_t to_stride, const float* from, int64_t rows, int64_t cols,
                 cudaStream_t stream) {
  const auto bytes = [](int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); };
  return CudaStatus(cudaMemcpy2DAsync(to, bytes(to_stride), from, bytes(kBlock), bytes(cols),
                                      static_cast<size_t>(rows), cudaMemcpyDeviceToDevice, stream),
                    "copying a block");
}

// A = R R^T, R upper triangular, from the last block to the first.
Status Factor(const Work& w) {
  for (int64_t block = w.blocks() - 1; block >= 0; --block) {
    const int64_t first = block * kBlock, size = w.Size(block);
    CELER_RETURN_IF_ERROR(
        CudaStatus(LaunchFactorBlock(w.a + first * w.n + first, w.n, static_cast<int>(size),
                                     w.inverses + block * kBlock * kBlock, w.failed, w.stream),
                   "factoring a block"));
    if (first == 0) break;
    // Above it: X R^T = A, so X = A R^-T; then what remains is A - X X^T.
    CELER_RETURN_IF_ERROR(w.gemm.Run({.m = first,
                                      .n = size,
                                      .k = size,
                                      .a = {.data = w.a + first, .stride = w.n},
                                      .b = {.data = w.InverseOf(block), .stride = kBlock, .transposed = true},
                                      .out = w.panel,
                                      .out_stride = kBlock},
                                     w.stream));
    CELER_RETURN_IF_ERROR(CopyBlock(w.a + first, w.n, w.panel, first, size, w.stream));
    CELER_RETURN_IF_ERROR(w.gemm.Run({.m = first,
                                      .n = first,
                                      .k = size,
                                      .a = {.data = w.panel, .stride = kBlock},
                                      .b = {.data = w.panel, .stride = kBlock, .transposed = true},
                                      .out = w.a,
                                      .out_stride = w.n,
                                      .alpha = -1,
                                      .add = true},
                                     w.stream));
  }
  return {};
}

// U = R^-1, from the first block to the last: above the diagonal -U R R_jj^-1.
Status Invert(const Work& w) {
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(w.u, 0, static_cast<size_t>(w.n * w.n) * sizeof(float), w.stream), "clearing"));
  for (int64_t block = 0; block < w.blocks(); ++block) {
    const int64_t first = block * kBlock, size = w.Size(block);
    CELER_RETURN_IF_ERROR(
        CopyBlock(w.u + first * w.n + first, w.n, w.InverseOf(block), size, size, w.stream));
    if (first == 0) continue;
    CELER_RETURN_IF_ERROR(w.gemm.Run({.m = first,
                                      .n = size,
                                      .k = first,
                                      .a = {.data = w.u, .stride = w.n},
                                      .b = {.data = w.a + first, .stride = w.n},
                                      .out = w.panel,
                                      .out_stride = kBlock},
                                     w.stream));
    CELER_RETURN_IF_ERROR(w.gemm.Run({.m = first,
                                      .n = size,
                                      .k = size,
                                      .a = {.data = w.panel, .stride = kBlock},
                                      .b = {.data = w.InverseOf(block), .stride = kBlock},
                                      .out = w.u + first,
                                      .out_stride = w.n,
                                      .alpha = -1},
                                     w.stream));
  }
  return {};
}

}  // namespace

Result<bool> InverseCholesky(GemmF32& gemm, float* a, int64_t n, float* u, Allocator& memory,
                             cudaStream_t stream) {
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  const auto floats = [&](int64_t count) {
    return Buffer::Allocate(memory, static_cast<size_t>(count) * sizeof(float));
  };
  CELER_ASSIGN(const Buffer inverses, floats(blocks * kBlock * kBlock));
  CELER_ASSIGN(const Buffer panel, floats(n * kBlock));
  CELER_ASSIGN(const Buffer failed, Buffer::Allocate(memory, sizeof(int)));
  CELER_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(failed.data(), 0, sizeof(int), stream), "clearing"));
  const Work work{
      gemm, a, u, n, inverses.as<float>().data(), panel.as<float>().data(), failed.as<int>().data(), stream};
  CELER_RETURN_IF_ERROR(Factor(work));
  int broken = 0;
  CELER_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(&broken, failed.data(), sizeof(int), cudaMemcpyDeviceToHost, stream), "reading back"));
  CELER_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "factoring"));
  if (broken != 0) return false;
  CELER_RETURN_IF_ERROR(Invert(work));
  CELER_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(stream), "inverting"));
  return true;
}

}  // namespace celer::cuda
