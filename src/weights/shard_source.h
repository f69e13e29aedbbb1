// One rank's part of a model file: some tensors are cut to some of their rows, or to some columns of each row. Rows
// stay where they lie in the mapped file; columns are copied when the tensor is read, and nothing else of it is.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "base/shape.h"
#include "io/file/tensor_table.h"
#include "weights/tensor_source.h"

namespace celer {

struct TensorSlice {
  Shape whole;           // that the tensor must have: [n], [rows, cols] or [count, rows, cols]
  bool columns = false;  // else rows; of a vector its elements
  int64_t begin = 0, count = 0;
};
using TensorSlices = std::map<std::string, TensorSlice, std::less<>>;

class ShardSource final : public TensorSource {
 public:
  // An error names a tensor of another shape, or one that cannot be cut there. Slices of tensors that the file lacks
  // have no effect.
  static Result<std::unique_ptr<ShardSource>> Open(std::unique_ptr<TensorSource> file,
                                                   const TensorSlices& slices);

  const TensorRecord* Find(std::string_view name) const override { return table_.Find(name); }
  const std::vector<TensorRecord>& tensors() const override { return table_.records(); }
  void DropPages(const TensorRecord& tensor) const override { file_->DropPages(tensor); }
  const std::string& path() const override { return file_->path(); }
  const CodedTensor* Coded(std::string_view name) const override;
  std::string_view PartOf(std::string_view name) const override { return file_->PartOf(name); }

 private:
  explicit ShardSource(std::unique_ptr<TensorSource> file) : file_(std::move(file)) {}

  Status Cut(const TensorRecord& record, const TensorSlice& slice);
  Status CutVector(const TensorRecord& record, const TensorSlice& slice);
  // Some rows of one plain matrix, and of the scales that stand beside it.
  Status CutRows(const TensorRecord& record, const TensorSlice& slice, int64_t cols);

  std::unique_ptr<TensorSource> file_;
  TensorTable table_;
  std::unordered_map<std::string, std::unique_ptr<CodedTensor>> coded_;
};

}  // namespace celer
