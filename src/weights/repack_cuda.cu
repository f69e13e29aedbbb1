#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "formats/iq4_nl.h"
#include "kernels/shared/cuda/element.cuh"
#include "weights/repack_cuda.h"

namespace celer::cuda {
namespace {

__device__ __forceinline__ float HalfAt(const uint8_t* p) {  // blocks are 2-byte aligned
  return __half2float(*reinterpret_cast<const __half*>(p));
}

// The 6-bit scales and minima of Q4_K; see formats/k_scales.h.
__device__ __forceinline__ float2 Q4KGroup(const uint8_t* block, int g) {
  const uint8_t* s = block + 4;
  const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
  const int min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
  return make_float2(HalfAt(block) * static_cast<float>(scale),
                     -(HalfAt(block + 2) * static_cast<float>(min)));
}
__device__ __forceinline__ int Q4KValue(const uint8_t* block, int i) {
  return block[16 + 32 * (i / 64) + i % 32] >> (i / 32 % 2 * 4) & 15;
}

// The other GGUF blocks, all as scale * integer + minimum; `i` is the element's place in its block.
struct Quantized {
  int value;
  float scale, min;
  __device__ __forceinline__ float Decoded() const { return scale * static_cast<float>(value) + min; }
};
__device__ __forceinline__ int FifthBit(const uint8_t* bits, int i) {
  return (bits[i / 8] >> (i % 8) & 1) << 4;
}
__device__ __forceinline__ Quantized Q5Element(DType dtype, const uint8_t* data, int col) {
  if (dtype == DType::kQ5_K) {
    const uint8_t* block = data + col / 256 * 176;
    const int i = col % 256, g = i / 32;
    const float2 p = Q4KGroup(block, g);
    const int low = block[48 + 32 * (g / 2) + i % 32] >> (g % 2 * 4) & 15;
    return {low | (block[16 + i % 32] >> g & 1) << 4, p.x, p.y};
  }
  const int i = col % 32, min_bytes = dtype == DType::kQ5_1 ? 2 : 0;
  const uint8_t* block = data + col / 32 * (22 + min_bytes);
  const uint8_t* bits = block + 2 + min_bytes;
  const int q = (bits[4 + i % 16] >> (i / 16 * 4) & 15) | FifthBit(bits, i);
  return dtype == DType::kQ5_1 ? Quantized{q, HalfAt(block), HalfAt(block + 2)}
                               : Quantized{q - 16, HalfAt(block), 0.0f};
}
__device__ __forceinline__ Quantized Q2KElement(const uint8_t* data, int col) {
  const uint8_t* block = data + col / 256 * 84;
  const int i = col % 256, g = i / 16, packed = block[g];
  const int q = block[16 + 32 * (g / 8) + i % 32] >> (2 * (g / 2 % 4)) & 3;
  return {q, HalfAt(block + 80) * static_cast<float>(packed & 15),
          -(HalfAt(block + 82) * static_cast<float>(packed >> 4))};
}
__device__ __forceinline__ Quantized Q3KElement(const uint8_t* data, int col) {
  const uint8_t* block = data + col / 256 * 110;
  const uint8_t* scales = block + 96;
  const int i = col % 256, g = i / 16;
  const int low = scales[g % 8] >> (4 * (g / 8)) & 15, high = scales[8 + g % 4] >> (2 * (g / 4)) & 3;
  const int q =
      (block[32 + 32 * (g / 8) + i % 32] >> (2 * (g / 2 % 4)) & 3) - ((block[i % 32] >> (g / 2) & 1) ? 0 : 4);
  return {q, HalfAt(block + 108) * static_cast<float>((low | high << 4) - 32), 0.0f};
}
__device__ __forceinline__ Quantized Q6KElement(const uint8_t* data, int col) {
  const uint8_t* block = data + col / 256 * 210;
  const int i = col % 256, half = i / 128, g = i / 16;
  const int low = block[64 * half + i % 64] >> (i % 128 / 64 * 4) & 15;
  const int high = block[128 + 32 * half + i % 32] >> (i % 128 / 32 * 2) & 3;
  return {(low | high << 4) - 32,
          HalfAt(block + 208) * static_cast<float>(static_cast<int8_t>(block[192 + g])), 0.0f};
}
__constant__ Iq4NlLevels kLevels = kIq4NlLevels;
__device__ __forceinline__ Quantized Iq4NlElement(const uint8_t* data, int col) {
  const uint8_t* block = data + col / 32 * 18;
  return {kLevels.at[block[2 + col % 16] >> (col % 32 / 16 * 4) & 15], HalfAt(block), 0.0f};
}
// Types that become kInt8 without loss, in groups of this many columns; 0 for others.
__host__ __device__ constexpr int ExactInt8Group(DType dtype) {
  return dtype == DType::kQ5_0 || dtype == DType::kIq4Nl  ? 32
         : dtype == DType::kQ3_K || dtype == DType::kQ6_K ? 16
                                                          : 0;
}
__device__ __forceinline__ Quantized ExactInt8(DType dtype, const uint8_t* data, int col) {
  return dtype == DType::kQ5_0    ? Q5Element(dtype, data, col)
         : dtype == DType::kIq4Nl ? Iq4NlElement(data, col)
         : dtype == DType::kQ3_K  ? Q3KElement(data, col)
                                  : Q6KElement(data, col);
}

// celer's own formats: what stands beside the values.
__device__ __forceinline__ int64_t SourceGroup(const RepackArgs& a, int row, int col) {
  return static_cast<int64_t>(row) * (a.target.cols / a.source_group) + col / a.source_group;
}
__device__ __forceinline__ float2 Int4Params(const RepackArgs& a, int row, int col) {
  return __half22float2(static_cast<const __half2*>(a.source_scales)[SourceGroup(a, row, col)]);
}

__device__ float SourceElement(const RepackArgs& a, int row, int col) {
  const uint8_t* data = reinterpret_cast<const uint8_t*>(a.source) + row * a.source_row_bytes;
  switch (a.dtype) {
    case DType::kF32:
      return reinterpret_cast<const float*>(data)[col];
    case DType::kF16:
      return __half2float(reinterpret_cast<const __half*>(data)[col]);
    case DType::kBf16:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(data)[col]);
    case DType::kI8:
      return static_cast<float>(static_cast<int8_t>(data[col])) *
             static_cast<const float*>(a.source_scales)[SourceGroup(a, row, col)];
    case DType::kFp8E4M3:
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(data[col], __NV_E4M3))) *
             static_cast<const float*>(a.source_scales)[SourceGroup(a, row, col)];
    case DType::kU4: {
      const float2 p = Int4Params(a, row, col);
      return p.x * static_cast<float>(data[col / 2] >> (col % 2 * 4) & 15) + p.y;
    }
    case DType::kQ8_0: {
      const uint8_t* block = data + col / 32 * 34;
      return HalfAt(block) * static_cast<float>(static_cast<int8_t>(block[2 + col % 32]));
    }
    case DType::kQ4_0: {
      const uint8_t* block = data + col / 32 * 18;
      const int q = block[2 + col % 16] >> (col % 32 / 16 * 4) & 15;
      return HalfAt(block) * static_cast<float>(q - 8);
    }
    case DType::kQ4_1: {
      const uint8_t* block = data + col / 32 * 20;
      const int q = block[4 + col % 16] >> (col % 32 / 16 * 4) & 15;
      return HalfAt(block) * static_cast<float>(q) + HalfAt(block + 2);
    }
    case DType::kQ4_K: {
      const uint8_t* block = data + col / 256 * 144;
      const float2 p = Q4KGroup(block, col % 256 / 32);
      return p.x * static_cast<float>(Q4KValue(block, col % 256)) + p.y;
    }
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
      return Q5Element(a.dtype, data, col).Decoded();
    case DType::kIq4Nl:
      return Iq4NlElement(data, col).Decoded();
    case DType::kQ2_K:
      return Q2KElement(data, col).Decoded();
    case DType::kQ3_K:
      return Q3KElement(data, col).Decoded();
    case DType::kQ6_K:
      return Q6KElement(data, col).Decoded();
    default:
      return 0;
  }
}

