#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/llm/delta_rule/delta_net.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kScanWarps = kDeltaPiece / 8;

// What lies between the kernels, in floats of `prepared`: for the blocks of a scan, each of which has a key head and 32
// columns of a value head, what they need of neighbouring tokens lies side by side.
struct Prepared {
  const DeltaNetShape& s;
  int64_t tokens;

  // [key_heads, tokens, q and k of padded_keys()]
  __device__ int64_t Keys(int key_head, int64_t token) const {
    return (key_head * tokens + token) * 2 * s.padded_keys();
  }
  // [value_heads, pieces of 32 columns, tokens, 32]
  __device__ int64_t Values(int value_head, int piece, int64_t token) const {
    return Keys(s.key_heads, 0) + ((value_head * s.column_pieces() + piece) * tokens + token) * kDeltaPiece;
  }
  // [value_heads, tokens, decay, beta, q times k, nothing]
  __device__ int64_t Scalars(int value_head, int64_t token) const {
    return Values(s.value_heads, 0, 0) + (value_head * tokens + token) * 4;
  }
};

constexpr int kUnitValues = 128;  // of a warp

// Grid: (units in bunches, tokens). A unit is a key head, kUnitValues values or 32 heads' gates; each takes a warp.
template <int kRows, int kKernel>
__global__ void __launch_bounds__(kWarps * 32) PrepareKernel(const __grid_constant__ DeltaNetArgs a) {
  LetNextStart();
  WaitForPrevious();
  const DeltaNetShape& shape = a.shape;
  const Prepared at{shape, a.tokens};
  const int token = blockIdx.y, lane = threadIdx.x % 32;
  int unit = blockIdx.x * kWarps + threadIdx.x / 32;
  const int seq = __ldcg(a.sequence + token);
  const float* const in = a.in + token * a.in_stride;
  float* const to = a.prepared;
  const DeltaWindow<kKernel> window(a, in, a.states + __ldcg(a.slots + seq) * a.slot_stride,
                                    __ldcg(a.positions + token), token - __ldcg(a.seq_start + seq));
  if (unit < shape.key_heads) {
    DeltaKey<kRows, kKernel> q, k;
    const int channel = unit * shape.key_dim;
    q.Begin(a, window, channel, lane), k.Begin(a, window, shape.keys() + channel, lane);
    q.Convolve(a, window, channel, lane), k.Convolve(a, window, shape.keys() + channel, lane);
    q.Scale(DeltaQueryScale(a, q.Squares())), k.Scale(DeltaKeyScale(k.Squares()));
    float product = 0;
#pragma unroll
    for (int i = 0; i < q.kEach; ++i) product = __fmaf_rn(q.x[i], k.x[i], product);
    product = WarpSum(product);
    float* const row = to + at.Keys(unit, token);
    q.Store(row, lane), k.Store(row + 4 * kRows, lane);
    const int sharing = shape.value_heads / shape.key_heads;
    for (int i = lane; i < sharing; i += 32)
      to[at.Scalars(shape.tiled_values ? unit + i * shape.key_heads : unit * sharing + i, token) + 2] =
          product;
    return;
  }
  unit -= shape.key_heads;
  const int value_units = (shape.values() + kUnitValues - 1) / kUnitValues;
  if (unit < value_units) {
    constexpr int kEach = kUnitValues / 32;
    typename DeltaWindow<kKernel>::Past past[kEach];
    float v[kEach];
    const auto index = [&](int j) { return kUnitValues * unit + 32 * j + lane; };
    const auto channel = [&](int j) { return 2 * shape.keys() + min(index(j), shape.values() - 1); };
#pragma unroll
    for (int j = 0; j < kEach; ++j) past[j] = window.Sum(channel(j));
#pragma unroll
    for (int j = 0; j < kEach; ++j) v[j] = window.Whole(channel(j), past[j]);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (index(j) >= shape.values()) continue;
      const int head = index(j) / shape.value_dim, column = index(j) % shape.value_dim;
      to[at.Values(head, column / kDeltaPiece, token) + column % kDeltaPiece] = v[j];
    }
    return;
  }
  const int head = 32 * (unit - value_units) + lane;
  if (head >= shape.value_heads) return;
  const DeltaGates gates = GatesOf(a, in, head);
  float* const scalars = to + at.Scalars(head, token);
  scalars[0] = gates.decay, scalars[1] = gates.beta;
}

// Some tokens of a prompt.
template <int kRows>
struct ScanPiece {
  static constexpr int kTokens = kRows > 32 ? 8 : 16;
  float keys[kTokens][2][4 * kRows];  // q and k
  float v[kTokens][kDeltaPiece];
  float scalars[kTokens][4];
};

