// A network out of a file, in whichever format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "graph/ir/ir.h"

namespace celer::graph {

// Strings of a network, dictionary-encoded. A tensor of strings holds indices into the table of all strings
// that the network names, -1 for one that it does not name; what moves, compares or looks up elements then
// works on integers (string_table.h).
struct TextPorts {
  std::shared_ptr<const std::vector<std::string>> all;  // null: there are none
  std::vector<bool> inputs, outputs;                    // by place: holds strings
  // By output: what the columns of a classifier's scores are called (ZipMap); empty if the file does not say.
  std::vector<std::vector<std::string>> classes;
};

// A network and where it came from. Constants view the mapped file and keep it open.
struct Network {
  Graph graph;
  std::string source;    // the path
  std::string format;    // "ONNX"
  std::string producer;  // the program that wrote it, if it says
  int opset = 0;
  int64_t file_bytes = 0;
  TextPorts texts;
};

// By the file's name: NAME.param is PNNX, everything else ONNX.
Result<Network> LoadNetwork(const std::filesystem::path& path);

}  // namespace celer::graph
