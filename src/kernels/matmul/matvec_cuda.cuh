// The kernel behind matvec_cuda.h, one instance per weight format and number of 4-token tiles.
//
// Grid: persistent, one block per multiprocessor. A tile is 16 rows, as two halves of 8 that may lie apart
// (gate and up; the two dimensions of a rope pair). A block has a run of tiles and takes four at once, a
// batch; the sixteen warps that multiply share them: four for each of four tiles, eight for each of two, all
// for one, dividing its columns. One warp fills the ring with bulk copies, 128 bytes of 16 rows per stage and
// multiplying warp; one more warp adds their parts up at the end of a batch and finishes it while they go on.
// The ring starts to fill before the previous kernel has ended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/matmul/matvec_cuda.h"
#include "kernels/matmul/matvec_ptx.cuh"

namespace celer::cuda::matvec {

constexpr int kWarps = 16;  // that multiply
constexpr int kBatch = 4;   // tiles at once
constexpr int kConsumers = kWarps * 32;
constexpr int kProducer = kWarps, kFinisher = kWarps + 1;
constexpr int kThreads = kConsumers + 64;
constexpr int kSpans = 2;                            // of 64 bytes that a warp takes of each row in a stage
constexpr int kStageBytes = kWarps * kSpans * 1024;  // of weights
constexpr int kPlanePad = 64;  // the two parts of an activation fall into different halves of the banks
constexpr int kMaxStages = 8;
// Stages that are on their way at once. For integer weights two were 2 to 3 % faster than three, and those
// than six; why is not proven. Floats take one more.
constexpr int kInFlight = 2;

struct alignas(16) Params {
  MatvecArgs a;
  int tiles, stages;
  int each, more;  // tiles of every block, and how many blocks have one more
  int turn;        // of the tiles over the blocks, so that small products begin where the last one ended
  bool polled;     // x and residual are being written by other blocks of this kernel, see Unwritten
  int stage_bytes, scale_bytes;  // a stage: weights, then this many bytes of scales, or 0
  int group_shift;               // log2 of the columns that share a scale
  int in_flight;
  int x_offset, xs_offset, xsum_offset, red_offset, sum_offset, norm_offset, place_offset, barrier_offset;
  int plane_bytes;
};

constexpr bool IsInteger(Format f) {
  return f == Format::kInt8 || f == Format::kInt4 || f == Format::kInt4Wide;
}
template <Format F>
constexpr int kWarpCols = 64 * 8 / BitsOf(F);  // columns of a warp in a span

// ---- values that blocks of one kernel hand to each other
//
// Memory for them is filled with a pattern that no result has; a reader loads until it sees something else.
// So a value is its own flag, and it arrives in one trip through L2 without fences or counters.

constexpr uint32_t kUnwritten = 0xffffffffu;
__device__ __forceinline__ bool Unwritten(float v) {
  return __float_as_uint(v) == kUnwritten;
}
__device__ __forceinline__ void Publish(float* to, float v) {
  if (v != v) v = __uint_as_float(0x7fc00000u);
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(v) : "memory");
}
__device__ __forceinline__ float4 LoadRelaxed(const float* from) {
  float4 v;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ bool Unwritten(const float4& v) {
  return Unwritten(v.x) || Unwritten(v.y) || Unwritten(v.z) || Unwritten(v.w);
}
__device__ __forceinline__ float Await(const float* from) {
  float v;
  do {
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  } while (Unwritten(v));
  return v;
}

// ---- where a tile's rows are

// A block's tiles, as even as they can be.
struct Run {
  int begin, end;
};
__device__ __forceinline__ Run TilesOf(const Params& p) {
  const int grid = static_cast<int>(gridDim.x);
  int block = static_cast<int>(blockIdx.x) - p.turn;
  if (block < 0) block += grid;
  const int each = p.each, begin = block * each + min(block, p.more);
  return {begin, begin + each + (block < p.more ? 1 : 0)};
}

// How a batch of tiles is shared: `split` warps for each.
struct Share {
  int tiles, split, log2_split;

  __device__ __forceinline__ explicit Share(int left) {
    tiles = min(left, kBatch);
    log2_split = tiles == 1 ? 4 : tiles == 2 ? 3 : 2;
    split = 1 << log2_split;
  }
  static_assert(kSpans * 64 == 1 << 7);
  __device__ __forceinline__ int chunk_bytes() const { return split << 7; }  // of a row in a stage
  __device__ __forceinline__ int tile_bytes() const { return split * kSpans * 1024; }
  __device__ __forceinline__ int chunks(int row_bytes) const {
    return (row_bytes + chunk_bytes() - 1) >> (log2_split + 7);
  }
};

struct Half {
  const DeviceMatrix* matrix;
  int row;    // the first of eight
  int valid;  // how many of them exist
};

struct Tile {
  Half half[2];
  int part;  // kQkv: 0 q, 1 k, 2 v
  bool rotate;
};

__device__ __forceinline__ Half MakeHalf(const DeviceMatrix& m, int row) {
  return {&m, row, max(0, min(8, m.rows - row))};
}

__device__ __forceinline__ Tile Locate(const Params& p, int tile) {
  const MatvecArgs& a = p.a;
  Tile out = {};
  if (a.epilogue == Epilogue::kGateUp) {
    out.half[0] = MakeHalf(a.a, tile * 8);
    out.half[1] = MakeHalf(a.b, tile * 8);
    return out;
  }
  const DeviceMatrix* m = &a.a;
  if (a.epilogue == Epilogue::kQkv) {
    const int q_tiles = a.a.rows / 16, k_tiles = a.b.rows / 16;
    if (tile >= q_tiles + k_tiles) {
      tile -= q_tiles + k_tiles;
      m = &a.c;
      out.part = 2;
    } else if (tile >= q_tiles) {
      tile -= q_tiles;
      m = &a.b;
      out.part = 1;
    }
    const int per_head = a.kv.head_dim / 16, pairs = a.rope_dim / 16;
    if (out.part < 2 && tile % per_head < pairs) {
      const int row = tile / per_head * a.kv.head_dim + tile % per_head * 8;
      out.rotate = true;
      out.half[0] = MakeHalf(*m, row);
      out.half[1] = MakeHalf(*m, row + a.rope_dim / 2);
      return out;
    }
  }
  out.half[0] = MakeHalf(*m, tile * 16);
  out.half[1] = MakeHalf(*m, tile * 16 + 8);
  return out;
}

// ---- filling the ring

// Where a role stands in the ring. The parity is what it waits for: 0 for those who empty it, 1 for the one
// who fills.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The one who fills: what comes next, and the oldest stage that is still under way.
struct Filling {
  RingPlace next = {0, 1}, oldest;
  int under_way = 0;
};

// By one warp: lane 2i + h copies half h of tile i.
template <Format F>
__device__ __forceinline__ void Produce(const Params& p, uint32_t shared, int lane, Filling& filling) {
  const uint64_t policy = StreamOncePolicy();
  const bool grouped = IsInteger(F) && p.a.a.group > 0;
  // One group to a row is what a scale per output channel comes to; it travels with the first chunk.
  const int row_bytes = static_cast<int>(p.a.a.row_bytes),
            groups = grouped ? p.a.a.padded >> p.group_shift : 1;
  const int stages = p.stages, stage_bytes = p.stage_bytes, in_flight = p.in_flight;
  const uint32_t barriers = shared + p.barrier_offset;
  const Run run = TilesOf(p);
  for (int first = run.begin; first < run.end; first += kBatch) {
    const Share share(run.end - first);
    const int tile = lane / 2, half = lane % 2;
    const std::byte *data = nullptr, *scales = nullptr;
    if (tile < share.tiles) {
      const Half h = Locate(p, first + tile).half[half];
      if (h.valid > 0) {
        const DeviceMatrix& m = *h.matrix;
        data = m.data + h.row * m.row_bytes;
        if (IsInteger(F))
          scales = m.scales + static_cast<int64_t>(h.row / 8) * groups * (8 * ScaleBytesOf(F));
      }
    }
    const int halves = __popc(__ballot_sync(0xffffffffu, data != nullptr));
    const int chunk_bytes = share.chunk_bytes(), chunks = share.chunks(row_bytes);
    const int chunk_groups = grouped ? chunk_bytes * 8 / BitsOf(F) >> p.group_shift : 1;
    const uint32_t to = lane * (share.tile_bytes() / 2);
    const uint32_t scales_to = kStageBytes + lane * chunk_groups * (8 * ScaleBytesOf(F));
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int bytes = 8 * min(chunk_bytes, row_bytes - chunk * chunk_bytes);
      const int scale_bytes =
          IsInteger(F) ? max(0, min(chunk_groups, groups - chunk * chunk_groups)) * 8 * ScaleBytesOf(F) : 0;
      RingPlace& ring = filling.next;
      const uint32_t full = barriers + ring.stage * 16, base = shared + ring.stage * stage_bytes;
      if (filling.under_way == in_flight) {
        BarrierWait(barriers + filling.oldest.stage * 16, filling.oldest.parity);
        filling.oldest.Advance(stages);
      } else {
        ++filling.under_way;
      }
      BarrierWait(full + 8, ring.parity);
      if (lane == 0) BarrierExpect(full, static_cast<uint32_t>((bytes + scale_bytes) * halves));
      __syncwarp();
      if (data) {
        BulkCopy(base + to, data + static_cast<int64_t>(chunk) * chunk_bytes * 8, bytes, full, policy);
        if (scale_bytes > 0)
          BulkCopy(base + scales_to,
                   scales + static_cast<int64_t>(chunk) * chunk_groups * 8 * ScaleBytesOf(F), scale_bytes,
                   full, policy);
      }
      ring.Advance(stages);
    }
  }
}

