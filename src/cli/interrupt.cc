#include "cli/interrupt.h"

#include <csignal>

namespace celer::cli {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;
struct sigaction g_before;

void OnInterrupt(int) {
  g_interrupted = 1;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;  // no SA_RESTART: a read at the prompt returns
  sigaction(SIGINT, &action, &g_before);
  g_interrupted = 0;
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &g_before, nullptr);
}

bool InterruptGuard::Pending() {
  return g_interrupted != 0;
}
void InterruptGuard::Clear() {
  g_interrupted = 0;
}

}  // namespace celer::cli
