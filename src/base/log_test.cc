#include "base/log.h"

#include <gtest/gtest.h>

namespace celer {
namespace {

TEST(Log, AWarningIsGivenOnce) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) log::WarningOnce("{}: is odd", "file");
  log::WarningOnce("{}: is odd", "other file");
  for (int i = 0; i < 2; ++i) log::Warning("each time");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: file: is odd\nwarning: other file: is odd\nwarning: each time\nwarning: each time\n");
}

}  // namespace
}  // namespace celer
