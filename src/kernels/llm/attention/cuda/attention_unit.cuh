// One unit of attention, for two warps: some query heads of one token over a run of its KV blocks.
//
// The tensor cores do it, whatever the number of queries: 16 keys times 8 columns cost what one column costs.
// A query takes two columns, its 16-bit rounding and the residual, and so does its row of weights (split
// precision), so that little more than f32 rounding is lost. The order of the dimensions inside a product is
// free as long as both sides agree, so a lane takes 16 bytes at a time as memory holds them. Every warp
// copies its blocks to shared memory a few stages ahead, in whole lines, and no other warp waits for it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "kernels/llm/attention/cuda/attention_plan.cuh"
#include "kernels/shared/cuda/formats.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda::attention {

// Bytes of a warp's blocks in shared memory, about: four blocks of threads run at once, or two with a deep
// ring.
constexpr int kStageLimit = 24 * 1024;

// ---- element types: what memory holds, and the 16-bit type that is multiplied

// clang-format off
template <DType kType> struct KvElement;
template <> struct KvElement<DType::kF16> { using Type = __half; };
template <> struct KvElement<DType::kBf16> { using Type = __nv_bfloat16; };
template <> struct KvElement<DType::kI8> { using Type = int8_t; };
template <> struct KvElement<DType::kFp8E4M3> { using Type = __nv_fp8_e4m3; };
// clang-format on
template <DType kType>
using KvElementOf = typename KvElement<kType>::Type;

template <class T>
constexpr bool kNarrow = sizeof(T) == 1;  // i8 and fp8 become f16, without loss
template <class T>
using Factor = std::conditional_t<std::is_same_v<T, __nv_bfloat16>, __nv_bfloat16, __half>;
// Weights of values with a scale are multiplied with it, and with this to stay clear of the small end of f16.
constexpr float kScaleUp = 128;

template <class F>
__device__ __forceinline__ uint32_t PackFactors(float low, float high) {
  if constexpr (std::is_same_v<F, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}
template <class F>
__device__ __forceinline__ float2 UnpackFactors(uint32_t pair) {
  if constexpr (std::is_same_v<F, __half>)
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  else
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
// The residual of two numbers after rounding to 16 bits.
template <class F>
__device__ __forceinline__ uint32_t PackRest(float low, float high, uint32_t packed) {
  const float2 taken = UnpackFactors<F>(packed);
  return PackFactors<F>(low - taken.x, high - taken.y);
}

template <class F>
__device__ __forceinline__ void Mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                    uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<F, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Transpose of an 8 x 8 fragment of 16-bit numbers, of which lane 4g + t holds (g, 2t) and (g, 2t + 1).
__device__ __forceinline__ uint32_t Transpose(uint32_t v) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(v));
  return out;
}

// Four bytes, two halves each: elements 0 and 1, and 2 and 3. For i8 the bytes have 128 added (as unsigned).
template <class T>
__device__ __forceinline__ uint2 Widen(uint32_t bytes) {
  if constexpr (std::is_same_v<T, int8_t>) {
    // 0x6400 | b is the f16 number 1024 + b.
    const uint32_t low = __byte_perm(bytes, 0x64646464u, 0x4140),
                   high = __byte_perm(bytes, 0x64646464u, 0x4342);
    const __half2 offset = __float2half2_rn(1152.0f);
    const __half2 a = __hsub2(reinterpret_cast<const __half2&>(low), offset);
    const __half2 b = __hsub2(reinterpret_cast<const __half2&>(high), offset);
    return make_uint2(reinterpret_cast<const uint32_t&>(a), reinterpret_cast<const uint32_t&>(b));
  } else {
    const __half2_raw a =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes & 0xffffu), __NV_E4M3);
    const __half2_raw b =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(bytes >> 16), __NV_E4M3);
    return make_uint2(a.x | static_cast<uint32_t>(a.y) << 16, b.x | static_cast<uint32_t>(b.y) << 16);
  }
}
template <class T>
__device__ __forceinline__ uint32_t Biased(uint32_t bytes) {
  return std::is_same_v<T, int8_t> ? bytes ^ 0x80808080u : bytes;
}