// ---- activations: from f32 in global memory to two parts in shared memory

// The largest magnitude of a warp's values.
__device__ __forceinline__ float WarpMost(float v) {
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v)));
}
// Sums of a warp's values, or of its halves or quarters: of `lanes` lanes each.
__device__ __forceinline__ float SumOfLanes(float v, int lanes) {
#pragma unroll
  for (int i = 1; i < 4; i *= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
  if (lanes > 4) v += __shfl_xor_sync(0xffffffffu, v, 4);
  if (lanes > 8) v += __shfl_xor_sync(0xffffffffu, v, 8);
  if (lanes > 16) v += __shfl_xor_sync(0xffffffffu, v, 16);
  return v;
}

// Where activations go, in registers: the parameters may lie in shared memory themselves, where every store
// could change them as far as the compiler knows.
struct XPlace {
  char* x;
  float *steps, *sums;
  int padded, plane_bytes, group_shift, group_lanes;

  __device__ __forceinline__ XPlace(const Params& p, char* shared)
      : x(shared + p.x_offset),
        steps(reinterpret_cast<float*>(shared + p.xs_offset)),
        sums(reinterpret_cast<float*>(shared + p.xsum_offset)),
        padded(p.a.a.padded),
        plane_bytes(p.plane_bytes),
        group_shift(p.group_shift),
        group_lanes(1 << (p.group_shift - 2)) {}
};

// 128 columns of a token, four to a lane.
template <Format F>
__device__ __forceinline__ void StoreActivation(const XPlace& p, int token, int group, int lane, float4 v,
                                                float most, float sum) {
  char* const x = p.x;
  const int padded = p.padded;
  if constexpr (!IsInteger(F)) {
    const uint32_t h0 = PackBf16(v.x, v.y), h1 = PackBf16(v.z, v.w);
    const float2 f0 = UnpackBf16(h0), f1 = UnpackBf16(h1);
    const uint32_t l0 = PackBf16(v.x - f0.x, v.y - f0.y), l1 = PackBf16(v.z - f1.x, v.w - f1.y);
    char* to = x + (static_cast<size_t>(token) * padded + group * 128 + lane * 4) * 2;
    *reinterpret_cast<uint2*>(to) = make_uint2(h0, h1);
    *reinterpret_cast<uint2*>(to + p.plane_bytes) = make_uint2(l0, l1);
  } else {
    // x = step * (128 high + low), |128 high + low| <= 127 * 128
    const float step = most * (1.0f / 16256.0f), inverse = most > 0 ? 16256.0f / most : 0.0f;
    uint32_t high = 0, low = 0;
    const float values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int q = __float2int_rn(values[i] * inverse);
      const int h = (q + 64) >> 7;
      high |= static_cast<uint32_t>(h & 255) << (8 * i);
      low |= static_cast<uint32_t>((q - (h << 7)) & 255) << (8 * i);
    }
    char* to = x + static_cast<size_t>(token) * padded + group * 128;
    if constexpr (F == Format::kInt8) {
      to += lane / 16 * 64 + lane % 8 / 2 * 16 + lane % 16 / 8 * 8 + lane % 2 * 4;
      *reinterpret_cast<uint32_t*>(to) = high;
      *reinterpret_cast<uint32_t*>(to + p.plane_bytes) = low;
    } else {
      to += lane / 16 * 64 + lane % 8 / 2 * 16 + lane % 16 / 8 * 8 + lane % 2 * 2;
      const auto evens = [](uint32_t w) { return static_cast<uint16_t>(__byte_perm(w, 0, 0x4420)); };
      const auto odds = [](uint32_t w) { return static_cast<uint16_t>(__byte_perm(w, 0, 0x4431)); };
      *reinterpret_cast<uint16_t*>(to) = evens(high);
      *reinterpret_cast<uint16_t*>(to + 4) = odds(high);
      *reinterpret_cast<uint16_t*>(to + p.plane_bytes) = evens(low);
      *reinterpret_cast<uint16_t*>(to + p.plane_bytes + 4) = odds(low);
      // The group's minimum counts once per unit of x.
      if ((lane & (p.group_lanes - 1)) == 0)
        p.sums[token * (padded >> p.group_shift) + ((group * 128 + lane * 4) >> p.group_shift)] = sum;
    }
    if (lane == 0) p.steps[token * (padded >> 7) + group] = step;
  }
}

