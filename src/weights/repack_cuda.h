// From rows as a file holds them to a DeviceMatrix, on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "kernels/shared/cuda/device_matrix.h"

namespace celer::cuda {

// Whether rows of this type of a file are decoded on the GPU; others come as f32.
bool CanRepack(DType dtype);

struct RepackArgs {
  DType dtype = DType::kF32;
  const std::byte* source = nullptr;  // [rows, source_row_bytes] on the GPU, aligned
  int64_t source_row_bytes = 0;
  const void* source_scales = nullptr;  // kI8, kFp8E4M3: float, kU4: Int4Group; [rows, cols / source_group]
  int source_group = 0;
  int first_row = 0, rows = 0;  // of the target
  // Rotated pairs (2i, 2i + 1) of each head become (i, i + rope_dim / 2): head_dim > 0. Pieces are whole
  // heads.
  int head_dim = 0, rope_dim = 0;
  DeviceMatrix target;  // memory that is zero where nothing is written
};

// Float targets are rounded to nearest; kInt8, kFp8 and kInt4 are fitted as formats/weight_format.h does it,
// unless the source has such groups already: those are taken over exactly.
cudaError_t LaunchRepack(const RepackArgs& args, cudaStream_t stream);

// Random weights of about 1/sqrt(cols), for benchmarks.
cudaError_t LaunchRandom(const DeviceMatrix& target, uint32_t seed, cudaStream_t stream);

}  // namespace celer::cuda
