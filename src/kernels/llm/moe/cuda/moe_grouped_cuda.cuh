// Grouped GEMM, the kernel behind LaunchMoeGrouped, one instance per weight format (moe_format_cuda.cu.in):
// products of experts with any number of tokens. Tensor cores, bf16 activations, weights dequantized to bf16
// in registers.
//
// Grid: persistent, one block per multiprocessor, warp-specialized. An item is up to 64 slots of one expert
// times 256 rows of its matrix (128 of gate and of up). A stage of the ring buffer is 64 or 128 columns of
// that: one thread copies the weights by TMA, in generic code one warp by 16 bytes, in the order of device_matrix.h; one warp gathers the rows of
// activations; eight warps multiply, 32 rows each, and only as many eights of slots as there are. The ring
// runs on from one item to the next, and that of the product behind gate and up fills before those have
// ended. Items with the same weights follow each other, so that one of them reads the memory and the others
// L2.
//
// Deterministic: a slot is accumulated in the order of the columns, whatever else is in the batch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/llm/matmul/cuda/wgmma/wgmma_weights.cuh"
#include "kernels/llm/moe/cuda/moe_cuda.h"
#include "kernels/shared/cuda/tensor_map.h"

namespace celer::cuda::moe {

using matvec::Load16;
using matvec::RingPlace;

constexpr int kGroupedWarps = 8;  // that multiply
constexpr int kFiller = kGroupedWarps, kGatherer = kFiller + 1;
constexpr int kGroupedThreads = (kGatherer + 1) * 32;
constexpr int kItemEights = 32;  // of rows: in two boxes, of gate and up or of one matrix
constexpr int kBoxEights = kItemEights / 2;
constexpr int kGroupedStages = 8;  // at most

template <Format F>
struct GroupedStage {
  static constexpr int kCols = BitsOf(F) == 4 ? 128 : 64;
  static constexpr int kSubs = kCols / 32;
  static constexpr int kEightBytes = kCols * BitsOf(F);  // of weights
  static constexpr int kWeightBytes = kItemEights * kEightBytes;
  static constexpr int kXStride = kCols * 2 + 64;  // bytes; neighbouring rows fall into different banks
  static constexpr int kXChunks = kCols * 2 / 16;  // of a row
};

struct GroupedParams {
  CUtensorMap weights[2], scales[2];  // of the boxes: experts, eights of rows, an eight's bytes
  MoeGroupedArgs a;
  int tiles;  // of a matrix
  int stages, stage_bytes, scale_offset, x_offset, barrier_offset;
  int scale_bytes;  // of an eight in a stage
  int group_shift;
  uint32_t nibble_upper;  // wgmma::kNibbleUpper
};

// Up to kGroupedTokens slots of one expert from `first` on, and a tile of its rows.
struct GroupedItem {
  int expert, first, count, tile;
  bool again;  // others read the same weights

  __device__ __forceinline__ int eights() const {
    return count <= 8 ? 1 : count <= 16 ? 2 : count <= 32 ? 4 : 8;
  }
};
// The items of this block, one after the other. The next one is known while this one is worked on.
class GroupedItems {
 public:
  __device__ __forceinline__ explicit GroupedItems(const GroupedParams& p) : p_(p) {
    const MoeGroupedArgs& a = p.a;
    jobs_ = a.tokens > 0 ? (a.tokens + kGroupedTokens - 1) / kGroupedTokens : __ldcg(a.plan.counts);
    number_ = static_cast<int>(blockIdx.x);
    Find();
  }
  __device__ __forceinline__ bool Next(GroupedItem& out) {
    if (number_ >= jobs_ * p_.tiles) return false;
    out = next_;
    number_ += static_cast<int>(gridDim.x);
    Find();
    return true;
  }

