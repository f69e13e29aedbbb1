#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "formats/blocks.h"
#include "formats/fp4/mxfp4.h"
#include "kernels/shared/cuda/element.cuh"
#include "weights/repack_cuda.h"

namespace celer::cuda {
namespace {

__device__ __forceinline__ float Half(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// An element of a GGUF block: scale * value + min.
struct Quantized {
  int value;
  float scale, min;
  __device__ __forceinline__ float Decoded(bool has_min) const {
    const float product = scale * static_cast<float>(value);
    return has_min ? product + min : product;
  }
};
template <class Block>
__device__ __forceinline__ Quantized BlockElement(const uint8_t* row, int col) {  // rows are 2-byte aligned
  const Block& block = reinterpret_cast<const Block*>(row)[col / Block::kElements];
  const int i = col % Block::kElements, g = i / Block::kGroup;
  Quantized out{block.Value(i / 16, i % 16), Half(block.d), 0.0f};
  if constexpr (kIsSuper<Block>) out.scale *= static_cast<float>(block.Scale(g));
  if constexpr (requires { block.m; }) out.min = Half(block.m);
  if constexpr (requires { block.dmin; }) out.min = -(Half(block.dmin) * static_cast<float>(block.Min(g)));
  return out;
}

// Of the block format `dtype`; false if it is none.
template <class... Block>
__device__ __forceinline__ bool DecodeElement(BlockList<Block...>, DType dtype, const uint8_t* row, int col,
                                              float* out) {
  return ((dtype == Block::kDType && (*out = BlockElement<Block>(row, col).Decoded(kHasMin<Block>), true)) ||
          ...);
}

__device__ __forceinline__ const BlockMxfp4& Mxfp4Block(const uint8_t* row, int col) {
  return reinterpret_cast<const BlockMxfp4*>(row)[col / BlockMxfp4::kElements];
}
__device__ __forceinline__ float Mxfp4Element(const uint8_t* row, int col) {
  const BlockMxfp4& block = Mxfp4Block(row, col);
  return fp4::ValueOf(block.Code(col % BlockMxfp4::kElements)) * fp4::ScaleOf(block.e);
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
    case DType::kMxfp4:
      return Mxfp4Element(data, col);
    default: {
      float out = 0;
      DecodeElement(GgufBlocks{}, a.dtype, data, col, &out);
      return out;
    }
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

// Takes over a group of blocks whose groups and bits are the target's, and gives its scale and minimum.
template <class Block>
__device__ __forceinline__ bool CopyGroup(const RepackArgs& a, const uint8_t* data, int to, int first,
                                          float2* p) {
  constexpr Format kExact = FormatOfBlocks(Block::kBits, kHasMin<Block>, kIsSuper<Block>);
  constexpr int kBits = BitsOf(kExact), kN = Block::kGroup;
  if (kBits > 8 || a.dtype != Block::kDType || a.target.group != kN || BitsOf(a.target.format) != kBits ||
      a.target.format == Format::kFp8)
    return false;
  const Quantized any = BlockElement<Block>(data, first);
  *p = make_float2(any.scale, any.min);
  if constexpr (kBits == 8) {
    for (int i = 0; i < kN; ++i) PutInt8(a, to, first + i, BlockElement<Block>(data, first + i).value);
  } else {
    constexpr int kLowest = kHasMin<Block> ? 0 : -kMostValue<Block>;  // becomes 0
    if constexpr (kLowest != 0) p->y = static_cast<float>(kLowest) * any.scale;
    for (int i = 0; i < kN; i += 2)
      PutInt4(a, to, first + i, BlockElement<Block>(data, first + i).value - kLowest,
              BlockElement<Block>(data, first + i + 1).value - kLowest);
  }
  return true;
}
template <class... Block>
__device__ __forceinline__ bool CopyGroup(BlockList<Block...>, const RepackArgs& a, const uint8_t* data,
                                          int to, int first, float2* p) {
  return (CopyGroup<Block>(a, data, to, first, p) || ...);
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
  if (a.target.format == Format::kMxfp4) {  // of such blocks alone
    const BlockMxfp4& block = Mxfp4Block(data, first);
    int magnitudes = 0;
    for (int i = 0; i < n; i += 2) {
      const int even = block.Code(i), odd = block.Code(i + 1);
      magnitudes |= (even | odd) & 7;
      PutInt4(a, to, first + i, even, odd);
    }
    // A scale of zeros may be anything, even infinite.
    scales[at] = static_cast<std::byte>(magnitudes != 0 ? block.e : 0);
    return;
  }
  if (BitsOf(a.target.format) == 8) {
    const bool fp8 = a.target.format == Format::kFp8;
    float scale;
    if (float2 p; CopyGroup(GgufBlocks{}, a, data, to, first, &p)) {
      scale = p.x;
    } else if (fp8 && a.dtype == DType::kFp8E4M3 && n == a.source_group) {
      scale = static_cast<const float*>(a.source_scales)[SourceGroup(a, from, first)];
      for (int i = 0; i < n; ++i) PutFp8(a, to, first + i, data[first + i]);
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
  if (CopyGroup(GgufBlocks{}, a, data, to, first, &p)) {
    // its scale and minimum are in p
  } else if (a.dtype == DType::kU4 && n == a.source_group) {
    for (int i = 0; i < n; i += 2) {
      const uint8_t pair = data[(first + i) / 2];
      PutInt4(a, to, first + i, pair & 15, pair >> 4);
    }
    p = Int4Params(a, from, first);
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
    if (m.format == Format::kMxfp4) to[i] = static_cast<std::byte>(__float_as_uint(size / 4) >> 23);
  }
}

template <class... Block>
bool Contains(BlockList<Block...>, DType dtype) {
  return ((dtype == Block::kDType) || ...);
}

}  // namespace

bool CanRepack(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBf16:
    case DType::kI8:
    case DType::kU4:
    case DType::kMxfp4:
      return true;
    default:
      return Contains(GgufBlocks{}, dtype);
  }
}

cudaError_t LaunchRepack(const RepackArgs& a, cudaStream_t stream) {
  if (a.target.format == Format::kMxfp4 && a.dtype != DType::kMxfp4) return cudaErrorInvalidValue;
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
