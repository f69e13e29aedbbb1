#include "kernels/shared/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

namespace celer::cuda {

bool MakeTensorMap(const void* data, const TensorMapShape& shape, CUtensorMap* out) {
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
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(shape.width), static_cast<cuuint64_t>(shape.height),
                              static_cast<cuuint64_t>(shape.depth)};
  const cuuint64_t pitches[] = {static_cast<cuuint64_t>(shape.width * shape.element_bytes),
                                static_cast<cuuint64_t>(shape.depth_pitch)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(shape.box_width),
                            static_cast<cuuint32_t>(shape.box_height), 1};
  const cuuint32_t steps[] = {1, 1, 1};
  const auto type =
      shape.element_bytes == 8 ? CU_TENSOR_MAP_DATA_TYPE_UINT64 : CU_TENSOR_MAP_DATA_TYPE_UINT32;
  return encode(out, type, shape.depth > 0 ? 3 : 2, const_cast<void*>(data), sizes, pitches, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace celer::cuda