 private:
  __device__ __forceinline__ void Find() {
    if (number_ >= jobs_ * p_.tiles) return;
    const MoeGroupedArgs& a = p_.a;
    if (a.tokens > 0) {  // one expert for all tokens
      const int first = number_ % jobs_ * kGroupedTokens;
      next_ = {0, first, min(kGroupedTokens, a.tokens - first), number_ / jobs_, jobs_ > 1};
      return;
    }
    const ExpertJob* at = a.plan.jobs + number_ / p_.tiles;
    const int first_job = __ldcg(&at->first), siblings = __ldcg(&at->siblings),
              local = number_ - first_job * p_.tiles;
    next_.tile = local / siblings;
    next_.again = siblings > 1;
    at = a.plan.jobs + first_job + local % siblings;
    next_.expert = __ldcg(&at->expert), next_.first = __ldcg(&at->begin), next_.count = __ldcg(&at->count);
  }

  const GroupedParams& p_;
  int jobs_, number_;
  GroupedItem next_ = {};
};

#if CELER_HOPPER
// TMA: a box of the map's size of matrix z, from column x and row y on. What lies outside the matrix is zero.
__device__ __forceinline__ void BoxCopyOf(uint32_t to, const CUtensorMap* map, int x, int y, int z,
                                          uint32_t bar, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, "
      "{%2, %3, %4}], [%5], %6;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar), "l"(policy)
      : "memory");
}
#endif

// By one thread, without TMA by its warp.
template <Format F, bool GateUp>
__device__ __forceinline__ void FillGrouped(const GroupedParams& p, uint32_t shared,
                                            [[maybe_unused]] int lane) {
  using S = GroupedStage<F>;
  [[maybe_unused]] const uint64_t once = matvec::StreamOncePolicy(), keep = wgmma::KeepPolicy();
  const int steps = p.a.w.first.padded / S::kCols;
  [[maybe_unused]] const uint32_t bytes = S::kWeightBytes + kItemEights * p.scale_bytes;
  RingPlace ring = {0, 1};
  GroupedItems items(p);
  GroupedItem item;
  while (items.Next(item)) {
    [[maybe_unused]] const uint64_t policy = item.again ? keep : once;
    const int eight[2] = {item.tile * (GateUp ? kBoxEights : kItemEights),
                          item.tile * (GateUp ? kBoxEights : kItemEights) + (GateUp ? 0 : kBoxEights)};
    for (int step = 0; step < steps; ++step) {
      const uint32_t full = shared + p.barrier_offset + ring.stage * 16,
                     base = shared + ring.stage * p.stage_bytes;
      matvec::BarrierWait(full + 8, ring.parity);
#if CELER_HOPPER
      matvec::BarrierExpect(full, bytes);
#pragma unroll
      for (int box = 0; box < 2; ++box) {
        BoxCopyOf(base + box * kBoxEights * S::kEightBytes, &p.weights[box], step * (S::kEightBytes / 8),
                  eight[box], item.expert, full, policy);
        if constexpr (HasScales(F)) {
          if (p.scale_bytes > 0)
            BoxCopyOf(base + p.scale_offset + box * kBoxEights * p.scale_bytes, &p.scales[box],
                      (step * S::kCols >> p.group_shift) * (8 * ScaleBytesOf(F) / 4), eight[box], item.expert,
                      full, policy);
        }
      }
#else
#pragma unroll
      for (int box = 0; box < 2; ++box) {
        const DeviceMatrix& m = GateUp && box == 1 ? p.a.w.up : p.a.w.first;
        wgmma::CopyWeights<kBoxEights>(base + box * kBoxEights * S::kEightBytes, m,
                                       m.data + item.expert * p.a.w.data_stride, step * S::kEightBytes,
                                       eight[box], S::kEightBytes, lane);
        if (HasScales(F) && p.scale_bytes > 0)
          wgmma::CopyScales<kBoxEights>(base + p.scale_offset + box * kBoxEights * p.scale_bytes, m,
                                        m.scales + item.expert * p.a.w.scale_stride, ScaleBytesOf(F),
                                        (step * S::kCols >> p.group_shift) * 8 * ScaleBytesOf(F), eight[box],
                                        p.scale_bytes, lane);
      }
      matvec::ArriveAfterCopies(full);
#endif
      ring.Advance(p.stages);
    }
  }
}

