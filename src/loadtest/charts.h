// Charts of a load: something over time, and how many requests were served within a time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "loadtest/replay.h"
#include "report/chart.h"

namespace celer::cli {

// Told apart by people with any colour vision (Okabe and Ito).
inline constexpr const char* kFirstColour = "#0072b2";
inline constexpr const char* kSecondColour = "#d55e00";

struct ChartLine {
  std::string name;
  std::vector<std::pair<double, double>> points;
  Stroke stroke;
  bool dots = false;
};

double HighestOf(const std::vector<ChartLine>& lines);
// With the names of the lines above it; lines with dots have one at each point.
std::string LineChart(const std::string& id, const std::string& title, Axis x, Axis y,
                      const std::vector<ChartLine>& lines, double height = 240);
// From 0 to `top`.
std::string LineChart(const std::string& id, const std::string& title, const std::string& unit, Axis x,
                      double top, const std::vector<ChartLine>& lines);
// "" if nothing was served.
std::string LatencyChart(const Replay& replay);

}  // namespace celer::cli
