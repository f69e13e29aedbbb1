// Products of weight matrices with the activations of many tokens, for GPUs with warpgroup products
// (compute capability 9.0). Weights are read in the order in which device_matrix.h stores them and become
// bf16 in registers; activations are bf16, sums f32. The same tokens in the same batch give the same bits in
// every run.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "kernels/cuda/device_matrix.h"
#include "kernels/matmul/matvec_cuda.h"

namespace celer::cuda {

// Activations as these products read them. Tokens come in tiles of `tile` (the last one may be partly empty),
// columns padded as those of the matrix. Within a tile: [padded / 8, tile, 8] bf16, where of each 32 columns
// the j-th eight (j of 4) has columns 8 t + 2 j and 8 t + 2 j + 1 for t = 0 .. 3.
struct WideActivations {
  void* data = nullptr;
  int tile = 0;
  int padded = 0;
  // 2: a token takes two neighbouring columns, a bf16 part and what it left out.
  int parts = 1;

  static constexpr int64_t Bytes(int64_t tokens, int64_t tile, int64_t padded) {
    return (tokens + tile - 1) / tile * tile * padded * 2;
  }
};

enum class WideEpilogue : uint8_t {
  kStore,   // out[token, row] = value; the rows of the matrices follow each other
  kAdd,     // out[token, row] += value
  kGateUp,  // activations = act(gate) * up
};

struct WideArgs {
  std::array<DeviceMatrix, 3> w;  // all of one format, group and width; kGateUp: gate, up
  int matrices = 1;
  WideActivations x;
  int tokens = 0;  // not parts
  WideEpilogue epilogue = WideEpilogue::kStore;
  float* out = nullptr;  // [tokens, out_stride]
  int64_t out_stride = 0;
  WideActivations mid;  // what kGateUp writes; zero beyond the matrices' rows; its tile is that of x
  DeviceActivation activation = DeviceActivation::kSilu;
  float* partial = nullptr;    // WidePartialFloats()
  int32_t* tickets = nullptr;  // WideTickets(), all zero before and after
};

// Whether the current device has these kernels.
bool WideRuns();
int64_t WidePartialFloats();
int64_t WideTickets();
// How many tokens a tile should have for a product of so many rows.
int WideTile(int64_t rows, int64_t tokens);
// Bytes that activations of so many tokens may need, whatever their tile.
constexpr int64_t WideActivationBytes(int64_t tokens, int64_t padded) {
  return WideActivations::Bytes(tokens, 256, padded);
}

// x f32 [tokens, cols], with an RMS norm in front if `norm` is given; `rows` as in MatvecArgs.
cudaError_t LaunchWideActivations(const float* x, const int32_t* rows, int64_t tokens, int cols,
                                  const float* norm, float eps, const WideActivations& out,
                                  cudaStream_t stream);
cudaError_t LaunchWide(const WideArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