// By one warp. Rows beyond the last slot repeat it: they are multiplied, but nobody reads the sums.
template <Format F, bool GateUp>
__device__ __forceinline__ void GatherGrouped(const GroupedParams& p, uint32_t shared, int lane) {
  using S = GroupedStage<F>;
  constexpr int kAtOnce = 32 / S::kXChunks, kPasses = kGroupedTokens / kAtOnce;  // rows
  const MoeGroupedArgs& a = p.a;
  const int padded = a.w.first.padded, steps = padded / S::kCols;
  const int chunk = lane % S::kXChunks, mine = lane / S::kXChunks;
  const std::byte* const x = static_cast<const std::byte*>(a.x) + chunk * 16;
  RingPlace ring = {0, 1};
  GroupedItems items(p);
  GroupedItem item;
  while (items.Next(item)) {
    const int rows = item.eights() * 8;
    int64_t from[kPasses];
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      if (i * kAtOnce >= rows) continue;
      const int slot = item.first + min(i * kAtOnce + mine, item.count - 1);
      from[i] = int64_t{2} * padded * (GateUp && a.tokens == 0 ? __ldcg(a.plan.row + slot) : slot);
    }
    for (int step = 0; step < steps; ++step) {
      const uint32_t full = shared + p.barrier_offset + ring.stage * 16,
                     to = shared + ring.stage * p.stage_bytes + p.x_offset + mine * S::kXStride + chunk * 16;
      matvec::BarrierWait(full + 8, ring.parity);
#pragma unroll
      for (int i = 0; i < kPasses; ++i) {
        if (i * kAtOnce >= rows) continue;
        matvec::CopyAsync16(to + i * kAtOnce * S::kXStride, x + from[i] + step * (S::kCols * 2));
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
      ring.Advance(p.stages);
    }
  }
}

// A lane's eight columns of a row, of the 32 that begin at 32 * sub. `words` has what the lane reads of the
// eight rows: those columns, or for 8 and 4 bits all of the stage. kFine: wgmma::HasFineScales().
template <Format F, bool kFine>
__device__ __forceinline__ void EightToBf16(const GroupedParams& p, const uint4& words, int sub,
                                            uint32_t scales, int lane, uint32_t (&out)[4]) {
  const uint32_t at = scales + ((sub * 32 + lane % 4 * 8) >> p.group_shift) * 8 * ScaleBytesOf(F);
  if constexpr (F == Format::kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = matvec::Word(words, i);
  } else if constexpr (F == Format::kF16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = matvec::Word(words, i);
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
      out[i] = matvec::PackBf16(pair.x, pair.y);
    }
  } else if constexpr (F == Format::kInt8) {
    float scale = 1;
    if constexpr (kFine) scale = matvec::LoadFloat(at);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = matvec::Word(words, sub * 2 + i / 2);
      out[i] = kFine ? wgmma::PairFromInt8(word ^ 0x80808080u, i % 2, scale, 32896.0f * scale)
                     : wgmma::PairBits(wgmma::PairOfInt8(word, i % 2));
    }
  } else if constexpr (F == Format::kFp8) {
    if constexpr (kFine) {
      const fp8::Scale scale(matvec::LoadFloat(at));
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[i] = fp8::ScaledPair(matvec::Word(words, sub * 2 + i / 2), i % 2, scale);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = fp8::PairOf(matvec::Word(words, sub * 2 + i / 2), i % 2);
    }
  } else if constexpr (F == Format::kMxfp4) {
    fp4::ToPairs(matvec::Word(words, sub), fp4::PairScale(fp4::LoadExponent(at)), out);
  } else {
    const uint32_t word = matvec::Word(words, sub);
    const float2 scale = matvec::LoadScale<F>(at);
    if constexpr (kFine) {
      float v[8];
      wgmma::FromInt4(word, scale.x, fmaf(-128.0f, scale.x, scale.y), v);
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = matvec::PackBf16(v[2 * i], v[2 * i + 1]);
    } else {
      const wgmma::Pair factor = __float2bfloat162_rn(scale.x),
                        offset = __float2bfloat162_rn(fmaf(8.0f, scale.x, scale.y));
      const uint32_t high = word >> 4;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        out[i] = wgmma::PairBits(__hfma2(wgmma::PairOfInt4(word, high, p.nibble_upper, i), factor, offset));
    }
  }
}

