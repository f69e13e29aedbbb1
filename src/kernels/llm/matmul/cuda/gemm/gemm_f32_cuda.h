// Products of f32 matrices by cuBLASLt, in plain f32 arithmetic: for work that is done once and must be
// exact, such as calibration.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "base/result.h"

namespace celer::cuda {

class GemmF32 {
 public:
  static Result<GemmF32> Create(int device);
  GemmF32(GemmF32&&) noexcept;
  GemmF32& operator=(GemmF32&&) noexcept;
  ~GemmF32();

  // A matrix row by row, or its transpose. Strides in floats.
  struct Operand {
    const float* data = nullptr;
    int64_t stride = 0;        // from one row to the next, as it lies in memory
    bool transposed = false;   // what is multiplied is the transpose of that
    int64_t batch_stride = 0;  // from one product's matrix to the next one's
  };
  // out [m, n] = alpha a [m, k] . b [k, n], added to what is there if `add`; `batch` times.
  struct Args {
    int64_t m = 0, n = 0, k = 0;
    Operand a = {}, b = {};
    float* out = nullptr;
    int64_t out_stride = 0, out_batch_stride = 0;
    float alpha = 1;
    bool add = false;
    int64_t batch = 1;
  };
  Status Run(const Args& args, cudaStream_t stream);

 private:
  struct State;
  explicit GemmF32(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace celer::cuda
