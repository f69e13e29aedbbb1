#include "graph/load/load_network.h"

#include "graph/load/load_onnx.h"
#include "graph/load/load_pnnx.h"

namespace celer::graph {

Result<Network> LoadNetwork(const std::filesystem::path& path) {
  return path.extension() == ".param" ? LoadPnnx(path) : LoadOnnx(path);
}

}  // namespace celer::graph
