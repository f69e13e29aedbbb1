// Reads the metadata of one architecture in a GGUF file. A key that is missing gives its default; a value of
// the wrong kind is an error that names the file, the key and the value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/gguf/gguf.h"

namespace celer {

class GgufReader {
 public:
  // `file` outlives this.
  GgufReader(const GgufFile& file, std::string path, std::string architecture)
      : file_(file), path_(std::move(path)), architecture_(std::move(architecture)) {}

  const GgufFile& file() const { return file_; }
  const std::string& path() const { return path_; }
  const std::string& architecture() const { return architecture_; }

  // Keys are those behind "llama.".
  bool Has(const std::string& key) const { return file_.Has(Whole(key)); }
  Result<int64_t> Int(const std::string& key) const;
  Result<int64_t> Int(const std::string& key, int64_t if_missing) const;
  Result<double> Float(const std::string& key) const;
  Result<double> Float(const std::string& key, double if_missing) const;
  Result<std::string> String(const std::string& key, std::string if_missing) const;
  // A number, or an array of one number per layer; all layers must have the same.
  Result<int64_t> SameInAllLayers(const std::string& key, int64_t layers) const;
  // The same where layers may differ: one number for each.
  Result<std::vector<int64_t>> InLayers(const std::string& key, int64_t layers) const;
  // And without those behind the model's own, which block_count counts.
  Result<std::vector<int64_t>> InOwnLayers(const std::string& key, int64_t layers) const;
  // The same, where layers may have 0 of what they lack: the number of the others, or 0.
  Result<int64_t> SameWhereAny(const std::string& key, int64_t layers) const;
  // "attention.sliding_window_pattern": which layers have a window, as a bool for each or as a period whose last
  // layer has none.
  Result<std::vector<bool>> WindowedLayers(int64_t layers, int64_t default_period) const;

 private:
  std::string Whole(const std::string& key) const { return architecture_ + "." + key; }
  Error Missing(const std::string& key) const;
  Error WrongKind(const std::string& key, const char* expected) const;

  const GgufFile& file_;
  std::string path_, architecture_;
};

}  // namespace celer
