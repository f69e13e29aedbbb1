#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace celer::cli {

namespace {

constexpr size_t kGap = 2;          // before each column
constexpr size_t kLeastWords = 16;  // what a wrapped column of words needs

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return lines;
}

// Some columns of a table, with the widths they are printed in.
struct Layout {
  std::vector<size_t> columns, widths;

  size_t total() const {
    size_t sum = 0;
    for (const size_t width : widths) sum += kGap + width;
    return sum;
  }
};

class TableWriter {
 public:
  TableWriter(const Table& table, size_t width) : table_(table), width_(width) {}

  std::string Text() const {
    std::string out;
    for (const Layout& layout : Layouts()) {
      if (!out.empty()) out += "\n";
      const auto is_empty = [](const std::string& cell) { return cell.empty(); };
      if (!std::all_of(table_.header.begin(), table_.header.end(), is_empty))
        out += Row(layout, table_.header, true);
      for (const auto& row : table_.rows) out += Row(layout, row, false);
    }
    return out;
  }

 private:
  bool IsWords(size_t column) const {
    return column == 0 || table_.all_words || (table_.last_is_words && column + 1 == table_.header.size());
  }

  // With the header on one line, or broken between its words.
  Layout Whole(bool wrap_header) const {
    Layout layout;
    for (size_t c = 0; c < table_.header.size(); ++c) {
      size_t widest = Columns(table_.header[c]);
      if (wrap_header) {
        widest = 0;
        for (const std::string& word : Lines(Wrap(table_.header[c], 1, 0)))
          widest = std::max(widest, Columns(word));
      }
      for (const auto& row : table_.rows) widest = std::max(widest, Columns(row[c]));
      layout.columns.push_back(c);
      layout.widths.push_back(widest);
    }
    return layout;
  }

  std::vector<Layout> Layouts() const {
    Layout whole = Whole(false);
    if (whole.total() <= width_) return {whole};
    whole = Whole(true);
    if (whole.total() <= width_) return {whole};
    if (table_.last_is_words || table_.all_words) {
      Layout narrow = whole;
      const size_t others = whole.total() - whole.widths.back();
      if (others + kLeastWords <= width_) {
        narrow.widths.back() = width_ - others;
        return {narrow};
      }
    }
    std::vector<Layout> parts;
    for (size_t c = table_.keys; c < whole.columns.size(); ++c) {
      if (parts.empty() || parts.back().total() + kGap + whole.widths[c] > width_) {
        parts.emplace_back();
        for (size_t key = 0; key < table_.keys; ++key) Add(whole, key, &parts.back());
      }
      Add(whole, c, &parts.back());
    }
    return parts;
  }

  static void Add(const Layout& whole, size_t column, Layout* part) {
    part->columns.push_back(column);
    part->widths.push_back(whole.widths[column]);
  }

  std::string Row(const Layout& layout, const std::vector<std::string>& row, bool header) const {
    std::vector<std::vector<std::string>> cells;
    size_t height = 1;
    for (size_t i = 0; i < layout.columns.size(); ++i) {
      const std::string& text = row[layout.columns[i]];
      const bool wraps = Columns(text) > layout.widths[i];
      cells.push_back(wraps ? Lines(Wrap(text, static_cast<int>(layout.widths[i]), 0)) : std::vector{text});
      height = std::max(height, cells.back().size());
    }
    std::string out;
    for (size_t line = 0; line < height; ++line) {
      std::string text;
      for (size_t i = 0; i < cells.size(); ++i) {
        const size_t skipped = header ? height - cells[i].size() : 0;  // a header stands on its column
        const bool there = line >= skipped && line - skipped < cells[i].size();
        const std::string cell = there ? cells[i][line - skipped] : "";
        const std::string space(layout.widths[i] - std::min(layout.widths[i], Columns(cell)), ' ');
        text += std::string(kGap, ' ') + (IsWords(layout.columns[i]) ? cell + space : space + cell);
      }
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + "\n";
    }
    return out;
  }

  const Table& table_;
  const size_t width_;
};

}  // namespace

std::string TableText(const Table& table, bool with_notes, int width) {
  std::string out = "\n";
  if (!table.title.empty()) out += Wrap(table.title, width, 0) + "\n";
  out += TableWriter(table, static_cast<size_t>(width)).Text();
  if (with_notes)
    for (const std::string& note : table.notes) out += "  " + Wrap(note, width, 2, 2) + "\n";
  return out;
}

std::string Percent(double share) {
  return fmt::format("{:.1f} %", 100 * share);
}

}  // namespace celer::cli
