// A table that text and HTML both print.
#pragma once

#include <string>
#include <vector>

namespace celer::cli {

struct Table {
  std::string title = {};
  std::vector<std::string> header = {};  // the first column is left-aligned
  std::vector<std::vector<std::string>> rows = {};
  std::vector<std::string> notes = {};
  bool last_is_words = false;  // then the last column is left-aligned too
};

std::string TableText(const Table& table, bool with_notes = true);  // begins with an empty line
std::string TableHtml(const Table& table);                          // without the title

}  // namespace celer::cli
