// ONNX files as graphs.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "core/result.h"
#include "graph/ir.h"

namespace celer::graph {

// A network and where it came from. Constants view the mapped file and keep it open.
struct Network {
  Graph graph;
  std::string source;    // the path
  std::string format;    // "ONNX"
  std::string producer;  // the program that wrote it, if it says
  int opset = 0;
  int64_t file_bytes = 0;
};

// Sorted and verified. Functions of the model are expanded in place. Operators are not looked at.
Result<Network> LoadOnnx(const std::filesystem::path& path);
// `bytes` outlive the result.
Result<Network> LoadOnnx(std::span<const std::byte> bytes, const std::string& source);

}  // namespace celer::graph
