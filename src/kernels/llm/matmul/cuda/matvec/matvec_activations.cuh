// The prologue: activations from f32 in global memory to two parts in shared memory, by the warps that
// multiply.
#pragma once

#include "kernels/llm/matmul/cuda/handover.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_tiles.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda::matvec {

// The absmax of a warp; NaN, which has larger bits than all numbers, if there is one.
__device__ __forceinline__ float WarpMost(float v) {
  return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(v)));
}
// Sums of a warp's values, or of its halves or quarters: of `lanes` lanes each.
__device__ __forceinline__ int SumOfLanes(int v, int lanes) {
  if (lanes == 32) return __reduce_add_sync(0xffffffffu, v);
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  v += __shfl_xor_sync(0xffffffffu, v, 2);
  if (lanes > 4) v += __shfl_xor_sync(0xffffffffu, v, 4);
  if (lanes > 8) v += __shfl_xor_sync(0xffffffffu, v, 8);
  return v;
}

// Where activations go, copied to registers: the parameters may lie in shared memory themselves, where every
// store may alias them as far as the compiler knows.
template <int S>
struct XPlace {
  char* x;
  float *steps, *sums;  // of int4 in groups of 128: pairs of both in `steps`
  int padded, plane_bytes, shift;

  __device__ __forceinline__ XPlace(const Params& p, char* shared)
      : x(shared + p.x_offset),
        steps(reinterpret_cast<float*>(shared + p.xs_offset)),
        sums(reinterpret_cast<float*>(shared + p.xsum_offset)),
        padded(p.a.a.padded),
        plane_bytes(p.plane_bytes),
        shift(p.group_shift) {}
  __device__ __forceinline__ int group_shift() const { return S > 0 ? S : shift; }
};

// Four values as 16-bit integers, and those as two bytes: 128 high + low, -64 <= low < 64. The order of the
// values in the words is 0 1 2 3, or 0 2 1 3 for int4, whose weights come out of their bytes that way.
struct Bytes {
  uint32_t high, low;
  int sum;
};
template <bool Int4>
__device__ __forceinline__ Bytes ToBytes(const float4& v, float inverse) {
  // A float of this size has its integer part in the lowest bits. The 64 makes shifting round.
  constexpr float kShift = 12582912.0f + 64;
  const uint32_t t0 = __float_as_uint(fmaf(v.x, inverse, kShift)),
                 t1 = __float_as_uint(fmaf(v.y, inverse, kShift));
  const uint32_t t2 = __float_as_uint(fmaf(v.z, inverse, kShift)),
                 t3 = __float_as_uint(fmaf(v.w, inverse, kShift));
  const uint32_t a = __byte_perm(t0, Int4 ? t2 : t1, 0x5410), b = __byte_perm(Int4 ? t1 : t2, t3, 0x5410);
  Bytes out;
  out.high = __byte_perm(a >> 7, b >> 7, 0x6420);
  out.low = (((__byte_perm(a, b, 0x6420) & 0x7f7f7f7fu) | 0x80808080u) - 0x40404040u) ^ 0x80808080u;
  out.sum = static_cast<int>(t0 + t1 + t2 + t3 - 4u * (0x4b400000u + 64));
  return out;
}