// ---- shared memory

template <int kBytes>
__device__ __forceinline__ void AsyncCopy(uint32_t to, const std::byte* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <int kWords>
struct Words {
  uint32_t w[kWords];
};
__device__ __forceinline__ void LoadWords(Words<4>& p, uint32_t from) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(p.w[0]), "=r"(p.w[1]), "=r"(p.w[2]), "=r"(p.w[3])
               : "r"(from));
}
__device__ __forceinline__ void LoadWords(Words<2>& p, uint32_t from) {
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(p.w[0]), "=r"(p.w[1]) : "r"(from));
}
__device__ __forceinline__ void LoadWords(Words<1>& p, uint32_t from) {
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(p.w[0]) : "r"(from));
}

// ---- results of a unit

// Beside the blocks of keys and values. The warps' sums are in the ring, where no block is at that time.
struct Shared {
  float m[kWarps][8], l[kWarps][8];
  int sums_at[kWarps];  // bytes from where the rings begin
  float weight[8][kMostSplits];
  bool last;

  __device__ __forceinline__ float* Sums(char* rings, int warp) const {
    return reinterpret_cast<float*>(rings + sums_at[warp]);
  }
};

// D: 64, 128 or 256, at least head_dim. kMany: 5 to 8 queries, whose two parts are multiplied one after the
// other; else up to 4 in columns 0 .. 3, and what their 16-bit parts left out in columns 4 .. 7.
// Fragments: lane 4g + t holds rows g and g + 8 of A and of the sums, columns 2t and 2t + 1 of the sums, and
// column g of B.
template <class T, int D, bool kMany, bool kDeep>
struct Worker {
  using F = Factor<T>;
  static constexpr int kBytes = sizeof(T);
  static constexpr int kRowBytes = D * kBytes;
  // K: lane 4g + t takes the t-th 16 bytes of each 64 of keys g and g + 8.
  static constexpr int kSections = kRowBytes / 64;
  static constexpr int kElements = 16 / kBytes;  // of 16 bytes
  static constexpr int kSteps = kElements / 4;   // products of 16 dimensions that 16 bytes take part in
  // V: lane 4g + t takes the g-th kVBytes of each eight of keys 2t, 2t + 1, 2t + 8 and 2t + 9.
  static constexpr int kVBytes = kRowBytes / 8 < 16 ? kRowBytes / 8 : 16;
  static constexpr int kVElements = kVBytes / kBytes;
  static constexpr int kVLoads = kRowBytes / 8 / kVBytes;
  static constexpr int kQParts = kMany ? 2 : 1;
  // A block of keys and values in shared memory: rows of K, rows of V, scales. Its 16-byte vectors are
  // swizzled within their row so that the eight lanes that read at once have no bank conflicts: lanes of two
  // keys in K, of two vectors and four keys in V.
  static constexpr int kVectors = kRowBytes / 16;
  static __device__ __forceinline__ int MoveK(int row) { return (row & 1) << 2 & (kVectors - 1); }
  static __device__ __forceinline__ int MoveV(int row) { return (row >> 1 & 3) << 1 & (kVectors - 1); }
  static constexpr bool kScaled = std::is_same_v<T, int8_t>;
  static constexpr int kVAt = kKvBlock * kRowBytes, kScalesAt = 2 * kVAt;
  static constexpr int kStageBytes = kScalesAt + (kScaled ? 2 * kKvBlock * 4 : 0);
  static constexpr int kFit = (kDeep ? 2 : 1) * kStageLimit / kStageBytes;
  static constexpr int kStages = kFit < 2 ? 2 : kFit > 8 ? 8 : kFit;
  static constexpr int kWarpBytes = kStages * kStageBytes, kRingBytes = kWarps * kWarpBytes;
  static_assert(kStageBytes >= (kMany ? 8 : 4) * D * 4, "sums take the place of a block");

