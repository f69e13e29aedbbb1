// Ctrl-C as a question that a loop can ask, so that it stops an answer and not the program.
#pragma once

namespace celer::cli {

// While it lives, SIGINT only sets a flag, and a blocked read returns early.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool Pending();
  static void Clear();
};

}  // namespace celer::cli
