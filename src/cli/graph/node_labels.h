// Short labels of nodes, for the boxes of a drawing.
#pragma once

#include <string>
#include <vector>

#include "graph/ir/ir.h"

namespace celer::cli {

// The end of a long name: that is where names differ.
std::string ShortName(const std::string& name, size_t most);

// "f32[1, 64, 56, 56]" as "1×64×56×56"; types other than f32 stay.
std::string TypeWords(const std::string& type);

std::string AttributeWords(const graph::Attribute& attribute);  // "[3, 3]"

// At most three short lines: what attributes and constants say that is not the default.
std::vector<std::string> NodeWords(const graph::Graph& graph, const graph::Node& node);

}  // namespace celer::cli