// A warp's sums: of lane 4g + t rows g and g + 8 of each 16, or gate and up of row g, for slots 2t, 2t + 1.
template <bool GateUp, int N>
__device__ __forceinline__ void StoreItem(const MoeGroupedArgs& a, const float (&acc)[2][N][4],
                                          const GroupedItem& item, int warp, int lane) {
  const DeviceMatrix& m = a.w.first;
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float add[2] = {0, 0};
    if (a.w.first_bias) {
      const float* const first = a.w.first_bias + static_cast<int64_t>(item.expert) * m.rows;
      const float* const second = GateUp ? a.w.up_bias + static_cast<int64_t>(item.expert) * m.rows : first;
      const int row =
          (GateUp ? item.tile * kBoxEights + warp * 2 + i : item.tile * kItemEights + warp * 4 + i * 2) * 8 +
          g;
      if (row < m.rows) add[0] = __ldg(first + row);
      if (row + (GateUp ? 0 : 8) < m.rows) add[1] = __ldg(second + row + (GateUp ? 0 : 8));
    }
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int slot = n * 8 + t * 2 + j;
        if (slot >= item.count) continue;
        const float low = acc[i][n][j] + add[0], high = acc[i][n][2 + j] + add[1];
        const int64_t to = static_cast<int64_t>(item.first + slot) * a.out_stride;
        if constexpr (GateUp) {
          const int row = (item.tile * kBoxEights + warp * 2 + i) * 8 + g;
          if (row < m.rows)
            static_cast<__nv_bfloat16*>(a.out)[to + row] =
                __float2bfloat16(matvec::ActivateMul(a.activation, a.swiglu_limit, low, high));
        } else {
          const int row = (item.tile * kItemEights + warp * 4 + i * 2) * 8 + g;
          float* out = static_cast<float*>(a.out) + to;
          if (row < m.rows) out[row] = low;
          if (row + 8 < m.rows) out[row + 8] = high;
        }
      }
  }
}

