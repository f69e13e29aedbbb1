#include "kernels/matmul/wide_cuda.h"

#include "kernels/matmul/wide_cuda.cuh"

namespace celer::cuda {
namespace wide {

cudaError_t RunF32(const WideArgs& args, cudaStream_t stream);
cudaError_t RunF16(const WideArgs& args, cudaStream_t stream);
cudaError_t RunBf16(const WideArgs& args, cudaStream_t stream);
cudaError_t RunInt8(const WideArgs& args, cudaStream_t stream);
cudaError_t RunInt4(const WideArgs& args, cudaStream_t stream);
cudaError_t RunInt4Wide(const WideArgs& args, cudaStream_t stream);

namespace {

constexpr int kActivationThreads = 256;

// Grid: tokens. A thread makes the eight columns that lie together in the output.
__global__ void __launch_bounds__(kActivationThreads)
    ActivationsKernel(const float* x, const int32_t* rows, int cols, const float* norm, float eps,
                      const __grid_constant__ WideActivations out) {
  LetNextStart();
  WaitForPrevious();
  const int token = static_cast<int>(blockIdx.x);
  const float* row = x + static_cast<int64_t>(rows ? __ldcg(rows + token) : token) * cols;
  const bool whole = cols % 2 == 0;
  const auto load = [&](const float* from, int col) {
    if (whole && col < cols) return __ldcg(reinterpret_cast<const float2*>(from + col));
    return make_float2(col < cols ? from[col] : 0, col + 1 < cols ? from[col + 1] : 0);
  };
  const int pieces = out.padded / 8;
  constexpr int kKept = 4;  // pieces that stay in registers between the passes
  float2 kept[kKept][4];
  float scale = 1;
  const auto first_col = [](int piece) { return piece / 4 * 32 + piece % 4 * 2; };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kActivationThreads;
    if (piece >= pieces) break;
#pragma unroll
    for (int t = 0; t < 4; ++t) kept[i][t] = load(row, first_col(piece) + t * 8);
  }
  if (norm) {
    __shared__ float sums[kActivationThreads / 32];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (static_cast<int>(threadIdx.x) + i * kActivationThreads >= pieces) break;
#pragma unroll
      for (int t = 0; t < 4; ++t) squares += kept[i][t].x * kept[i][t].x + kept[i][t].y * kept[i][t].y;
    }
    for (int piece = static_cast<int>(threadIdx.x) + kKept * kActivationThreads; piece < pieces;
         piece += kActivationThreads)
      for (int t = 0; t < 4; ++t) {
        const float2 v = load(row, first_col(piece) + t * 8);
        squares += v.x * v.x + v.y * v.y;
      }
    for (int j = 16; j > 0; j /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, j);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = squares;
    __syncthreads();
    float total = 0;
    for (int i = 0; i < kActivationThreads / 32; ++i) total += sums[i];
    scale = 1.0f / sqrtf(total / static_cast<float>(cols) + eps);
  }
  const int column = token * out.parts;
  uint4* to = reinterpret_cast<uint4*>(out.data) +
              static_cast<int64_t>(column / out.tile) * pieces * out.tile + column % out.tile;
  const auto store = [&](int piece, const float2(&v)[4]) {
    uint32_t pairs[4], rest[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      float2 w = make_float2(1, 1);
      if (norm) w = load(norm, first_col(piece) + t * 8);
      const float2 value = make_float2(v[t].x * scale * w.x, v[t].y * scale * w.y);
      pairs[t] = PackBf16(value.x, value.y);
      const float2 kept_part = matvec::UnpackBf16(pairs[t]);
      rest[t] = PackBf16(value.x - kept_part.x, value.y - kept_part.y);
    }
    uint4* at = to + static_cast<int64_t>(piece) * out.tile;
    at[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    if (out.parts == 2) at[1] = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  };
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kActivationThreads;
    if (piece >= pieces) break;
    store(piece, kept[i]);
  }
  for (int piece = static_cast<int>(threadIdx.x) + kKept * kActivationThreads; piece < pieces;
       piece += kActivationThreads) {
    float2 v[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) v[t] = load(row, first_col(piece) + t * 8);
    store(piece, v);
  }
}

}  // namespace

bool MakeMap(const void* data, int element_bytes, int64_t width, int64_t height, int box_width,
             int box_height, CUtensorMap* out) {
  // The driver's own function; linking it would tie the program to machines that have a driver.
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess)
      found = nullptr;
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  if (!encode) return false;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(height)};
  const cuuint64_t pitch = static_cast<cuuint64_t>(width * element_bytes);
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_width), static_cast<cuuint32_t>(box_height)};
  const cuuint32_t steps[] = {1, 1};
  return encode(out, element_bytes == 8 ? CU_TENSOR_MAP_DATA_TYPE_UINT64 : CU_TENSOR_MAP_DATA_TYPE_UINT32, 2,
                const_cast<void*>(data), sizes, &pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace wide

bool WideRuns() {
  static const bool runs = [] {
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
           major == 9 && minor == 0;
  }();
  return runs;
}

bool WideQkvRuns(const DeviceKv& kv, int rope_dim) {
  return (kv.head_dim == 64 || kv.head_dim == 128) && rope_dim == kv.head_dim && kv.dtype != DType::kI8;
}

int64_t WidePartialFloats() {
  return int64_t{2} * matvec::Multiprocessors() * wide::kMaxAccumulators * wide::kMultipliers;
}
int64_t WideTickets() {
  return wide::kTickets;
}

int WideTile(int64_t rows, int64_t tokens) {
  for (const int tile : {16, 32, 64, 128})
    if (tokens <= tile) return tile;
  // 256 is the faster tile where it does not leave multiprocessors idle.
  const int64_t blocks = matvec::Multiprocessors();
  const auto use = [&](int64_t tile) {
    const int64_t tiles = (rows + 127) / 128 * ((tokens + tile - 1) / tile);
    return static_cast<double>(rows * tokens) /
           static_cast<double>((tiles + blocks - 1) / blocks * blocks * 128 * tile);
  };
  return use(256) >= 0.94 * use(128) ? 256 : 128;
}

cudaError_t LaunchWideActivations(const float* x, const int32_t* rows, int64_t tokens, int cols,
                                  const float* norm, float eps, const WideActivations& out,
                                  cudaStream_t stream) {
  return Launch(wide::ActivationsKernel, dim3(static_cast<unsigned>(tokens)), dim3(wide::kActivationThreads),
                0, stream, x, rows, cols, norm, eps, out);
}

cudaError_t LaunchWide(const WideArgs& args, cudaStream_t stream) {
  using namespace wide;
  switch (args.w[0].format) {
    case Format::kF32:
      return RunF32(args, stream);
    case Format::kF16:
      return RunF16(args, stream);
    case Format::kBf16:
      return RunBf16(args, stream);
    case Format::kInt8:
      return RunInt8(args, stream);
    case Format::kInt4:
      return RunInt4(args, stream);
    case Format::kInt4Wide:
      return RunInt4Wide(args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace celer::cuda
