// A table that text and pages both show.
#pragma once

#include <string>
#include <vector>

#include "report/output.h"

namespace celer::cli {

struct Table {
  std::string title = {};
  std::vector<std::string> header = {};  // the first column is left-aligned
  std::vector<std::vector<std::string>> rows = {};
  std::vector<std::string> notes = {};
  bool last_is_words = false;  // then the last column is left-aligned too, and may be wrapped
  bool all_words = false;      // all columns are left-aligned
  size_t keys = 1;             // columns that say what a row is about
};

// Begins with an empty line. A table that is wider than `width` gets its header and its words wrapped; if
// that is not enough, it is continued below, with the keys again.
std::string TableText(const Table& table, bool with_notes = true, int width = OutputWidth());

std::string Percent(double share);  // "12.5 %"

}  // namespace celer::cli
