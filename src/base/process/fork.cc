#include "base/process/fork.h"

#include <pthread.h>

#include <atomic>

namespace celer {
namespace {

std::atomic<bool> g_used{false};
std::atomic<bool> g_orphaned{false};

}  // namespace

Status NoteThreads() {
  CELER_RETURN_IF_ERROR(CheckFork());
  if (!g_used.exchange(true)) pthread_atfork(nullptr, nullptr, [] { g_orphaned.store(true); });
  return {};
}

Status CheckFork() {
  if (!IsOrphaned()) return {};
  return Error(
      Error::Code::kDevice,
      "celer was in use before this process was forked, and its threads do not survive that; load models "
      "and networks in the child alone, or start a fresh process (in Python by "
      "multiprocessing.get_context('spawn'))");
}

bool IsOrphaned() {
  return g_orphaned.load();
}

}  // namespace celer
