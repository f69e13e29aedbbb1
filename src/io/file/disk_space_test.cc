#include "io/file/disk_space.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>

#include "io/file/test_folder.h"

namespace celer {
namespace {

constexpr int64_t kTooMuch = std::numeric_limits<int64_t>::max();

TEST(DiskSpace, OneSentenceWithItsRemedy) {
  const TestFolder folder;
  const Status refused = CheckFreeSpace(folder / "out", kTooMuch, "give -o a place with more room");
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().message().ends_with(" MB free; give -o a place with more room"))
      << refused.error().message();
  EXPECT_EQ(refused.error().message().find("; ;"), std::string::npos);
  EXPECT_TRUE(CheckFreeSpace(folder / "out", 1, ""));
}

TEST(DiskSpace, APipeTakesAnyAmount) {
  const TestFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(CheckFreeSpace(folder / "pipe", kTooMuch, ""));
}

}  // namespace
}  // namespace celer
