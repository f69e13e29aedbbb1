#include "base/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace celer {
namespace {

const std::vector<std::string> kNames = {"limits", "probe", "kernels", "llama-3.1-8b", "qwen1.5-7b"};

TEST(Suggest, FindsTypos) {
  EXPECT_EQ(Nearest("limit", kNames), "limits");
  EXPECT_EQ(Nearest("porbe", kNames), "probe");  // two neighbours swapped
  EXPECT_EQ(Nearest("KERNELS", kNames), "kernels");
  EXPECT_EQ(Nearest("kernls", kNames), "kernels");
  EXPECT_EQ(Nearest("qwen1.5-7B", kNames), "qwen1.5-7b");
  EXPECT_EQ(Nearest("limits", kNames), "limits");
}

TEST(Suggest, AMissingEndingIsNear) {
  EXPECT_EQ(Nearest("llama", kNames), "llama-3.1-8b");
}

TEST(Suggest, DoesNotGuessWildly) {
  EXPECT_FALSE(Nearest("zzzzzz", kNames));
  EXPECT_FALSE(Nearest("", kNames));
  EXPECT_FALSE(Nearest("limits", {}));
  EXPECT_FALSE(Nearest(std::string(100'000, 'a'), kNames));  // and does not take forever
}

TEST(Suggest, EndsASentence) {
  EXPECT_EQ(DidYouMean("limts", kNames), "; did you mean 'limits'?");
  EXPECT_EQ(DidYouMean("zzzzzz", kNames), "");
}

}  // namespace
}  // namespace celer
