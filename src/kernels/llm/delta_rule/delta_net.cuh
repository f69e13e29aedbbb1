// What the kernels of a prompt and of a step have in common. Multiplications and additions are spelled out, so that the
// compiler contracts none of them in one kernel and not in the other.
#pragma once

#include "kernels/llm/delta_rule/delta_net_cuda.h"

namespace celer::cuda {

constexpr float kDeltaLengthEps = 1e-6f;  // added to the square of the length of q and k

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, apart));
  return x;
}

__device__ __forceinline__ float DeltaSigmoid(float x) {
  return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
}
__device__ __forceinline__ float DeltaSilu(float x) {
  return __fdiv_rn(x, __fadd_rn(1.0f, expf(-x)));
}

// The inputs of a token's convolution: those of its own batch from `in`, older ones from the state. kKernel: a.shape's
// conv_kernel, or 0 for any.
template <int kKernel>
class DeltaWindow {
 public:
  // `before`: tokens of the sequence in front of this one in the batch.
  __device__ __forceinline__ DeltaWindow(const DeltaNetArgs& a, const float* token, const float* state,
                                         int position, int before)
      : a_(a), token_(token), state_(state), position_(position), before_(before) {
    if constexpr (kKernel > 0)
#pragma unroll
      for (int back = 1; back < kKernel; ++back) rows_[back - 1] = Row(back);
  }

  // The sum but for the token's own input, and what that is multiplied with.
  struct Past {
    float sum, weight;
  };
  __device__ __forceinline__ Past Sum(int channel) const {
    if constexpr (kKernel == 4) {
      const float4 w = __ldg(reinterpret_cast<const float4*>(a_.conv) + channel);
      const float x[3] = {At(rows_[2], channel), At(rows_[1], channel), At(rows_[0], channel)};
      return {__fmaf_rn(w.z, x[2], __fmaf_rn(w.y, x[1], __fmaf_rn(w.x, x[0], 0.0f))), w.w};
    } else {
      const int kernel = a_.shape.conv_kernel;
      const float* const w = a_.conv + static_cast<int64_t>(channel) * kernel;
      float sum = 0;
      for (int back = kernel - 1; back > 0; --back)
        sum = __fmaf_rn(__ldg(w + kernel - 1 - back), At(Row(back), channel), sum);
      return {sum, __ldg(w + kernel - 1)};
    }
  }
  __device__ __forceinline__ float Whole(int channel, const Past& past) const {
    return DeltaSilu(__fmaf_rn(past.weight, __ldcg(token_ + channel), past.sum));
  }

 private:
  // Of the token so many places back; null in front of the first one.
  __device__ __forceinline__ const float* Row(int back) const {
    if (back <= before_) return token_ - back * a_.in_stride;
    if (back > position_) return nullptr;
    return state_ + static_cast<int64_t>((position_ - back) % a_.shape.conv_kernel) * a_.shape.channels();
  }
  static __device__ __forceinline__ float At(const float* row, int channel) {
    return row ? __ldcg(row + channel) : 0.0f;
  }

  const DeltaNetArgs& a_;
  const float *token_, *state_;
  int position_, before_;
  const float* rows_[kKernel > 1 ? kKernel - 1 : 1];
};

// q or k of one key head by a warp, which has its dimensions lane, lane + 32, ...
template <int kRows, int kKernel>
struct DeltaKey {
  using Window = DeltaWindow<kKernel>;
  static constexpr int kEach = kRows / 8;
  typename Window::Past past[kEach];
  float x[kEach];

