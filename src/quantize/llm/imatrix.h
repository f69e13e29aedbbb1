// An importance matrix (imatrix): for each weight matrix, the mean square of its inputs, column by column.
// The error of a product grows with the square of the input, so columns with large inputs are quantized with
// more care. Read and written in llama.cpp's two formats: GGUF, and the older .dat.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace celer {

class ImportanceMatrix {
 public:
  struct Entry {
    std::vector<float> sums;    // [matrices, cols]: sum of squares of each column
    std::vector<float> counts;  // [matrices]: rows that were added up; experts see different numbers of them
    int64_t cols() const { return static_cast<int64_t>(sums.size() / counts.size()); }
  };

  static Result<ImportanceMatrix> Read(const std::filesystem::path& path);  // either format
  // GGUF, or the older format if the name ends with .dat.
  Status Write(const std::filesystem::path& path) const;

  // Adds rows [tokens, cols] of inputs of the tensor `name`, by its name in a GGUF file.
  void Add(const std::string& name, const float* x, int64_t tokens, int64_t cols);
  Entry& Get(const std::string& name) { return entries_[name]; }
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }

  // Mean squares of the columns, [cols]; matrix `index` of `matrices` of that many columns each. Empty if
  // there is no entry or its inputs were never seen; an error if its size is another.
  Result<std::vector<float>> For(std::string_view name, int64_t index, int64_t matrices, int64_t cols) const;

  const std::string& source() const { return source_; }
  std::vector<std::string> datasets;
  int64_t chunks = 0, chunk_tokens = 0;

 private:
  static Result<ImportanceMatrix> ReadGguf(const std::filesystem::path& path);
  static Result<ImportanceMatrix> ReadDat(const std::filesystem::path& path);
  Status WriteGguf(const std::filesystem::path& path) const;
  Status WriteDat(const std::filesystem::path& path) const;

  std::string source_ = "calibration";
  std::map<std::string, Entry, std::less<>> entries_;
};

// "model.layers.3.self_attn.q_proj.weight" -> "blk.3.attn_q.weight"; other names stay as they are.
std::string GgufNameOf(std::string_view name);

}  // namespace celer
