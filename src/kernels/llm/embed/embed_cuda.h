// Rows of the embedding table as f32, scaled, and those of learned positions added to them, on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/shared/cuda/device_matrix.h"

namespace celer::cuda {

struct EmbedArgs {
  const int32_t* tokens = nullptr;  // [count]
  int count = 0;
  DeviceMatrix table;
  float scale = 1;
  int first_token = 0;                 // that the table has; tokens that it does not have become zeros
  DeviceMatrix position_table = {};    // none: nothing is added
  const int32_t* positions = nullptr;  // [count], with a position_table
  int position_offset = 0;             // its first row is for position -position_offset
  float* out = nullptr;                // [count, cols]
  uint32_t* step = nullptr;  // increased by one, or null: decode_batch_cuda.h tells its steps apart by it
};
cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream);

}  // namespace celer::cuda
