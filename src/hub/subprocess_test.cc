#include "hub/subprocess.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

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
  const std::string output = Shell("sleep 1000 & echo $!").output;
  const pid_t sleeper = std::stoi(output);
  EXPECT_EQ(::kill(sleeper, SIGKILL), 0) << "it had ended before: " << output;
}

TEST(Subprocess, IsEndedWhenItIsGivenUp) {
  int asked = 0;
  const SubprocessResult result = Shell("exec sleep 1000", {.give_up = [&] { return ++asked > 2; }});
  EXPECT_TRUE(result.given_up);
  EXPECT_EQ(result.exit_code, 128 + 9);
}

// It must not write on into a file that the next process takes up.
TEST(Subprocess, DiesWithItsParent) {
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::close(alive[0]);
    const auto result =
        RunProgram({"sh", "-c", "echo started >&" + std::to_string(alive[1]) + "; exec sleep 1000"});
    ::_exit(result ? 0 : 1);
  }
  ::close(alive[1]);
  char byte = 0;
  while (::read(alive[0], &byte, 1) == 1 && byte != '\n') {
  }
  ASSERT_EQ(byte, '\n');
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_EQ(::read(alive[0], &byte, 1), 0);  // nobody holds the other end any more
  ::close(alive[0]);
}

TEST(Subprocess, LastLines) {
  EXPECT_EQ(LastLines("a\nb\n\n  \nc\n", 2), "b / c");
  EXPECT_EQ(LastLines("only", 5), "only");
  EXPECT_EQ(LastLines("\n\n", 2), "");
}

}  // namespace
}  // namespace celer::cli
