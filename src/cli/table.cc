#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/limits_chart.h"

namespace celer::cli {

std::string TableText(const Table& table, bool with_notes) {
  std::string out = fmt::format("\n{}\n", table.title);
  std::vector<size_t> width(table.header.size());
  for (size_t c = 0; c < width.size(); ++c) {
    width[c] = table.header[c].size();
    for (const auto& row : table.rows) width[c] = std::max(width[c], row[c].size());
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (size_t c = 0; c < cells.size(); ++c) {
      const bool left = c == 0 || (table.last_is_words && c + 1 == cells.size());
      text +=
          left ? fmt::format("  {:<{}}", cells[c], width[c]) : fmt::format("  {:>{}}", cells[c], width[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  out += line(table.header);
  for (const auto& row : table.rows) out += line(row);
  if (with_notes)
    for (const std::string& note : table.notes) out += "  " + note + "\n";
  return out;
}

std::string TableHtml(const Table& table) {
  std::string out = "<table><thead><tr>";
  const auto cell = [&](const char* tag, size_t column, const std::string& text) {
    const bool words = table.last_is_words && column + 1 == table.header.size();
    return fmt::format("<{0}{1}>{2}</{0}>", tag, words ? " class=\"words\"" : "", XmlEscape(text));
  };
  for (size_t c = 0; c < table.header.size(); ++c) out += cell("th", c, table.header[c]);
  out += "</tr></thead><tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (size_t c = 0; c < row.size(); ++c) out += cell("td", c, row[c]);
    out += "</tr>\n";
  }
  out += "</tbody></table>\n";
  for (const std::string& note : table.notes) out += "<p>" + XmlEscape(note) + "</p>\n";
  return out;
}

}  // namespace celer::cli
