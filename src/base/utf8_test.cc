#include "base/utf8.h"

#include <gtest/gtest.h>

namespace celer::utf8 {
namespace {

TEST(Utf8, EveryScalarRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    Append(c, text);
    const CodePoint decoded = Decode(text);
    ASSERT_TRUE(decoded.valid && decoded.value == c && decoded.length == text.size())
        << std::hex << static_cast<uint32_t>(c);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const CodePoint part = Decode(std::string_view(text).substr(0, cut));
      if (part.valid || !part.cut || part.length != cut) FAIL() << std::hex << static_cast<uint32_t>(c);
    }
  }
}

TEST(Utf8, FindsWhatIsInvalid) {
  EXPECT_EQ(FindInvalid("aé日😀"), std::string::npos);
  EXPECT_EQ(FindInvalid("a\x80"), 1u);
  EXPECT_EQ(FindInvalid("\xc0\xaf"), 0u);             // overlong
  EXPECT_EQ(FindInvalid("ab\xed\xa0\x80"), 2u);       // surrogate
  EXPECT_EQ(FindInvalid("\xf4\x90\x80\x80"), 0u);     // past U+10FFFF
  EXPECT_EQ(FindInvalid("\xe6\x97"), 0u);             // cut short
  EXPECT_EQ(FindInvalid("eight or more \xff"), 14u);  // behind what is looked at eight bytes at a time
}

TEST(Utf8, ReplacesMaximalPartsAsPythonDoes) {
  const std::string f(kReplacement);
  EXPECT_EQ(ToValid("a\xFFz"), "a" + f + "z");
  EXPECT_EQ(ToValid("\xC0\xAF"), f + f);                  // overlong
  EXPECT_EQ(ToValid("\xE0\x80\x80"), f + f + f);          // overlong
  EXPECT_EQ(ToValid("\xED\xA0\x80"), f + f + f);          // a surrogate
  EXPECT_EQ(ToValid("\xF4\x90\x80\x80"), f + f + f + f);  // above U+10FFFF
  EXPECT_EQ(ToValid("\xE2\x82"), f);                      // cut short: one
  EXPECT_EQ(ToValid("\xF0\x9F\x98x"), f + "x");
  EXPECT_EQ(ToValid("\xE2\x82\xE2\x82\xAC"), f + "\xE2\x82\xAC");
  EXPECT_FALSE(IsValid("12345678\xFF"));
  EXPECT_TRUE(IsValid("1234567\xE2\x82\xAC"));
}

TEST(Utf8, JoinerGivesWholeCodePoints) {
  const std::string text = "a\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xE2\x82z\xE2";
  for (const bool per_byte : {false, true}) {
    Joiner joiner(per_byte);
    std::string out;
    for (const char byte : text) {
      joiner.Push(std::string_view(&byte, 1), out);
      EXPECT_TRUE(IsValid(out));
    }
    joiner.Finish(out);
    const std::string f(kReplacement);
    EXPECT_EQ(out, "a\xE2\x82\xAC\xF0\x9F\x98\x80" + f + (per_byte ? f + f : f) + "z" + f);
  }
}

TEST(Utf8, WhiteSpaceAtBothEnds) {
  EXPECT_EQ(LeadingSpace(" \t\xC2\xA0x "), 4u);
  EXPECT_EQ(TrailingSpace(" x \xE3\x80\x80"), 4u);
  EXPECT_EQ(TrailingSpace("\xE2\x80\x8B"), 0u);  // U+200B is no white space
  EXPECT_EQ(LeadingSpace(""), 0u);
  EXPECT_EQ(TrailingSpace("   "), 3u);
}

}  // namespace
}  // namespace celer::utf8