// All activations, in rounds of N times 128 columns to a warp. Partial sums of squares go to shared memory,
// [tokens, warps]; the finisher makes the norm's scale of them. `wait` is called after the first loads that
// need not wait for other kernels: the norm's weights of the first round.
template <Format F, int N, bool Norm, class Wait>
__device__ __forceinline__ void LoadRounds(const Params& p, char* shared, int warp, int lane,
                                           const Wait& wait) {
  const XPlace place(p, shared);
  float* const sums = reinterpret_cast<float*>(shared + p.sum_offset);
  const int cols = p.a.a.cols, groups = place.padded / 128, tokens = p.a.tokens;
  const int64_t stride = p.a.x_stride;
  const float *const all = p.a.x, *const weights = Norm ? p.a.norm : nullptr;
  const int32_t* const rows = p.a.rows;
  const bool whole = stride % 4 == 0 && cols % 4 == 0, polled = p.polled;
  const float4 one = make_float4(1, 1, 1, 1);
  const int col0 = warp * 128 + lane * 4;
  float4 w[N];
#pragma unroll
  for (int i = 0; i < N; ++i) w[i] = one;
  if (whole && weights) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (col0 + i * kWarps * 128 < cols)
        w[i] = __ldg(reinterpret_cast<const float4*>(weights + col0 + i * kWarps * 128));
  }
  wait();
  bool first = true;
  for (int token = 0; token < tokens; ++token) {
    const int row = rows ? __ldcg(rows + token) : token;
    const float* from = all + row * stride;
    float squares = 0;
    for (int begin = warp; first || begin < groups; begin += kWarps * N) {
      const int col = begin * 128 + lane * 4;
      float4 v[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const int at = col + i * kWarps * 128;
        v[i] = make_float4(0, 0, 0, 0);
        if (!first && whole && weights && at < cols)
          w[i] = __ldg(reinterpret_cast<const float4*>(weights + at));
        if (whole) {
          if (at < cols)
            v[i] = polled ? LoadRelaxed(from + at) : __ldcg(reinterpret_cast<const float4*>(from + at));
        } else {
          float* to = reinterpret_cast<float*>(&v[i]);
          float* weight = reinterpret_cast<float*>(&w[i]);
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (at + j < cols) {
              to[j] = __ldcg(from + at + j);
              if (weights) weight[j] = __ldg(weights + at + j);
            }
        }
      }
      if (polled) {
        bool missing;
        do {
          missing = false;
#pragma unroll
          for (int i = 0; i < N; ++i)
            if (Unwritten(v[i])) {
              v[i] = LoadRelaxed(from + col + i * kWarps * 128);
              missing = true;
            }
        } while (missing);
        // Others may still be multiplying with what the last product left there.
        if (first) ConsumerBarrier();
      }
      first = false;
      // Step by step for all of them, so that they need not wait for each other's shuffles.
      float most[N], sum[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
        v[i] = make_float4(v[i].x * w[i].x, v[i].y * w[i].y, v[i].z * w[i].z, v[i].w * w[i].w);
        most[i] = fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)), fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
        sum[i] = (v[i].x + v[i].y) + (v[i].z + v[i].w);
      }
      if constexpr (IsInteger(F)) {
#pragma unroll
        for (int i = 0; i < N; ++i) most[i] = WarpMost(most[i]);
        if constexpr (F != Format::kInt8) {
#pragma unroll
          for (int i = 0; i < N; ++i) sum[i] = SumOfLanes(sum[i], place.group_lanes);
        }
      }
