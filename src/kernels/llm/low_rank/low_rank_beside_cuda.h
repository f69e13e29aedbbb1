// Terms of A and B alone, in 16 bits, in one kernel behind a product that reads x as rows of bf16 (cuBLASLt's): A x, and B
// of it onto what the product made. On GPUs with clusters of thread blocks; elsewhere, and for terms of any other kind,
// there is low_rank_cuda.h.
//
// The order of a token's sums depends on widths and ranks alone.
#pragma once

#include "kernels/llm/low_rank/low_rank_cuda.h"

namespace celer::cuda {

// Whether the current device has such kernels.
bool LowRankBesideRuns();

struct LowRankBesideArgs {
  LowRankPlan plan;         // all its tiles are plain
  int rows = 0;             // of the product
  const void* x = nullptr;  // bf16 [rows, x_stride], under its norm
  int64_t x_stride = 0;     // this and `cols` are multiples of 8
  int cols = 0;
  struct Matrix {
    int place = 0;
    int rows = 0;             // of the matrix, a multiple of 4, as the stride is
    void* product = nullptr;  // [rows of the product, stride], f32, added to
    int64_t stride = 0;
  };
  std::array<Matrix, 3> matrices = {};
  int count = 0;
};
cudaError_t LaunchLowRankBeside(const LowRankBesideArgs& args, cudaStream_t stream);

// The same of up and gate, in this order and in bf16, and their activation; they stay as they are.
struct LowRankBesideActivation {
  DeviceActivation activation = DeviceActivation::kSilu;
  float limit = 0;      // as in gate_up_cuda.h
  void* out = nullptr;  // bf16 [rows of the product, out_stride]
  int64_t out_stride = 0;
};
cudaError_t LaunchLowRankBesideActivate(const LowRankBesideArgs& args, const LowRankBesideActivation& to,
                                        cudaStream_t stream);

}  // namespace celer::cuda
