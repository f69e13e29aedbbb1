// Around a cuBLASLt product: weights dequantized, and activations converted, to rows of bf16.
#include <cuda_bf16.h>

#include "kernels/llm/matmul/cuda/gemm/gemm_cuda.h"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/shared/cuda/element.cuh"
#include "kernels/shared/cuda/fp8.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

using matvec::PackBf16;

__device__ __forceinline__ uint4 Pack8(const float (&v)[8]) {
  return make_uint4(PackBf16(v[0], v[1]), PackBf16(v[2], v[3]), PackBf16(v[4], v[5]), PackBf16(v[6], v[7]));
}

// Grid: (blocks of 64 bytes of a row in eights, eights of rows). Each thread takes the 16 bytes of a lane.
template <Format F>
__global__ void UnpackKernel(const __grid_constant__ DeviceMatrix m, uint4* out) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int row = blockIdx.y * 8 + g;
  if (block * 64 >= m.row_bytes || row >= m.rows) return;
  const uint4 v = __ldcs(reinterpret_cast<const uint4*>(
                             m.data + static_cast<int64_t>(blockIdx.y) * 8 * m.row_bytes + block * 512) +
                         lane);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  uint4* to = out + static_cast<int64_t>(row) * (m.padded / 8);
  if constexpr (F == Format::kBf16) {
    to[block * 4 + t] = v;
  } else if constexpr (F == Format::kF16) {
    float f[8];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i]));
      f[2 * i] = pair.x, f[2 * i + 1] = pair.y;
    }
    to[block * 4 + t] = Pack8(f);
  } else if constexpr (F == Format::kF32) {
    reinterpret_cast<uint2*>(to)[block * 4 + t] =
        make_uint2(PackBf16(__uint_as_float(v.x), __uint_as_float(v.y)),
                   PackBf16(__uint_as_float(v.z), __uint_as_float(v.w)));
  } else if constexpr (BitsOf(F) == 8) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int col = static_cast<int>(block) * 64 + j * 32 + t * 8;
      const float scale = FloatScale(m, row, col);
      float f[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = words[2 * j + i / 4];
        if constexpr (F == Format::kInt8) {
          f[i] = static_cast<float>(static_cast<int8_t>(word >> (i % 4 * 8))) * scale;
        } else {
          const float2 pair = matvec::UnpackBf16(fp8::PairOf(word, i % 4 / 2));
          f[i] = (i % 2 == 0 ? pair.x : pair.y) * scale;
        }
      }
      to[col / 8] = Pack8(f);
    }
  } else if constexpr (F == Format::kMxfp4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int col = static_cast<int>(block) * 128 + j * 32 + t * 8;
      const auto exponent = static_cast<uint32_t>(m.scales[ScaleIndex(m, row, col / m.group)]);
      uint32_t pairs[4];
      fp4::ToPairs(words[j], fp4::PairScale(exponent), pairs);
      to[col / 8] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int col = static_cast<int>(block) * 128 + j * 32 + t * 8;
      const int64_t at = ScaleIndex(m, row, col / m.group);
      const float2 p = F == Format::kInt4 ? __half22float2(reinterpret_cast<const __half2*>(m.scales)[at])
                                          : reinterpret_cast<const float2*>(m.scales)[at];
      float f[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) f[i] = static_cast<float>(words[j] >> (i * 4) & 15) * p.x + p.y;
      to[col / 8] = Pack8(f);
    }
  }
}

// Grid: as UnpackKernel.
__global__ void UnpackCodesKernel(const __grid_constant__ DeviceMatrix m, uint2* codes, float* scales) {
  const int lane = threadIdx.x % 32, t = lane % 4;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  const int row = blockIdx.y * 8 + lane / 4;
  if (block * 64 >= m.row_bytes || row >= m.rows) return;
  const uint4 v = __ldcs(reinterpret_cast<const uint4*>(
                             m.data + static_cast<int64_t>(blockIdx.y) * 8 * m.row_bytes + block * 512) +
                         lane);
  const auto plain = [&](uint32_t word) { return __byte_perm(word, 0, 0x3120); };
  uint2* to = codes + static_cast<int64_t>(row) * (m.padded / 8) + block * 8 + t;
  to[0] = make_uint2(plain(v.x), plain(v.y));
  to[4] = make_uint2(plain(v.z), plain(v.w));
  if (block == 0 && t == 0) scales[row] = reinterpret_cast<const float*>(m.scales)[row];
}

