// A gated delta net between its projections: causal convolution, delta rule and gated norm (causal_conv.h,
// delta_rule.h). A decode step is one kernel; prompts take three.
//
// A token's result depends on its own sequence alone, bit for bit: not on the chunk it is computed in or the rest of
// the batch. Both ways compute it with the same operations.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace celer::cuda {

constexpr int kMaxDeltaKeys = 256;  // of a head
constexpr int kDeltaPiece = 32;     // columns that a block has of a prompt

// What decides where things are in a state: the last conv_kernel inputs of the convolution, that of position p in row
// p % conv_kernel, and behind them the matrices of the heads in the order in which threads hold them.
struct DeltaNetShape {
  int key_heads = 0, key_dim = 0;      // key_dim: up to kMaxDeltaKeys
  int value_heads = 0, value_dim = 0;  // value_heads: a multiple of key_heads
  int conv_kernel = 0;
  bool tiled_values = false;  // as in DeltaRuleArgs

  constexpr int keys() const { return key_heads * key_dim; }
  constexpr int values() const { return value_heads * value_dim; }
  constexpr int channels() const { return 2 * keys() + values(); }
  // A quarter of the rows of a matrix, with padding: the kernels are compiled for these.
  constexpr int quarter_rows() const {
    return key_dim <= 32 ? 8 : key_dim <= 64 ? 16 : key_dim <= 128 ? 32 : 64;
  }
  constexpr int padded_keys() const { return 4 * quarter_rows(); }
  constexpr int column_groups() const { return (value_dim + 7) / 8; }  // of a warp's width
  constexpr int64_t ConvFloats() const { return (int64_t{conv_kernel} * channels() + 3) / 4 * 4; }
  constexpr int64_t HeadFloats() const { return int64_t{8} * column_groups() * padded_keys(); }
  // A multiple of 128 bytes.
  constexpr int64_t StateFloats() const { return (ConvFloats() + value_heads * HeadFloats() + 31) / 32 * 32; }
  // Beside each other, of a token: q, k, v, z, b, a.
  constexpr int64_t InputFloats() const { return channels() + values() + 2 * value_heads; }
  constexpr int column_pieces() const { return (value_dim + kDeltaPiece - 1) / kDeltaPiece; }
  // Of a token of a prompt between the kernels.
  constexpr int64_t PreparedFloats() const {
    return int64_t{2} * key_heads * padded_keys() +
           int64_t{value_heads} * (column_pieces() * kDeltaPiece + 4);
  }
};

struct DeltaNetArgs {
  DeltaNetShape shape;
  // The batch: [tokens], [tokens], [sequences + 1], and the slot of each sequence.
  const int32_t *positions = nullptr, *sequence = nullptr, *seq_start = nullptr, *slots = nullptr;
  int tokens = 0, sequences = 0;
  const float* in = nullptr;  // [tokens, in_stride]
  int64_t in_stride = 0;
  const float* conv = nullptr;                      // [channels, conv_kernel]
  const float *rate = nullptr, *dt_bias = nullptr;  // [value_heads]
  const float* norm = nullptr;                      // [value_dim]
  float eps = 1e-6f;
  // Of slot 0; nothing is read of a sequence's state in a step that begins at position 0.
  float* states = nullptr;
  int64_t slot_stride = 0;    // floats
  float* prepared = nullptr;  // [tokens, PreparedFloats()]
  float* out = nullptr;       // [tokens, values]
};

cudaError_t LaunchDeltaNet(const DeltaNetArgs& args, cudaStream_t stream);
// One token of each sequence: the i-th token is that of the i-th sequence.
cudaError_t LaunchDeltaNetStep(const DeltaNetArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
