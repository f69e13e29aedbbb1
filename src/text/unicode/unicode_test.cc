#include "text/unicode/unicode.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "text/unicode/unicode_tables.h"

namespace celer::unicode {
namespace {

TEST(Normalize, TheStandardsOwnExamples) {
  EXPECT_EQ(Normalize("A\u030A", Form::kNfc), "\u00C5");
  EXPECT_EQ(Normalize("\u212B", Form::kNfc), "\u00C5");  // the sign for angstrom
  EXPECT_EQ(Normalize("\u1E9B\u0323", Form::kNfd), "\u017F\u0323\u0307");
  EXPECT_EQ(Normalize("\u1E9B\u0323", Form::kNfc), "\u1E9B\u0323");
  EXPECT_EQ(Normalize("\u1E9B\u0323", Form::kNfkd), "s\u0323\u0307");
  EXPECT_EQ(Normalize("\u1E9B\u0323", Form::kNfkc), "\u1E69");
  EXPECT_EQ(Normalize("\uFB01\u00BD\u2163", Form::kNfkc), "fi1\u20442IV");
  EXPECT_EQ(Normalize("\u0958", Form::kNfc), "\u0915\u093C");  // excluded from composition
}

TEST(Normalize, Hangul) {
  EXPECT_EQ(Normalize("\uAC01", Form::kNfd), "\u1100\u1161\u11A8");
  EXPECT_EQ(Normalize("\u1100\u1161\u11A8", Form::kNfc), "\uAC01");
  EXPECT_EQ(Normalize("\uAC00\u11A7", Form::kNfc), "\uAC00\u11A7");  // U+11A7 is no trailing consonant
}

TEST(Normalize, BlockedMarksStayApart) {
  // The first mark is of the same class as the second, so the second cannot reach the letter.
  EXPECT_EQ(Normalize("a\u0305\u0301", Form::kNfc), "a\u0305\u0301");
  EXPECT_EQ(Normalize("a\u0323\u0301", Form::kNfc), "\u1EA1\u0301");
  EXPECT_EQ(Normalize("a\u0301\u0323", Form::kNfc), "\u1EA1\u0301");
}

TEST(Normalize, IsIdempotentAndSurvivesManyMarks) {
  std::string marks = "e";
  for (int i = 0; i < 200000; ++i) marks += i % 2 ? "\u0301" : "\u0323";
  const std::string once = Normalize(marks, Form::kNfc);
  EXPECT_EQ(Normalize(once, Form::kNfc), once);
  EXPECT_EQ(Normalize("plain", Form::kNfkd), "plain");
  EXPECT_EQ(Normalize("", Form::kNfc), "");
}

TEST(ToLower, EachCharacterByItself) {
  EXPECT_EQ(ToLower("ABC\u00C4\u0416\u03A3"), "abc\u00E4\u0436\u03C3");
  EXPECT_EQ(ToLower("\u0130"), "i\u0307");
  EXPECT_EQ(ToLower("\u1C89"), "\u1C8A");  // new in Unicode 16
}

TEST(Tables, KnowEveryTable) {
  const Tables& tables = BuiltInTables();
  EXPECT_EQ(FindRange(tables.combining_classes, 0x301)->value, 230u);
  EXPECT_EQ(FindRange(tables.combining_classes, 'a'), nullptr);
  EXPECT_EQ(FindRange(tables.combining_classes, 0x10FFFF), nullptr);
  EXPECT_NE(FindRange(tables.bert_marks, 0x301), nullptr);
  EXPECT_NE(FindRange(tables.bert_controls, 0x10FFFD), nullptr);
  EXPECT_NE(FindRange(tables.scripts, 'a')->value, FindRange(tables.scripts, 0x44F)->value);
  EXPECT_EQ(MapCase(tables.lower, 0xC4), 0xE4u);
  EXPECT_EQ(MapCase(tables.lower, 0xE4), 0xE4u);
  EXPECT_EQ(MapCase(tables.lower_case.runs, 0x1C89), 0x1C89u);  // Python 3.11 does not know it yet
  EXPECT_EQ(tables.Find(tables.upper_case.specials, 0xDF).size(), 2u);
  EXPECT_EQ(tables.html_entities.size(), 2231u);
}

TEST(Tables, RefuseADamagedFile) {
  const std::string_view file = TableFiles().front().body;
  std::vector<uint32_t> copy(file.size() / 4 + 1);
  char* const bytes = reinterpret_cast<char*>(copy.data());
  const auto read = [&](size_t size) { return ReadTables({bytes, size}); };
  const auto damaged = [&](size_t at) {
    std::memcpy(bytes, file.data(), file.size());
    bytes[at] = static_cast<char>(bytes[at] + 1);
    return read(file.size());
  };
  std::memcpy(bytes, file.data(), file.size());
  EXPECT_EQ(read(file.size()).text.size(), BuiltInTables().text.size());
  EXPECT_DEATH(read(0), "header_");
  EXPECT_DEATH(read(100), "tables");
  EXPECT_DEATH(read(file.size() - 4), "records");
  EXPECT_DEATH(damaged(0), "celerUCD");
  EXPECT_DEATH(damaged(8), "format");
  EXPECT_DEATH(damaged(12), "tables");
  EXPECT_DEATH(damaged(80 + 8), "record_bytes");
}

}  // namespace
}  // namespace celer::unicode
