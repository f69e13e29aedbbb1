// The tensors of a file under the names of the parts they hold: renamed, split and turned by a family's
// TensorRules. A range of rows is a view of the file; rows that lie apart, and transposed matrices, are copied
// once, when the part is read.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "io/file/tensor_table.h"
#include "models/config/tensor_rules.h"
#include "models/load/find_rule.h"
#include "weights/tensor_source.h"

namespace celer {

class ArrangedSource final : public TensorSource {
 public:
  // An error names the tensor whose shape does not fit its rule. Tensors whose names begin with `read` are read even if
  // the rules skip them.
  static Result<std::unique_ptr<ArrangedSource>> Open(std::unique_ptr<TensorSource> file,
                                                      const TensorRules& rules, const std::string& read = "");
  // What a copy of the file has in which matrices are quantized. All that rules find in rows where it lies keeps the
  // file's name and values. Transposed matrices and stacks of experts become the parts in them, which Open() leaves as
  // they are; with `every_part` so do matrices of several parts.
  static Result<std::unique_ptr<ArrangedSource>> OpenToCopy(std::unique_ptr<TensorSource> file,
                                                            const TensorRules& rules, bool every_part);

  const TensorRecord* Find(std::string_view name) const override { return table_.Find(name); }
  const std::vector<TensorRecord>& tensors() const override { return table_.records(); }
  void DropPages(const TensorRecord& tensor) const override { file_->DropPages(tensor); }
  const std::string& path() const override { return file_->path(); }
  const CodedTensor* Coded(std::string_view name) const override;
  std::string_view PartOf(std::string_view name) const override;

  // What is not read of the file, a sentence each.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  explicit ArrangedSource(std::unique_ptr<TensorSource> file) : file_(std::move(file)) {}

  // One tensor of the file, whose name without a prefix is `name`, as its parts.
  Status Arrange(const TensorRecord& record, const std::string& name, const TensorRules& rules);
  // For OpenToCopy().
  Status Copy(const TensorRecord& record, const std::string& name, const TensorRules& rules, bool every_part);
  Status SplitTensor(const TensorRecord& record, const std::string& name, const TensorRule& rule,
                     const TensorRules& rules);
  Status AddWhole(const TensorRecord& record, const std::string& name, bool plus_one);
  Status AddElements(const TensorRecord& record, const RowMap& map, const std::string& name, bool plus_one);
  // `experts` matrices in a stack, or with 0 one matrix.
  Status AddRows(const TensorRecord& record, const TensorRule& rule, const RowMap& map, int64_t experts,
                 const std::string& name);
  bool Transposed(const TensorRecord& record, const TensorRule& rule) const;
  Status AddVector(const std::string& name, std::vector<float> values, const TensorRecord& record);
  Status Add(TensorRecord record, const TensorRecord& in_file);

  std::unique_ptr<TensorSource> file_;
  TensorTable table_;
  std::unordered_map<std::string, std::unique_ptr<CodedTensor>> coded_;
  std::unordered_map<std::string, std::string> in_file_;  // of quantized tensors with another name
  std::unordered_map<std::string, std::string> part_of_;  // of tensors that kept their names
  std::vector<std::vector<float>> vectors_;
  std::vector<std::string> warnings_;
};

}  // namespace celer
