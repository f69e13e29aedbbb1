// Products of experts with many tokens: tensor cores, activations of bf16, weights made bf16 in registers.
//
// Grid: persistent. An item is up to 64 slots of one expert times 256 rows of its matrix (128 of gate and of
// up), 32 rows to a warp. Weights are copied to shared memory in the order of device_matrix.h, by the lane
// that multiplies with them; rows of activations are gathered beside them, a few steps of columns ahead.
// Items with the same weights follow each other, so that one of them reads the memory and the others L2.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/moe/cuda/moe_cuda.h"

namespace celer::cuda {
namespace {

using matvec::Load16;
using matvec::MmaBf16;
using matvec::PackBf16;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTokens = kGroupedTokens;
constexpr int kStages = 4;
constexpr int kHalves = 4;  // eights of rows to a warp

template <Format F>
struct Step {
  static constexpr bool kFour = F == Format::kInt4 || F == Format::kInt4F32;
  static constexpr bool kInteger = kFour || F == Format::kInt8;
  static constexpr int kCols = kFour ? 128 : 64;
  static constexpr int kSubs = kCols / 32;
  static constexpr int kVectors = kInteger ? 1 : 2;  // 16 bytes to a lane of each half
  static constexpr int kXStride = kCols * 2 + 64;    // bytes; neighbouring rows fall into different banks
  static constexpr int kWeightBytes = kThreads * kHalves * kVectors * 16;
  static constexpr int kBytes = kWeightBytes + kTokens * kXStride;
};

struct GroupedParams {
  MoeGroupedArgs a;
  int tiles;     // of a matrix
  int out_rows;  // of a tile, and of a warp
  int warp_rows;
};

__device__ __forceinline__ void CopyAsync(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Scale and minimum of a lane's row at a group.
template <Format F>
__device__ __forceinline__ float2 ScaleAt(const std::byte* scales, int64_t index) {
  if constexpr (F == Format::kInt8)
    return make_float2(__ldg(reinterpret_cast<const float*>(scales) + index), 0);
  if constexpr (F == Format::kInt4)
    return __half22float2(__ldg(reinterpret_cast<const __half2*>(scales) + index));
  if constexpr (F == Format::kInt4F32) return __ldg(reinterpret_cast<const float2*>(scales) + index);
  return make_float2(1, 0);
}

// Eight columns of a row, of the 32 that begin at 32 * sub of these 16 bytes.
template <Format F>
__device__ __forceinline__ void ToBf16(const uint4& v, int sub, float2 scale, uint32_t (&out)[4]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  if constexpr (F == Format::kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = words[i];
  } else if constexpr (F == Format::kF16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      out[i] = PackBf16(pair.x, pair.y);
    }
  } else if constexpr (F == Format::kInt8) {
    const uint32_t pair[2] = {sub == 0 ? v.x : v.z, sub == 0 ? v.y : v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t two = pair[i / 2] >> (i % 2 * 16);
      out[i] = PackBf16(static_cast<float>(static_cast<int8_t>(two)) * scale.x,
                        static_cast<float>(static_cast<int8_t>(two >> 8)) * scale.x);
    }
  } else {
    const uint32_t word = sub == 0 ? v.x : sub == 1 ? v.y : sub == 2 ? v.z : v.w;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      out[i] = PackBf16(fmaf(static_cast<float>(word >> (i * 8) & 15), scale.x, scale.y),
                        fmaf(static_cast<float>(word >> (i * 8 + 4) & 15), scale.x, scale.y));
  }
}

// Up to kTokens slots of one expert from `first` on, and a tile of its rows.
struct Item {
  int expert, first, count, tile;
};
__device__ __forceinline__ Item FindItem(const GroupedParams& p, int number, int jobs) {
  const MoeGroupedArgs& a = p.a;
  const int first = number % jobs * kTokens;
  Item item = {0, first, min(kTokens, a.tokens - first), number / jobs};  // one expert for all tokens
  if (a.tokens > 0) return item;
  const ExpertJob* at = a.plan.jobs + number / p.tiles;
  const int first_job = __ldcg(&at->first), siblings = __ldcg(&at->siblings),
            local = number - first_job * p.tiles;
  item.tile = local / siblings;
  at = a.plan.jobs + first_job + local % siblings;
  item.expert = __ldcg(&at->expert), item.first = __ldcg(&at->begin), item.count = __ldcg(&at->count);
  return item;
}

// A warp's sums: of lane 4g + t rows g and g + 8 of each 16, or gate and up of row g, for tokens 2t, 2t + 1.
template <bool GateUp>
__device__ __forceinline__ void StoreItem(const MoeGroupedArgs& a, const float (&acc)[2][kTokens / 8][4],
                                          int first, int count, int row0, int g, int t) {
  const DeviceMatrix& m = a.w.first;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int n = 0; n < kTokens / 8; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int token = n * 8 + t * 2 + j;
        if (token >= count) continue;
        const float low = acc[i][n][j], high = acc[i][n][2 + j];
        const int64_t to = static_cast<int64_t>(first + token) * a.out_stride;
        if constexpr (GateUp) {
          const int row = row0 + i * 8 + g;
          if (row < m.rows)
            static_cast<__nv_bfloat16*>(a.out)[to + row] =
                __float2bfloat16(matvec::Activate(a.activation, low) * high);
        } else {
          const int row = row0 + i * 16 + g;
          float* out = static_cast<float*>(a.out) + to;
          if (row < m.rows) out[row] = low;
          if (row + 8 < m.rows) out[row + 8] = high;
        }
      }
}

// The products stay inside: as a function they cost registers.
template <Format F, bool GateUp>
__global__ void __launch_bounds__(kThreads, 1) GroupedKernel(const __grid_constant__ GroupedParams p) {
  using S = Step<F>;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = matvec::SharedAddress(memory);
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, g = lane / 4, t = lane % 4;
  const MoeGroupedArgs& a = p.a;
  const DeviceMatrix& m = a.w.first;
  WaitForPrevious();
  LetNextStart();
  const bool all = a.tokens > 0;
  const int jobs = all ? (a.tokens + kTokens - 1) / kTokens : __ldcg(a.plan.counts);
  const int items = jobs * p.tiles, steps = m.padded / S::kCols;
  for (int item = blockIdx.x; item < items; item += gridDim.x) {
    const auto [expert, first, count, tile] = FindItem(p, item, jobs);
    const int row0 = tile * p.out_rows + warp * p.warp_rows;

    const std::byte *data[kHalves], *scales[kHalves];
    int64_t scale_at[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const DeviceMatrix& from = GateUp && h % 2 == 1 ? a.w.up : m;
      const int row = min(GateUp ? row0 + h / 2 * 8 : row0 + h * 8, (m.rows - 1) / 8 * 8);
      data[h] = from.data + expert * a.w.data_stride + row * m.row_bytes + lane * 16;
      scales[h] = from.scales + expert * a.w.scale_stride;
      scale_at[h] = static_cast<int64_t>(row / 8) * (m.group > 0 ? m.padded / m.group : 1) * 8 + g;
    }
    // Where this thread's share of the activations comes from and goes to.
    constexpr int kChunks = S::kCols * 2 / 16, kMine = kTokens * kChunks / kThreads;
    const std::byte* x[kMine];
    uint32_t x_to[kMine];
#pragma unroll
    for (int j = 0; j < kMine; ++j) {
      const int at = thread + j * kThreads, token = at / kChunks, chunk = at % kChunks;
      const int slot = first + min(token, count - 1);
      const int row = GateUp && !all ? __ldcg(a.plan.row + slot) : slot;
      x[j] = reinterpret_cast<const std::byte*>(a.x) + static_cast<int64_t>(row) * m.padded * 2 + chunk * 16;
      x_to[j] = S::kWeightBytes + token * S::kXStride + chunk * 16;
    }
    const auto copy = [&](int step) {
      if (step < steps) {
        const uint32_t to = shared + step % kStages * S::kBytes;
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
#pragma unroll
          for (int i = 0; i < S::kVectors; ++i)
            CopyAsync(to + ((h * S::kVectors + i) * kThreads + thread) * 16,
                      data[h] + static_cast<int64_t>(step * S::kVectors + i) * 512);
#pragma unroll
        for (int j = 0; j < kMine; ++j) CopyAsync(to + x_to[j], x[j] + step * S::kCols * 2);
      }
      CommitCopies();
    };
    float2 scale[kHalves][S::kSubs], next[kHalves][S::kSubs];
    const auto load_scales = [&](int step) {
      if constexpr (S::kInteger) {
        if (step >= steps) return;
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
#pragma unroll
          for (int s = 0; s < S::kSubs; ++s) {
            const int group = m.group > 0 ? (step * S::kCols + s * 32 + t * 8) / m.group : 0;
            next[h][s] = ScaleAt<F>(scales[h], scale_at[h] + group * 8);
          }
      }
    };

    float acc[2][kTokens / 8][4] = {};
    for (int i = 0; i < kStages - 1; ++i) copy(i);
    load_scales(0);
    for (int step = 0; step < steps; ++step) {
      WaitForCopies<kStages - 2>();
      __syncthreads();
      copy(step + kStages - 1);
#pragma unroll
      for (int h = 0; h < kHalves; ++h)
#pragma unroll
        for (int s = 0; s < S::kSubs; ++s) scale[h][s] = next[h][s];
      load_scales(step + 1);
      const uint32_t stage = shared + step % kStages * S::kBytes;
      const uint32_t mine = stage + thread * 16, tokens = stage + S::kWeightBytes + g * S::kXStride + t * 16;
      uint4 w[kHalves];
#pragma unroll
      for (int s = 0; s < S::kSubs; ++s) {
        uint32_t f[kHalves][4];
#pragma unroll
        for (int h = 0; h < kHalves; ++h) {
          if (s == 0 || !S::kInteger)
            w[h] = Load16(mine + (h * S::kVectors + (S::kInteger ? 0 : s)) * kThreads * 16);
          ToBf16<F>(w[h], s, scale[h][s], f[h]);
        }
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
          const uint4 v = Load16(tokens + n * 8 * S::kXStride + s * 64);
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            MmaBf16(acc[i][n], f[2 * i][0], f[2 * i + 1][0], f[2 * i][1], f[2 * i + 1][1], v.x, v.y);
            MmaBf16(acc[i][n], f[2 * i][2], f[2 * i + 1][2], f[2 * i][3], f[2 * i + 1][3], v.z, v.w);
          }
        }
      }
    }
    WaitForCopies<0>();
    __syncthreads();  // all threads are done with the stages
    StoreItem<GateUp>(a, acc, first, count, row0, g, t);
  }
}

