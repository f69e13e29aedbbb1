// Where the boxes and lines of a layered drawing go. Lines run from top to bottom; a long graph is broken
// into columns, side by side.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace celer::cli {

struct LayoutBox {
  double width = 0, height = 0;
  double x = 0, y = 0;  // of its middle and its top, once laid out
};

struct LayoutEdge {
  size_t from = 0, to = 0;  // boxes; from < to
  std::string path = {};    // SVG path data, once laid out
};

struct Layout {
  std::vector<LayoutBox> boxes;
  std::vector<LayoutEdge> edges;
  double width = 0, height = 0;
};

// Boxes are in an order in which every edge leads forward. `aspect`: the width of the page by its height that
// columns are chosen for.
void Arrange(Layout* layout, double aspect);

}  // namespace celer::cli