  uint32_t q[kQParts][kSections * kSteps][2];
  float o[D / 16][4];
  float m[2], l[2];  // of this lane's two columns

  __device__ __forceinline__ void Start(const DeviceAttentionArgs& a, const Unit& u, int lane) {
    const int g = lane / 4, t = lane % 4;
    const float scale = a.scale * 1.4426950408889634f;
    const int query = kMany ? g : g % 4;
    const float* from =
        a.q + (static_cast<int64_t>(u.token) * a.heads + u.first_head + query) * a.kv.head_dim;
    const int dims = query < u.queries ? a.kv.head_dim : 0;
    // All loads are issued first, so that their latencies overlap.
    constexpr int kFours = kSections * kSteps;
    const auto dim_of = [&](int i) { return (i / kSteps * 4 + t) * kElements + i % kSteps * 4; };
    float of_q[kFours][4] = {};
    if (a.kv.head_dim % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kFours; ++i)
        if (dim_of(i) < dims) {
          const float4 four = __ldcg(reinterpret_cast<const float4*>(from + dim_of(i)));
          of_q[i][0] = four.x, of_q[i][1] = four.y, of_q[i][2] = four.z, of_q[i][3] = four.w;
        }
    } else {
#pragma unroll
      for (int i = 0; i < kFours; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (dim_of(i) + e < dims) of_q[i][e] = __ldcg(from + dim_of(i) + e);
    }
#pragma unroll
    for (int i = 0; i < kFours; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float low = of_q[i][2 * h] * scale, high = of_q[i][2 * h + 1] * scale;
        const uint32_t top = PackFactors<F>(low, high), rest = PackRest<F>(low, high, top);
        if constexpr (kMany) {
          q[0][i][h] = top;
          q[1][i][h] = rest;
        } else {
          q[0][i][h] = g < 4 ? top : rest;
        }
      }
#pragma unroll
    for (int i = 0; i < D / 16; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
  }

  // Starts to copy a block; `k` and `v` are where this head's part of it begins, `to` is this warp's. Behind
  // the end of a row comes its last vector, which meets zeros in q, or makes dimensions that are never read.
  static __device__ __forceinline__ void Copy(uint32_t to, const std::byte* k, const std::byte* v,
                                              int row_bytes, int lane) {
    const int vector = lane % kVectors;
    const int64_t from = lane / kVectors * row_bytes + min(vector * 16, row_bytes - 16);
    constexpr int kRowsAtOnce = 32 / kVectors;
    const std::byte* next = k + from;
#pragma unroll
    for (int first = 0; first < kKvBlock; first += kRowsAtOnce, next += kRowsAtOnce * row_bytes) {
      const int row = first + lane / kVectors;
      AsyncCopy<16>(to + row * kRowBytes + (vector ^ MoveK(row)) * 16, next);
    }
    next = v + from;
#pragma unroll
    for (int first = 0; first < kKvBlock; first += kRowsAtOnce, next += kRowsAtOnce * row_bytes) {
      const int row = first + lane / kVectors;
      AsyncCopy<16>(to + kVAt + row * kRowBytes + (vector ^ MoveV(row)) * 16, next);
    }
    if constexpr (kScaled)
      if (lane < 8)
        AsyncCopy<16>(to + kScalesAt + lane * 16, (lane < 4 ? k : v) + kKvBlock * row_bytes + lane % 4 * 16);
  }
  // Of keys g and g + 8; `which` is 0 for K and 1 for V.
  static __device__ __forceinline__ float2 Scales(uint32_t stage, int lane, int which) {
    Words<1> s[2];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      LoadWords(s[r], stage + kScalesAt + (which * kKvBlock + lane / 4 + 8 * r) * 4);
    return make_float2(__uint_as_float(s[0].w[0]), __uint_as_float(s[1].w[0]));
  }

  // 16 keys times 8 columns.
  __device__ __forceinline__ void MultiplyK(uint32_t stage, int lane, float (&s)[4]) const {
    float part[2][4] = {};  // two chains of products, for their latency
#pragma unroll
    for (int i = 0; i < kSections; ++i) {
      Words<4> k[2];
#pragma unroll
      for (int r = 0; r < 2; ++r)
        LoadWords(k[r], stage + (lane / 4 + 8 * r) * kRowBytes + ((i * 4 + lane % 4) ^ MoveK(lane / 4)) * 16);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t a[4];
        if constexpr (kNarrow<T>) {
          const uint2 top = Widen<T>(Biased<T>(k[0].w[step])), low = Widen<T>(Biased<T>(k[1].w[step]));
          a[0] = top.x, a[1] = low.x, a[2] = top.y, a[3] = low.y;
        } else {
          a[0] = k[0].w[2 * step], a[1] = k[1].w[2 * step];
          a[2] = k[0].w[2 * step + 1], a[3] = k[1].w[2 * step + 1];
        }
        const int at = i * kSteps + step;
#pragma unroll
        for (int h = 0; h < kQParts; ++h)
          Mma<F>(part[(kMany ? h : step) % 2], a[0], a[1], a[2], a[3], q[h][at][0], q[h][at][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = part[0][i] + part[1][i];
    FinishScores(stage, lane, s);
  }
  // The two parts of a query together, the keys' scales.
  static __device__ __forceinline__ void FinishScores(uint32_t stage, int lane, float (&s)[4]) {
    if constexpr (!kMany)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i] += __shfl_xor_sync(0xffffffffu, s[i], 2);
    if constexpr (kScaled) {
      const float2 scale = Scales(stage, lane, 0);
      s[0] *= scale.x, s[1] *= scale.x, s[2] *= scale.y, s[3] *= scale.y;
    }
  }

  // Online softmax: scores of keys first_key + g and + 8 to weights relative to the running maximum; what
  // comes back is B.
  __device__ __forceinline__ void Weigh(uint32_t stage, float (&s)[4], int first_key, const Span& span,
                                        int lane, uint32_t (&p)[kQParts][2]) {
    const int g = lane / 4;
    if (first_key < span.first || first_key + kKvBlock - 1 > span.position)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + g + i / 2 * 8;
        if (key < span.first || key > span.position) s[i] = -INFINITY;
      }
    float top[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(s[i], s[i + 2]);
#pragma unroll
      for (int apart = 4; apart < 32; apart *= 2)
        top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], apart));
    }
    if (__any_sync(0xffffffffu, top[0] > m[0] || top[1] > m[1])) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float next = fmaxf(m[i], top[i]);
        const float shrink = next == -INFINITY ? 1 : exp2f(m[i] - next);
        m[i] = next;
        l[i] *= shrink;
#pragma unroll
        for (int n = 0; n < D / 16; ++n) o[n][i] *= shrink, o[n][i + 2] *= shrink;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = m[i % 2] == -INFINITY ? 0 : exp2f(s[i] - m[i % 2]);
      l[i % 2] += s[i];
    }
    if constexpr (kScaled) {
      const float2 scale = Scales(stage, lane, 1);
      s[0] *= scale.x * kScaleUp, s[1] *= scale.x * kScaleUp;
      s[2] *= scale.y * kScaleUp, s[3] *= scale.y * kScaleUp;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t part = PackFactors<F>(s[2 * h], s[2 * h + 1]);
      const uint32_t rest = PackRest<F>(s[2 * h], s[2 * h + 1], part);
      if constexpr (kMany) {
        p[0][h] = Transpose(part);
        p[1][h] = Transpose(rest);
      } else {
        p[0][h] = Transpose(lane % 4 < 2 ? part : rest);
      }
    }
  }

  __device__ __forceinline__ void MultiplyV(uint32_t stage, int lane, const uint32_t (&p)[kQParts][2],
                                            int first_key, const Span& span) {
    // Rows of keys that do not exist may hold anything.
    uint32_t exists[4] = {~0u, ~0u, ~0u, ~0u};
    if (first_key < span.first || first_key + kKvBlock - 1 > span.position)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int key = first_key + lane % 4 * 2 + r % 2 + r / 2 * 8;
        if (key < span.first || key > span.position) exists[r] = 0;
      }
