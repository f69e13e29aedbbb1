// GEMM of weight matrices with the activations of many tokens by wgmma (compute capability 9.0), or by mma.sync in
// generic code. Weights are
// read in the order in which device_matrix.h stores them and are dequantized to bf16 in registers;
// activations are bf16, accumulators f32. Deterministic: the same tokens in the same batch give the same bits
// in every run.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.h"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_activations.h"
#include "kernels/shared/cuda/device_batch.h"
#include "kernels/shared/cuda/device_matrix.h"

namespace celer::cuda {

enum class WgmmaEpilogue : uint8_t {
  kStore,   // out[token, row] = value; the rows of the matrices follow each other
  kAdd,     // out[token, row] += value
  kGateUp,  // activations = act(gate) * up
  kQkv,     // q, k and v: bias and rope; q to out, k and v to the KV
};

// Tokens up to which products can be fused: what lies between two of them (norm, rope, append) is part of the
// epilogue of the one in front.
constexpr int kWgmmaJoined = 64;
constexpr int kWgmmaRows = 128;    // of a tile
constexpr int kGenericTile = 128;  // tokens of a tile at most, without wgmma

struct WgmmaQkv {
  DeviceBatch batch;
  DeviceKv kv;          // not i8
  bool decode = false;  // as in DeviceAttentionArgs
  std::array<const float*, 3> bias = {};
  const float* rope_cos = nullptr;  // [positions, head_dim / 2]
  const float* rope_sin = nullptr;
};

struct WgmmaArgs {
  std::array<DeviceMatrix, 3> w;  // all of one format, group and width; kGateUp: gate, up
  int matrices = 1;
  WgmmaActivations x;
  int tokens = 0;  // not parts
  // Without stream-K: a token's result does not depend on how many there are. Slower for few.
  bool whole_tiles = false;
  WgmmaEpilogue epilogue = WgmmaEpilogue::kStore;
  float* out = nullptr;  // [tokens, out_stride]
  int64_t out_stride = 0;
  // kStore of more than kWgmmaJoined tokens and matrices of even height: instead of out, in f16 or bf16.
  void* narrow_out = nullptr;
  bool narrow_bf16 = false;
  WgmmaActivations mid;  // what kGateUp writes; zero beyond the matrices' rows; its tile is that of x
  DeviceActivation activation = DeviceActivation::kSilu;
  WgmmaQkv qkv;
  float* partial = nullptr;    // WgmmaPartialFloats()
  int32_t* tickets = nullptr;  // WgmmaTickets(), all zero before and after

  // The rest is for up to kWgmmaJoined tokens.
  // Given: x still has to be divided by the root of its mean square. [ceil(x columns / kWgmmaRows),
  // kWgmmaJoined] sums of squares.
  const float* squares = nullptr;
  int squares_of = 0;  // columns
  float eps = 0;
  // kAdd: what the next product reads, out * next_norm, and the squares of out.
  WgmmaActivations next;
  const float* next_norm = nullptr;
  float* next_squares = nullptr;
};

// Whether the current device has these kernels.
bool WgmmaRuns();
// Whether they are those of wgmma there.
bool WgmmaIsNative();
// Whether kQkv can be used.
bool WgmmaQkvRuns(const DeviceKv& kv, int rope_dim);
int64_t WgmmaPartialFloats();
int64_t WgmmaTickets();
constexpr int64_t WgmmaSquaresFloats(int64_t columns) {
  return (columns + kWgmmaRows - 1) / kWgmmaRows * kWgmmaJoined;
}
// How many tokens a tile may have, and should have for a product with this many rows.
int WgmmaMostTile();
int WgmmaTile(int64_t rows, int64_t tokens);
// Bytes that activations of this many tokens may need, whatever their tile.
constexpr int64_t WgmmaActivationBytes(int64_t tokens, int64_t padded) {
  return WgmmaActivations::Bytes(tokens, 256, padded);
}

// x f32 [tokens, cols], with an RMS norm in front if `norm` is given; `rows` as in MatvecArgs.
cudaError_t LaunchWgmmaActivations(const float* x, const int32_t* rows, int64_t tokens, int cols,
                                   const float* norm, float eps, const WgmmaActivations& out,
                                   cudaStream_t stream);

cudaError_t LaunchWgmma(const WgmmaArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
