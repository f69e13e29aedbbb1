// The named tensors of a model file, whatever its container.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/file/tensor_record.h"
#include "weights/coded_tensor.h"

namespace celer {

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual const TensorRecord* Find(std::string_view name) const = 0;  // nullptr when there is none
  virtual const std::vector<TensorRecord>& tensors() const = 0;
  virtual void DropPages(const TensorRecord& tensor) const = 0;  // not needed for now (madvise)
  virtual const std::string& path() const = 0;                   // for error sentences
  // The decoder of a tensor that is part of a quantized encoding; nullptr for plain ones.
  virtual const CodedTensor* Coded(std::string_view) const { return nullptr; }
  // The part of a model that a tensor is, or the first of those in it, where it has the file's name instead; "" if it
  // is none.
  virtual std::string_view PartOf(std::string_view name) const { return name; }
};

// Over SafetensorsModel, GgufFile or Llama2cFile; owns the mapping.
template <class File>
class FileTensorSource final : public TensorSource {
 public:
  FileTensorSource(File file, std::string path) : file_(std::move(file)), path_(std::move(path)) {}
  const TensorRecord* Find(std::string_view name) const override { return file_.Find(name); }
  const std::vector<TensorRecord>& tensors() const override { return file_.tensors(); }
  void DropPages(const TensorRecord& tensor) const override { file_.DropPages(tensor); }
  const std::string& path() const override { return path_; }
  const File& file() const { return file_; }

 private:
  File file_;
  std::string path_;
};

}  // namespace celer