// Row of the piece that goes to row `r` of the target.
__device__ __forceinline__ int SourceRow(const RepackArgs& a, int r) {
  if (a.head_dim == 0) return r;
  const int in_head = r % a.head_dim, half = a.rope_dim / 2;
  if (in_head >= a.rope_dim) return r;
  return r - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

__device__ __forceinline__ std::byte* Target(const RepackArgs& a, int row, int64_t byte) {
  return const_cast<std::byte*>(a.target.data) + a.target.Offset(row, byte);
}

// Grid: (pieces of a row, rows).
__global__ void FloatKernel(const __grid_constant__ RepackArgs a) {
  const int col = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
  if (col >= a.target.cols) return;
  const float value = SourceElement(a, SourceRow(a, r), col);
  if (a.target.format == Format::kF32)
    *reinterpret_cast<float*>(Target(a, a.first_row + r, col * 4)) = value;
  else if (a.target.format == Format::kF16)
    *reinterpret_cast<__half*>(Target(a, a.first_row + r, col * 2)) =
        __float2half_rn(fminf(fmaxf(value, -65504.0f), 65504.0f));
  else
    *reinterpret_cast<__nv_bfloat16*>(Target(a, a.first_row + r, col * 2)) = __float2bfloat16(value);
}

// As formats/fit.cc: a grid of 16 levels near the least squared error.
__device__ float2 FitAffine(const RepackArgs& a, int row, int first, int n) {
  float low = INFINITY, high = -INFINITY;
  double sum_x = 0, sum_xx = 0;
  for (int i = 0; i < n; ++i) {
    const float x = SourceElement(a, row, first + i);
    low = fminf(low, x);
    high = fmaxf(high, x);
    sum_x += x;
    sum_xx += static_cast<double>(x) * x;
  }
  float2 best = make_float2((high - low) / 15.0f, low);
  if (!(best.x > 0) || !isfinite(best.x) || !isfinite(1.0f / best.x)) return best;
  double best_error = INFINITY;
  for (int step = 0; step <= 6; ++step) {
    const float shrink = 0.03f * static_cast<float>(step) * (high - low);
    const float scale = (high - low - shrink) / 15.0f, min = low + 0.5f * shrink, inverse = 1.0f / scale;
    double q1 = 0, qq = 0, qx = 0;
    for (int i = 0; i < n; ++i) {
      const float x = SourceElement(a, row, first + i);
      const float q = rintf(fminf(fmaxf((x - min) * inverse, 0.0f), 15.0f));
      q1 += q;
      qq += static_cast<double>(q) * q;
      qx += static_cast<double>(q) * x;
    }
    const auto error = [&](double s, double m) {
      return sum_xx - 2 * s * qx - 2 * m * sum_x + s * s * qq + 2 * s * m * q1 + n * m * m;
    };
    if (step == 0) best_error = error(scale, min);
    const double determinant = n * qq - q1 * q1;
    if (!(determinant > 0)) continue;
    const double fitted = (n * qx - q1 * sum_x) / determinant, offset = (sum_x - fitted * q1) / n;
    if (!(fitted > 0)) continue;
    const double e = error(fitted, offset);
    if (e < best_error) {
      best = make_float2(static_cast<float>(fitted), static_cast<float>(offset));
      best_error = e;
    }
  }
  return best;
}

__device__ __forceinline__ void PutInt8(const RepackArgs& a, int row, int col, int q) {
  *Target(a, row, Int8Offset(col)) = static_cast<std::byte>(q);
}
__device__ __forceinline__ void PutFp8(const RepackArgs& a, int row, int col, int code) {
  *Target(a, row, Fp8Offset(col)) = static_cast<std::byte>(code);
}
__device__ __forceinline__ void PutInt4(const RepackArgs& a, int row, int col, int even, int odd) {
  *Target(a, row, Int4Offset(col) / 2) = static_cast<std::byte>(even | odd << 4);
}
__device__ __forceinline__ int RoundTo(float value, float low, float high) {
  return static_cast<int>(roundf(fminf(fmaxf(value, low), high)));
}

// The scale under which values of up to `most` fit a format of 8 bits, and its inverse, which is 0 where it
// would not be finite.
struct ByteScale {
  float scale, inverse;

  __device__ __forceinline__ ByteScale(Format format, float most) {
    const float largest = format == Format::kFp8 ? 448.0f : 127.0f;
    scale = most / largest;
    inverse = most > 0 ? largest / most : 0.0f;
    if (format == Format::kFp8 && isinf(inverse)) inverse = 0;
  }
};
// Puts a value, times such an inverse.
__device__ __forceinline__ void PutRounded(const RepackArgs& a, int row, int col, float value) {
  if (a.target.format == Format::kFp8)
    PutFp8(a, row, col, __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3));
  else
    PutInt8(a, row, col, RoundTo(value, -127, 127));
}

