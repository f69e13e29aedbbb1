#include "engine/speculate/lookup_index.h"

#include <gtest/gtest.h>

#include <random>

namespace celer {
namespace {

// The same by trying every position.
LookupIndex::Match FindSlowly(std::span<const int32_t> text) {
  LookupIndex::Match best;
  const auto count = static_cast<int64_t>(text.size());
  for (int64_t at = count - 1; at >= LookupIndex::kLeast; --at) {
    int length = 0;
    while (length < LookupIndex::kMost && length < at && text[at - 1 - length] == text[count - 1 - length])
      ++length;
    if (length >= LookupIndex::kLeast && length > best.length) best = {length, at};
  }
  return best;
}

TEST(LookupIndex, FindsTheLongestMatchAndOfEqualsTheLast) {
  LookupIndex index;
  EXPECT_EQ(index.Find(std::vector<int32_t>{1}).length, 0);
  EXPECT_EQ(index.Find(std::vector<int32_t>{1, 2}).length, 0);
  LookupIndex other;
  //                                 0  1  2  3  4  5  6  7  8  9 10 11 12
  const std::vector<int32_t> text = {9, 1, 2, 3, 8, 1, 2, 4, 1, 2, 9, 1, 2};
  const LookupIndex::Match match = other.Find(text);
  EXPECT_EQ(match.length, 3) << "9 1 2 stood at the beginning, 1 2 also later";
  EXPECT_EQ(match.next, 3);
  LookupIndex third;
  const auto tied = third.Find(std::span(text).first(10));
  EXPECT_EQ(tied.length, 2);
  EXPECT_EQ(tied.next, 7);
}

TEST(LookupIndex, EqualsASlowSearchWhileATextGrows) {
  std::mt19937 random(7);
  for (const int vocab : {2, 5, 40, 1000}) {
    LookupIndex index;
    std::vector<int32_t> text;
    while (text.size() < 400) {
      // Words of its own, and copies of what it said before.
      if (text.size() > 20 && random() % 4 == 0) {
        const size_t from = random() % (text.size() - 12), length = 2 + random() % 10;
        for (size_t i = 0; i < length; ++i) text.push_back(text[from + i]);
      } else {
        text.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)));
      }
      const LookupIndex::Match got = index.Find(text), want = FindSlowly(text);
      // A pair that is everywhere is only looked for in the last places.
      if (vocab <= 5 && got.length < LookupIndex::kMost && text.size() > 250) continue;
      ASSERT_EQ(got.length, want.length) << vocab << " " << text.size();
      ASSERT_EQ(got.next, want.next) << vocab << " " << text.size();
    }
  }
}

TEST(LookupIndex, CopiesRunIntoThemselves) {
  const std::vector<int32_t> text = {1, 2, 3, 4, 5};
  EXPECT_EQ(CopyFrom(text, 1, 2), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(CopyFrom(text, 3, 7), (std::vector<int32_t>{4, 5, 4, 5, 4, 5, 4}));
}

}  // namespace
}  // namespace celer
