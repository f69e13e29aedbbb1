#include <cuda_runtime.h>

#include "kernels/calibration/window_layer/window_layer_cuda.h"

namespace celer::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

unsigned Blocks(int64_t n, int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}
// Blocks of a grid-stride loop.
unsigned WalkingBlocks(int64_t n) {
  constexpr int64_t kMost = 8192;
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMost ? blocks : kMost);
}

__device__ float WarpSum(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}
__device__ float WarpMax(float v) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

// A reduction over all threads of a block; the result is the same for all of them.
template <bool kMax>
__device__ float BlockReduce(float v) {
  __shared__ float parts[kWarps];
  v = kMax ? WarpMax(v) : WarpSum(v);
  __syncthreads();  // whoever reads an earlier result is done
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  float out = parts[0];
  for (int w = 1; w < kWarps; ++w) out = kMax ? fmaxf(out, parts[w]) : out + parts[w];
  return out;
}

// Grid: one block per row.
__global__ void NormKernel(const float* x, const float* weight, float eps, int64_t cols, float* out) {
  const float* row = x + blockIdx.x * cols;
  float squares = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) squares += row[c] * row[c];
  const float inverse = 1.0f / sqrtf(BlockReduce<false>(squares) / static_cast<float>(cols) + eps);
  for (int64_t c = threadIdx.x; c < cols; c += kThreads)
    out[blockIdx.x * cols + c] = row[c] * inverse * weight[c];
}

__global__ void BiasKernel(float* x, const float* bias, int64_t n, int64_t cols) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step)
    x[i] += bias[i % cols];
}

// Grid: one warp per head of a token.
__global__ void RotateKernel(const __grid_constant__ WindowsRotateArgs a) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (unit >= a.tokens * a.count) return;
  float* const head = a.heads + unit * a.dim;
  if (a.norm) {
    float squares = 0;
    for (int i = lane; i < a.dim; i += 32) squares += head[i] * head[i];
    const float inverse = 1.0f / sqrtf(WarpSum(squares) / static_cast<float>(a.dim) + a.eps);
    for (int i = lane; i < a.dim; i += 32) head[i] = head[i] * inverse * a.norm[i];
    __syncwarp();
  }
  const int half = a.rope_dim / 2;
  const int64_t table = unit / a.count % a.window * half;
  for (int i = lane; i < half; i += 32) {
    const int x = a.layout == RopeLayout::kHalf ? i : 2 * i;
    const int y = a.layout == RopeLayout::kHalf ? i + half : 2 * i + 1;
    const float cos = a.cos[table + i], sin = a.sin[table + i], u = head[x], v = head[y];
    head[x] = u * cos - v * sin;
    head[y] = u * sin + v * cos;
  }
}

// Grid: one block per query of the batch.
__global__ void SoftmaxKernel(const __grid_constant__ WindowsSoftmaxArgs a) {
  const int64_t position = a.first + blockIdx.x % a.queries;
  float* const row = a.scores + blockIdx.x * a.keys;
  const int64_t begin = a.sliding > 0 && position >= a.sliding ? position - a.sliding + 1 : 0;
  const int64_t end = position + 1 < a.keys ? position + 1 : a.keys;
  float top = -INFINITY;
  for (int64_t k = begin + threadIdx.x; k < end; k += kThreads) top = fmaxf(top, row[k]);
  top = BlockReduce<true>(top);
  float sum = 0;
  for (int64_t k = begin + threadIdx.x; k < end; k += kThreads) {
    const float e = expf((row[k] - top) * a.scale);
    row[k] = e;
    sum += e;
  }
  const float inverse = 1.0f / BlockReduce<false>(sum);
  for (int64_t k = threadIdx.x; k < a.keys; k += kThreads)
    row[k] = k >= begin && k < end ? row[k] * inverse : 0.0f;
}

