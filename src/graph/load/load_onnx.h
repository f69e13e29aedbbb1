// ONNX files as graphs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "graph/load/load_network.h"

namespace celer::graph {

// Sorted and verified. Functions of the model are inlined. Operators are not looked at.
Result<Network> LoadOnnx(const std::filesystem::path& path);
// `bytes` outlive the result.
Result<Network> LoadOnnx(std::span<const std::byte> bytes, const std::string& source);

}  // namespace celer::graph
