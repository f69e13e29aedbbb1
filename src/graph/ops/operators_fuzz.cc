// A node of any operator, by the name in the first line, made of the bytes behind it: attributes of any size,
// empty tensors, shapes that nearly fit.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "graph/ir/operator_table.h"
#include "graph/load/fuzz_network.h"
#include "graph/load/fuzz_nodes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace celer::graph;
  const std::span<const uint8_t> bytes(data, size);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(text.find('\n'), size);
  const auto operators = Operators();
  // A name that was mutated is still one of them.
  size_t index = 0;
  for (const char ch : text.substr(0, line)) index = index * 31 + static_cast<unsigned char>(ch);
  const Operator* op = operators[index % operators.size()];
  for (const Operator* one : operators)
    if (text.substr(0, line) ==
        (one->domain.empty() ? "" : std::string(one->domain) + ".") + std::string(one->name))
      op = one;
  FuzzChoices choices(bytes.subspan(std::min(line + 1, size)));
  Network network = FuzzNodes(*op, choices).Make();
  return FuzzRun(std::move(network), [&](const celer::TensorView& tensor) { FuzzFill(tensor, choices); });
}
