// Strings of a network. Tensors of them become tensors of places in one list (Graph::texts) when a network is
// loaded; what moves, compares or looks up elements then works on integers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/result.h"
#include "graph/ir.h"

namespace celer::graph {

// Strings by number, each once.
class Texts {
 public:
  int64_t Id(std::string_view text);
  const std::vector<std::string>& all() const { return all_; }

 private:
  std::vector<std::string> all_;
  std::unordered_map<std::string, int64_t> ids_;
};

// Attributes that hold strings of values become lists of their places, ZipMap becomes a name for each column
// of the scores, and values that hold strings are marked. An error if a node would compute with strings.
// `graph` is sorted.
Status ResolveTexts(Graph* graph, Texts* texts);

}  // namespace celer::graph
