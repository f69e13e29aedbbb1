#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "celer/log.h"

namespace celer {
namespace {

TEST(Log, AWarningIsGivenOnce) {
  SetLogSink(StderrLog());
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) log::WarningOnce("{}: is odd", "file");
  log::WarningOnce("{}: is odd", "other file");
  for (int i = 0; i < 2; ++i) log::Warning("each time");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: file: is odd\nwarning: other file: is odd\nwarning: each time\nwarning: each time\n");
  SetLogSink(nullptr);
}

TEST(Log, TheLibraryPrintsNothingByItself) {
  SetLogSink(nullptr);
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  log::Warning("a file is odd");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST(Log, ASinkHasWhatIsNotLeftOut) {
  std::vector<std::string> got;
  const auto keep = [&](LogLevel level, std::string_view text) {
    got.push_back(std::to_string(static_cast<int>(level)) + " " + std::string(text));
  };
  SetLogSink(keep);
  log::Info("not said");
  log::Warning("a {} warning\n", "\x1b[31m");
  SetLogSink(keep, LogLevel::kInfo);
  log::Info("said");
  SetLogSink(nullptr);
  log::Warning("nobody hears it");
  EXPECT_EQ(got, (std::vector<std::string>{"2 a \\x1b[31m warning\\n", "1 said"}));
}

}  // namespace
}  // namespace celer
