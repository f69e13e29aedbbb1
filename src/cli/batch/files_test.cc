#include "cli/batch/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cli/batch/line.h"
#include "io/file/test_folder.h"

namespace celer::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Answer(int64_t number, const std::string& id) {
  BatchLine line{.number = number};
  if (!id.empty()) line.id = id;
  return AnswerText(line, {{"text", "grüße \"" + id + "\"\n"}, {"finish_reason", "stop"}});
}

TEST(LinesFile, LinesOfEveryLengthAcrossItsBuffer) {
  const TestFolder folder;
  std::string all;
  std::vector<std::string> lines;
  for (size_t length : {0, 1, 1 << 20, (1 << 20) - 1, 3 << 20, 0, 5}) {
    lines.push_back(std::string(length, static_cast<char>('a' + lines.size())));
    all += lines.back() + "\n";
  }
  lines.push_back("the last one has no end");
  all += lines.back();
  auto file = LinesFile::Open(folder.Write("in", all));
  ASSERT_TRUE(file);
  EXPECT_EQ(file->size(), static_cast<int64_t>(all.size()));
  int64_t offset = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto line = file->Next();
    ASSERT_TRUE(line && *line);
    EXPECT_EQ((*line)->text, lines[i]) << i;
    EXPECT_EQ((*line)->number, static_cast<int64_t>(i) + 1);
    EXPECT_EQ((*line)->offset, offset);
    EXPECT_EQ((*line)->ended, i + 1 < lines.size());
    offset += static_cast<int64_t>((*line)->bytes);
  }
  const auto end = file->Next();
  EXPECT_TRUE(end && !*end);
  EXPECT_EQ(offset, static_cast<int64_t>(all.size()));
}

TEST(LinesFile, WhatIsTooLongIsSkipped) {
  const TestFolder folder;
  auto file = LinesFile::Open(
      folder.Write("in", "first\n" + std::string(LinesFile::kMaxLine + 1, 'x') + "\nthird\n"));
  ASSERT_TRUE(file);
  std::vector<std::pair<std::string, bool>> seen;
  for (auto line = file->Next(); line && *line; line = file->Next())
    seen.emplace_back((*line)->text, (*line)->too_long);
  EXPECT_THAT(seen, ElementsAre(std::pair("first", false), std::pair("", true), std::pair("third", false)));
}

// Whatever byte a kill cuts the file at, the lines before it are kept, and the torn one is not among them.
TEST(AppendedLines, EveryTornEndIsRepaired) {
  const TestFolder folder;
  const std::string lines[] = {Answer(1, "one"), Answer(2, ""), Answer(3, "three")};
  const std::string all = lines[0] + lines[1] + lines[2];
  for (size_t cut = 0; cut <= all.size(); ++cut) {
    const auto path = folder.Write("out", all.substr(0, cut));
    LineSet done;
    auto file = AppendedLines::Open(path, false, true, &done);
    ASSERT_TRUE(file) << cut << ": " << file.error().message();
    // A line that misses nothing but its end is whole.
    const size_t whole = cut + 1 >= all.size()                          ? 3
                         : cut + 1 >= lines[0].size() + lines[1].size() ? 2
                         : cut + 1 >= lines[0].size()                   ? 1
                                                                        : 0;
    EXPECT_EQ(file->lines(), static_cast<int64_t>(whole)) << cut;
    EXPECT_EQ(done.Has("id \"one\"", 0), whole > 0) << cut;
    EXPECT_EQ(done.Has("", 2), whole > 1) << cut;
    EXPECT_EQ(done.Has("id \"three\"", 0), whole > 2) << cut;
    for (size_t i = whole; i < 3; ++i) ASSERT_TRUE(file->Append(lines[i]));
    EXPECT_EQ(Content(path), all) << cut;
  }
}

TEST(AppendedLines, FilesOfOthersAreLeftAlone) {
  const TestFolder folder;
  for (const std::string content :
       {"GGUF\x03", "{\"model\": 1}\n", "[1, 2]\n", "{\"id\":1}x\n{\"id\":2}\n"}) {
    const auto path = folder.Write("out", content);
    LineSet done;
    const auto file = AppendedLines::Open(path, false, true, &done);
    ASSERT_FALSE(file) << content;
    EXPECT_THAT(file.error().message(), HasSubstr("line 1 was not written by celer batch"));
    EXPECT_EQ(Content(path), content);
  }
}

TEST(AppendedLines, OneWriterAtATime) {
  const TestFolder folder;
  LineSet done;
  auto first = AppendedLines::Open(folder / "out", false, true, &done);
  ASSERT_TRUE(first);
  EXPECT_FALSE(AppendedLines::Open(folder / "out", false, true, &done));
  ASSERT_TRUE(first->Append(Answer(1, "a")));
  first = AppendedLines::Open(folder / "other", false, true, &done);
  const auto again = AppendedLines::Open(folder / "out", false, true, &done);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->lines(), 1);
  EXPECT_TRUE(done.Has("id \"a\"", 0));
}

TEST(BatchLine, WhatIsWrittenNamesItsLine) {
  const BatchLine chat = ParseLine(
      R"({"custom_id": "x", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m"}})", 9);
  ASSERT_FALSE(chat.error);
  for (const std::string& text :
       {AnswerText(chat, {{"choices", 1}}), ErrorText(chat, {"code", "why", 400})}) {
    const auto name = NameOf(std::string_view(text).substr(0, text.size() - 1));
    ASSERT_TRUE(name) << text;
    EXPECT_EQ(name->key, chat.Key());
  }
  EXPECT_EQ(NameOf(ErrorText(chat, {"code", "why"}))->number, 9);
  // A custom_id "1" and an id 1 or "1" are three different lines.
  EXPECT_NE(ParseLine(R"({"id": 1, "prompt": ""})", 1).Key(),
            ParseLine(R"({"id": "1", "prompt": ""})", 1).Key());
  EXPECT_EQ(ParseLine(R"({"prompt": ""})", 1).Key(), "");
}

}  // namespace
}  // namespace celer::cli
