// The host side of wgmma_cuda.cuh: whether it runs here, its tiles and memory, the launch.
#include "kernels/matmul/cuda/wgmma/wgmma_cuda.h"

#include "kernels/matmul/cuda/wgmma/wgmma_cuda.cuh"

namespace celer::cuda {
namespace wgmma {

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

}  // namespace wgmma

bool WgmmaRuns() {
  static PerDevice<bool> runs;
  return runs.Get([] {
    const int device = CurrentDevice();
    int major = 0, minor = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
           major == 9 && minor == 0;
  });
}

bool WgmmaQkvRuns(const DeviceKv& kv, int rope_dim) {
  return (kv.head_dim == 64 || kv.head_dim == 128) && rope_dim == kv.head_dim && kv.dtype != DType::kI8;
}

int64_t WgmmaPartialFloats() {
  return int64_t{2} * Multiprocessors() * wgmma::kMaxAccumulators * wgmma::kMultipliers;
}
int64_t WgmmaTickets() {
  return wgmma::kTickets;
}

int WgmmaTile(int64_t rows, int64_t tokens) {
  for (const int tile : {16, 32, 64, 128})
    if (tokens <= tile) return tile;
  // 256 is the faster tile where it does not leave multiprocessors idle.
  const int64_t blocks = Multiprocessors();
  const auto use = [&](int64_t tile) {
    const int64_t tiles = (rows + 127) / 128 * ((tokens + tile - 1) / tile);
    return static_cast<double>(rows * tokens) /
           static_cast<double>((tiles + blocks - 1) / blocks * blocks * 128 * tile);
  };
  return use(256) >= 0.94 * use(128) ? 256 : 128;
}

cudaError_t LaunchWgmma(const WgmmaArgs& args, cudaStream_t stream) {
  return WithFormat(args.w[0].format, [&]<Format F>() { return wgmma::LaunchFormat<F>(args, stream); });
}

}  // namespace celer::cuda