#pragma unroll
    for (int i = 0; i < kVLoads; ++i) {
      Words<kVBytes / 4> v[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int row = lane % 4 * 2 + r % 2 + r / 2 * 8, byte = (i * 8 + lane / 4) * kVBytes;
        LoadWords(v[r], stage + kVAt + row * kRowBytes + (byte / 16 ^ MoveV(row)) * 16 + byte % 16);
#pragma unroll
        for (int w = 0; w < kVBytes / 4; ++w) v[r].w[w] = Biased<T>(v[r].w[w] & exists[r]);
      }
#pragma unroll
      for (int w = 0; w < kVBytes / 4; ++w) {
        const int tile = i * (kVElements / 2) + w * (2 / kBytes);
        const uint32_t w0 = v[0].w[w], w1 = v[1].w[w], w2 = v[2].w[w], w3 = v[3].w[w];
        if constexpr (kNarrow<T>) {
          // Bytes of keys side by side: (2t, 2t + 1) and (2t + 8, 2t + 9) of dimensions 0 .. 3.
          const uint2 near01 = Widen<T>(__byte_perm(w0, w1, 0x5140)),
                      near23 = Widen<T>(__byte_perm(w0, w1, 0x7362));
          const uint2 far01 = Widen<T>(__byte_perm(w2, w3, 0x5140)),
                      far23 = Widen<T>(__byte_perm(w2, w3, 0x7362));
#pragma unroll
          for (int h = 0; h < kQParts; ++h) {
            Mma<F>(o[tile], near01.x, near01.y, far01.x, far01.y, p[h][0], p[h][1]);
            Mma<F>(o[tile + 1], near23.x, near23.y, far23.x, far23.y, p[h][0], p[h][1]);
          }
        } else {
          const uint32_t a0 = __byte_perm(w0, w1, 0x5410), a1 = __byte_perm(w0, w1, 0x7632);
          const uint32_t a2 = __byte_perm(w2, w3, 0x5410), a3 = __byte_perm(w2, w3, 0x7632);
#pragma unroll
          for (int h = 0; h < kQParts; ++h) Mma<F>(o[tile], a0, a1, a2, a3, p[h][0], p[h][1]);
        }
      }
    }
  }

  // To shared memory, by warp: reductions over the lanes that hold other keys, and over the two parts.
  __device__ __forceinline__ void Write(Shared& shared, char* rings, int sums_at, int warp, int lane,
                                        int count) {
    const int g = lane / 4, t = lane % 4;
    float* sums = reinterpret_cast<float*>(rings + sums_at);
    if (lane == 0) shared.sums_at[warp] = sums_at;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int apart = 4; apart < 32; apart *= 2) l[i] += __shfl_xor_sync(0xffffffffu, l[i], apart);
    if constexpr (!kMany)
