// How a model's hidden states become an embedding: what its folder says, or what the user chose.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "celer/engine.h"

namespace celer::server {

struct PoolingChoice {
  Pooling pooling = Pooling::kMean;
  std::string from = {};     // "1_Pooling/config.json", "--pooling", ...
  bool meant = false;        // the model's folder or file says that it is for embeddings
  std::string problem = {};  // why it cannot be done as the model wants it; "": it can
};

// `asked`: kNone if the user did not choose. An error if a file that says how cannot be read.
Result<PoolingChoice> ChoosePooling(const std::filesystem::path& model, Pooling asked);

const char* Name(Pooling pooling);  // "mean", "last"

}  // namespace celer::server