// By one warp: its 32 rows of an item, with 8 N slots.
template <Format F, bool GateUp, bool kFine, int N>
__device__ __forceinline__ void MultiplyItem(const GroupedParams& p, uint32_t shared, int warp, int lane,
                                             const GroupedItem& item, RingPlace& ring) {
  using S = GroupedStage<F>;
  constexpr bool kSmall = BitsOf(F) <= 8;  // a lane reads all columns of a stage at once
  const MoeGroupedArgs& a = p.a;
  const DeviceMatrix& m = a.w.first;
  const int g = lane / 4, t = lane % 4, steps = m.padded / S::kCols;
  // Eights of a stage: rows g of the first and the second half of 16, twice.
  const auto eight_of = [&](int i, int half) {
    return GateUp ? half * kBoxEights + warp * 2 + i : warp * 4 + i * 2 + half;
  };
  float channel[2][2] = {{1, 1}, {1, 1}};
  if constexpr (BitsOf(F) == 8 && !kFine) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int eight = GateUp ? item.tile * kBoxEights + warp * 2 + i
                                 : item.tile * kItemEights + warp * 4 + i * 2 + half;
        const auto* scales = reinterpret_cast<const float*>((GateUp && half == 1 ? a.w.up : m).scales +
                                                            item.expert * a.w.scale_stride);
        if (eight * 8 + g < m.rows) channel[i][half] = __ldg(scales + eight * 8 + g);
      }
  }
  float acc[2][N][4] = {};
  for (int step = 0; step < steps; ++step) {
    const uint32_t full = shared + p.barrier_offset + ring.stage * 16,
                   base = shared + ring.stage * p.stage_bytes;
    matvec::BarrierWait(full, ring.parity);
    const uint32_t x = base + p.x_offset + g * S::kXStride + t * 16;
    uint4 words[2][2];
#pragma unroll
    for (int sub = 0; sub < S::kSubs; ++sub) {
      uint32_t f[2][2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int eight = eight_of(i, half);
          if (sub == 0 || !kSmall)
            words[i][half] = Load16(base + eight * S::kEightBytes + (kSmall ? 0 : sub * 512) + lane * 16);
          EightToBf16<F, kFine>(p, words[i][half], sub,
                                base + p.scale_offset + eight * p.scale_bytes + g * ScaleBytesOf(F), lane,
                                f[i][half]);
        }
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const uint4 v = Load16(x + n * 8 * S::kXStride + sub * 64);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          matvec::MmaBf16(acc[i][n], f[i][0][0], f[i][1][0], f[i][0][1], f[i][1][1], v.x, v.y);
          matvec::MmaBf16(acc[i][n], f[i][0][2], f[i][1][2], f[i][0][3], f[i][1][3], v.z, v.w);
        }
      }
    }
    __syncwarp();
    if (lane == 0) matvec::BarrierArrive(full + 8);
    ring.Advance(p.stages);
  }
  if constexpr (BitsOf(F) == 8 && !kFine) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][n][j] *= channel[i][j / 2];
  }
  StoreItem<GateUp, N>(a, acc, item, warp, lane);
}

template <Format F, bool GateUp, bool kFine>
__global__ void __launch_bounds__(kGroupedThreads, 1) GroupedKernel(const __grid_constant__ GroupedParams p) {
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = matvec::SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      matvec::BarrierInit(shared + p.barrier_offset + i * 16, matvec::kCopyArrivals + 32);
      matvec::BarrierInit(shared + p.barrier_offset + i * 16 + 8, kGroupedWarps);
    }
    matvec::FenceBarrierInit();
  }
  __syncthreads();
  // The jobs come from the kernel in front (gate and up), or from one in front of that, which has ended when
  // its successor lets this one start.
  if (GateUp && p.a.tokens == 0) WaitForPrevious();
  LetNextStart();
  if (warp == kFiller) {
    if (!kHopper || lane == 0) FillGrouped<F, GateUp>(p, shared, lane);
    return;
  }
  WaitForPrevious();
  if (warp == kGatherer) return GatherGrouped<F, GateUp>(p, shared, lane);
  RingPlace ring;
  GroupedItems items(p);
  GroupedItem item;
  while (items.Next(item)) {
    switch (item.eights()) {
      case 1:
        MultiplyItem<F, GateUp, kFine, 1>(p, shared, warp, lane, item, ring);
        break;
      case 2:
        MultiplyItem<F, GateUp, kFine, 2>(p, shared, warp, lane, item, ring);
        break;
      case 4:
        MultiplyItem<F, GateUp, kFine, 4>(p, shared, warp, lane, item, ring);
        break;
      default:
        MultiplyItem<F, GateUp, kFine, 8>(p, shared, warp, lane, item, ring);
    }
  }
}

// Experts of f32 are multiplied by LaunchMoeProduct(), however many tokens there are.
constexpr bool HasGrouped(Format format) {
  return format != Format::kF32;
}