  // `channel`: of its first dimension. Lanes beyond key_dim read what others have.
  __device__ __forceinline__ void Begin(const DeltaNetArgs& a, const Window& window, int channel, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) past[i] = window.Sum(channel + min(lane + 32 * i, a.shape.key_dim - 1));
  }
  // Zero beyond key_dim.
  __device__ __forceinline__ void Convolve(const DeltaNetArgs& a, const Window& window, int channel,
                                           int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      x[i] = window.Whole(channel + min(lane + 32 * i, a.shape.key_dim - 1), past[i]);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 32 * i >= a.shape.key_dim) x[i] = 0;
  }
  __device__ __forceinline__ float Squares() const {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) squares = __fmaf_rn(x[i], x[i], squares);
    return WarpSum(squares);
  }
  __device__ __forceinline__ void Scale(float scale) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) x[i] = __fmul_rn(x[i], scale);
  }
  __device__ __forceinline__ void Store(float* to, int lane) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) to[lane + 32 * i] = x[i];
  }
};

// To the lengths 1 / sqrt(key_dim) and 1.
__device__ __forceinline__ float DeltaQueryScale(const DeltaNetArgs& a, float squares) {
  return __frsqrt_rn(__fmul_rn(__fadd_rn(squares, kDeltaLengthEps), static_cast<float>(a.shape.key_dim)));
}
__device__ __forceinline__ float DeltaKeyScale(float squares) {
  return __frsqrt_rn(__fadd_rn(squares, kDeltaLengthEps));
}

struct DeltaGates {
  float decay, beta;
};
// `token`: row of the input.
__device__ __forceinline__ DeltaGates GatesOf(const DeltaNetArgs& a, const float* token, int head) {
  const float* const b = token + a.shape.channels() + a.shape.values();
  const float x = __fadd_rn(__ldcg(b + a.shape.value_heads + head), __ldg(a.dt_bias + head));
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  return {expf(__fmul_rn(-__ldg(a.rate + head), softplus)), DeltaSigmoid(__ldcg(b + head))};
}

// Eight columns of a head's matrix in a warp: lane 8p + r has the columns 2p and 2p + 1, of their rows 32j + 4r + (0 .. 3).
// With two columns a number of q or k that is read from shared memory is multiplied twice.
template <int kRows>
struct DeltaColumns {
  static constexpr int kFours = kRows / 8;  // of a column
  float4 s[2][kFours];

  __device__ __forceinline__ void Zero() {
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int j = 0; j < kFours; ++j) s[c][j] = make_float4(0, 0, 0, 0);
  }
  // `from`: of this head and group of columns.
  __device__ __forceinline__ void Load(const float* from, int lane) {
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int j = 0; j < kFours; ++j)
        s[c][j] = __ldcg(reinterpret_cast<const float4*>(from) + (c * kFours + j) * 32 + lane);
  }
  __device__ __forceinline__ void Store(float* to, int lane) const {
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int j = 0; j < kFours; ++j)
        __stcg(reinterpret_cast<float4*>(to) + (c * kFours + j) * 32 + lane, s[c][j]);
  }

  // Which of the group's columns Step() returns y of, and takes v of.
  static __device__ __forceinline__ int Column(int lane) {
    return lane / 4;
  }
  static __device__ __forceinline__ bool Writes(int lane) {
    return lane % 4 == 0;
  }

  // One token. `product`: q times k. kReload: k is read twice, which takes fewer registers.
  template <bool kReload>
  __device__ __forceinline__ float Step(const float* q, const float* k, float v, const DeltaGates& gates,
                                        float product, int lane) {
    const int row = lane % 8 * 4;
    float sk[2][2] = {}, sq[2][2] = {};
    float4 keys[kFours];
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      keys[j] = *reinterpret_cast<const float4*>(k + 32 * j + row);
      const float4 query = *reinterpret_cast<const float4*>(q + 32 * j + row);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        Multiply(s[c][j], keys[j], sk[c]);
        Multiply(s[c][j], query, sq[c]);
      }
    }
    float recalled = OfOwnColumn(__fadd_rn(sk[0][0], sk[0][1]), __fadd_rn(sk[1][0], sk[1][1]), lane);
    float old = OfOwnColumn(__fadd_rn(sq[0][0], sq[0][1]), __fadd_rn(sq[1][0], sq[1][1]), lane);
