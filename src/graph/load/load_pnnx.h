// PNNX files as graphs, and graphs as PNNX files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"
#include "graph/load/load_network.h"
#include "graph/load/pnnx/pnnx_file.h"

namespace celer::graph {

// Sorted and verified. Operators that are not known are listed all at once.
Result<Network> LoadPnnx(const std::filesystem::path& param);
Result<Network> ToNetwork(const PnnxFile& file);

// What PNNX has a module for is written as that module; other nodes keep their ONNX operator, as
// "onnx.NAME". An error for what it cannot hold: subgraphs, and element types without a name there.
Result<PnnxFile> ToPnnx(const Network& network);

}  // namespace celer::graph
