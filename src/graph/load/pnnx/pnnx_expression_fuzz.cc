// Any text as an expression of PNNX: read, printed and read again, and computed on two small tensors.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "graph/load/fuzz_network.h"
#include "graph/load/load_pnnx.h"
#include "graph/load/pnnx/expression.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace celer;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto expression = graph::ParseExpression(text);
  if (!expression) return expression.error().message().empty() ? -1 : 0;
  const std::string printed = graph::Print(*expression);
  const auto again = graph::ParseExpression(printed);
  if (!again || graph::Print(*again) != printed) return -1;

  graph::PnnxFile file{.source = "fuzz"};
  graph::ValueType floats{.dtype = DType::kF32, .shape = std::vector<graph::Dim>{{2, ""}, {3, ""}}};
  graph::ValueType ints{.dtype = DType::kI64, .shape = std::vector<graph::Dim>{{3, ""}}};
  file.operands = {{"0", floats}, {"1", ints}};
  file.operators = {
      {.type = "pnnx.Input", .name = "a", .outputs = {"0"}},
      {.type = "pnnx.Input", .name = "b", .outputs = {"1"}},
      {.type = "pnnx.Expression",
       .name = "e",
       .inputs = {"0", "1"},
       .outputs = {"2"},
       .parameters = {{"expr", text}}},
      {.type = "pnnx.Output", .name = "y", .inputs = {"2"}},
  };
  auto network = graph::ToNetwork(file);
  if (!network) return network.error().message().empty() ? -1 : 0;
  return graph::FuzzRun(std::move(*network));
}