#pragma unroll
    for (int apart = 1; apart < 4; apart *= 2) {
      recalled = __fadd_rn(recalled, __shfl_xor_sync(0xffffffffu, recalled, apart));
      old = __fadd_rn(old, __shfl_xor_sync(0xffffffffu, old, apart));
    }
    const float delta = __fmul_rn(gates.beta, __fmaf_rn(-gates.decay, recalled, v));
    const float other = __shfl_xor_sync(0xffffffffu, delta, 4);
    const bool second = lane & 4;
    const float deltas[2] = {second ? other : delta, second ? delta : other};
    if constexpr (kReload) asm volatile("" ::: "memory");
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      const float4 key = kReload ? *reinterpret_cast<const float4*>(k + 32 * j + row) : keys[j];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float4& at = s[c][j];
        at.x = __fmaf_rn(key.x, deltas[c], __fmul_rn(gates.decay, at.x));
        at.y = __fmaf_rn(key.y, deltas[c], __fmul_rn(gates.decay, at.y));
        at.z = __fmaf_rn(key.z, deltas[c], __fmul_rn(gates.decay, at.z));
        at.w = __fmaf_rn(key.w, deltas[c], __fmul_rn(gates.decay, at.w));
      }
    }
    // (decay S + k delta)^T q, of the S before it.
    return __fmaf_rn(product, delta, __fmul_rn(gates.decay, old));
  }

 private:
  static __device__ __forceinline__ void Multiply(const float4& a, const float4& b, float (&sums)[2]) {
    sums[0] = __fmaf_rn(a.x, b.x, sums[0]);
    sums[1] = __fmaf_rn(a.y, b.y, sums[1]);
    sums[0] = __fmaf_rn(a.z, b.z, sums[0]);
    sums[1] = __fmaf_rn(a.w, b.w, sums[1]);
  }
  // Of the eight lanes with the same columns, four go on with each.
  static __device__ __forceinline__ float OfOwnColumn(float first, float second, int lane) {
    const bool upper = lane & 4;
    const float theirs = __shfl_xor_sync(0xffffffffu, upper ? first : second, 4);
    return __fadd_rn(upper ? second : first, theirs);
  }
};

// What the outputs of a head are multiplied with, by a warp; `y(i)`: the i-th of value_dim.
template <class Y>
__device__ __forceinline__ float DeltaNormScale(const DeltaNetArgs& a, const Y& y, int lane) {
  float squares = 0;
  for (int i = lane; i < a.shape.value_dim; i += 32) squares = __fmaf_rn(y(i), y(i), squares);
  const float mean = __fdiv_rn(WarpSum(squares), static_cast<float>(a.shape.value_dim));
  return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, a.eps)));
}
__device__ __forceinline__ float DeltaGated(const DeltaNetArgs& a, float y, float scale, int column,
                                            float z) {
  return __fmul_rn(__fmul_rn(__fmul_rn(y, scale), __ldg(a.norm + column)), DeltaSilu(z));
}

__device__ __forceinline__ int DeltaKeyHead(const DeltaNetShape& s, int value_head) {
  return s.tiled_values ? value_head % s.key_heads : value_head / (s.value_heads / s.key_heads);
}

// Calls `launch` with a quarter of the rows and the kernel of the convolution as template arguments.
template <class Launch>
cudaError_t WithDeltaShape(const DeltaNetShape& shape, const Launch& launch) {
  const bool four = shape.conv_kernel == 4;
  switch (shape.quarter_rows()) {
    case 8:
      return four ? launch.template operator()<8, 4>() : launch.template operator()<8, 0>();
    case 16:
      return four ? launch.template operator()<16, 4>() : launch.template operator()<16, 0>();
    case 32:
      return four ? launch.template operator()<32, 4>() : launch.template operator()<32, 0>();
    default:
      return four ? launch.template operator()<64, 4>() : launch.template operator()<64, 0>();
  }
}

}  // namespace celer::cuda
