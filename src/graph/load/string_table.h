// Strings of a network are dictionary-encoded when it is loaded: they become indices into one string table
// (TextPorts), so that nothing behind the loader knows of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "graph/ir/ir.h"
#include "graph/load/load_network.h"

namespace celer::graph {

// The string table: each string once, by index.
class Texts {
 public:
  int64_t Id(std::string_view text);
  const std::vector<std::string>& all() const { return all_; }

  // Constants, and inputs of the graph, that hold string indices. A constant is known by its memory, which is
  // its own.
  Constant Mark(Constant constant) {
    constants_.insert(constant.bytes.data());
    return constant;
  }
  void MarkInput(ValueId id) { inputs_.insert(id); }
  bool Holds(const Constant& constant) const { return constants_.contains(constant.bytes.data()); }
  bool IsInput(ValueId id) const { return inputs_.contains(id); }

 private:
  std::vector<std::string> all_;
  std::unordered_map<std::string, int64_t> ids_;
  std::unordered_set<const std::byte*> constants_;
  std::unordered_set<ValueId> inputs_;
};

// Attributes that hold strings of values become lists of their indices, and ZipMap becomes a name for each
// column of the scores. An error if a node would compute with strings. `graph` is sorted.
Result<TextPorts> ResolveTexts(Graph* graph, Texts* texts);

}  // namespace celer::graph
