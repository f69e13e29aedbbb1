#include "kernels/calibration/gptq/gptq_cuda.h"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

unsigned Blocks(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

// As RoundClamped() of formats/block_io.h with a lower bound of 0.
__device__ __forceinline__ int RoundClamped(float value, int high) {
  value = fminf(fmaxf(value, 0.0f), static_cast<float>(high));
  const int whole = static_cast<int>(value);
  return whole + (value - static_cast<float>(whole) >= 0.5f ? 1 : 0);
}
__device__ __forceinline__ float Bf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
__device__ __forceinline__ float Reciprocal(float scale) {
  return scale == 0 ? 0.0f : 1.0f / scale;
}
// To 7 significant bits, ties to even.
__device__ __forceinline__ float RoundScale(float scale) {
  constexpr uint32_t kDropped = 17;
  const uint32_t bits = __float_as_uint(scale);
  const uint32_t rounded = bits + (1u << (kDropped - 1)) - 1 + (bits >> kDropped & 1);
  return __uint_as_float(rounded >> kDropped << kDropped);
}

template <class Combine>
__device__ float WarpReduce(float v, const Combine& combine) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = combine(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

// Grid: one warp per group of a row.
__global__ void FitGridsKernel(const __grid_constant__ GptqMatrix m, const float* importance,
                               int candidates) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (unit >= m.rows * m.groups()) return;
  const int64_t row = unit / m.groups(), from = unit % m.groups() * m.grid.group, n = m.grid.group;
  const float* const x = m.w + row * m.cols + from;
  const float* const weight = importance + from;
  const int levels = m.grid.levels();
  const auto top = static_cast<float>(levels);
  float low = 0, high = 0;  // zero is always on the grid
  for (int64_t i = lane; i < n; i += 32) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
  low = WarpReduce(low, [](float a, float b) { return fminf(a, b); });
  high = WarpReduce(high, [](float a, float b) { return fmaxf(a, b); });
  if (m.grid.symmetric) high = fmaxf(high, -low), low = -high;
  const int middle_zero = m.grid.symmetric ? (levels + 1) / 2 : 0;
  float best_scale = 1, best_error = INFINITY;
  int best_zero = middle_zero;
  const bool any = high - low > 0x1p-100f;
  for (int step = 0; any && step <= candidates; ++step) {
    const float shrink = 1.0f - 0.04f * static_cast<float>(step);
    const float scale = RoundScale((high - low) * shrink / top);
    const int zero =
        m.grid.symmetric ? middle_zero : RoundClamped(0.5f * top - 0.5f * (high + low) / scale, levels);
    const float inverse = Reciprocal(scale), z = static_cast<float>(zero);
    float error = 0;
    for (int64_t i = lane; i < n; i += 32) {
      const float q = rintf(fminf(fmaxf(x[i] * inverse + z, 0.0f), top));
      const float miss = x[i] - (q - z) * scale;
      error += miss * miss * weight[i];
    }
    error = WarpReduce(error, [](float a, float b) { return a + b; });
    if (error < best_error) best_error = error, best_scale = scale, best_zero = zero;
  }
  if (lane != 0) return;
  m.scales[unit] = static_cast<uint16_t>(__float_as_uint(best_scale) >> 16);
  m.zeros[unit] = static_cast<uint8_t>(best_zero);
}

// Grid: (columns, rows).
__global__ void OrderColumnsKernel(const float* w, int64_t cols, const int32_t* order, float* out) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = blockIdx.y;
  if (c < cols) out[row * cols + c] = w[row * cols + order[c]];
}

// Grid: (columns, rows).
__global__ void OrderHessianKernel(const float* gram, int64_t cols, float tokens, const int32_t* order,
                                   float damping, float* out) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = blockIdx.y;
  if (c >= cols) return;
  const int64_t i = order[row], j = order[c];
  float value = gram[i < j ? i * cols + j : j * cols + i] / tokens;
  if (row == c) value = (value == 0 ? 1.0f : value) + damping;
  out[row * cols + c] = value;
}

constexpr int kRoundThreads = 512;  // a row to a warp
constexpr int kRoundWarps = kRoundThreads / 32;
constexpr int kRoundShared = (kGptqBlock * kGptqBlock + kGptqBlock) * static_cast<int>(sizeof(float));
constexpr int kParts = kGptqBlock / 32;  // columns of a lane: lane, lane + 32, ...

