// The data of one tensor after another of a file that is being written, out of the parts of another one.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "convert/model_parts.h"
#include "device/thread_pool.h"
#include "io/file/tensor_record.h"
#include "models/load/file_tensors.h"

namespace celer {

// Called with the bytes written so far; an error stops the work.
using ConvertProgress = std::function<Status(int64_t done, int64_t total)>;

class TensorFiller {
 public:
  // `total` bytes will be written in all, for the progress.
  TensorFiller(const ModelParts& from, bool gguf, ThreadPool& pool, ConvertProgress progress, int64_t total)
      : from_(from), gguf_(gguf), pool_(pool), progress_(std::move(progress)), total_(total) {}

  // Whether the model has all of it; it may lack what is optional.
  bool Has(const FileTensor& tensor) const;
  // Of a vector, or of what is as small; as they will stand in the file.
  Result<std::vector<float>> Floats(const FileTensor& tensor) const;
  Status Fill(const FileTensor& tensor, DType dtype, const TensorSink& sink);

 private:
  struct Matrix;  // of one matrix of a tensor, its parts

  Result<std::vector<float>> Vector(const ModelPart& part) const;
  Result<Matrix> MatrixOf(const FileTensor& tensor, int64_t number) const;
  Status Rows(const Matrix& matrix, DType dtype, const TensorSink& sink);
  Status Turned(const FileTensor& tensor, const Matrix& matrix, DType dtype, const TensorSink& sink);
  Status Write(const std::vector<float>& values, int64_t cols, DType dtype, const TensorSink& sink);

  const ModelParts& from_;
  bool gguf_;
  ThreadPool& pool_;
  ConvertProgress progress_;
  int64_t total_, done_ = 0;
};

}  // namespace celer