template <Activation kKind>
__device__ float Activate(float x) {
  if constexpr (kKind == Activation::kSilu) return x / (1.0f + expf(-x));
  if constexpr (kKind == Activation::kGelu) return 0.5f * x * erfcf(-0.70710678f * x);
  if constexpr (kKind == Activation::kGeluTanh)
    return x / (1.0f + expf(-1.59576912f * x * (1.0f + 0.044715f * x * x)));
  const float positive = fmaxf(x, 0.0f);
  return kKind == Activation::kRelu2 ? positive * positive : positive;
}

template <Activation kKind>
__global__ void ActivateKernel(float* gate, const float* up, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step)
    gate[i] = Activate<kKind>(gate[i]) * up[i];
}

// Grid: 32 columns per block; each warp takes every kWarps-th row of them.
__global__ void MagnitudesKernel(const float* x, int64_t rows, int64_t cols, double* sums) {
  __shared__ double parts[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * 32 + lane;
  double sum = 0;
  if (c < cols)
    for (int64_t r = warp; r < rows; r += kWarps) sum += fabsf(x[r * cols + c]);
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || c >= cols) return;
  for (int w = 1; w < kWarps; ++w) sum += parts[w][lane];
  sums[c] += sum;
}

__global__ void NotFiniteKernel(const float* x, int64_t n, unsigned long long* first) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step)
    if (!isfinite(x[i])) {
      atomicMin(first, static_cast<unsigned long long>(i));
      return;  // a thread's later ones are larger
    }
}

}  // namespace

cudaError_t LaunchWindowsNorm(const float* x, const float* weight, float eps, int64_t rows, int64_t cols,
                              float* out, cudaStream_t stream) {
  NormKernel<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(x, weight, eps, cols, out);
  return cudaGetLastError();
}

cudaError_t LaunchWindowsBias(float* x, const float* bias, int64_t rows, int64_t cols, cudaStream_t stream) {
  BiasKernel<<<WalkingBlocks(rows * cols), kThreads, 0, stream>>>(x, bias, rows * cols, cols);
  return cudaGetLastError();
}

cudaError_t LaunchWindowsRotate(const WindowsRotateArgs& args, cudaStream_t stream) {
  RotateKernel<<<Blocks(args.tokens * args.count, kWarps), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchWindowsSoftmax(const WindowsSoftmaxArgs& args, cudaStream_t stream) {
  SoftmaxKernel<<<static_cast<unsigned>(args.batch * args.queries), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t LaunchWindowsActivate(Activation kind, float* gate, const float* up, int64_t n,
                                  cudaStream_t stream) {
  const unsigned blocks = WalkingBlocks(n);
  switch (kind) {
    case Activation::kSilu:
      ActivateKernel<Activation::kSilu><<<blocks, kThreads, 0, stream>>>(gate, up, n);
      break;
    case Activation::kGelu:
      ActivateKernel<Activation::kGelu><<<blocks, kThreads, 0, stream>>>(gate, up, n);
      break;
    case Activation::kGeluTanh:
      ActivateKernel<Activation::kGeluTanh><<<blocks, kThreads, 0, stream>>>(gate, up, n);
      break;
    case Activation::kRelu:
      ActivateKernel<Activation::kRelu><<<blocks, kThreads, 0, stream>>>(gate, up, n);
      break;
    case Activation::kRelu2:
      ActivateKernel<Activation::kRelu2><<<blocks, kThreads, 0, stream>>>(gate, up, n);
      break;
  }
  return cudaGetLastError();
}

cudaError_t LaunchColumnMagnitudes(const float* x, int64_t rows, int64_t cols, double* sums,
                                   cudaStream_t stream) {
  MagnitudesKernel<<<Blocks(cols, 32), kThreads, 0, stream>>>(x, rows, cols, sums);
  return cudaGetLastError();
}

cudaError_t LaunchFirstNotFinite(const float* x, int64_t n, unsigned long long* first, cudaStream_t stream) {
  NotFiniteKernel<<<WalkingBlocks(n), kThreads, 0, stream>>>(x, n, first);
  return cudaGetLastError();
}

}  // namespace celer::cuda
