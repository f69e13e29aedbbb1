#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/llm/rms_norm/norm_cuda.h"
#include "kernels/shared/cuda/launch.cuh"
#include "kernels/shared/cuda/not_finite.cuh"

namespace celer::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kKept = 16;  // values of a thread that stay in registers; more are read again

// The sum over the block, the same in all threads. `sums` is used once.
template <int kWarps>
__device__ __forceinline__ float BlockSum(float value, float (&sums)[kWarps]) {
  for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) total += sums[i];
  return total;
}

// Grid: tokens.
__global__ void __launch_bounds__(kThreads) NormKernel(const __grid_constant__ NormArgs a) {
  __shared__ float sums[2][kThreads / 32];
  LetNextStart();
  const int token = blockIdx.x, first = threadIdx.x;
  float weights[kKept];  // they come from memory while the kernel in front ends
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    weights[i] = first + i * kThreads < a.cols ? __ldg(a.weight + first + i * kThreads) : 0;
  WaitForPrevious();
  const float* row = a.x + static_cast<int64_t>(a.rows ? __ldcg(a.rows + token) : token) * a.cols;
  float* out = a.out + static_cast<int64_t>(token) * a.cols;
  float kept[kKept], before[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int col = first + i * kThreads;
    kept[i] = col < a.cols ? __ldcg(row + col) : 0;
    before[i] = a.add && col < a.cols ? __ldcg(out + col) : 0;
  }
  constexpr int kBehind = kKept * kThreads;
  const auto n = static_cast<float>(a.cols);
  float mean = 0;
  if (a.layer) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) sum += kept[i];
    for (int col = first + kBehind; col < a.cols; col += kThreads) sum += __ldcg(row + col);
    mean = BlockSum(sum, sums[0]) / n;
  }
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const float apart = first + i * kThreads < a.cols ? kept[i] - mean : 0;
    squares += apart * apart;
  }
  for (int col = first + kBehind; col < a.cols; col += kThreads) {
    const float apart = __ldcg(row + col) - mean;
    squares += apart * apart;
  }
  const float total = BlockSum(squares, sums[1]);
  const float scale = 1.0f / sqrtf(total / n + a.eps) + ZeroOrNan(total);
  const auto finish = [&](int col, float value, float weight, float was) {
    out[col] = was + (value - mean) * scale * weight + (a.bias ? __ldg(a.bias + col) : 0.0f);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (first + i * kThreads < a.cols) finish(first + i * kThreads, kept[i], weights[i], before[i]);
  for (int col = first + kBehind; col < a.cols; col += kThreads)
    finish(col, __ldcg(row + col), __ldg(a.weight + col), a.add ? __ldcg(out + col) : 0.0f);
}

// Grid: tokens. A thread takes the eights of columns that lie together in the activations.
constexpr int kEightThreads = 256;
constexpr int kEights = 4;  // of a thread
constexpr int kMostColumns = kEightThreads * kEights * 8;

__global__ void __launch_bounds__(kEightThreads) AddNormedKernel(const __grid_constant__ AddNormedArgs a) {
  __shared__ float sums[2][kEightThreads / 32];
  LetNextStart();
  WaitForPrevious();
  const int token = blockIdx.x, eights = a.next.padded / 8;
  const float* branch = a.branch + static_cast<int64_t>(token) * a.cols;
  float* x = a.x + static_cast<int64_t>(token) * a.cols;
  const auto eight_of = [](int i) { return static_cast<int>(threadIdx.x) + i * kEightThreads; };
  const auto column = [&](int i, int t) { return eight_of(i) / 4 * 32 + eight_of(i) % 4 * 2 + t * 8; };
  const auto two = [&](const float* from, int i, int t) {
    const int col = column(i, t);
    return col < a.cols ? __ldcg(reinterpret_cast<const float2*>(from + col)) : make_float2(0, 0);
  };
  float2 v[kEights][4], kept[kEights][4];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kEights; ++i)
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      v[i][t] = two(branch, i, t);
      kept[i][t] = two(x, i, t);
      squares += v[i][t].x * v[i][t].x + v[i][t].y * v[i][t].y;
    }
  const auto n = static_cast<float>(a.cols);
  const float total = BlockSum(squares, sums[0]);
  const float scale = 1.0f / sqrtf(total / n + a.eps) + ZeroOrNan(total);
  squares = 0;