// Grid: tokens. A thread takes eight columns at a time; those of the first kKept times stay in registers
// until the norm is known, the rest is read again.
__global__ void __launch_bounds__(256)
    ToBf16Kernel(const float* x, int cols, int padded, const float* norm, float eps, uint4* out) {
  constexpr int kKept = 2;
  LetNextStart();
  WaitForPrevious();
  const float* row = x + static_cast<int64_t>(blockIdx.x) * cols;
  const int step = blockDim.x * 8, begin = threadIdx.x * 8;
  const auto load = [&](const float* from, int i, float(&v)[8]) {
    if (cols % 8 == 0 && i < cols) {
      const float4 a = __ldcg(reinterpret_cast<const float4*>(from + i)),
                   b = __ldcg(reinterpret_cast<const float4*>(from + i + 4));
      v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = i + j < cols ? from[i + j] : 0;
    }
  };
  float kept[kKept][8];
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (begin + k * step < padded) load(row, begin + k * step, kept[k]);
  float scale = 1;
  if (norm) {
    __shared__ float sums[32];
    float squares = 0;
    const auto add = [&](const float(&v)[8]) {
#pragma unroll
      for (int j = 0; j < 8; ++j) squares += v[j] * v[j];
    };
#pragma unroll
    for (int k = 0; k < kKept; ++k)
      if (begin + k * step < padded) add(kept[k]);
    for (int i = begin + kKept * step; i < padded; i += step) {
      float v[8];
      load(row, i, v);
      add(v);
    }
    for (int j = 16; j > 0; j /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, j);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < static_cast<int>(blockDim.x / 32); ++i) total += sums[i];
    scale = 1.0f / sqrtf(total / static_cast<float>(cols) + eps);
  }
  const auto store = [&](int i, float(&v)[8]) {
    if (norm) {
      float w[8];
      load(norm, i, w);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * w[j];
    }
    out[(static_cast<int64_t>(blockIdx.x) * padded + i) / 8] = Pack8(v);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k)
    if (begin + k * step < padded) store(begin + k * step, kept[k]);
  for (int i = begin + kKept * step; i < padded; i += step) {
    float v[8];
    load(row, i, v);
    store(i, v);
  }
}

// Grid: (parts of a row, tokens); eight columns per thread.
__global__ void ActivateBf16Kernel(const __nv_bfloat16* gate_up, int cols, int padded,
                                   DeviceActivation activation, uint4* out) {
  LetNextStart();
  WaitForPrevious();
  const int i = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (i >= padded) return;
  const __nv_bfloat16* gate = gate_up + static_cast<int64_t>(blockIdx.y) * 2 * cols + i;
  float v[8];
  if (cols % 8 == 0 && i < cols) {
    const uint4 g = __ldcg(reinterpret_cast<const uint4*>(gate)),
                u = __ldcg(reinterpret_cast<const uint4*>(gate + cols));
    const uint32_t gs[4] = {g.x, g.y, g.z, g.w}, us[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 a = matvec::UnpackBf16(gs[j]), b = matvec::UnpackBf16(us[j]);
      v[2 * j] = matvec::Activate(activation, a.x) * b.x;
      v[2 * j + 1] = matvec::Activate(activation, a.y) * b.y;
    }
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      v[j] = i + j < cols
                 ? matvec::Activate(activation, __bfloat162float(gate[j])) * __bfloat162float(gate[cols + j])
                 : 0;
  }
  out[(static_cast<int64_t>(blockIdx.y) * padded + i) / 8] = Pack8(v);
}

// Blocks of 256 threads.
dim3 UnpackGrid(const DeviceMatrix& m) {
  return dim3(static_cast<unsigned>((m.row_bytes / 64 + 7) / 8), static_cast<unsigned>((m.rows + 7) / 8));
}

template <Format F>
cudaError_t UnpackAs(const DeviceMatrix& m, void* out, cudaStream_t stream) {
  UnpackKernel<F><<<UnpackGrid(m), 256, 0, stream>>>(m, static_cast<uint4*>(out));
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchUnpack(const DeviceMatrix& m, void* out, cudaStream_t stream) {
  return WithFormat(m.format, [&]<Format F>() { return UnpackAs<F>(m, out, stream); });
}

cudaError_t LaunchUnpackCodes(const DeviceMatrix& m, void* codes, float* scales, cudaStream_t stream) {
  if (!HasRowCodes(m)) return cudaErrorInvalidValue;
  UnpackCodesKernel<<<UnpackGrid(m), 256, 0, stream>>>(m, static_cast<uint2*>(codes), scales);
  return cudaGetLastError();
}

cudaError_t LaunchToBf16(const float* x, int64_t tokens, int cols, int padded, const float* norm, float eps,
                         void* out, cudaStream_t stream) {
  return Launch(ToBf16Kernel, dim3(static_cast<unsigned>(tokens)), dim3(256), 0, stream, x, cols, padded,
                norm, eps, static_cast<uint4*>(out));
}

cudaError_t LaunchActivateBf16(const void* gate_up, int64_t tokens, int cols, int padded,
                               DeviceActivation activation, void* out, cudaStream_t stream) {
  return Launch(ActivateBf16Kernel,
                dim3(static_cast<unsigned>((padded / 8 + 255) / 256), static_cast<unsigned>(tokens)),
                dim3(256), 0, stream, static_cast<const __nv_bfloat16*>(gate_up), cols, padded, activation,
                static_cast<uint4*>(out));
}

}  // namespace celer::cuda