// Grid: (value heads times pieces of 32 columns, sequences). The columns stay in registers over all tokens; what tokens
// need of q, k and v is copied ahead.
template <int kRows>
__global__ void __launch_bounds__(kScanWarps * 32) ScanKernel(const __grid_constant__ DeltaNetArgs a) {
  LetNextStart();
  WaitForPrevious();
  using Piece = ScanPiece<kRows>;
  constexpr int kThreads = kScanWarps * 32, kTokens = Piece::kTokens;
  __shared__ alignas(16) Piece pieces[2];
  const DeltaNetShape& shape = a.shape;
  const int column_pieces = shape.column_pieces();
  const int head = blockIdx.x / column_pieces, column_piece = blockIdx.x % column_pieces, seq = blockIdx.y;
  const int first = __ldcg(a.seq_start + seq), count = __ldcg(a.seq_start + seq + 1) - first;
  if (count == 0) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = column_piece * kScanWarps + warp, groups = shape.column_groups();
  float* const state = a.states + __ldcg(a.slots + seq) * a.slot_stride;
  float* const matrix =
      state + shape.ConvFloats() + head * shape.HeadFloats() + int64_t{group} * 8 * 4 * kRows;
  const int begin = __ldcg(a.positions + first);
  const Prepared at{shape, a.tokens};
  const float* const keys = a.prepared + at.Keys(DeltaKeyHead(shape, head), first);
  const float* const values = a.prepared + at.Values(head, column_piece, first);
  const float* const scalars = a.prepared + at.Scalars(head, first);

  const auto fetch = [&](int piece) {
    Piece& to = pieces[piece % 2];
    const int64_t before = int64_t{piece} * kTokens;
    const int tokens = min(kTokens, count - piece * kTokens);
    // `n` floats, sixteen bytes at a time.
    const auto copy = [&](float* to_floats, const float* from, int n) {
      for (int i = 4 * threadIdx.x; i < n; i += 4 * kThreads)
        __pipeline_memcpy_async(to_floats + i, from + i, 16);
    };
    copy(&to.keys[0][0][0], keys + before * 8 * kRows, tokens * 8 * kRows);
    copy(&to.v[0][0], values + before * kDeltaPiece, tokens * kDeltaPiece);
    copy(&to.scalars[0][0], scalars + before * 4, tokens * 4);
  };

  const int all = (count + kTokens - 1) / kTokens;
  fetch(0);
  __pipeline_commit();
  DeltaColumns<kRows> columns;
  const bool loads = group < groups && begin > 0;
  loads ? columns.Load(matrix, lane) : columns.Zero();
  const int mine = 8 * warp + columns.Column(lane), column = column_piece * kDeltaPiece + mine;
  const bool has = column < shape.value_dim;
  float* out = a.out + int64_t{first} * shape.values() + head * shape.value_dim + column;
  for (int piece = 0; piece < all; ++piece) {
    if (piece + 1 < all) fetch(piece + 1);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    const Piece& now = pieces[piece % 2];
    const auto step = [&](int t) {
      const float4 s = *reinterpret_cast<const float4*>(now.scalars[t]);
      const float y = columns.template Step<false>(now.keys[t][0], now.keys[t][1],
                                                   has ? now.v[t][mine] : 0.0f, {s.x, s.y}, s.z, lane);
      if (has && columns.Writes(lane)) *out = y;
      out += shape.values();
    };
    const int tokens = min(kTokens, count - piece * kTokens);
    if (tokens == kTokens) {
#pragma unroll 4
      for (int t = 0; t < kTokens; ++t) step(t);
    } else {
      for (int t = 0; t < tokens; ++t) step(t);
    }
    __syncthreads();
  }
  if (group < groups) columns.Store(matrix, lane);
  // The inputs of the last tokens, which the next step's convolution begins with.
  const int kept = min(count, shape.conv_kernel);
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < kept * shape.channels(); i += gridDim.x * kThreads) {
    const int t = count - kept + i / shape.channels(), channel = i % shape.channels();
    __stcg(state + int64_t{(begin + t) % shape.conv_kernel} * shape.channels() + channel,
           __ldcg(a.in + (first + t) * a.in_stride + channel));
  }
}

// Grid: (value heads in bunches, tokens). A warp norms and gates one head.
__global__ void __launch_bounds__(kWarps * 32) GateKernel(const __grid_constant__ DeltaNetArgs a) {
  LetNextStart();
  WaitForPrevious();
  const DeltaNetShape& shape = a.shape;
  const int token = blockIdx.y, lane = threadIdx.x % 32, head = blockIdx.x * kWarps + threadIdx.x / 32;
  if (head >= shape.value_heads) return;
  float* const y = a.out + int64_t{token} * shape.values() + head * shape.value_dim;
  const float* const z = a.in + token * a.in_stride + shape.channels() + head * shape.value_dim;
  const float scale = DeltaNormScale(
      a, [&](int i) { return __ldcg(y + i); }, lane);
  for (int i = lane; i < shape.value_dim; i += 32)
    y[i] = DeltaGated(a, __ldcg(y + i), scale, i, __ldcg(z + i));
}

dim3 Grid(int64_t x, int64_t y) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

}  // namespace

cudaError_t LaunchDeltaNet(const DeltaNetArgs& args, cudaStream_t stream) {
  const DeltaNetShape& s = args.shape;
  if (s.key_dim > kMaxDeltaKeys) return cudaErrorInvalidValue;
  const int units = s.key_heads + (s.values() + kUnitValues - 1) / kUnitValues + (s.value_heads + 31) / 32;
  const cudaError_t scanned = WithDeltaShape(s, [&]<int kRows, int kKernel>() {
    if (const cudaError_t code =
            Launch(PrepareKernel<kRows, kKernel>, Grid((units + kWarps - 1) / kWarps, args.tokens),
                   dim3(kWarps * 32), 0, stream, args);
        code != cudaSuccess)
      return code;
    return Launch(ScanKernel<kRows>, Grid(s.value_heads * s.column_pieces(), args.sequences),
                  dim3(kScanWarps * 32), 0, stream, args);
  });
  if (scanned != cudaSuccess) return scanned;
  return Launch(GateKernel, Grid((s.value_heads + kWarps - 1) / kWarps, args.tokens), dim3(kWarps * 32), 0,
                stream, args);
}

}  // namespace celer::cuda