// 128 columns of a token, four to a lane. x = step * (128 high + low), |128 high + low| <= 127 * 128.
template <Format F, int S>
__device__ __forceinline__ void StoreActivation(const XPlace<S>& p, int token, int group, int lane, float4 v,
                                                float most) {
  if constexpr (!IsInteger(F)) {
    const uint32_t h0 = PackBf16(v.x, v.y), h1 = PackBf16(v.z, v.w);
    const float2 f0 = UnpackBf16(h0), f1 = UnpackBf16(h1);
    const uint32_t l0 = PackBf16(v.x - f0.x, v.y - f0.y), l1 = PackBf16(v.z - f1.x, v.w - f1.y);
    char* to = p.x + (static_cast<size_t>(token) * p.padded + group * 128 + lane * 4) * 2;
    *reinterpret_cast<uint2*>(to) = make_uint2(h0, h1);
    *reinterpret_cast<uint2*>(to + p.plane_bytes) = make_uint2(l0, l1);
  } else {
    const float step = most * (1.0f / 16256.0f), inverse = most > 1e-30f ? __fdividef(16256.0f, most) : 0.0f;
    const Bytes bytes = ToBytes<HasEvenOdd(F)>(v, inverse);
    char* to = p.x + token * p.padded + group * 128 + lane / 16 * 64 + lane % 8 / 2 * 16 + lane % 16 / 8 * 8;
    if constexpr (!HasEvenOdd(F)) {
      to += lane % 2 * 4;
      *reinterpret_cast<uint32_t*>(to) = bytes.high;
      *reinterpret_cast<uint32_t*>(to + p.plane_bytes) = bytes.low;
    } else {
      to += lane % 2 * 2;
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(bytes.high);
      *reinterpret_cast<uint16_t*>(to + 4) = static_cast<uint16_t>(bytes.high >> 16);
      *reinterpret_cast<uint16_t*>(to + p.plane_bytes) = static_cast<uint16_t>(bytes.low);
      *reinterpret_cast<uint16_t*>(to + p.plane_bytes + 4) = static_cast<uint16_t>(bytes.low >> 16);
    }
    if constexpr (HasSums(F)) {
      // The group's minimum counts once per unit of x.
      const int shift = p.group_shift(), lanes = 1 << (shift - 2);
      const float sum = step * static_cast<float>(SumOfLanes(bytes.sum, lanes));
      if constexpr (S == 7) {
        if (lane == 0)
          reinterpret_cast<float2*>(p.steps)[token * (p.padded >> 7) + group] = make_float2(step, sum);
        return;
      }
      if ((lane & (lanes - 1)) == 0)
        p.sums[token * (p.padded >> shift) + ((group * 128 + lane * 4) >> shift)] = sum;
    }
    if (lane == 0) p.steps[token * (p.padded >> 7) + group] = step;
  }
}

// All activations of a product, part by part: 4096 columns of all tokens, two times 128 to a warp. Double
// buffering: while a part is multiplied with, the next one is in flight. Partial sums of squares go to shared
// memory, [tokens, warps]; the epilogue makes the norm's scale of them.
template <Format F, int S>
class Feed {
 public:
  static constexpr int kPartCols = 2 * kWarps * 128;

  // `tag` is that of x if other blocks of this kernel are writing it, or kUntagged.
  __device__ __forceinline__ Feed(const Params& p, char* shared, int warp, int lane, int tag)
      : place_(p, shared),
        squares_(reinterpret_cast<float*>(shared + p.sum_offset) + warp),
        x_(p.a.x),
        norm_(p.a.norm),
        rows_(p.a.rows),
        stride_(p.a.x_stride),
        cols_(p.a.a.cols),
        tokens_(p.a.tokens),
        warp_(warp),
        lane_(lane),
        tag_(tag) {}

  // Everything that need not wait for others is on its way before `wait` is called.
  template <class Wait>
  __device__ __forceinline__ void Start(const Wait& wait) {
    LoadNorm();
    wait();
    Load(0);
  }
  // Instead of Start: they have been there since the last product.
  __device__ __forceinline__ void Skip() { begin_ = place_.padded; }
  __device__ __forceinline__ bool more() const { return begin_ < place_.padded; }
  __device__ __forceinline__ int ready() const { return begin_; }  // columns

  // The next part. `loaded` is called once it has come, before the warps meet.
  template <class Loaded>
  __device__ __forceinline__ void Next(const Loaded& loaded) {
    for (int token = 0; token < tokens_; ++token) {
      if (token > 0) Load(token);
      if (tag_ != kUntagged) {
        // Only what is missing is loaded again: these loads share L2 with the weights. In whole fours.
        for (;;) {
          const bool first = Missing(v_[0], tag_), second = Missing(v_[1], tag_);
          if (!first && !second) break;
          Pause();
          const float* from = x_ + token * stride_ + begin_ + warp_ * 128 + lane_ * 4;
          if (first) v_[0] = LoadRelaxed(from);
          if (second) v_[1] = LoadRelaxed(from + kWarps * 128);
        }
        __syncwarp();
        v_[0] = Untagged(v_[0]), v_[1] = Untagged(v_[1]);
        // Others may still be multiplying with what the last product left there.
        if (begin_ == 0 && token == 0) ConsumerBarrier();
      }
      if (begin_ + kWarps * 128 < place_.padded)
        Convert<2>(token);
      else
        Convert<1>(token);
    }
    begin_ += kPartCols;
    if (more()) {
      LoadNorm();
      Load(0);
    } else if (norm_) {
      ArrivePair(4);
    }
    loaded();
    ConsumerBarrier();
  }