#pragma unroll
      for (int i = 0; i < N; ++i)
        if (begin + i * kWarps < groups)
          StoreActivation<F>(place, token, begin + i * kWarps, lane, v[i], most[i], sum[i]);
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, i);
    if (lane == 0) sums[token * kWarps + warp] = squares;
  }
}

template <Format F, class Wait>
__device__ __forceinline__ void LoadActivations(const Params& p, char* shared, int warp, int lane,
                                                const Wait& wait) {
  const bool narrow = p.a.a.padded <= 2 * kWarps * 128;
  if (p.a.norm)
    narrow ? LoadRounds<F, 2, true>(p, shared, warp, lane, wait)
           : LoadRounds<F, 4, true>(p, shared, warp, lane, wait);
  else
    narrow ? LoadRounds<F, 2, false>(p, shared, warp, lane, wait)
           : LoadRounds<F, 6, false>(p, shared, warp, lane, wait);
}

// ---- the products

// Sums of a warp over its part of k: rows g and g + 8 of the tile, for token 4 nt + t.
template <Format F, int NT>
struct Accumulator {
  float c[2][NT][4];  // float formats: two chains, so that products need not wait for each other
  float sum[NT][2];   // integer formats

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[0][n][i] = c[1][n][i] = 0;
      sum[n][0] = sum[n][1] = 0;
    }
  }
  // The two parts of a token are neighbours: columns 2t and 2t + 1.
  __device__ __forceinline__ float2 Get(int n) const {
    if constexpr (IsInteger(F)) return make_float2(sum[n][0], sum[n][1]);
    return make_float2((c[0][n][0] + c[1][n][0]) + (c[0][n][1] + c[1][n][1]),
                       (c[0][n][2] + c[1][n][2]) + (c[0][n][3] + c[1][n][3]));
  }
};

__device__ __forceinline__ uint32_t Word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Where a lane finds what it multiplies, at column 0. Lanes whose column no token has load nothing: reads of
// x would cost as much of the shared memory's time as those of the weights.
template <int NT>
struct Places {
  uint32_t x[NT];              // its column of the activations, 0 beyond the last token
  uint32_t step[NT], sum[NT];  // integer formats: scale of x, and sums of x
};

