// The pooling mode of embeddings: from the model's folder, or as the user chose.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "celer/engine.h"

namespace celer::server {

struct PoolingChoice {
  Pooling pooling = Pooling::kMean;
  std::string from = {};     // "1_Pooling/config.json", "--pooling", ...
  bool meant = false;        // the model's files say that it is an embedding model
  std::string problem = {};  // why the model's pooling is not supported; "": it is
};

// `asked`: kNone if the user did not choose. An error if a file of the model cannot be read.
Result<PoolingChoice> ChoosePooling(const std::filesystem::path& model, Pooling asked);

const char* Name(Pooling pooling);  // "mean", "last"

}  // namespace celer::server