#pragma unroll
      for (int n = 0; n < D / 16; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[n][i] += __shfl_xor_sync(0xffffffffu, o[n][i], 2);
    const float by = kScaled ? 1 / kScaleUp : 1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = 2 * t + i;
      if (query >= count) continue;  // without kMany there are at most 4
      if (g == 0) shared.m[warp][query] = m[i], shared.l[warp][query] = l[i];
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        constexpr int kTiles = kVElements / 2;  // of one load
        const int dim = n / kTiles * 8 * kVElements + g * kVElements + n % kTiles * 2;
        *reinterpret_cast<float2*>(sums + query * D + dim) = make_float2(o[n][i] * by, o[n][i + 2] * by);
      }
    }
  }
};

// Four neighbouring values from dimension `at` on, a multiple of four; the last ones may lie behind the head.
__device__ __forceinline__ void StoreResult(const DeviceAttentionArgs& a, int token, int head, int at,
                                            const float4& four) {
  const int column = head * a.kv.head_dim + at;
  const int64_t row = static_cast<int64_t>(token) * a.heads * a.kv.head_dim;
  if (a.kv.head_dim % 4 == 0) {
    if (at >= a.kv.head_dim) return;
    if (a.wgmma.data) {
      a.wgmma.StoreTwo(token, column, make_float2(four.x, four.y));
      a.wgmma.StoreTwo(token, column + 2, make_float2(four.z, four.w));
    } else if (a.rows) {
      auto* to = static_cast<__nv_bfloat16*>(a.rows) + token * a.rows_width + column;
      reinterpret_cast<__nv_bfloat162*>(to)[0] = __floats2bfloat162_rn(four.x, four.y);
      reinterpret_cast<__nv_bfloat162*>(to)[1] = __floats2bfloat162_rn(four.z, four.w);
    } else {
      *reinterpret_cast<float4*>(a.out + row + column) = four;
    }
    return;
  }
  const float values[] = {four.x, four.y, four.z, four.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (at + i >= a.kv.head_dim) return;
    if (a.wgmma.data)
      a.wgmma.Store(token, column + i, values[i]);
    else if (a.rows)
      static_cast<__nv_bfloat16*>(a.rows)[token * a.rows_width + column + i] = __float2bfloat16(values[i]);
    else
      a.out[row + column + i] = values[i];
  }
}

