// What a loader asks a model's file for: its tensors by name, with the shapes they must have. WeightStore gives them;
// models/load/file_tensors.h only takes down what is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "kernels/llm/weight_view.h"

namespace celer {

class WeightReader {
 public:
  virtual ~WeightReader() = default;

  // The tensor as [rows, cols].
  virtual Result<WeightView> Matrix(const std::string& name, int64_t rows, int64_t cols) = 0;
  // A tensor [count, rows, cols] as `count` matrices.
  virtual Result<std::vector<WeightView>> Stack(const std::string& name, int64_t count, int64_t rows,
                                                int64_t cols) = 0;
  // A part of each head's rows in a tensor [heads * rows, cols], which may also be [heads, rows, cols], for
  // kernels/llm/latent/head_product.h: [heads * part.count, cols], or turned, [heads * cols, part.count].
  struct HeadPart {
    int64_t begin = 0, count = 0;
    bool turned = false;
  };
  virtual Result<WeightView> Heads(const std::string& name, int64_t heads, int64_t rows, int64_t cols,
                                   const HeadPart& part) = 0;
  // A small vector, always as floats. nullptr when it is missing and not required.
  virtual Result<const float*> Vector(const std::string& name, int64_t n, bool required) = 0;
  Result<const float*> Vector(const std::string& name, int64_t n) { return Vector(name, n, true); }
  // The same with each element multiplied.
  virtual Result<const float*> ScaledVector(const std::string& name, int64_t n, float scale) = 0;
  // A small table, always as floats: a tensor [rows, cols], or if there is none, tensors of one row each, with its
  // number before the last word of the name ("q_norm.3.weight").
  virtual Result<const float*> Table(const std::string& name, int64_t rows, int64_t cols) = 0;

  virtual bool Has(const std::string& name) const = 0;
  // A tensor that is known and not needed.
  virtual void Skip(const std::string& name) = 0;
};

}  // namespace celer