#pragma unroll
  for (int i = 0; i < kEights; ++i)
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 w = two(a.weight, i, t);
      float2& to = kept[i][t];
      to.x += v[i][t].x * scale * w.x, to.y += v[i][t].y * scale * w.y;
      squares += to.x * to.x + to.y * to.y;
    }
    // From here on the weights of the next norm; all loads in front of the first store, which they would have to wait for.
#pragma unroll
  for (int i = 0; i < kEights; ++i)
#pragma unroll
    for (int t = 0; t < 4; ++t) v[i][t] = a.next_weight ? two(a.next_weight, i, t) : make_float2(1, 1);
#pragma unroll
  for (int i = 0; i < kEights; ++i)
#pragma unroll
    for (int t = 0; t < 4; ++t)
      if (column(i, t) < a.cols) *reinterpret_cast<float2*>(x + column(i, t)) = kept[i][t];
  float next = 1;
  if (a.next_weight) {
    const float all = BlockSum(squares, sums[1]);
    next = 1.0f / sqrtf(all / n + a.next_eps) + ZeroOrNan(all);
  }
  const int at = token * a.next.parts;
  uint4* const to = reinterpret_cast<uint4*>(a.next.data) +
                    static_cast<int64_t>(at / a.next.tile) * eights * a.next.tile + at % a.next.tile;
#pragma unroll
  for (int i = 0; i < kEights; ++i) {
    if (eight_of(i) >= eights) break;
    uint32_t pairs[4], rest[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const float2 value = make_float2(kept[i][t].x * next * v[i][t].x, kept[i][t].y * next * v[i][t].y);
      pairs[t] = matvec::PackBf16(value.x, value.y);
      const float2 part = matvec::UnpackBf16(pairs[t]);
      rest[t] = matvec::PackBf16(value.x - part.x, value.y - part.y);
    }
    uint4* const place = to + static_cast<int64_t>(eight_of(i)) * a.next.tile;
    place[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    if (a.next.parts == 2) place[1] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }
}

// Grid: (parts of a row, tokens).
__global__ void AddBiasKernel(float* x, const float* bias, int cols) {
  LetNextStart();
  WaitForPrevious();
  const int col = blockIdx.x * blockDim.x + threadIdx.x;
  if (col >= cols) return;
  float* const at = x + static_cast<int64_t>(blockIdx.y) * cols + col;
  *at = __ldcg(at) + __ldg(bias + col);
}

}  // namespace

cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream) {
  return Launch(NormKernel, dim3(static_cast<unsigned>(args.tokens)), dim3(kThreads), 0, stream, args);
}

bool AddNormedRuns(int64_t cols) {
  return cols % 2 == 0 && cols <= kMostColumns;
}

cudaError_t LaunchAddNormed(const AddNormedArgs& args, cudaStream_t stream) {
  if (!AddNormedRuns(args.cols) || args.next.padded > kMostColumns) return cudaErrorInvalidValue;
  return Launch(AddNormedKernel, dim3(static_cast<unsigned>(args.tokens)), dim3(kEightThreads), 0, stream,
                args);
}

cudaError_t LaunchAddBias(float* x, const float* bias, int tokens, int cols, cudaStream_t stream) {
  return Launch(AddBiasKernel, dim3(static_cast<unsigned>((cols + 255) / 256), static_cast<unsigned>(tokens)),
                dim3(256), 0, stream, x, bias, cols);
}

}  // namespace celer::cuda