// Grid: kRoundWarps rows per block. The block of u lies in shared memory; a warp holds its row's columns in
// registers and rounds them one after the other.
__global__ void __launch_bounds__(kRoundThreads)
    RoundColumnsKernel(const __grid_constant__ RoundColumnsArgs a) {
  extern __shared__ float shared[];
  float* const u = shared;
  float* const inverses = shared + kGptqBlock * kGptqBlock;
  const GptqMatrix& m = a.m;
  for (int i = threadIdx.x; i < kGptqBlock * kGptqBlock; i += kRoundThreads) {
    const int r = i / kGptqBlock, c = i % kGptqBlock;
    const bool inside = r < a.count && c < a.count;
    const float value = inside ? a.u[(a.first + r) * m.cols + a.first + c] : 0.0f;
    u[i] = value;
    if (r == c) inverses[r] = inside ? 1.0f / value : 0.0f;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRoundWarps + threadIdx.x / 32;
  if (row >= m.rows) return;
  const int levels = m.grid.levels();
  float w[kParts], scale[kParts], reciprocal[kParts], zero[kParts], error[kParts] = {};
  int code[kParts] = {};
#pragma unroll
  for (int k = 0; k < kParts; ++k) {
    const int j = k * 32 + lane;
    w[k] = scale[k] = zero[k] = 0;
    if (j < a.count) {
      const int64_t g = row * m.groups() + a.order[a.first + j] / m.grid.group;
      w[k] = a.ordered[row * m.cols + a.first + j];
      scale[k] = Bf16(m.scales[g]);
      zero[k] = static_cast<float>(m.zeros[g]);
    }
    reciprocal[k] = Reciprocal(scale[k]);
  }
#pragma unroll
  for (int k = 0; k < kParts; ++k)
    for (int i = 0; i < 32 && k * 32 + i < a.count; ++i) {
      const int column = k * 32 + i;
      const float x = __shfl_sync(~0u, w[k], i), s = __shfl_sync(~0u, scale[k], i),
                  r = __shfl_sync(~0u, reciprocal[k], i), z = __shfl_sync(~0u, zero[k], i);
      const int q = RoundClamped(x * r + z, levels);
      const float e = (x - (static_cast<float>(q) - z) * s) * inverses[column];
      if (lane == i) code[k] = q, error[k] = e;
        // u is zero in front of the diagonal, and columns up to this one are not needed any more.
#pragma unroll
      for (int next = k; next < kParts; ++next) w[next] -= e * u[column * kGptqBlock + next * 32 + lane];
    }
#pragma unroll
  for (int k = 0; k < kParts; ++k) {
    const int j = k * 32 + lane;
    a.errors[row * kGptqBlock + j] = error[k];
    if (j < a.count) m.codes[row * m.cols + a.order[a.first + j]] = static_cast<uint8_t>(code[k]);
  }
}

// Grid: one thread per word.
__global__ void PackCodesKernel(const __grid_constant__ GptqMatrix m, int64_t words) {
  const int64_t word = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (word >= words) return;
  const int per_word = 32 / m.grid.bits;
  uint32_t bits = 0;
  for (int i = 0; i < per_word; ++i) {
    const int64_t at = word * per_word + i, row = at / m.cols,
                  g = row * m.groups() + at % m.cols / m.grid.group;
    const uint32_t q = m.codes[at];
    bits |= q << (i * m.grid.bits);
    m.w[at] = (static_cast<float>(q) - static_cast<float>(m.zeros[g])) * Bf16(m.scales[g]);
  }
  m.words[word] = bits;
}

constexpr int kPitch = kFactorBlock + 1;
constexpr int kFactorShared = 2 * kFactorBlock * kPitch * static_cast<int>(sizeof(double));
static_assert(kThreads == 4 * kFactorBlock);  // four threads to a column of the inverse

// Grid: one block. All in double: this is the part where cancellation hurts.
__global__ void FactorBlockKernel(float* a, int64_t stride, int n, float* inverse, int* failed) {
  extern __shared__ double doubles[];
  double* const r = doubles;
  double* const out = doubles + kFactorBlock * kPitch;
  const int thread = threadIdx.x;
  if (*failed) return;
  for (int i = thread; i < n * n; i += kThreads) {
    // The upper half alone counts.
    const int row = i / n, col = i % n;
    r[row * kPitch + col] = a[(row < col ? row : col) * stride + (row < col ? col : row)];
  }
  for (int i = thread; i < kFactorBlock * kPitch; i += kThreads) out[i] = 0;
  for (int j = n - 1; j >= 0; --j) {
    __syncthreads();
    const double pivot = r[j * kPitch + j];
    if (!(pivot > 0) || !isfinite(pivot)) {  // the same for all threads
      if (thread == 0) *failed = 1;
      return;
    }
    __syncthreads();
    const double root = sqrt(pivot);
    for (int i = thread; i <= j; i += kThreads) r[i * kPitch + j] = i == j ? root : r[i * kPitch + j] / root;
    __syncthreads();
    for (int i = thread; i < j * j; i += kThreads) {
      const int row = i / j, col = i % j;
      if (row <= col) r[row * kPitch + col] -= r[row * kPitch + j] * r[col * kPitch + j];
    }
  }
  __syncthreads();
  const int column = thread / 4, part = thread % 4;
  for (int i = n - 1; i >= 0; --i) {
    double sum = 0;
    if (i <= column && column < n)
      for (int k = i + 1 + part; k <= column; k += 4) sum += r[i * kPitch + k] * out[k * kPitch + column];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (part == 0 && i <= column && column < n)
      out[i * kPitch + column] = ((i == column ? 1.0 : 0.0) - sum) / r[i * kPitch + i];
    __syncwarp();
  }
  __syncthreads();
  for (int i = thread; i < kFactorBlock * kFactorBlock; i += kThreads) {
    const int row = i / kFactorBlock, col = i % kFactorBlock;
    inverse[i] = static_cast<float>(out[row * kPitch + col]);
    if (row <= col && col < n) a[row * stride + col] = static_cast<float>(r[row * kPitch + col]);
  }
}

}  // namespace

