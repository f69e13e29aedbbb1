// The pictures of `celer limits`: prefill with its turning points, decode over the context, the roofline.
#pragma once

#include <string>
#include <vector>

#include "cli/limits/report.h"
#include "report/chart.h"

namespace celer::cli {

struct Figure {
  std::string title;
  std::string about;    // of what it is, and what of it
  std::string caption;  // one or two sentences on how to read it
  Drawing drawing = {};
  Table table = {};  // the numbers behind it, if there are rows
};

Figure PrefillFigure(const LimitsRequest& request);
Figure DecodeFigure(const LimitsRequest& request);
Figure RooflineFigure(const LimitsRequest& request);
inline std::vector<Figure> LimitsFigures(const LimitsRequest& request) {
  return {PrefillFigure(request), DecodeFigure(request), RooflineFigure(request)};
}

std::string LimitsSvg(const LimitsRequest& request);   // one below the other
std::string LimitsHtml(const LimitsRequest& request);  // a self-contained page with the tables

}  // namespace celer::cli
