#include "cli/subprocess.h"

#include <gtest/gtest.h>

namespace celer::cli {
namespace {

SubprocessResult Shell(const std::string& script, SubprocessOptions options = {}) {
  options.capture_output = options.capture_errors = true;
  auto result = RunProgram({"sh", "-c", script}, options);
  EXPECT_TRUE(result) << result.error().message();
  return *result;
}

TEST(Subprocess, OutputErrorsAndExitCode) {
  const SubprocessResult result = Shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(result.errors, "err\n");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(Shell("kill -9 $$").exit_code, 128 + 9);
}

TEST(Subprocess, InputAndEnvironment) {
  EXPECT_EQ(Shell("cat", {.input = "hello"}).output, "hello");
  EXPECT_EQ(Shell("cat").output, "");  // /dev/null, not ours
  EXPECT_EQ(Shell("echo $CELER_A:$HOME", {.environment = {{"CELER_A", "1 2"}, {"HOME", "/h"}}}).output,
            "1 2:/h\n");
}

TEST(Subprocess, ArgumentsAreNotInterpreted) {
  const auto result =
      RunProgram({"printf", "%s|", "a b", "$HOME", "`id`", "x;y", ""}, {.capture_output = true});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->output, "a b|$HOME|`id`|x;y||");
}

TEST(Subprocess, MissingProgramIsNamed) {
  const auto result = RunProgram({"no-such-program-here"});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), Error::Code::kNotFound);
  EXPECT_NE(result.error().message().find("no-such-program-here"), std::string::npos);
}

TEST(Subprocess, MuchOutputAndTicks) {
  int ticks = 0;
  const SubprocessResult result =
      Shell("head -c 3000000 /dev/zero; sleep 0.3; echo", {.tick = [&] { ++ticks; }});
  EXPECT_EQ(result.output.size(), 3'000'001u);
  EXPECT_GE(ticks, 2);
  EXPECT_LE(Shell("head -c 1000000 /dev/zero >&2; echo end >&2").errors.size(), 40'000u);
}

// A grandchild that keeps the pipe open is not waited for.
TEST(Subprocess, DoesNotWaitForGrandchildren) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(Shell("sleep 20 & echo done").output, "done\n");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(Subprocess, LastLines) {
  EXPECT_EQ(LastLines("a\nb\n\n  \nc\n", 2), "b / c");
  EXPECT_EQ(LastLines("only", 5), "only");
  EXPECT_EQ(LastLines("\n\n", 2), "");
}

}  // namespace
}  // namespace celer::cli
