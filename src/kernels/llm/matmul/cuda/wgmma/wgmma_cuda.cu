// The host side of wgmma_cuda.cuh: whether it runs here, its tiles and memory, the launch.
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"

#include "device/gpu/gpu_code.h"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.cuh"
#include "kernels/shared/cuda/tensor_map.h"

namespace celer::cuda {
namespace wgmma {

bool MakeMap(const void* data, int element_bytes, int64_t width, int64_t height, int box_width,
             int box_height, CUtensorMap* out) {
  return MakeTensorMap(data,
                       {.element_bytes = element_bytes,
                        .width = width,
                        .height = height,
                        .box_width = box_width,
                        .box_height = box_height},
                       out);
}

}  // namespace wgmma

bool WgmmaIsNative() {
  return CodeOnGpu(CurrentDevice()).wgmma();
}

bool WgmmaRuns() {
  // Code of 9.0 that the driver compiled for a later GPU has neither wgmma nor the generic bodies.
  return WgmmaIsNative() || !HopperCode();
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

int WgmmaMostTile() {
  // Two stages with 128 tokens take up to 104 KB.
  return WgmmaIsNative() ? 256 : SharedLimit() >= wgmma::kGenericTileBytes ? kGenericTile : 64;
}

int WgmmaTile(int64_t rows, int64_t tokens) {
  const int most = WgmmaMostTile();
  for (const int tile : {16, 32, 64, 128})
    if (tokens <= tile || tile == most) return tile;
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
  if (args.x.tile > WgmmaMostTile()) return cudaErrorInvalidValue;
  return WithFormat(args.w[0].format, [&]<Format F>() { return wgmma::LaunchFormat<F>(args, stream); });
}

}  // namespace celer::cuda
