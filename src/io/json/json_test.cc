#include "io/json/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/file/printable.h"
#include "io/file/test_folder.h"

namespace celer {
namespace {

using testing::HasSubstr;

TEST(Json, ReadsAFile) {
  const TestFolder folder;
  const auto json = ReadJsonFile(folder.Write("config.json", R"({"a": [1, 2], "b": "[{"})"));
  ASSERT_TRUE(json);
  EXPECT_EQ((*json)["a"][1], 2);
}

TEST(Json, BoundsSizeAndDepth) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const auto nested = ParseJson(deep, "x.json");
  ASSERT_FALSE(nested);
  EXPECT_THAT(nested.error().message(), HasSubstr("x.json: JSON nested 100000 deep, at most 64"));
  EXPECT_TRUE(ParseJson(R"(["[[[[[[[[", "\"[[[["])", "x", {.max_bytes = 100, .max_depth = 1}));
  EXPECT_FALSE(ParseJson("[[]]", "x", {.max_bytes = 100, .max_depth = 1}));
  const auto large = ParseJson("[1, 2, 3]", "x", {.max_bytes = 4, .max_depth = 9});
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message(), HasSubstr("9 bytes"));
  const TestFolder folder;
  EXPECT_FALSE(ReadJsonFile(folder.Write("big.json", "[1, 2, 3]"), {.max_bytes = 4, .max_depth = 9}));
}

TEST(Json, BadTextIsOneSentence) {
  for (const char* text :
       {"", "{", "{\"a\":}", "nul", "[1,]", "{\"a\": \"\xff\"}", "\"unterminated", "1 2"}) {
    const auto json = ParseJson(text, "f.json");
    ASSERT_FALSE(json) << text;
    EXPECT_EQ(json.error().code(), Error::Code::kCorrupt);
    EXPECT_THAT(json.error().message(), HasSubstr("f.json: not valid JSON")) << text;
    EXPECT_THAT(json.error().message(), testing::Not(HasSubstr("\n")));
  }
  EXPECT_EQ(ParseJson("[1, -1e999]", "f.json").error().message(),
            "f.json: the number -1e999 at byte 10 is too large, expected one that fits 64 bits");
  const TestFolder folder;
  EXPECT_EQ(ReadJsonFile(folder / "none.json").error().code(), Error::Code::kNotFound);
  EXPECT_FALSE(ReadJsonFile(folder.path()));
}

TEST(Json, TypedFields) {
  const auto json = ParseJson(
      R"({"n": 4096, "f": 1e-5, "whole": 1e6, "s": "x", "t": true, "nothing": null, "list": [1, 2], "o": {"k": 1},
          "big": 18446744073709551615, "half": 0.5, "negative": -3})",
      "config.json");
  ASSERT_TRUE(json);
  const auto fields = JsonFields::Of(*json, "config.json");
  ASSERT_TRUE(fields);
  EXPECT_EQ(*fields->GetInt("n", 1, 10000), 4096);
  EXPECT_EQ(*fields->GetInt("whole", 1, 10'000'000), 1'000'000);
  EXPECT_EQ(*fields->GetInt("missing", 1, 2, 7), 7);
  EXPECT_EQ(*fields->GetInt("nothing", 1, 2, 7), 7);
  EXPECT_EQ(*fields->GetDouble("f"), 1e-5);
  EXPECT_EQ(*fields->GetDouble("n"), 4096.0);
  EXPECT_EQ(*fields->GetString("s"), "x");
  EXPECT_EQ(*fields->GetString("missing", "y"), "y");
  EXPECT_TRUE(*fields->GetBool("t", false));
  EXPECT_EQ(*fields->GetInts("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(*fields->GetInts("n"), std::vector<int64_t>{4096});
  EXPECT_EQ(*fields->GetObject("o")->GetInt("k", 0, 9), 1);

  const auto message = [](const auto& result) { return result ? "" : result.error().message(); };
  EXPECT_EQ(message(fields->GetInt("n", 1, 100)), "config.json: 'n' is 4096, expected 1 to 100");
  EXPECT_EQ(message(fields->GetInt("s", 1, 100)), "config.json: 's' is \"x\", expected an integer");
  EXPECT_EQ(message(fields->GetInt("half", 0, 100)), "config.json: 'half' is 0.5, expected an integer");
  EXPECT_THAT(message(fields->GetInt("big", 0, INT64_MAX)), HasSubstr("below 2^63"));
  EXPECT_EQ(message(fields->GetString("absent")), "config.json: 'absent' is missing");
  EXPECT_THAT(message(fields->GetBool("n", true)), HasSubstr("true or false"));
  EXPECT_THAT(message(fields->GetInts("o")), HasSubstr("array of integers"));
  EXPECT_THAT(message(fields->GetObject("o")->GetInt("absent", 0, 1)),
              HasSubstr("config.json: 'o': 'absent'"));
  EXPECT_FALSE(JsonFields::Of((*json)["list"], "config.json"));
}

TEST(Json, TextIsFitForATerminal) {
  const nlohmann::json json = {{"k\x1b", "a\x7f\xc2\x9b\xe2\x80\xae\xe6\xa8\xa1"}};
  const std::string text = JsonText(json);
  EXPECT_EQ(text, "{\"k\\u001b\":\"a\\u007f\\u009b\\u202e\xe6\xa8\xa1\"}");
  EXPECT_EQ(nlohmann::json::parse(text), json);
}

TEST(Printable, EscapesAndBounds) {
  EXPECT_EQ(Printable("model.norm"), "model.norm");
  EXPECT_EQ(Printable("a\nb\x1b[31m\x7f"), "a\\nb\\x1b[31m\\x7f");
  EXPECT_EQ(Printable("\xe6\xa8\xa1"), "\xe6\xa8\xa1");
  EXPECT_EQ(Printable("\xff\xe6\xa8"), "\\xff\\xe6\\xa8");
  EXPECT_EQ(Printable("\xc0\xaf\xed\xa0\x80"), "\\xc0\\xaf\\xed\\xa0\\x80");  // overlong, surrogate
  EXPECT_EQ(Printable("\xc2\x9b"), "\\xc2\\x9b");                             // a control character as well
  EXPECT_EQ(Printable(std::string(1000, 'x'), 10), "xxxxxxxxxx...");
  // U+202E turns what follows around, U+2028 ends a line
  EXPECT_EQ(Printable("a\xe2\x80\xae"
                      "b\xe2\x80\xa8"),
            "a\\u202eb\\u2028");
}

}  // namespace
}  // namespace celer