// Bytes of shared memory; 0 if the matrices cannot be mapped.
template <Format F>
int ArrangeGrouped(GroupedParams* p) {
  using S = GroupedStage<F>;
  const MoeGroupedArgs& a = p->a;
  const DeviceMatrix& m = a.w.first;
  const int64_t eights = (m.rows + 7) / 8;
  const int tile_eights = a.gate_up ? kBoxEights : kItemEights;
  p->tiles = static_cast<int>((eights + tile_eights - 1) / tile_eights);
  p->group_shift = m.group == 16 ? 4 : m.group == 32 ? 5 : m.group == 64 ? 6 : 7;
  p->scale_bytes = m.group > 0 ? std::max(1, S::kCols / m.group) * 8 * ScaleBytesOf(F) : 0;
  p->nibble_upper = wgmma::kNibbleUpper;
  for (int box = 0; box < 2; ++box) {
    const DeviceMatrix& of = a.gate_up && box == 1 ? a.w.up : m;
    const auto map = [&](const std::byte* data, int element, int64_t row_bytes, int64_t pitch, int box_bytes,
                         CUtensorMap* out) {
      return MakeTensorMap(data,
                           {.element_bytes = element,
                            .width = row_bytes / element,
                            .height = eights,
                            .depth = pitch > 0 ? kMaxExperts : 1,
                            .depth_pitch = pitch > 0 ? pitch : row_bytes * eights,
                            .box_width = box_bytes / element,
                            .box_height = kBoxEights},
                           out);
    };
    if (!HopperCode()) continue;  // TMA alone needs maps
    if (!map(of.data, 8, m.row_bytes * 8, a.w.data_stride, S::kEightBytes, &p->weights[box])) return 0;
    if (p->scale_bytes > 0 && !map(of.scales, 4, int64_t{m.groups_per_row()} * 8 * ScaleBytesOf(F),
                                   a.w.scale_stride, p->scale_bytes, &p->scales[box]))
      return 0;
  }
  const int most = std::min(a.tokens > 0 ? a.tokens : a.job_tokens, kGroupedTokens);
  const int rows = most <= 8 ? 8 : most <= 16 ? 16 : most <= 32 ? 32 : 64;
  constexpr int kBarrierBytes = kGroupedStages * 16;
  p->scale_offset = S::kWeightBytes;
  p->x_offset = (p->scale_offset + kItemEights * p->scale_bytes + 127) / 128 * 128;
  p->stage_bytes = p->x_offset + rows * S::kXStride;
  p->stages = std::min(kGroupedStages, (SharedLimit() - kBarrierBytes) / p->stage_bytes);
  p->barrier_offset = p->stages * p->stage_bytes;
  return p->barrier_offset + kBarrierBytes;
}

template <Format F, bool kFine>
cudaError_t LaunchGroupedAs(const GroupedParams& p, int bytes, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(Multiprocessors())), block(kGroupedThreads);
  return p.a.gate_up ? LaunchLarge<GroupedKernel<F, true, kFine>>(grid, block, bytes, stream, p)
                     : LaunchLarge<GroupedKernel<F, false, kFine>>(grid, block, bytes, stream, p);
}

template <Format F>
cudaError_t LaunchGrouped(const MoeGroupedArgs& args, cudaStream_t stream) {
  GroupedParams p = {};
  p.a = args;
  const int bytes = ArrangeGrouped<F>(&p);
  if (bytes == 0) return cudaErrorInvalidValue;
  if constexpr (F == Format::kMxfp4) {
    return LaunchGroupedAs<F, true>(p, bytes, stream);
  } else {
    if constexpr (HasScales(F))
      if (wgmma::HasFineScales(args.w.first)) return LaunchGroupedAs<F, true>(p, bytes, stream);
    return LaunchGroupedAs<F, false>(p, bytes, stream);
  }
}
// LaunchGrouped(), or an error without HasGrouped(); compiled in one file per format: moe_format_cuda.cu.in.
template <Format F>
cudaError_t LaunchGroupedFormat(const MoeGroupedArgs& args, cudaStream_t stream);

}  // namespace celer::cuda::moe
