// Charts as SVG: what is to be seen goes in as data, and axes, legend and labels find their place. No scripts
// and no external files, so that a picture opens in whatever shows SVG.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/table.h"

namespace celer::cli {

// Colours of words, and of those that matter less. The viewer turns them around where it is dark.
inline constexpr const char* kInk = "#1f2933";
inline constexpr const char* kMuted = "#52606d";
// Told apart by people with any colour vision (Okabe and Ito).
inline constexpr const char* kLineColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                              "#b8860b", "#56b4e9", "#5b4b8a", "#444444"};

std::string XmlEscape(std::string_view text);

// An element at a place in pixels; `anchor` is start, middle or end.
inline constexpr const char* kBold = " font-weight=\"600\"";
std::string SvgText(double x, double y, const std::string& text, const char* anchor, const char* color,
                    double size, const char* more = "");
// About as wide as a text of this size is in the usual fonts, in pixels.
double TextWidth(std::string_view text, double size);

struct Axis {
  double low = 0, high = 1;
  bool log = false;
  std::string label{};
};

struct Stroke {
  const char* color;
  double width = 2;
  const char* dash = "";  // "6 4"; empty is solid
};

using Points = std::vector<std::pair<double, double>>;

struct ChartLine {
  std::string name;  // in the legend; empty: not there
  Points points;
  Stroke stroke;
  bool dots = false;  // one at each point
};

enum class Marker { kDot, kRing, kSquare };

struct ChartMark {
  double x = 0, y = 0;
  const char* color = kInk;
  Marker marker = Marker::kDot;
  double radius = 4.5;  // 0: a label alone
  // Stands as near to the point as possible without covering a mark or another label. A thin line leads to
  // the point if it is not right beside it.
  std::string label = {};
  const char* label_color = kInk;
  bool below = false;    // the side that is tried first
  std::string tip = {};  // shown when the mouse is over it
};

struct Chart {
  std::string title = {};
  Axis x = {}, y = {};
  std::vector<ChartLine> lines = {};
  std::vector<ChartMark> marks = {};                   // later ones on top
  std::optional<std::pair<double, double>> band = {};  // of x, shaded
  std::optional<double> ridge = {};                    // of x, a thin line with its value
  std::string note = {};                               // a few words above the frame
  bool legend = true;                                  // below the chart
  double left = 0, top = 0;                            // in the picture, in pixels
  double width = 1000, height = 240;                   // with its axes, without the legend
};

// SVG elements, and the room they take from the origin on.
struct Drawing {
  double width = 0, height = 0;
  std::string body = {};

  Drawing& operator+=(const Drawing& other);  // both have their places already
};

Drawing Draw(const Chart& chart);
Drawing DrawLegend(const std::vector<ChartLine>& lines, double left, double top, double width);
Drawing DrawTable(const Table& table, double left, double top);
// A whole document; `title` is for those who do not see it.
std::string DrawingSvg(const Drawing& drawing, const std::string& title);

// The highest value of some lines.
double HighestOf(const std::vector<ChartLine>& lines);
// Tick values inside [low, high]: 1-2-5 steps, or powers of ten (with 2 and 5 between when there are few).
std::vector<double> Ticks(const Axis& axis);
// "10k", "0.5", "2M".
std::string TickText(double value);

}  // namespace celer::cli