// Grid: any; one thread per group of a row.
__global__ void GroupKernel(const __grid_constant__ RepackArgs a) {
  const int groups = a.target.cols / a.target.group;
  const int64_t id = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (id >= static_cast<int64_t>(groups) * a.rows) return;
  const int r = static_cast<int>(id / groups), g = static_cast<int>(id % groups), n = a.target.group;
  const int from = SourceRow(a, r), to = a.first_row + r, first = g * n;
  const uint8_t* data = reinterpret_cast<const uint8_t*>(a.source) + from * a.source_row_bytes;
  const int64_t at = ScaleIndex(a.target, to, g);
  std::byte* scales = const_cast<std::byte*>(a.target.scales);
  if (BitsOf(a.target.format) == 8) {
    const bool fp8 = a.target.format == Format::kFp8;
    float scale;
    if (fp8 && a.dtype == DType::kFp8E4M3 && n == a.source_group) {
      scale = static_cast<const float*>(a.source_scales)[SourceGroup(a, from, first)];
      for (int i = 0; i < n; ++i) PutFp8(a, to, first + i, data[first + i]);
    } else if (!fp8 && a.dtype == DType::kQ8_0 && n == 32) {
      const uint8_t* block = data + g * 34;
      scale = HalfAt(block);
      for (int i = 0; i < n; ++i) PutInt8(a, to, first + i, static_cast<int8_t>(block[2 + i]));
    } else if (!fp8 && ExactInt8Group(a.dtype) == n) {
      scale = ExactInt8(a.dtype, data, first).scale;
      for (int i = 0; i < n; ++i) PutInt8(a, to, first + i, ExactInt8(a.dtype, data, first + i).value);
    } else if (!fp8 && a.dtype == DType::kI8 && n == a.source_group) {
      scale = static_cast<const float*>(a.source_scales)[SourceGroup(a, from, first)];
      for (int i = 0; i < n; ++i) PutInt8(a, to, first + i, static_cast<int8_t>(data[first + i]));
    } else {
      float most = 0;
      for (int i = 0; i < n; ++i) most = fmaxf(most, fabsf(SourceElement(a, from, first + i)));
      const ByteScale by(a.target.format, most);
      scale = by.scale;
      for (int i = 0; i < n; ++i)
        PutRounded(a, to, first + i, SourceElement(a, from, first + i) * by.inverse);
    }
    reinterpret_cast<float*>(scales)[at] = scale;
    return;
  }
  float2 p;
  if (n == 32 && (a.dtype == DType::kQ4_0 || a.dtype == DType::kQ4_1 || a.dtype == DType::kQ4_K)) {
    const auto value = [&](int i) -> int {
      if (a.dtype == DType::kQ4_K) return Q4KValue(data + first / 256 * 144, first % 256 + i);
      const uint8_t* qs = a.dtype == DType::kQ4_0 ? data + g * 18 + 2 : data + g * 20 + 4;
      return qs[i % 16] >> (i / 16 * 4) & 15;
    };
    for (int i = 0; i < n; i += 2) PutInt4(a, to, first + i, value(i), value(i + 1));
    if (a.dtype == DType::kQ4_K)
      p = Q4KGroup(data + first / 256 * 144, first % 256 / 32);
    else if (a.dtype == DType::kQ4_0)
      p = make_float2(HalfAt(data + g * 18), -8.0f * HalfAt(data + g * 18));
    else
      p = make_float2(HalfAt(data + g * 20), HalfAt(data + g * 20 + 2));
  } else if (a.dtype == DType::kU4 && n == a.source_group) {
    for (int i = 0; i < n; i += 2) {
      const uint8_t pair = data[(first + i) / 2];
      PutInt4(a, to, first + i, pair & 15, pair >> 4);
    }
    p = Int4Params(a, from, first);
  } else if (n == 16 && a.dtype == DType::kQ2_K) {
    for (int i = 0; i < n; i += 2)
      PutInt4(a, to, first + i, Q2KElement(data, first + i).value, Q2KElement(data, first + i + 1).value);
    const Quantized any = Q2KElement(data, first);
    p = make_float2(any.scale, any.min);
  } else {
    const float2 fit = FitAffine(a, from, first, n);
    const auto finite_half = [](float value) {
      return __half2float(__float2half_rn(fminf(fmaxf(value, -65504.0f), 65504.0f)));
    };
    p.x = finite_half(__bfloat162float(__float2bfloat16(fit.x)));
    p.y = finite_half(fit.y + 7.5f * (fit.x - p.x));
    const float inverse = p.x == 0 ? 0.0f : 1.0f / p.x;
    for (int i = 0; i < n; i += 2)
      PutInt4(a, to, first + i, RoundTo((SourceElement(a, from, first + i) - p.y) * inverse, 0, 15),
              RoundTo((SourceElement(a, from, first + i + 1) - p.y) * inverse, 0, 15));
  }
  if (a.target.format == Format::kInt4)
    reinterpret_cast<__half2*>(scales)[at] = __floats2half2_rn(p.x, p.y);
  else
    reinterpret_cast<float2*>(scales)[at] = p;
}