// The results of a unit in fours: those that a thread has at once, kThreads apart.
template <int D, bool kMany>
constexpr int kFoursAtOnce = std::clamp((kMany ? 8 : 4) * D / 4 / kThreads, 1, 4);

// Of a sequence that is split: the block that finishes last combines the splits, in their order. `partial` is
// where they are, slot_floats apart. The time is that of its round trips to L2.
template <int D, bool kMany>
__device__ __forceinline__ void JoinSplits(const ScoredArgs& a, const Bunches& b, const Unit& u, int thread,
                                           const float* partial, int slot_floats, Shared& shared) {
  const int warp = thread / 32, lane = thread % 32;
  const int padded = a.kv.padded_dim, active = u.span.active;
  __threadfence();
  __syncthreads();
  if (thread == 0) {
    int32_t* ticket = a.tickets + u.token * b.columns + u.column;
    shared.last = atomicAdd(ticket, 1) == active - 1;
    if (shared.last) *ticket = 0;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  constexpr int kQueries = (kMany ? 8 : 4) / kWarps, kRuns = kMostSplits / 32;  // of a warp; of its lanes
  float2 top_and_sum[kQueries][kRuns];
#pragma unroll
  for (int q = 0; q < kQueries; ++q)
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      const int i = warp + q * kWarps, s = lane + 32 * j;
      top_and_sum[q][j] = make_float2(-INFINITY, 0);
      if (i < u.queries && s < active)
        top_and_sum[q][j] = __ldcg(reinterpret_cast<const float2*>(partial + s * slot_floats + 4 * i));
    }
#pragma unroll
  for (int q = 0; q < kQueries; ++q) {
    float top = -INFINITY, total = 0, weight[kRuns];
#pragma unroll
    for (int j = 0; j < kRuns; ++j) top = fmaxf(top, top_and_sum[q][j].x);
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
#pragma unroll
    for (int j = 0; j < kRuns; ++j) {
      weight[j] = top_and_sum[q][j].x == -INFINITY ? 0 : exp2f(top_and_sum[q][j].x - top);
      total += top_and_sum[q][j].y * weight[j];
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) total += __shfl_xor_sync(0xffffffffu, total, apart);
    if (const int query = warp + q * kWarps; query < u.queries)
      total += SinkWeight(a.scores, u.first_head + query, top);
#pragma unroll
    for (int j = 0; j < kRuns; ++j) shared.weight[warp + q * kWarps][lane + 32 * j] = weight[j] / total;
  }
  __syncthreads();
  constexpr int kFours = kFoursAtOnce<D, kMany>, kAtOnce = 16 / kFours;  // splits
  const int fours = u.queries * padded / 4;
  for (int first = thread; first < fours; first += kThreads * kFours) {
    float4 sum[kFours] = {};
    for (int s = 0; s < active; s += kAtOnce) {
      float4 o[kFours][kAtOnce];
#pragma unroll
      for (int n = 0; n < kFours; ++n)
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j)
          if (first + n * kThreads < fours && s + j < active)
            o[n][j] =
                __ldcg(reinterpret_cast<const float4*>(partial + (s + j) * slot_floats + 4 * b.at_once) +
                       first + n * kThreads);
#pragma unroll
      for (int n = 0; n < kFours; ++n) {
        if (first + n * kThreads >= fours) break;
        const float* weights = shared.weight[(first + n * kThreads) * 4 / padded] + s;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (s + j >= active) break;
          const float f = weights[j];
          sum[n].x += o[n][j].x * f, sum[n].y += o[n][j].y * f;
          sum[n].z += o[n][j].z * f, sum[n].w += o[n][j].w * f;
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kFours; ++n) {
      const int at = (first + n * kThreads) * 4;
      if (at < fours * 4) StoreResult(a, u.token, u.first_head + at / padded, at % padded, sum[n]);
    }
  }
}

