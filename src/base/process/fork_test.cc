#include "base/process/fork.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace celer {
namespace {

// The exit code of a child that runs `body`.
template <class Body>
int InChild(const Body& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Fork, AChildOfAProcessWithThreadsIsRefused) {
  const int code = InChild([] {  // a process of its own, so that no other test has noted anything
    if (InChild([] { return NoteThreads() ? 0 : 1; }) != 0) return 1;  // nothing was made before
    if (!NoteThreads() || !CheckFork() || IsOrphaned()) return 2;
    if (InChild([] { return NoteThreads() || CheckFork() || !IsOrphaned() ? 1 : 0; }) != 0) return 3;
    return CheckFork() ? 0 : 4;  // the parent goes on
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace celer
