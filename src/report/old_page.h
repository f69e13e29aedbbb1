// The page that benches write: self-contained, light and dark.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace celer::cli {

// A page with a list of facts and whatever else.
std::string BenchPage(const std::string& title, const std::string& heading,
                      const std::vector<std::pair<std::string, std::string>>& facts, const std::string& body);
// One line of a "bars" grid: the track is the limit, its length the share of the longest; the bar is the
// median and the mark the spread, as shares of the limit.
std::string SpeedBar(const std::string& name, double track, double low, double median, double high,
                     const std::string& text);
double BarLength(double share);  // 0 to 100, for the lengths of bars

}  // namespace celer::cli