// Combines what the warps have written, into the result or into the splits. When it returns, other threads
// may still be reading.
template <int D, bool kMany>
__device__ __forceinline__ void Finish(const ScoredArgs& a, const Bunches& b, const Unit& u, int thread,
                                       char* rings, Shared& shared) {
  const int padded = a.kv.padded_dim;
  const bool whole = u.span.active == 1;
  // A split's part: the largest score and the sum of weights of each query, then its weighted sums.
  const int slot_floats = b.at_once * (padded + 4);
  float* partial =
      a.partial + (static_cast<int64_t>(u.token) * b.columns + u.column) * a.splits * slot_floats;
#pragma unroll kFoursAtOnce < D, kMany>
  for (int at = thread * 4; at < u.queries * padded; at += kThreads * 4) {
    const int i = at / padded, e = at % padded;
    float top = -INFINITY, l = 0;
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int v = 0; v < kWarps; ++v) top = fmaxf(top, shared.m[v][i]);
#pragma unroll
    for (int v = 0; v < kWarps; ++v) {
      const float f = shared.m[v][i] == -INFINITY ? 0 : exp2f(shared.m[v][i] - top);
      const float4 part = *reinterpret_cast<const float4*>(shared.Sums(rings, v) + i * D + e);
      l += shared.l[v][i] * f;
      o.x += part.x * f, o.y += part.y * f, o.z += part.z * f, o.w += part.w * f;
    }
    if (whole) {
      l += SinkWeight(a.scores, u.first_head + i, top);
      StoreResult(a, u.token, u.first_head + i, e, make_float4(o.x / l, o.y / l, o.z / l, o.w / l));
    } else {
      float* to = partial + u.split * slot_floats;
      *reinterpret_cast<float4*>(to + 4 * b.at_once + at) = o;
      if (e == 0) to[4 * i] = top, to[4 * i + 1] = l;
    }
  }
  if (!whole) JoinSplits<D, kMany>(a, b, u, thread, partial, slot_floats, shared);
}

}  // namespace celer::cuda::attention