template <Format F, int NT>
__device__ __forceinline__ Places<NT> Find(const Params& p, uint32_t shared, int lane) {
  const int g = lane / 4, t = lane % 4, padded = p.a.a.padded, last = p.a.tokens - 1;
  constexpr int kBytes = IsInteger(F) ? 1 : 2;  // of an activation's part
  Places<NT> out;
#pragma unroll
  for (int n = 0; n < NT; ++n) {
    const int column = n * 4 + g / 2, mine = min(n * 4 + t, last);
    out.x[n] = column > last ? 0
                             : shared + p.x_offset + (g & 1) * p.plane_bytes + column * padded * kBytes +
                                   t * (F == Format::kF32 ? 8 : 16);
    out.step[n] = shared + p.xs_offset + mine * (padded >> 7) * 4;
    out.sum[n] = shared + p.xsum_offset + mine * (padded >> p.group_shift) * 4;
  }
  return out;
}

__device__ __forceinline__ float LoadFloat(uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from));
  return v;
}

// Scale and minimum of a row's group.
template <Format F>
__device__ __forceinline__ float2 LoadScale(uint32_t from) {
  if constexpr (F == Format::kInt4) {
    uint32_t pair;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(pair) : "r"(from));
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  } else {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from));
    return v;
  }
}

// One warp's 64 bytes of each of the 16 rows: `weights` is the lane's part of the first half, the second lies
// half_bytes behind it; `scales` is where the lane's row has those of `col`, the first of the columns, and
// scale_half is the way to the second half's. S: log2 of the columns that share a scale, 0 if it is known at
// run time only.
template <Format F, int NT, int S>
__device__ __forceinline__ void Multiply(Accumulator<F, NT>& acc, const Places<NT>& at, uint32_t weights,
                                         int half_bytes, uint32_t scales, int scale_half, int group_shift,
                                         int col) {
  const uint4 wa = Load16(weights), wb = Load16(weights + half_bytes);
  if constexpr (!IsInteger(F)) {
    const uint32_t off = col * 2;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      if constexpr (F == Format::kF32) {
        uint2 x = make_uint2(0, 0);
        if (at.x[n])
          asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at.x[n] + off));
        uint32_t ua[4] = {wa.x, wa.y, wa.z, wa.w}, ub[4] = {wb.x, wb.y, wb.z, wb.w};
#pragma unroll
        for (int part = 0; part < 3; ++part) {  // 3 x 8 bits of significand
          uint32_t pa[2], pb[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float a0 = __uint_as_float(ua[2 * i]), a1 = __uint_as_float(ua[2 * i + 1]);
            const float b0 = __uint_as_float(ub[2 * i]), b1 = __uint_as_float(ub[2 * i + 1]);
            pa[i] = PackBf16(a0, a1);
            pb[i] = PackBf16(b0, b1);
            const float2 fa = UnpackBf16(pa[i]), fb = UnpackBf16(pb[i]);
            ua[2 * i] = __float_as_uint(a0 - fa.x), ua[2 * i + 1] = __float_as_uint(a1 - fa.y);
            ub[2 * i] = __float_as_uint(b0 - fb.x), ub[2 * i + 1] = __float_as_uint(b1 - fb.y);
          }
          MmaBf16(acc.c[part % 2][n], pa[0], pb[0], pa[1], pb[1], x.x, x.y);
        }
      } else {
        const uint4 x = Load16If(at.x[n], off);
        if constexpr (F == Format::kBf16) {
          MmaBf16(acc.c[0][n], wa.x, wb.x, wa.y, wb.y, x.x, x.y);
          MmaBf16(acc.c[1][n], wa.z, wb.z, wa.w, wb.w, x.z, x.w);
        } else {  // f16 = bf16 + bf16, exactly: 8 bits and 3
          uint32_t high_a[4], high_b[4], low_a[4], low_b[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const uint32_t ua = Word(wa, i), ub = Word(wb, i);
            const float2 va = __half22float2(reinterpret_cast<const __half2&>(ua));
            const float2 vb = __half22float2(reinterpret_cast<const __half2&>(ub));
            high_a[i] = PackBf16(va.x, va.y);
            high_b[i] = PackBf16(vb.x, vb.y);
            const float2 fa = UnpackBf16(high_a[i]), fb = UnpackBf16(high_b[i]);
            low_a[i] = PackBf16(va.x - fa.x, va.y - fa.y);
            low_b[i] = PackBf16(vb.x - fb.x, vb.y - fb.y);
          }
          MmaBf16(acc.c[0][n], high_a[0], high_b[0], high_a[1], high_b[1], x.x, x.y);
          MmaBf16(acc.c[1][n], high_a[2], high_b[2], high_a[3], high_b[3], x.z, x.w);
          MmaBf16(acc.c[0][n], low_a[0], low_b[0], low_a[1], low_b[1], x.x, x.y);
          MmaBf16(acc.c[1][n], low_a[2], low_b[2], low_a[3], low_b[3], x.z, x.w);
        }
      }
    }
  } else {
    // Products of 32 columns, added up as integers within a group.
    constexpr bool kFour = F != Format::kInt8;
    constexpr int kProducts = kFour ? 4 : 2;
    const int shift = S > 0 ? S : group_shift;
    const int last =
        S == 4 ? 0 : min((1 << (shift - 5)) - 1, kProducts - 1);  // products of a group, less one
    // Groups of 16: the columns of one are with lanes t < 2, those of the next with the others. Each is a
    // product of its own in which the other lanes have zeros.
    constexpr int kGroups = S == 4 ? 2 : 1;
    const int side = threadIdx.x % 4 / 2;
    const uint32_t off = col, sum_off = off >> shift << 2;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const uint4 x0 = Load16If(at.x[n], off), x1 = kFour ? Load16If(at.x[n], off + 64) : x0;
      const float step = LoadFloat(at.step[n] + (off >> 7 << 2));
      int c[4] = {0, 0, 0, 0};
#pragma unroll
      for (int j = 0; j < kProducts; ++j) {
        const uint4& x = j < 2 ? x0 : x1;
#pragma unroll
        for (int h = 0; h < kGroups; ++h) {
          const bool mine = kGroups == 1 || side == h;
          const uint32_t b0 = mine ? Word(x, j % 2 * 2) : 0, b1 = mine ? Word(x, j % 2 * 2 + 1) : 0;
          if constexpr (kFour) {
            const uint32_t ua = Word(wa, j), ub = Word(wb, j);
            MmaInt8(c, ua & 0x0f0f0f0fu, ub & 0x0f0f0f0fu, ua >> 4 & 0x0f0f0f0fu, ub >> 4 & 0x0f0f0f0fu, b0,
                    b1);
          } else {
            MmaInt8(c, Word(wa, j * 2), Word(wb, j * 2), Word(wa, j * 2 + 1), Word(wb, j * 2 + 1), b0, b1);
          }
          if ((j & last) != last) continue;
          const float da = static_cast<float>((c[0] << 7) + c[1]) * step;
          const float db = static_cast<float>((c[2] << 7) + c[3]) * step;
          c[0] = c[1] = c[2] = c[3] = 0;
          const int group = (j * 32 + h * 16) >> shift;
          if constexpr (F == Format::kInt8) {
            float sa = 1, sb = 1;
            if (scale_half > 0) {
              sa = LoadFloat(scales + group * 32);
              sb = LoadFloat(scales + group * 32 + scale_half);
            }
            acc.sum[n][0] += da * sa;
            acc.sum[n][1] += db * sb;
          } else {
            const float x_sum = LoadFloat(at.sum[n] + sum_off + group * 4);
            const uint32_t from = scales + group * 8 * ScaleBytesOf(F);
            const float2 pa = LoadScale<F>(from), pb = LoadScale<F>(from + scale_half);
            acc.sum[n][0] = fmaf(da, pa.x, fmaf(pa.y, x_sum, acc.sum[n][0]));
            acc.sum[n][1] = fmaf(db, pb.x, fmaf(pb.y, x_sum, acc.sum[n][1]));
          }
        }
      }
    }
  }
}

