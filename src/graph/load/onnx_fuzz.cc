// Any bytes as an ONNX model.
#include <cstddef>
#include <cstdint>
#include <span>

#include "graph/load/fuzz_network.h"
#include "graph/load/load_onnx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace celer;
  auto network = graph::LoadOnnx(std::as_bytes(std::span(data, size)), "fuzz");
  if (!network) return network.error().message().empty() ? -1 : 0;
  return graph::FuzzRun(std::move(*network));
}
