#include "cli/shared/interrupt.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "io/file/atomic_file.h"

namespace celer::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kHandled[] = {SIGINT, SIGTERM, SIGHUP};
constexpr std::chrono::seconds kGrace{2};
constexpr int kExitBySignal = 128;  // the shells' convention
constexpr int kUnguarded = -1;

// A handler touches these alone.
std::atomic<int> g_pending{0}, g_last{SIGINT}, g_mode{kUnguarded};
std::atomic<const std::string*> g_note{nullptr};
int g_pipe[2] = {-1, -1};  // the handler writes, the thread reads
static_assert(std::atomic<int>::is_always_lock_free);

struct Delivery {
  char signal, first;  // first: the one before it, if any, had been seen by the command
  char mode;           // of the guard when it came: that guard may be gone when it is read
};

void OnSignal(int signal) {
  const int error = errno;
  const Delivery delivery{static_cast<char>(signal), static_cast<char>(g_pending.exchange(signal) == 0),
                          static_cast<char>(g_mode.load())};
  g_last = signal;
  if (::write(g_pipe[1], &delivery, sizeof delivery) < 0) ::_exit(kExitBySignal + signal);
  errno = error;
}

[[noreturn]] void End(int signal) {
  RemovePartials();
  const std::string* const note = g_note;
  const std::string text =
      (::isatty(STDERR_FILENO) ? "\n" : "") + (note ? "error: " + *note : std::string("interrupted")) + "\n";
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) ::_exit(kExitBySignal + signal);
  ::_exit(kExitBySignal + signal);
}

[[noreturn]] void Watch() {
  using Mode = InterruptGuard::Mode;
  bool expires = false;
  Clock::time_point deadline;
  while (true) {
    int64_t left = -1;  // milliseconds; without a deadline, for as long as it takes
    if (expires)
      left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count() + 1;
    if (expires && left <= 0) {
      expires = false;
      if (const int signal = g_pending) End(signal);
      continue;
    }
    pollfd input = {g_pipe[0], POLLIN, 0};
    if (::poll(&input, 1, static_cast<int>(left)) <= 0) continue;
    Delivery delivery = {};
    if (::read(g_pipe[0], &delivery, sizeof delivery) != sizeof delivery) continue;
    if (delivery.signal == SIGINT && static_cast<Mode>(delivery.mode) == Mode::kAnswer) continue;
    const int mode = g_mode;
    if (mode == kUnguarded) End(delivery.signal);
    if (!delivery.first) End(delivery.signal);
    if (static_cast<Mode>(mode) == Mode::kDrain || expires) continue;
    expires = true;
    deadline = Clock::now() + kGrace;
  }
}

// With a guard of kDrain or kAnswer a blocked read returns early (EINTR). Else it is restarted: a command would
// take the signal for the end of its input or for a failed write, and might come to its own end before it is
// ended.
void Handle(int signal, int flags) {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = flags;
  sigaction(signal, &action, nullptr);
}

void StartWatching() {
  if (::pipe2(g_pipe, O_CLOEXEC) != 0) return;  // then signals end the program as they end any
  // It takes no signals itself: they must interrupt the reads of the others.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(Watch).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (const int signal : kHandled) {
    struct sigaction old = {};
    sigaction(signal, nullptr, &old);
    if (signal == SIGHUP && old.sa_handler == SIG_IGN) continue;  // nohup
    Handle(signal, SA_RESTART);
  }
}

// Of those that are ours: the server has handlers of its own.
void HandleAgain(int flags) {
  for (const int signal : kHandled) {
    struct sigaction now = {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler == OnSignal) Handle(signal, flags);
  }
}

}  // namespace

void HandleSignals() {
  static std::once_flag once;
  std::call_once(once, StartWatching);
}

void RestoreDefaultSignals() {
  for (const int signal : kHandled) {
    struct sigaction now = {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler == OnSignal) std::signal(signal, SIG_DFL);
  }
}

InterruptGuard::InterruptGuard(Mode mode) {
  HandleSignals();
  g_pending = 0;
  g_mode = static_cast<int>(mode);
  HandleAgain(mode == Mode::kFinish ? SA_RESTART : 0);
}

InterruptGuard::~InterruptGuard() {
  g_mode = kUnguarded;
  g_note = nullptr;
  HandleAgain(SA_RESTART);
}

void InterruptGuard::Note(std::string text) {
  g_note = new std::string(std::move(text));  // NOLINT: never freed, another thread may be about to print it
}

bool InterruptGuard::Pending() {
  return g_pending != 0;
}
void InterruptGuard::Clear() {
  g_pending = 0;
}
bool InterruptGuard::Terminated() {
  return g_last != SIGINT;
}
int InterruptGuard::ExitCode() {
  return kExitBySignal + g_last;
}

}  // namespace celer::cli
