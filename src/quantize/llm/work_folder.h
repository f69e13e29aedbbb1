// Checkpoints of a long calibration, kept beside its output until that is written: a run that was stopped
// resumes behind the last finished layer, and the output is written from here. One file for each layer and
// one for the head, which appear by rename.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "quantize/llm/quantize.h"

namespace celer {

class WorkFolder {
 public:
  // `key` stands for everything that decides the result (PartsKey); a folder that was written with another
  // one is an error. Nothing is made before Save().
  static Result<WorkFolder> Open(const std::filesystem::path& path, const std::string& key);

  int64_t finished() const { return finished_; }  // layers 0 .. finished() - 1 are there
  bool has_head() const;
  // What one layer became. An error if the file does not fit the plan.
  Result<LayerParts> Load(int64_t layer, const QuantizePlan& plan) const;
  Status Save(int64_t layer, const LayerParts& parts);
  // The head as blocks, made piece by piece.
  Status SaveHead(const PlannedTensor& head, const TensorFill& fill);

  // All that is there, checked against the plan.
  Result<QuantizedParts> Parts(const QuantizePlan& plan) const;

 private:
  std::filesystem::path LayerPath(int64_t layer) const;
  std::filesystem::path HeadPath() const;
  Status CheckKey(const std::filesystem::path& file) const;
  Status Make() const;  // the folder

  std::filesystem::path path_;
  std::string key_;
  int64_t finished_ = 0;
};

}  // namespace celer
