#include "kernels/llm/delta_rule/cluster.cuh"
#include "kernels/llm/delta_rule/delta_net.cuh"

namespace celer::cuda {
namespace {

constexpr int kWarps = kDeltaPiece / 8;

template <int kRows>
struct StepMemory {
  float q[4 * kRows], k[4 * kRows];
  float v[kDeltaPiece];
  float y[kMostInCluster * kDeltaPiece];  // of the whole head
  float decay, beta;
};

// Grid: (value heads times pieces of 32 columns, sequences), the pieces of a head in a cluster. A block has its columns
// in registers; small ones, so that some read while others compute. Matrix and window do not depend on the kernel in
// front and are read before it ends: a step begins with the embedding, which waits for all of the step before.
template <int kRows, int kKernel>
__global__ void __launch_bounds__(kWarps * 32, kRows > 32 ? 4 : 7)
    DeltaStepKernel(const __grid_constant__ DeltaNetArgs a) {
  LetNextStart();
  ClusterArrive();
  __shared__ alignas(16) StepMemory<kRows> m;
  const DeltaNetShape& shape = a.shape;
  const int pieces = shape.column_pieces(), seq = blockIdx.y;
  const int head = blockIdx.x / pieces, piece = blockIdx.x % pieces, key_head = DeltaKeyHead(shape, head);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const state = a.states + __ldcg(a.slots + seq) * a.slot_stride;
  const int position = __ldcg(a.positions + seq);
  const float* const token = a.in + seq * a.in_stride;
  const DeltaWindow<kKernel> window(a, token, state, position, 0);

  const int group = piece * kWarps + warp;
  const bool has_group = group < shape.column_groups();
  float* const matrix =
      state + shape.ConvFloats() + head * shape.HeadFloats() + int64_t{group} * 8 * 4 * kRows;
  DeltaColumns<kRows> columns;
  const bool loads = has_group && position > 0;
  loads ? columns.Load(matrix, lane) : columns.Zero();
  // The first warp has q, the second k, the third the gates and the last one the values.
  static_assert(kWarps == 4);
  const int key_channel = (warp == 0 ? 0 : shape.keys()) + key_head * shape.key_dim;
  const int column = piece * kDeltaPiece + lane;
  const bool has_column = column < shape.value_dim;
  const int value_channel =
      2 * shape.keys() + head * shape.value_dim + (has_column ? column : shape.value_dim - 1);
  DeltaKey<kRows, kKernel> key;
  typename DeltaWindow<kKernel>::Past past = {};
  if (warp < 2) key.Begin(a, window, key_channel, lane);
  if (warp == 3) past = window.Sum(value_channel);
  WaitForPrevious();

  float z = 0;
  if (warp < 2) {
    key.Convolve(a, window, key_channel, lane);
    key.Scale(warp == 0 ? DeltaQueryScale(a, key.Squares()) : DeltaKeyScale(key.Squares()));
    key.Store(warp == 0 ? m.q : m.k, lane);
  } else if (warp == 2) {
    const DeltaGates gates = GatesOf(a, token, head);
    if (lane == 0) m.decay = gates.decay, m.beta = gates.beta;
  } else {
    z = __ldcg(token + value_channel - 2 * shape.keys() + shape.channels());
    m.v[lane] = has_column ? window.Whole(value_channel, past) : 0.0f;
  }
  __syncthreads();

  float product = 0;
#pragma unroll
  for (int i = lane; i < 4 * kRows; i += 32) product = __fmaf_rn(m.q[i], m.k[i], product);
  const int mine = 8 * warp + columns.Column(lane);
  const float y = columns.template Step<true>(m.q, m.k, m.v[mine], {m.decay, m.beta}, WarpSum(product), lane);
  ClusterWait();  // the others have begun
  if (columns.Writes(lane))
    for (int rank = 0; rank < pieces; ++rank) StoreInCluster(m.y + piece * kDeltaPiece + mine, rank, y);
  ClusterArrive();
  if (has_group) columns.Store(matrix, lane);
  // This token's inputs take the place of the oldest ones, which none reads any more.
  float* const newest = state + int64_t{position % shape.conv_kernel} * shape.channels();
  if (warp == 3 && has_column) __stcg(newest + value_channel, __ldcg(token + value_channel));
  const int sharing = shape.value_heads / shape.key_heads;
  if (warp < 2 && piece == 0 && (shape.tiled_values ? head < shape.key_heads : head % sharing == 0))
    for (int i = lane; i < shape.key_dim; i += 32)
      __stcg(newest + key_channel + i, __ldcg(token + key_channel + i));
  ClusterWait();

  if (warp != 3) return;
  const float scale = DeltaNormScale(
      a, [&](int i) { return m.y[i]; }, lane);
  if (has_column)
    a.out[int64_t{seq} * shape.values() + head * shape.value_dim + column] =
        DeltaGated(a, m.y[column], scale, column, z);
}

}  // namespace

cudaError_t LaunchDeltaNetStep(const DeltaNetArgs& args, cudaStream_t stream) {
  const DeltaNetShape& shape = args.shape;
  const int pieces = shape.column_pieces();
  if (shape.key_dim > kMaxDeltaKeys) return cudaErrorInvalidValue;
  if (pieces > kMostInCluster || !HopperCode()) return LaunchDeltaNet(args, stream);
  const dim3 grid(static_cast<unsigned>(shape.value_heads * pieces), static_cast<unsigned>(args.tokens));
  return WithDeltaShape(shape, [&]<int kRows, int kKernel>() {
    return LaunchInClusters(DeltaStepKernel<kRows, kKernel>, grid, pieces, dim3(kWarps * 32), stream, args);
  });
}

}  // namespace celer::cuda
