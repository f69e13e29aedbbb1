// A Hugging Face folder with a "quantization_config": its quantized matrices under the names that they have
// without quantization, and the other tensors as they are.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "io/file/tensor_table.h"
#include "io/json/json.h"
#include "weights/published/matrix.h"
#include "weights/tensor_source.h"

namespace celer::published {

// In a config.json.
inline constexpr std::string_view kConfigKey = "quantization_config";
std::string Where(const std::filesystem::path& config_path);  // "config.json: 'quantization_config'"

class PublishedSource final : public TensorSource {
 public:
  // `config` is the quantization_config; `where` is what error sentences call it. `keep_fp8`: as in
  // Matrix::ChooseFormat().
  static Result<std::unique_ptr<PublishedSource>> Open(std::unique_ptr<TensorSource> file,
                                                       const nlohmann::json& config, const std::string& where,
                                                       bool keep_fp8 = false);

  const TensorRecord* Find(std::string_view name) const override { return table_.Find(name); }
  const std::vector<TensorRecord>& tensors() const override { return table_.records(); }
  void DropPages(const TensorRecord& tensor) const override;
  const std::string& path() const override { return file_->path(); }
  const CodedTensor* Coded(std::string_view name) const override;

  const std::string& scheme() const { return scheme_; }  // "GPTQ, 4 bits, groups of 128, symmetric"
  const Matrices& matrices() const { return matrices_; }
  // What is odd about the file, and which matrices take more bits than there.
  std::vector<std::string> Warnings() const;
  std::vector<std::string> Notes() const;

 private:
  PublishedSource() = default;

  std::unique_ptr<TensorSource> file_;
  std::string scheme_;
  Matrices matrices_;
  std::unordered_map<std::string, const Matrix*> by_name_;
  TensorTable table_;
};

// The tensors of a Hugging Face folder; quantized ones under the names that they have without quantization.
// Says nothing in the log.
Result<std::unique_ptr<TensorSource>> OpenFolder(const std::filesystem::path& path, bool keep_fp8 = false);

}  // namespace celer::published
