// What tokenizers and chat templates know about characters: views of unicode_tables.bin, which is compiled
// in. tools/make_unicode_tables.py writes it, and says from which versions of Unicode and why.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace celer::unicode {

struct CharRange {
  uint32_t first, last, value;
};
struct Replacement {  // code points of Tables::text
  uint32_t from;
  uint16_t offset, length;
};
struct Composition {
  uint32_t a, b, composed;
};
struct CaseRun {  // first, first + step, ... last move by delta
  uint32_t first, last, step;
  int32_t delta;
};
struct CharClass {  // of all from the last of the record before
  uint32_t packed;
  uint32_t last() const { return packed & 0x1FFFFF; }
  uint32_t flags() const { return packed >> 21; }
};
struct HtmlEntity {  // places in Tables::html_names and Tables::text
  uint16_t name_offset, name_length, text_offset, text_length;
};

// Records sorted by a code point.
template <class T>
struct Table {
  std::span<const T> records;
  std::span<const uint16_t> pages;  // the first record of each 256 code points, and the end

  // The first record that is not `before` code point `c`, or nullptr; looks only where `c` would be.
  template <class Before>
  const T* FindFirst(char32_t c, const Before& before) const {
    const size_t page = c >> 8;
    if (page + 1 >= pages.size()) return nullptr;
    const T* at =
        std::partition_point(records.data() + pages[page], records.data() + pages[page + 1], before);
    return at == records.data() + records.size() ? nullptr : at;
  }
};

// The range that `c` is in, or nullptr.
inline const CharRange* FindRange(const Table<CharRange>& ranges, char32_t c) {
  const CharRange* at = ranges.FindFirst(c, [c](const CharRange& range) { return range.last < c; });
  return at != nullptr && at->first <= c ? at : nullptr;
}

// What `c` becomes; `c` itself if no run has it.
inline char32_t MapCase(const Table<CaseRun>& runs, char32_t c) {
  const CaseRun* at = runs.FindFirst(c, [c](const CaseRun& run) { return run.last < c; });
  if (at == nullptr || c < at->first || (c - at->first) % at->step != 0) return c;
  return c + static_cast<char32_t>(at->delta);
}

struct CaseTable {
  Table<CaseRun> runs;
  Table<Replacement> specials;  // become several code points
};

// In the order of the file.
struct Tables {
  // As `tokenizers` has them.
  Table<CharRange> combining_classes;
  Table<Replacement> canonical, compatible;  // full decompositions, not one step
  Table<Composition> compositions;
  Table<CaseRun> lower;  // without ASCII and U+0130, which becomes two code points
  // Of Unicode 15 and 16; two letters, the first in the lowest byte.
  std::span<const CharRange> new_categories;
  Table<CharRange> bert_controls, bert_marks;  // what clean_text and strip_accents remove
  Table<CharRange> scripts;                    // what is missing belongs to any script
  // As Python has them.
  Table<CharClass> char_classes;
  CaseTable upper_case, lower_case, title_case, fold_case;
  std::span<const HtmlEntity> html_entities;  // by name; with its semicolon, if it needs one
  std::span<const char> html_names;
  Table<Replacement> html_numbers;     // numbers that stand for another character
  Table<CharRange> html_no_character;  // those that stand for none

  std::span<const char32_t> text;

  std::span<const char32_t> Text(size_t offset, size_t length) const { return text.subspan(offset, length); }
  // Empty if `c` is not replaced.
  std::span<const char32_t> Find(const Table<Replacement>& table, char32_t c) const {
    const Replacement* at = table.FindFirst(c, [c](const Replacement& r) { return r.from < c; });
    if (at == nullptr || at->from != c) return {};
    return Text(at->offset, at->length);
  }
};

const Tables& BuiltInTables();
// Aborts if `file` is damaged or of another version. It is aligned to 4 bytes and outlives the tables.
Tables ReadTables(std::string_view file);

struct TableFile {  // as CelerEmbed.cmake writes it
  std::string_view path, content_type, etag, body;
};
std::span<const TableFile> TableFiles();

}  // namespace celer::unicode
