#include "device/thread_priority.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace celer {

void LowerThreadPriority() {
  constexpr int kNice = 10;
  // On Linux the nice value is the thread's own. Where it cannot be set, the thread runs like any other.
  const auto thread = static_cast<id_t>(syscall(SYS_gettid));
  if (getpriority(PRIO_PROCESS, thread) < kNice) setpriority(PRIO_PROCESS, thread, kNice);
}

}  // namespace celer
