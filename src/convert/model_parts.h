// The parts of a model file under their names in Hugging Face's container, with that container's order of rows and columns,
// whatever the file is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "convert/part_order.h"
#include "models/config/decoder_config.h"
#include "models/load/file_tensors.h"
#include "weights/tensor_source.h"

namespace celer {

// What a file of f16 or bf16 had, where GGUF has `forward` of it in f32: the number with few bits that gives `stored`, else
// `value`, the inverse.
float FewestBits(float value, float stored, float (*forward)(float));

class ModelParts {
 public:
  struct Part {
    const TensorRecord* record = nullptr;
    const CodedTensor* coded = nullptr;
    int64_t first = 0;           // row of the record that is this part's first
    int64_t rows = 0, cols = 0;  // a vector is one row
    // Row i of this part is row rows_in_file[i] of the record, behind `first`.
    std::vector<int32_t> rows_in_file = {}, cols_in_file = {};
    std::vector<float> values = {};  // instead of the record, where a part is made of several
  };

  // `config` is what a folder's config.json says of the model; `source` has the parts of a file as OpenModel() gives them.
  static Result<ModelParts> Make(const DecoderConfig& config, std::unique_ptr<TensorSource> source,
                                 bool gguf);

  const DecoderConfig& config() const { return config_; }
  const TensorSource& source() const { return *source_; }

  bool Has(const std::string& key) const;
  // Whether a folder holds the matrix in blocks of MXFP4.
  bool IsMxfp4(const std::string& key) const;
  // An error names the tensor that is missing or has another size.
  Result<Part> Matrix(const std::string& key, int64_t rows, int64_t cols) const;
  Result<std::vector<float>> Vector(const std::string& key, int64_t elements) const;
  // All rows of a part, row by row.
  Result<std::vector<float>> Values(const Part& part) const;
  // False: the row has values that are NaN or infinite.
  bool Row(const Part& part, int64_t row, float* out) const;
  Error NotFinite(const Part& part) const;
  void Done(const Part& part) const;  // pages may leave memory

 private:
  struct Place {
    std::string name;  // in the source
    int64_t first = 0;
    ModelPart part = {};
    bool vector = false;
  };

  Status MapGguf();
  Result<const TensorRecord*> Record(const std::string& key, const Place& place) const;
  Result<Part> Latent(const std::string& key, int64_t rows, int64_t cols) const;

  DecoderConfig config_;
  std::unique_ptr<TensorSource> source_;
  bool gguf_ = false;
  std::string embedding_;                     // where the embedding is
  std::map<std::string, Place> gguf_places_;  // by key
};

}  // namespace celer
