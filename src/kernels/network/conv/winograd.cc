// A tile's transformed input is 36 values per channel; for each of these points the tiles and channels are a
// matrix, and the convolution is 36 GEMMs. Tiles are blocked so that their transformed input stays in the L2
// cache; the accumulators of a few output channels at a time go straight into the output transform.
#include "kernels/network/conv/winograd.h"

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "kernels/shared/gemm/pointwise_reference.h"

namespace celer {
namespace {

template <class T>
constexpr int64_t kStayFloats = (512 << 10) / sizeof(T);  // of transformed input, in a cache of 1 MiB
// Of sums that are transformed together.
template <class T>
constexpr int64_t kSumFloats = (192 << 10) / sizeof(T);
template <class T>
constexpr int64_t kLine = 64 / sizeof(T);
constexpr int64_t kRowUnit = 16;

int64_t RoundUp(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
int64_t DivideUp(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

struct Blocking {
  int64_t tiles = 0;      // of one image
  int64_t block = 0;      // tiles at once
  bool together = false;  // all threads work at one block; else each at its own
  int64_t panel = 0;      // floats of one panel of tiles for one point
  int64_t point_stride = 0;
  int64_t sums_stride = 0;                    // from one point to the next, at least `block`
  int64_t rows = 0;                           // output channels at once
  int64_t input_floats = 0, sums_floats = 0;  // of one block; of one thread
};

template <class T>
Blocking ChooseBlocking(const BasicConvPlan<T>& plan, int threads) {
  const ConvShape& s = plan.shape;
  const int64_t nr = plan.kernels->gemm->nr;
  Blocking blocking;
  blocking.tiles = DivideUp(s.out_h(), kWinogradOut) * DivideUp(s.out_w(), kWinogradOut);
  const int64_t most = std::max(kStayFloats<T> / (kWinogradPoints * s.channels), 2 * nr);
  int64_t blocks = DivideUp(blocking.tiles, most);
  // As many for each thread, if they are not too small.
  if (blocks > 1 && blocking.tiles / RoundUp(blocks, threads) >= nr) blocks = RoundUp(blocks, threads);
  // Whole panels; but one or two tiles more cost little, and a block of the last few as much as any.
  blocking.block = DivideUp(blocking.tiles, blocks);
  if (blocking.block % nr > 2) blocking.block = RoundUp(blocking.block, nr);
  const int64_t tasks = DivideUp(blocking.tiles, blocking.block) * s.batch;
  blocking.together = threads > 1 && tasks < 2 * threads && tasks % threads != 0;
  blocking.panel = s.channels * nr;
  // Not a power of two: the 36 points of a tile would map to the same sets of the L1 cache.
  blocking.point_stride = DivideUp(blocking.block, nr) * blocking.panel + kLine<T>;
  blocking.input_floats = RoundUp(blocking.point_stride * kWinogradPoints + kPackSlack, kLine<T>);
  blocking.sums_stride = RoundUp(blocking.block, kLine<T>);
  // More of them read the weights in longer stretches, but that pays only where the weights come again, from
  // the L2 cache: with a single block of tiles the sums should leave room in L1. Measured on Neoverse-V1.
  blocking.rows = kRowUnit;
  if (blocks > 1)
    blocking.rows =
        std::clamp<int64_t>(kSumFloats<T> / (kWinogradPoints * blocking.sums_stride) / kRowUnit, 1, 3) *
        kRowUnit;
  // Every thread should have some.
  if (blocking.together)
    blocking.rows = std::min(blocking.rows, RoundUp(DivideUp(s.out_channels, 2 * threads), kRowUnit));
  blocking.sums_floats =
      RoundUp(blocking.rows * kWinogradPoints * blocking.sums_stride + kMostLanes, kLine<T>);
  return blocking;
}

template <class T>
struct Job {
  const BasicConvPlan<T>& plan;
  const BasicConvArgs<T>& args;
  const Blocking& blocking;
  WinogradGeometry geometry;

  void Input(int64_t image, int64_t tile, int64_t channel, int64_t channels, T* to) const {
    const ConvShape& s = plan.shape;
    const int64_t size = s.channels * s.in_h * s.in_w;
    plan.kernels->winograd_input({.geometry = geometry,
                                  .in = args.in + image * size,
                                  .in_end = args.in + s.batch * size,
                                  .channel = channel,
                                  .channels = channels,
                                  .tile = tile,
                                  .tiles = std::min(blocking.block, blocking.tiles - tile),
                                  .to = to,
                                  .point_stride = blocking.point_stride,
                                  .panel = blocking.panel});
  }

  // Output channels [row, row + rows): at most blocking.rows of them.
  void Output(int64_t image, int64_t tile, int64_t row, int64_t rows, const T* input, T* sums) const {
    const ConvShape& s = plan.shape;
    const BasicGemmKernels<T>& gemm = *plan.kernels->gemm;
    const int64_t tiles = std::min(blocking.block, blocking.tiles - tile);
    const int64_t a_panel = s.channels * gemm.mr;
    const int64_t point_floats = RoundUp(s.out_channels, gemm.mr) * s.channels;
    for (int64_t point = 0; point < kWinogradPoints; ++point)
      for (int64_t k = 0; k < s.channels; k += std::min(gemm.k_block, s.channels))
        gemm.block({.m = rows,
                    .n = tiles,
                    .k = std::min(gemm.k_block, s.channels - k),
                    .a = args.weights + point * point_floats + row / gemm.mr * a_panel + k * gemm.mr,
                    .a_panel = a_panel,
                    .b = input + point * blocking.point_stride + k * gemm.nr,
                    .b_panel = blocking.panel,
                    .out = sums + point * blocking.sums_stride,
                    .out_stride = kWinogradPoints * blocking.sums_stride,
                    .accumulate = k > 0,
                    .finish = false});
    const int64_t plane = s.out_h() * s.out_w();
    const int64_t at = (image * s.out_channels + row) * plane;
    plan.kernels->winograd_output({.geometry = geometry,
                                   .sums = sums,
                                   .sums_stride = blocking.sums_stride,
                                   .rows = rows,
                                   .tile = tile,
                                   .tiles = tiles,
                                   .bias = args.bias ? args.bias + row : nullptr,
                                   .add = args.add ? args.add + at : nullptr,
                                   .add_last = args.add_last,
                                   .f = args.f,
                                   .out = args.out + at});
  }
};

}  // namespace

template <class T>
int64_t WinogradPackedFloats(const BasicConvPlan<T>& plan) {
  const int64_t rows = RoundUp(plan.shape.out_channels, plan.kernels->gemm->mr);
  return RoundUp(kWinogradPoints * rows * plan.shape.channels + kPackSlack, 16);
}

template <class T>
void PackWinograd(const BasicConvPlan<T>& plan, const float* weights, T* packed) {
  // G of F(4, 3) for the points 0, +-1/sqrt 2, +-sqrt 2 and infinity.
  constexpr double kRoot2 = 1.4142135623730951;
  constexpr double kG[kWinogradIn][3] = {{1, 0, 0},
                                         {-2.0 / 3, -kRoot2 / 3, -1.0 / 3},
                                         {-2.0 / 3, kRoot2 / 3, -1.0 / 3},
                                         {1.0 / 6, kRoot2 / 6, 1.0 / 3},
                                         {1.0 / 6, -kRoot2 / 6, 1.0 / 3},
                                         {0, 0, 1}};
  const ConvShape& s = plan.shape;
  const int64_t mr = plan.kernels->gemm->mr;
  const int64_t point_floats = RoundUp(s.out_channels, mr) * s.channels;
  std::fill_n(packed, WinogradPackedFloats(plan), T{});
  for (int64_t o = 0; o < s.out_channels; ++o)
    for (int64_t c = 0; c < s.channels; ++c) {
      const float* const g = weights + (o * s.channels + c) * 9;
      double half[kWinogradIn][3];
      for (int64_t i = 0; i < kWinogradIn; ++i)
        for (int64_t j = 0; j < 3; ++j)
          half[i][j] = kG[i][0] * g[j] + kG[i][1] * g[3 + j] + kG[i][2] * g[6 + j];
      T* const to = packed + o / mr * s.channels * mr + c * mr + o % mr;
      for (int64_t i = 0; i < kWinogradIn; ++i)
        for (int64_t j = 0; j < kWinogradIn; ++j)
          reference::Put(to[(i * kWinogradIn + j) * point_floats],
                         kG[j][0] * half[i][0] + kG[j][1] * half[i][1] + kG[j][2] * half[i][2]);
    }
}

template <class T>
int64_t WinogradWorkspaceFloats(const BasicConvPlan<T>& plan, int threads) {
  const Blocking blocking = ChooseBlocking(plan, threads);
  return blocking.input_floats * (blocking.together ? 1 : threads) + blocking.sums_floats * threads;
}

template <class T>
void WinogradConv(const BasicConvPlan<T>& plan, const BasicConvArgs<T>& args) {
  const ConvShape& s = plan.shape;
  ThreadPool& pool = *args.pool;
  const Blocking blocking = ChooseBlocking(plan, pool.size());
  const Job<T> job{plan,
                   args,
                   blocking,
                   {.in_h = s.in_h,
                    .in_w = s.in_w,
                    .out_h = s.out_h(),
                    .out_w = s.out_w(),
                    .pad_top = s.pad_top,
                    .pad_left = s.pad_left,
                    .tiles_x = DivideUp(s.out_w(), kWinogradOut)}};
  T* const inputs = args.workspace;
  T* const sums = args.workspace + blocking.input_floats * (blocking.together ? 1 : pool.size());
  const int64_t blocks = DivideUp(blocking.tiles, blocking.block);
  if (!blocking.together) {
    std::atomic<int64_t> next{0};
    pool.Run([&](int thread) {
      T* const input = inputs + thread * blocking.input_floats;
      for (int64_t task = next++; task < blocks * s.batch; task = next++) {
        const int64_t image = task / blocks, tile = task % blocks * blocking.block;
        job.Input(image, tile, 0, s.channels, input);
        for (int64_t row = 0; row < s.out_channels; row += blocking.rows)
          job.Output(image, tile, row, std::min(blocking.rows, s.out_channels - row), input,
                     sums + thread * blocking.sums_floats);
      }
    });
    return;
  }
  for (int64_t task = 0; task < blocks * s.batch; ++task) {
    const int64_t image = task / blocks, tile = task % blocks * blocking.block;
    const int64_t grain = std::max<int64_t>(s.channels / (4 * pool.size()), 1);
    pool.ParallelForDynamic(s.channels, grain, [&](int64_t begin, int64_t end) {
      job.Input(image, tile, begin, end - begin, inputs);
    });
    std::atomic<int64_t> next{0};
    pool.Run([&](int thread) {
      const int64_t rows = DivideUp(s.out_channels, blocking.rows);
      for (int64_t i = next++; i < rows; i = next++) {
        const int64_t row = i * blocking.rows;
        job.Output(image, tile, row, std::min(blocking.rows, s.out_channels - row), inputs,
                   sums + thread * blocking.sums_floats);
      }
    });
  }
}

#define CELER_INSTANTIATE(T)                                              \
  template int64_t WinogradPackedFloats(const BasicConvPlan<T>&);         \
  template void PackWinograd(const BasicConvPlan<T>&, const float*, T*);  \
  template int64_t WinogradWorkspaceFloats(const BasicConvPlan<T>&, int); \
  template void WinogradConv(const BasicConvPlan<T>&, const BasicConvArgs<T>&)
CELER_INSTANTIATE(float);
CELER_INSTANTIATE(F16);
#undef CELER_INSTANTIATE

}  // namespace celer