// ---- what follows the product

__device__ __forceinline__ float Activate(DeviceActivation kind, float v) {
  switch (kind) {
    case DeviceActivation::kSilu:
      return v / (1.0f + __expf(-v));
    case DeviceActivation::kGelu:
      return 0.5f * v * (1.0f + erff(v * 0.70710678f));
    case DeviceActivation::kGeluTanh:
      return 0.5f * v * (1.0f + tanhf(0.7978845608f * (v + 0.044715f * v * v * v)));
    case DeviceActivation::kRelu:
      return fmaxf(v, 0.0f);
  }
  return v;
}

// What the finisher knows of a token before the first product is done.
struct TokenPlace {
  int position = 0;
  int64_t kv_row = 0;  // of head 0, in elements
};

__device__ __forceinline__ TokenPlace PlaceOf(const MatvecArgs& a, int token) {
  TokenPlace out;
  if (a.epilogue != Epilogue::kQkv) return out;
  out.position = __ldcg(a.batch.positions + token);
  const int row = __ldcg(a.batch.sequence + token);
  const int block =
      __ldcg(a.batch.block_table + static_cast<int64_t>(row) * a.batch.max_blocks + out.position / kKvBlock);
  out.kv_row =
      (static_cast<int64_t>(block) * a.kv.kv_heads * kKvBlock + out.position % kKvBlock) * a.kv.padded_dim;
  return out;
}

__device__ __forceinline__ void AppendKv(const MatvecArgs& a, std::byte* cache, int64_t at, float value) {
  if (a.kv.dtype == DType::kBf16)
    reinterpret_cast<__nv_bfloat16*>(cache)[at] = __float2bfloat16(value);
  else if (a.kv.dtype == DType::kFp8E4M3)
    reinterpret_cast<__nv_fp8_storage_t*>(cache)[at] =
        __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
  else
    reinterpret_cast<__half*>(cache)[at] = __float2half_rn(value);
}

// What is added or multiplied to the two sums of a lane; loaded while the products run.
struct Extras {
  float add[2] = {0, 0};  // bias and residual
  float cosine = 1, sine = 0;
};