cudaError_t LaunchFitGrids(const GptqMatrix& m, const float* importance, int candidates,
                           cudaStream_t stream) {
  FitGridsKernel<<<Blocks(m.rows * m.groups(), kWarps), kThreads, 0, stream>>>(m, importance, candidates);
  return cudaGetLastError();
}

cudaError_t LaunchOrderColumns(const float* w, int64_t rows, int64_t cols, const int32_t* order, float* out,
                               cudaStream_t stream) {
  // A grid has at most 65535 rows of blocks.
  constexpr int64_t kMost = 65535;
  for (int64_t r = 0; r < rows; r += kMost) {
    const int64_t some = rows - r < kMost ? rows - r : kMost;
    OrderColumnsKernel<<<dim3(Blocks(cols, kThreads), static_cast<unsigned>(some)), kThreads, 0, stream>>>(
        w + r * cols, cols, order, out + r * cols);
  }
  return cudaGetLastError();
}

cudaError_t LaunchOrderHessian(const float* gram, int64_t cols, int64_t tokens, const int32_t* order,
                               float damping, float* out, cudaStream_t stream) {
  if (cols > 65535) return cudaErrorInvalidValue;
  OrderHessianKernel<<<dim3(Blocks(cols, kThreads), static_cast<unsigned>(cols)), kThreads, 0, stream>>>(
      gram, cols, static_cast<float>(tokens), order, damping, out);
  return cudaGetLastError();
}

cudaError_t LaunchRoundColumns(const RoundColumnsArgs& args, cudaStream_t stream) {
  if (const cudaError_t code = AllowShared<RoundColumnsKernel, kRoundShared>(); code != cudaSuccess)
    return code;
  RoundColumnsKernel<<<Blocks(args.m.rows, kRoundWarps), kRoundThreads, kRoundShared, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchPackCodes(const GptqMatrix& m, cudaStream_t stream) {
  const int64_t words = m.rows * m.cols * m.grid.bits / 32;
  PackCodesKernel<<<Blocks(words, kThreads), kThreads, 0, stream>>>(m, words);
  return cudaGetLastError();
}

cudaError_t LaunchFactorBlock(float* a, int64_t stride, int n, float* inverse, int* failed,
                              cudaStream_t stream) {
  if (const cudaError_t code = AllowShared<FactorBlockKernel, kFactorShared>(); code != cudaSuccess)
    return code;
  FactorBlockKernel<<<1, kThreads, kFactorShared, stream>>>(a, stride, n, inverse, failed);
  return cudaGetLastError();
}

}  // namespace celer::cuda