 private:
  __device__ __forceinline__ int Column(int i) const {
    return begin_ + (i * kWarps + warp_) * 128 + lane_ * 4;
  }
  // Fours that are whole and aligned.
  __device__ __forceinline__ bool whole() const { return ((stride_ | cols_) & 3) == 0; }

  __device__ __forceinline__ void LoadNorm() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int col = Column(i);
      weight_[i] = make_float4(1, 1, 1, 1);
      if (!norm_) continue;
      if (whole()) {
        // Not __ldg: the compiler would move it behind the wait for x.
        if (col < cols_) weight_[i] = LoadRelaxed(norm_ + col);
      } else {
        if (col < cols_) weight_[i].x = __ldg(norm_ + col);
        if (col + 1 < cols_) weight_[i].y = __ldg(norm_ + col + 1);
        if (col + 2 < cols_) weight_[i].z = __ldg(norm_ + col + 2);
        if (col + 3 < cols_) weight_[i].w = __ldg(norm_ + col + 3);
      }
    }
  }

  __device__ __forceinline__ void Load(int token) {
    const float* from = x_ + (rows_ ? __ldcg(rows_ + token) : token) * stride_;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int col = Column(i);
      const float none = tag_ == kUntagged ? 0.0f : __uint_as_float(static_cast<uint32_t>(tag_));
      v_[i] = make_float4(none, none, none, none);
      if (tag_ != kUntagged) {  // always in whole fours
        if (col < cols_) v_[i] = LoadRelaxed(from + col);
      } else if (whole()) {
        if (col < cols_) v_[i] = __ldcg(reinterpret_cast<const float4*>(from + col));
      } else {
        if (col < cols_) v_[i].x = __ldcg(from + col);
        if (col + 1 < cols_) v_[i].y = __ldcg(from + col + 1);
        if (col + 2 < cols_) v_[i].z = __ldcg(from + col + 2);
        if (col + 3 < cols_) v_[i].w = __ldcg(from + col + 3);
      }
    }
  }

  // Step by step for all N, so that they need not wait for each other's shuffles.
  template <int N>
  __device__ __forceinline__ void Convert(int token) {
    if (norm_) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        float4& v = v_[i];
        const float4& w = weight_[i];
        squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        v = make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
      }
#pragma unroll
      for (int i = 16; i > 0; i /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, i);
      if (lane_ == 0) {
        float* to = squares_ + token * kWarps;
        *to = begin_ == 0 ? squares : *to + squares;
      }
    }
    float most[N];
    if constexpr (IsInteger(F)) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float4& v = v_[i];
        most[i] = WarpMost(MaxOrNan(MaxOrNan(fabsf(v.x), fabsf(v.y)), MaxOrNan(fabsf(v.z), fabsf(v.w))));
      }
    }
    const int group = begin_ / 128 + warp_;
#pragma unroll
    for (int i = 0; i < N; ++i)
      if ((group + i * kWarps) * 128 < place_.padded)
        StoreActivation<F, S>(place_, token, group + i * kWarps, lane_, v_[i], most[i]);
  }

  XPlace<S> place_;
  float* squares_;
  const float *x_, *norm_;
  const int32_t* rows_;
  int64_t stride_;
  int cols_, tokens_, warp_, lane_;
  int begin_ = 0;  // of the part that is on its way
  int tag_;
  float4 v_[2], weight_[2];
};

}  // namespace celer::cuda::matvec