__device__ __forceinline__ Extras LoadExtras(const Params& p, const Tile& tile, int token, int r,
                                             const TokenPlace& place) {
  const MatvecArgs& a = p.a;
  Extras out;
  const float* bias = tile.part == 0 ? a.a_bias : tile.part == 1 ? a.b_bias : a.c_bias;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (r >= tile.half[i].valid) continue;
    const int row = tile.half[i].row + r;
    if (bias) out.add[i] = __ldg(bias + row);
    if (a.residual) {
      const float* from = a.residual + token * a.residual_stride + row;
      out.add[i] += p.polled ? Await(from) : __ldcg(from);
    }
  }
  if (tile.rotate) {
    const int half = a.rope_dim / 2;
    const int64_t at = static_cast<int64_t>(place.position) * half + tile.half[0].row % a.kv.head_dim + r;
    out.cosine = __ldg(a.rope_cos + at);
    out.sine = __ldg(a.rope_sin + at);
  }
  return out;
}

// `value` holds the sums of rows half[0].row + r and half[1].row + r.
__device__ __forceinline__ void Finish(const Params& p, const Tile& tile, int token, int r, float2 value,
                                       float norm, const Extras& extra, const TokenPlace& place) {
  const MatvecArgs& a = p.a;
  const int row[2] = {tile.half[0].row + r, tile.half[1].row + r};
  float v[2] = {value.x * norm, value.y * norm};
  if (a.epilogue == Epilogue::kGateUp) {
    if (r < tile.half[0].valid)
      Publish(a.out + token * a.out_stride + row[0], Activate(a.activation, v[0]) * v[1]);
    return;
  }
  v[0] += extra.add[0];
  v[1] += extra.add[1];
  if (tile.rotate) {
    const float x = v[0], y = v[1];
    v[0] = x * extra.cosine - y * extra.sine;
    v[1] = y * extra.cosine + x * extra.sine;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (r >= tile.half[i].valid) continue;
    if (tile.part == 0) {
      Publish(a.out + token * a.out_stride + row[i], v[i]);
    } else {
      float* also = tile.part == 1 ? a.k_out : a.v_out;
      if (also) Publish(also + token * a.out_stride + row[i], v[i]);
      const int head = row[i] / a.kv.head_dim, dim = row[i] % a.kv.head_dim;
      AppendKv(a, tile.part == 1 ? a.kv.k : a.kv.v,
               place.kv_row + static_cast<int64_t>(head) * kKvBlock * a.kv.padded_dim + dim, v[i]);
    }
  }
}

// One warp: eight lanes finish rows r and r + 8 of a tile for one token, four such at once. `places` are
// those of the tokens, in shared memory. `before_last` is called once, before anything of the last batch is
// published and after the block's warps have loaded all activations.
template <int NT, class Call>
__device__ __forceinline__ void FinishTiles(const Params& p, char* memory, int lane, const TokenPlace* places,
                                            int& parity, const Call& before_last) {
  const MatvecArgs& a = p.a;
  const int r = lane % 8, tokens = a.tokens;
  const float* squares = reinterpret_cast<const float*>(memory + p.sum_offset);
  float* norms = reinterpret_cast<float*>(memory + p.norm_offset);  // [tokens]
  const Run run = TilesOf(p);
  for (int first = run.begin; first < run.end; first += kBatch) {
    const Share share(run.end - first);
    const int items = share.tiles * tokens;
    const bool only = run.end - run.begin <= kBatch, last = run.end - first <= kBatch;
    if (last && !only) before_last();
    bool waited = false;
    for (int item = lane / 8; item - lane / 8 < items; item += 4) {
      const bool valid = item < items;
      const int token = valid ? item % tokens : 0, tile_index = valid ? item / tokens : 0;
      const Tile tile = Locate(p, first + tile_index);
      const TokenPlace place = places[token];
      Extras extra;
      if (valid) extra = LoadExtras(p, tile, token, r, place);
      if (!waited) {
        SyncPair(2 + parity);
        if (only) before_last();
      }
      waited = true;
      if (first == run.begin && item == lane / 8 && a.norm) {  // once
        if (lane < tokens) {
          float total = 0;
#pragma unroll
          for (int w = 0; w < kWarps; ++w) total += squares[lane * kWarps + w];
          norms[lane] = 1.0f / sqrtf(total / static_cast<float>(a.a.cols) + a.eps);
        }
        __syncwarp();
      }
      const float norm = a.norm ? norms[token] : 1.0f;
      const float2* sums = reinterpret_cast<const float2*>(memory + p.red_offset) +
                           (((parity * kWarps + (tile_index << share.log2_split)) * NT + token / 4) * 32) +
                           r * 4 + token % 4;
      float2 total = make_float2(0, 0);
#pragma unroll 4
      for (int w = 0; w < share.split; ++w) {
        const float2 part = sums[w * NT * 32];
        total.x += part.x;
        total.y += part.y;
      }
      if (valid) Finish(p, tile, token, r, total, norm, extra, place);
    }
    __syncwarp();
    ArrivePair(4 + parity);
    parity ^= 1;
  }
}

