// Pages that commands write for a browser: one viewer for all of them (viewer.html, compiled in), the
// command's JSON, and a description of what to show of it.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "base/embedded_file.h"
#include "report/chart.h"
#include "report/table.h"

namespace celer::cli {

std::span<const EmbeddedFile> ViewerFiles();

// Lengths are shares of the page's width.
struct PageBar {
  std::string name, text;
  double track = 0;          // what is possible; 0: none is drawn
  double bar = 0;            // the value
  double floor = 0;          // its first part, in another colour
  double low = 0, high = 0;  // the spread
};

// How bars with a floor are read.
inline constexpr const char* kFloorNote =
    "The first part of a bar is the least the operator could take, the second what it took beyond that.";

class Page {
 public:
  Page(const std::string& title, const std::string& heading, const Facts& facts);

  void Section(const std::string& title);                         // holds what is added from here on
  void Add(const Table& table, const std::string& row_ids = "");  // rows get the ids "ROW_IDS-0", ...
  void Add(const Drawing& drawing, const std::string& title,
           bool own_size = false);  // else as wide as the page
  void Add(const std::vector<PageBar>& bars);
  void Add(const std::string& text);

  // `data` is what --json prints.
  std::string Html(const nlohmann::ordered_json& data) const;

 private:
  void AddPart(const char* kind, nlohmann::ordered_json part);

  nlohmann::ordered_json page_;
};

}  // namespace celer::cli