// Grid: rows; one scale per output channel.
__global__ void ChannelKernel(const __grid_constant__ RepackArgs a) {
  const int r = blockIdx.x, from = SourceRow(a, r), to = a.first_row + r;
  const bool fp8 = a.target.format == Format::kFp8;
  const bool exact = a.dtype == (fp8 ? DType::kFp8E4M3 : DType::kI8) && a.source_group == a.target.cols;
  __shared__ float parts[8];
  float most = 0;
  for (int i = threadIdx.x; i < a.target.cols; i += blockDim.x)
    most = fmaxf(most, fabsf(SourceElement(a, from, i)));
  for (int x = 16; x > 0; x /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, x));
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = most;
  __syncthreads();
  for (int i = 0; i < 8; ++i) most = fmaxf(most, parts[i]);
  const ByteScale by(a.target.format, most);
  for (int i = threadIdx.x; i < a.target.cols; i += blockDim.x) {
    if (!exact) {
      PutRounded(a, to, i, SourceElement(a, from, i) * by.inverse);
      continue;
    }
    const int code = static_cast<int>(a.source[from * a.source_row_bytes + i]);
    if (fp8)
      PutFp8(a, to, i, code);
    else
      PutInt8(a, to, i, code);
  }
  if (threadIdx.x == 0)
    reinterpret_cast<float*>(const_cast<std::byte*>(a.target.scales))[to] =
        exact ? static_cast<const float*>(a.source_scales)[from] : by.scale;
}

