// What tables, wrapped texts and progress lines make of a narrow terminal.
#include "report/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/progress.h"

namespace celer::cli {
namespace {

using ::testing::HasSubstr;

Table Example() {
  Table table;
  table.title = "Speed";
  table.header = {"work", "tok/s", "limit tok/s", "bound by"};
  table.rows = {{"prefill 256", "1234.5", "2000.0", "memory"}, {"décode", "7.0", "9.0", "int8 arithmetic"}};
  table.notes = {"A note that is long enough to need a second line on a terminal of forty columns."};
  table.last_is_words = true;
  return table;
}

size_t Widest(const std::string& text) {
  size_t widest = 0;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    widest = std::max(widest, Columns(std::string_view(text).substr(from, end - from)));
    from = end + 1;
  }
  return widest;
}

TEST(Table, StaysOnOneLineWhereItFits) {
  EXPECT_EQ(TableText(Example(), false, 80),
            "\nSpeed\n"
            "  work          tok/s  limit tok/s  bound by\n"
            "  prefill 256  1234.5       2000.0  memory\n"
            "  décode          7.0          9.0  int8 arithmetic\n");
}

TEST(Table, WrapsItsHeaderThenItsWords) {
  EXPECT_EQ(TableText(Example(), false, 46),
            "\nSpeed\n"
            "                        limit\n"
            "  work          tok/s   tok/s  bound by\n"
            "  prefill 256  1234.5  2000.0  memory\n"
            "  décode          7.0     9.0  int8 arithmetic\n");
  Table words = Example();
  words.rows[0][3] = "memory that is read over and over again by everybody";
  EXPECT_EQ(Widest(TableText(words, true, 50)), 50u);
  EXPECT_THAT(TableText(words, false, 50), HasSubstr("\n                               over"));
}

TEST(Table, IsContinuedBelowWithItsKeys) {
  Table table;
  table.header = {"", "prompt", "read weights", "read KV", "compute", "floor"};
  table.keys = 2;
  table.rows = {{"w16kv16", "1,024", "123.4 ms", "1.23 ms", "12.3 ms", "11.1 ms"}};
  const std::string text = TableText(table, false, 40);
  EXPECT_LE(Widest(text), 40u);
  size_t times = 0;
  for (size_t at = 0; (at = text.find("w16kv16   1,024", at)) != std::string::npos; ++at) ++times;
  EXPECT_EQ(times, 2u);
  for (const std::string& cell : table.rows[0]) EXPECT_THAT(text, HasSubstr(cell));
}

TEST(Wrap, BreaksAtSpacesAndKeepsLines) {
  EXPECT_EQ(Wrap("one two three", 9, 2), "one two\n  three");
  EXPECT_EQ(Wrap("a\nb c", 80, 2), "a\n  b c");
  EXPECT_EQ(Wrap("unbreakable word", 4, 0), "unbreakable\nword");
  EXPECT_EQ(FactLine("model", "one two three four", 22), "model      one two\n           three four\n");
}

TEST(ProgressText, FitsAndSpeaksInSensibleUnits) {
  EXPECT_EQ(ProgressText("a.gguf", 198'000, 300'000, 18'500, false, 79),
            "a.gguf  66 %  198 kB of 300 kB, 18.5 kB/s");
  EXPECT_EQ(ProgressText("a.gguf", 150'000'000, 300'000'000, 2.5e6, true, 79),
            "a.gguf [############............]  50 %  150 MB of 300 MB, 2.50 MB/s");
  const std::string label = "subfolder/model-00001-of-00030.safetensors.index.json.and.more";
  for (const int width : {39, 59, 79})
    for (const bool bar : {false, true}) {
      const std::string text = ProgressText(label, 150'000'000, 300'000'000, 2.5e6, bar, width);
      EXPECT_LE(text.size(), static_cast<size_t>(width));
      EXPECT_THAT(text, HasSubstr(" 50 %"));
    }
}

}  // namespace
}  // namespace celer::cli
