#include "text/regex/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/utf8.h"

namespace celer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Find(const std::string& pattern, const std::string& text) {
  auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex) << pattern << ": " << (regex ? "" : regex.error().message());
  if (!regex) return {};
  Regex::Matches matches;
  RegexBudget budget(text.size());
  regex->FindAll(text, budget, matches);
  std::vector<std::string> out;
  for (const auto& [begin, end] : matches) out.push_back(text.substr(begin, end - begin));
  return out;
}

TEST(Regex, ReadsOnigurumasDialect) {
  EXPECT_THAT(Find("\\s+$", "a  \nb  \n c \n"), ElementsAre("  ", "  ", " \n"));
  EXPECT_THAT(Find("^a", "a\na"), ElementsAre("a", "a"));
  EXPECT_THAT(Find("\\h+", "af09g \t"), ElementsAre("af09"));
  EXPECT_THAT(Find("[a[bc]]+", "abcd"), ElementsAre("abc"));
  EXPECT_THAT(Find("(?m:a.b)", "a\nb"), ElementsAre("a\nb"));
  EXPECT_THAT(Find("a.b", "a\nb"), ElementsAre());
  EXPECT_THAT(Find("\\u0041+", "AA"), ElementsAre("AA"));
  EXPECT_THAT(Find("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(Find("(?:x{1,2}+)y", "xxxxy"), ElementsAre("xxxxy"));  // not possessive: {1,2} may repeat
  EXPECT_THAT(Find("[]a]+", "a]b"), ElementsAre("a]"));
  EXPECT_THAT(Find("\\bab\\b", "ab abc \u00E4ab ab"), ElementsAre("ab", "ab"));
}

TEST(Regex, CharacterSetsAreUnicode16s) {
  EXPECT_THAT(Find("\\p{L}+", "\u1C89x"), ElementsAre("\u1C89x"));  // Unicode 16
  EXPECT_THAT(Find("[^\\s\\p{L}\\p{N}]", "\u1C89\U00010D40!"), ElementsAre("!"));
  EXPECT_THAT(Find("\\P{L}", "\u1C89!"), ElementsAre("!"));
  EXPECT_THAT(Find("\\s", "\u180E\x1C\u0085\u2028"), ElementsAre("\u0085", "\u2028"));
  EXPECT_THAT(Find("[^\\S\\n]+", " \t\n"), ElementsAre(" \t"));
  EXPECT_THAT(Find("\\w+", "a\u0301_\u00B2\u09F4"), ElementsAre("a\u0301_\u00B2"));
  EXPECT_THAT(Find("(?i:'s)", "'s'S'\u017F"), ElementsAre("'s", "'S", "'\u017F"));
}

TEST(Regex, EmptyMatchesSplitButDoNotLoop) {
  EXPECT_THAT(Find("x*", "axxb"), ElementsAre("", "xx", ""));
  EXPECT_THAT(Find("(?=(\\d{3})+(?!\\d))", "1234567"), ElementsAre("", ""));
  EXPECT_THAT(Find("", "\u00E4"), ElementsAre("", ""));
}

TEST(Regex, RefusesWhatItCannotDo) {
  for (const char* pattern : {"(", "[a", "a\\", "[a&&b]", "[a[^b]]", "\\p{Nonsense}", "(?<n", "\\u12"}) {
    const auto regex = Regex::Compile(pattern);
    ASSERT_FALSE(regex) << pattern;
    EXPECT_THAT(regex.error().message(), HasSubstr("regular expression")) << pattern;
  }
  EXPECT_FALSE(Regex::Compile(std::string(1 << 20, 'a')));
  EXPECT_FALSE(Regex::Compile("\xFF"));
}

// These end; how soon is regex_bench.cc's to say.
TEST(Regex, CatastrophesEnd) {
  Find("(a+)+$|(a|aa)+b", std::string(100000, 'a') + "c");
  Find("(x+x+)+y", std::string(100000, 'x'));
  Find("a*?[^a]$", std::string(300000, 'a') + "bc");  // quadratic, each start within PCRE2's own limits
}

TEST(Regex, LongRunsOfBlanksMatch) {
  EXPECT_TRUE(Find("\\s+$", std::string(1000000, ' ') + "x").empty());
  EXPECT_EQ(Find("\\s+$", std::string(1000000, ' ')).size(), 1u);
}

TEST(Regex, ServesManyThreads) {
  auto regex = Regex::Compile("\\p{L}+|\\s+");
  ASSERT_TRUE(regex);
  std::vector<std::thread> threads;
  std::vector<size_t> counts(4);
  for (size_t t = 0; t < counts.size(); ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        Regex::Matches matches;
        RegexBudget budget(100);
        regex->FindAll("one two \u0436\u0436 three", budget, matches);
        counts[t] += matches.size();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const size_t count : counts) EXPECT_EQ(count, 1400u);
}

TEST(Regex, EscapedTextMatchesItself) {
  const std::string text = "a.b*c+(d)[e]{f}^$|\\#&-~\u2581";
  EXPECT_THAT(Find(EscapeRegex(text), "x" + text + "y"), ElementsAre(text));
}

}  // namespace
}  // namespace celer
