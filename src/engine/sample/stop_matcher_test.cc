#include "engine/sample/stop_matcher.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(StopMatcher, NothingOfAStopStringIsShown) {
  StopMatcher stops({"END", "\n\n"});
  EXPECT_EQ(stops.Push("hello E"), "hello ");
  EXPECT_EQ(stops.Push("N"), "");
  EXPECT_EQ(stops.Push("Dmore"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.Push("after"), "");
}

TEST(StopMatcher, AFalseAlarmIsShownLater) {
  StopMatcher stops({"abcd"});
  EXPECT_EQ(stops.Push("xab"), "x");
  EXPECT_EQ(stops.Push("ce"), "abce");
  EXPECT_EQ(stops.Push("ab"), "");
  EXPECT_EQ(stops.Finish(), "ab");
  EXPECT_FALSE(stops.stopped());
}

TEST(StopMatcher, TheEarliestOfSeveralWins) {
  StopMatcher stops({"two", "one"});
  EXPECT_EQ(stops.Push("a one two"), "a ");
  EXPECT_TRUE(stops.stopped());
}

TEST(StopMatcher, EveryByteSplitGivesTheSameText) {
  const std::string text = "aabaabaac<stop>tail";
  for (size_t split = 0; split <= text.size(); ++split) {
    StopMatcher stops({"<stop>", "aabaac!"});
    std::string out = stops.Push(text.substr(0, split));
    out += stops.Push(text.substr(split));
    out += stops.Finish();
    EXPECT_EQ(out, "aabaabaac") << split;
  }
}

TEST(StopMatcher, EmptyStopStringsAreIgnored) {
  StopMatcher stops({""});
  EXPECT_EQ(stops.Push("text"), "text");
  EXPECT_FALSE(stops.stopped());
}

}  // namespace
}  // namespace celer
