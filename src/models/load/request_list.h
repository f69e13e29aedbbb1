// Takes down what a loader asks a model's file for, and reads nothing. Views have no memory, vectors are zeros.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "models/load/file_tensors.h"
#include "weights/weight_reader.h"

namespace celer {

struct TensorRequest {
  ModelPart part;
  bool vector = false, optional = false;
};

class RequestList final : public WeightReader {
 public:
  using Question = std::function<bool(const std::string& name)>;
  // `has`: the answer to Has(); `has_row`: whether a table lies in tensors of one row each, of which this is one.
  RequestList(Question has, Question has_row) : has_(std::move(has)), has_row_(std::move(has_row)) {}

  Result<WeightView> Matrix(const std::string& name, int64_t rows, int64_t cols) override;
  Result<std::vector<WeightView>> Stack(const std::string& name, int64_t count, int64_t rows,
                                        int64_t cols) override;
  Result<WeightView> Heads(const std::string& name, int64_t heads, int64_t rows, int64_t cols,
                           const HeadPart& part) override;
  using WeightReader::Vector;
  Result<const float*> Vector(const std::string& name, int64_t n, bool required) override;
  Result<const float*> ScaledVector(const std::string& name, int64_t n, float scale) override;
  Result<const float*> Table(const std::string& name, int64_t rows, int64_t cols) override;
  bool Has(const std::string& name) const override { return has_(name); }
  void Skip(const std::string&) override {}

  std::vector<TensorRequest> Take() { return std::move(requests_); }

 private:
  void Add(const std::string& name, Shape shape, bool vector, bool optional = false);
  Result<const float*> Zeros(const std::string& name, int64_t n);

  Question has_, has_row_;
  std::vector<TensorRequest> requests_;
  std::list<std::vector<float>> zeros_;  // earlier ones are still pointed to
};

}  // namespace celer