__device__ __forceinline__ uint32_t Hash(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

// Grid: any, striding over the 4-byte words of the data, then over the scales.
__global__ void RandomKernel(const __grid_constant__ DeviceMatrix m, int64_t words, int64_t scales,
                             uint32_t seed) {
  const float size =
      rsqrtf(static_cast<float>(m.cols)) * 1.7f;  // uniform in +-size has this deviation / sqrt(3)
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += step) {
    const uint32_t h = Hash(static_cast<uint32_t>(i) ^ Hash(static_cast<uint32_t>(i >> 32) ^ seed));
    uint32_t value = h;
    const float a = (static_cast<float>(h & 0xffff) / 32768.0f - 1) * size;
    const float b = (static_cast<float>(h >> 16) / 32768.0f - 1) * size;
    if (m.format == Format::kF32) value = __float_as_uint(a);
    if (m.format == Format::kF16) {
      const __half2 pair = __floats2half2_rn(a, b);
      value = reinterpret_cast<const uint32_t&>(pair);
    }
    if (m.format == Format::kBf16) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
      value = reinterpret_cast<const uint32_t&>(pair);
    }
    if (m.format == Format::kFp8) value &= 0xbfbfbfbfu;  // below 2, and never NaN
    reinterpret_cast<uint32_t*>(const_cast<std::byte*>(m.data))[i] = value;
  }
  std::byte* to = const_cast<std::byte*>(m.scales);
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < scales; i += step) {
    if (m.format == Format::kInt8) reinterpret_cast<float*>(to)[i] = size / 128;
    if (m.format == Format::kFp8) reinterpret_cast<float*>(to)[i] = size;
    if (m.format == Format::kInt4)
      reinterpret_cast<__half2*>(to)[i] = __floats2half2_rn(size / 8, -size * 15 / 16);
    if (m.format == Format::kInt4F32)
      reinterpret_cast<float2*>(to)[i] = make_float2(size / 8, -size * 15 / 16);
  }
}

}  // namespace

bool CanRepack(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBf16:
    case DType::kI8:
    case DType::kU4:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kIq4Nl:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

cudaError_t LaunchRepack(const RepackArgs& a, cudaStream_t stream) {
  if (ScaleBytesOf(a.target.format) == 0)
    FloatKernel<<<dim3(static_cast<unsigned>((a.target.cols + 255) / 256), static_cast<unsigned>(a.rows)),
                  256, 0, stream>>>(a);
  else if (a.target.group == 0)
    ChannelKernel<<<static_cast<unsigned>(a.rows), 256, 0, stream>>>(a);
  else
    GroupKernel<<<static_cast<unsigned>(
                      (static_cast<int64_t>(a.target.cols / a.target.group) * a.rows + 127) / 128),
                  128, 0, stream>>>(a);
  return cudaGetLastError();
}

cudaError_t LaunchRandom(const DeviceMatrix& m, uint32_t seed, cudaStream_t stream) {
  const int64_t scale_bytes = ScaleArrayBytes(m.format, m.rows, m.padded, m.group);
  const int64_t scales = scale_bytes > 0 ? scale_bytes / (m.group > 0 ? ScaleBytesOf(m.format) : 4) : 0;
  RandomKernel<<<2048, 256, 0, stream>>>(m, m.data_bytes() / 4, scales, seed);
  return cudaGetLastError();
}

}  // namespace celer::cuda
