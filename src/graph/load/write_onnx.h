// Graphs as ONNX files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"
#include "graph/load/load_network.h"

namespace celer::graph {

struct OnnxWriteOptions {
  // Files with more bytes of weights than this keep them in a second file, NAME.onnx.data: no program that
  // reads ONNX by protobuf takes more than 2 GB in one.
  int64_t external_above = int64_t{1} << 30;
};

// The file appears when it is complete. An error for what ONNX cannot hold: celer's own operators, say.
Status WriteOnnx(const Network& network, const std::filesystem::path& path,
                 const OnnxWriteOptions& options = {});

// The bytes of the file, weights included.
Result<std::string> ToOnnx(const Network& network);

}  // namespace celer::graph
