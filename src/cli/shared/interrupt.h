// SIGINT (Ctrl-C), SIGTERM and SIGHUP. Each ends the command at once, whatever it is doing: partial files are
// removed, and the exit code is 128 plus the signal's number, 130 or 143. A loop that handles signals itself
// takes an InterruptGuard and polls it.
#pragma once

#include <string>

namespace celer::cli {

// First thing in main(). A thread of its own waits for signals, since a handler may do next to nothing.
void HandleSignals();

// In a child after fork(), which has no such thread: the default actions of signals.
void RestoreDefaultSignals();

// While it lives, a signal sets a flag; with kDrain and kAnswer a blocked read returns early, too.
class InterruptGuard {
 public:
  enum class Mode {
    kFinish,  // the command ends soon: after two seconds, or at the second signal, it is ended
    kDrain,   // it may take its time; a signal that comes before the last one was seen ends it
    kAnswer,  // Ctrl-C is about a part of the work and never ends the command; other signals as in kFinish
  };
  explicit InterruptGuard(Mode mode = Mode::kFinish);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  static bool Pending();
  static void Clear();

  // The message instead of "interrupted" if the command is ended while this guard lives: what is kept, for
  // example.
  static void Note(std::string text);

  // Of the last signal: whether it was another one than Ctrl-C, and the exit code for it.
  static bool Terminated();
  static int ExitCode();
};

}  // namespace celer::cli
