#include "cli/eval/eval.h"

#include <gtest/gtest.h>

namespace celer::cli {
namespace {

TEST(Eval, HasATextOfItsOwn) {
  EXPECT_TRUE(EvalText().starts_with("CHAPTER 1\n\nNo one who had ever seen Catherine Morland"));
  EXPECT_TRUE(EvalText().ends_with("endure it.\n"));
  EXPECT_EQ(EvalText().size(), 44437u);
}

}  // namespace
}  // namespace celer::cli