// By the warps that multiply: all tiles of this block. `parity` and `done` count the buffers of sums.
template <Format F, int NT, int S>
__device__ __forceinline__ void MultiplyTiles(const Params& p, char* memory, uint32_t shared, int warp,
                                              int lane, RingPlace& ring, int& parity, int& done) {
  const Places<NT> at = Find<F, NT>(p, shared, lane);
  const int row_bytes = static_cast<int>(p.a.a.row_bytes), group_shift = S > 0 ? S : p.group_shift;
  const int stages = p.stages, stage_bytes = p.stage_bytes;
  const bool scaled = p.a.a.group > 0;
  const uint32_t barriers = shared + p.barrier_offset;
  float2* sums = reinterpret_cast<float2*>(memory + p.red_offset) + warp * NT * 32 + lane;
  const Run run = TilesOf(p);
  for (int first = run.begin; first < run.end; first += kBatch) {
    const Share share(run.end - first);
    const int slot = warp >> share.log2_split, part = warp & (share.split - 1);
    const int half_bytes = share.tile_bytes() / 2, chunks = share.chunks(row_bytes);
    const int blocks = slot < share.tiles ? row_bytes / 64 : 0;  // of 64 bytes in a row
    const int half_scales = (share.chunk_bytes() * 8 / BitsOf(F) >> group_shift) * 8 * ScaleBytesOf(F);
    const uint32_t weights = slot * share.tile_bytes() + part * 512 + lane * 16;
    const uint32_t scales = kStageBytes + 2 * slot * half_scales + lane / 4 * ScaleBytesOf(F);
    Accumulator<F, NT> acc;
    acc.Clear();
    float channel[2] = {1, 1};  // scales of the output channels
    int block = part;           // of 64 bytes, the next one of this warp
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t full = barriers + ring.stage * 16, base = shared + ring.stage * stage_bytes;
      const auto multiply = [&](int i) {
        const int within =
            ((i << share.log2_split) + part) * kWarpCols<F>;  // columns of this stage before it
        Multiply<F, NT, S>(acc, at, base + weights + (i << share.log2_split) * 512, half_bytes,
                           base + scales + (within >> group_shift) * 8 * ScaleBytesOf(F),
                           scaled ? half_scales : 0, group_shift,
                           (block + (i << share.log2_split)) * kWarpCols<F>);
      };
      BarrierWait(full, ring.parity);
      if (F == Format::kInt8 && !scaled && chunk == 0) {
        const uint32_t from = base + kStageBytes + slot * 64 + lane / 4 * 4;
        channel[0] = LoadFloat(from), channel[1] = LoadFloat(from + 32);
      }
      if (block + share.split < blocks) {
#pragma unroll
        for (int i = 0; i < kSpans; ++i) multiply(i);
      } else if (block < blocks) {
        multiply(0);
      }
      block += kSpans << share.log2_split;
      __syncwarp();
      if (lane == 0) BarrierArrive(full + 8);
      ring.Advance(stages);
    }
    if (done >= 2) SyncPair(4 + parity);
    ++done;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
      const float2 sum = acc.Get(n);
      sums[parity * kWarps * NT * 32 + n * 32] = make_float2(sum.x * channel[0], sum.y * channel[1]);
    }
    ArrivePair(2 + parity);
    parity ^= 1;
  }
}

__device__ __forceinline__ void InitBarriers(int stages, uint32_t barriers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < stages; ++i) {
      BarrierInit(barriers + i * 16, 1);
      BarrierInit(barriers + i * 16 + 8, kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
}

template <Format F, int NT, int S>
__global__ void __launch_bounds__(kThreads, 1) Kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  InitBarriers(p.stages, shared + p.barrier_offset);
  LetNextStart();
  int parity = 0, done = 0;
  if (warp == kProducer) {
    Filling filling;
    Produce<F>(p, shared, lane, filling);
    return;
  }
  if (warp == kFinisher) {
    WaitForPrevious();
    auto* places = reinterpret_cast<TokenPlace*>(memory + p.place_offset);
    if (lane < p.a.tokens) places[lane] = PlaceOf(p.a, lane);
    __syncwarp();
    return FinishTiles<NT>(p, memory, lane, places, parity, [] {});
  }
  LoadActivations<F>(p, memory, warp, lane, [] { WaitForPrevious(); });
  ConsumerBarrier();
  RingPlace ring;
  MultiplyTiles<F, NT, S>(p, memory, shared, warp, lane, ring, parity, done);
}

// Everything but the number of stages and the tiles; returns the bytes beside the ring, at least `least` of
// them for the activations.
int Layout(const DeviceMatrix& m, int tokens, int least, Params* p);
// Puts as large a ring as fits in front of them; false if there is no room for one. Returns the bytes in all.
int AddRing(int beside, Params* p);
int Multiprocessors();

// Chosen by matvec_cuda.cc, which does not see the kernels.
template <Format F, int NT, int S>
cudaError_t LaunchKernel(const Params& p, int blocks, int shared_bytes, cudaStream_t stream) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(Kernel<F, NT, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
  if (allowed != cudaSuccess) return allowed;
  return Launch(Kernel<F, NT, S>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                static_cast<size_t>(shared_bytes), stream, p);
}

}  // namespace celer::cuda::matvec
