// What a long calibration has finished, kept beside its output until that is there: a run that was stopped
// goes on behind the last finished layer. One file for each layer, which appears by rename.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "core/result.h"
#include "quantize/quantize.h"

namespace celer {

class WorkFolder {
 public:
  // `key` stands for everything that decides the result; a folder that was written with another one is an
  // error. Nothing is made before Save().
  static Result<WorkFolder> Open(const std::filesystem::path& path, const std::string& key);

  int64_t finished() const { return finished_; }  // layers 0 .. finished() - 1 are there
  // Adds what one layer became to `parts`. An error if the file does not fit the plan.
  Status Load(int64_t layer, const QuantizePlan& plan, QuantizedParts* parts) const;
  // `parts` of that layer alone.
  Status Save(int64_t layer, const QuantizedParts& parts);

 private:
  std::filesystem::path LayerPath(int64_t layer) const;

  std::filesystem::path path_;
  std::string key_;
  int64_t finished_ = 0;
};

}  // namespace celer
