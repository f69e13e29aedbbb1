// GPTQ: columns are quantized one after the other, and the error of each is compensated by the columns that
// are not quantized yet, as far as the inputs of the matrix correlate (inverse Hessian).
//
//   for column i in the order of falling H_ii (act-order: the busiest inputs first, while most can compensate):
//     e = (w_i - round(w_i)) / U_ii;   w_j -= e U_ij for all j behind i
//
// H = mean of x^T x + damping; U^T U = H^-1, upper triangular. The grids (scales and zero points) are fitted
// before, group by group in the order of the file (static groups), so that the result needs no g_idx.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "device/aligned_vector.h"
#include "device/thread_pool.h"
#include "quantize/llm/int_tensor.h"
#include "quantize/llm/matrix.h"

namespace celer {

struct GptqOptions {
  float damping = 0.01f;  // of the mean of H's diagonal, added to it
  bool act_order = true;
};

// Act-order, the order in which columns are quantized: [i] is the column that comes i-th.
std::vector<int32_t> GptqOrder(const std::vector<float>& mean_squares, bool act_order);

// Calls factor(damping) with what is added to H's diagonal, larger and larger until it gives true. An error,
// with `name`, if H has no inverse however much it is damped.
Status WithDamping(const std::vector<float>& mean_squares, float damping, const std::string& name,
                   const std::function<Result<bool>(float)>& factor);

// Of one input; serves all matrices that have it.
class GptqSolver {
 public:
  // `name` is for the error if H has no inverse.
  static Result<GptqSolver> Make(const InputStatistics& input, const GptqOptions& options,
                                 const std::string& name, ThreadPool& pool);

  // w is [rows, cols of the input].
  IntTensor Quantize(const float* w, int64_t rows, const Target& target, ThreadPool& pool) const;
  // The same to GGUF blocks with a grid (GridOf()), as rows of bytes.
  std::vector<std::byte> QuantizeBlocks(const float* w, int64_t rows, DType dtype, ThreadPool& pool) const;

 private:
  template <class Grids>
  void Round(const float* w, int64_t rows, ThreadPool& pool, const Grids& grids) const;

  int64_t cols_ = 0;
  std::vector<int32_t> order_;     // which column comes i-th
  std::vector<float> importance_;  // mean squares of the input, in the order of the file
  AlignedVector<float> u_;         // [cols, cols], in the order of rounding
};

}  // namespace celer
