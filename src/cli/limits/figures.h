// The pictures of `celer limits`: prefill with its turning points, decode over the context, the roofline.
#pragma once

#include <string>
#include <vector>

#include "cli/limits/report.h"

namespace celer::cli {

struct Figure {
  std::string title;    // for the page's heading
  std::string caption;  // one or two sentences on how to read it
  double width = 0, height = 0;
  std::string body;  // SVG elements
};

Figure PrefillFigure(const LimitsRequest& request);
Figure DecodeFigure(const LimitsRequest& request);
Figure RooflineFigure(const LimitsRequest& request);

std::string FigureSvg(const Figure& figure);           // one picture
std::string LimitsSvg(const LimitsRequest& request);   // all three, one below the other
std::string LimitsHtml(const LimitsRequest& request);  // a self-contained page with the tables
}  // namespace celer::cli
