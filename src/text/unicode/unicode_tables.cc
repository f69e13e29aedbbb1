#include "text/unicode/unicode_tables.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace celer::unicode {
namespace {

static_assert(std::endian::native == std::endian::little, "unicode_tables.bin is read in place");

struct FileHeader {
  char magic[8];
  uint32_t format, tables;
  char versions[64];  // of Unicode, for people
};
struct TableEntry {
  uint32_t offset, records, record_bytes;
};

class TableReader {
 public:
  explicit TableReader(std::string_view file) : file_(file) {
    CELER_CHECK_EQ(reinterpret_cast<uintptr_t>(file.data()) % alignof(uint32_t), 0u);
    CELER_CHECK_GE(file.size(), sizeof header_);
    std::memcpy(&header_, file.data(), sizeof header_);
    CELER_CHECK_EQ(std::string_view(header_.magic, sizeof header_.magic), "celerUCD");
    CELER_CHECK_EQ(header_.format, 1u);
    CELER_CHECK_LE(header_.tables, (file.size() - sizeof header_) / sizeof(TableEntry));
  }

  template <class... T>
  void Read(T&... tables) {
    (ReadOne(tables), ...);
  }
  void CheckEnd() const { CELER_CHECK_EQ(next_, header_.tables); }

 private:
  template <class T>
  void ReadOne(std::span<const T>& table) {
    CELER_CHECK_LT(next_, header_.tables);
    TableEntry entry;
    std::memcpy(&entry, file_.data() + sizeof header_ + next_++ * sizeof entry, sizeof entry);
    CELER_CHECK_EQ(entry.record_bytes, sizeof(T));
    CELER_CHECK_EQ(entry.offset % alignof(T), 0u);
    CELER_CHECK_LE(entry.offset, file_.size());
    CELER_CHECK_LE(entry.records, (file_.size() - entry.offset) / sizeof(T));
    table = {reinterpret_cast<const T*>(file_.data() + entry.offset), entry.records};
  }
  template <class T>
  void ReadOne(Table<T>& table) {
    Read(table.records, table.pages);
    CELER_CHECK(std::ranges::is_sorted(table.pages));
    CELER_CHECK(!table.pages.empty());
    CELER_CHECK_EQ(table.pages.back(), table.records.size());
  }
  void ReadOne(Table<CaseRun>& table) {
    ReadOne<CaseRun>(table);
    for (const CaseRun& run : table.records) CELER_CHECK_GT(run.step, 0u);
  }
  void ReadOne(CaseTable& table) { Read(table.runs, table.specials); }

  std::string_view file_;
  FileHeader header_;
  uint32_t next_ = 0;
};

void CheckTexts(const Tables& tables, const Table<Replacement>& replacements) {
  for (const Replacement& r : replacements.records)
    CELER_CHECK_LE(size_t{r.offset} + r.length, tables.text.size());
}

}  // namespace

Tables ReadTables(std::string_view file) {
  Tables t;
  TableReader reader(file);
  reader.Read(t.combining_classes, t.canonical, t.compatible, t.compositions, t.lower, t.new_categories,
              t.bert_controls, t.bert_marks, t.scripts, t.char_classes, t.upper_case, t.lower_case,
              t.title_case, t.fold_case, t.html_entities, t.html_names, t.html_numbers, t.html_no_character,
              t.text);
  reader.CheckEnd();
  for (const auto* table : {&t.canonical, &t.compatible, &t.upper_case.specials, &t.lower_case.specials,
                            &t.title_case.specials, &t.fold_case.specials, &t.html_numbers})
    CheckTexts(t, *table);
  for (const HtmlEntity& entity : t.html_entities) {
    CELER_CHECK_LE(size_t{entity.name_offset} + entity.name_length, t.html_names.size());
    CELER_CHECK_LE(size_t{entity.text_offset} + entity.text_length, t.text.size());
  }
  CELER_CHECK_EQ(t.char_classes.records.back().last(), 0x10FFFFu);
  return t;
}

const Tables& BuiltInTables() {
  static const Tables tables = ReadTables(TableFiles().front().body);
  return tables;
}

}  // namespace celer::unicode