template <Format F>
cudaError_t LaunchAs(const GroupedParams& p, cudaStream_t stream) {
  constexpr int kBytes = kStages * Step<F>::kBytes;
  const dim3 grid(static_cast<unsigned>(Multiprocessors())), block(kThreads);
  return p.a.gate_up ? LaunchLarge<GroupedKernel<F, true>, kBytes>(grid, block, kBytes, stream, p)
                     : LaunchLarge<GroupedKernel<F, false>, kBytes>(grid, block, kBytes, stream, p);
}

// Experts of f32 are multiplied by LaunchMoeProduct(), however many tokens there are.
constexpr bool Runs(Format format) {
  return format != Format::kF32;
}

}  // namespace

bool MoeGroupedRuns(const DeviceMatrix& gate_up, const DeviceMatrix& down) {
  return Runs(gate_up.format) && Runs(down.format);
}

cudaError_t LaunchMoeGrouped(const MoeGroupedArgs& args, cudaStream_t stream) {
  GroupedParams p = {};
  p.a = args;
  p.warp_rows = args.gate_up ? kHalves * 4 : kHalves * 8;
  p.out_rows = kWarps * p.warp_rows;
  p.tiles = (args.w.first.rows + p.out_rows - 1) / p.out_rows;
  return WithFormat(args.w.first.format, [&]<Format F>() {
    if constexpr (Runs(F)) return LaunchAs<F>(p, stream);
    return cudaErrorInvalidValue;
  });
}

}  // namespace celer::cuda
