// What fork() leaves of this library: its memory, and none of its threads. A child that waited for one of them would wait
// forever, so everything that was loaded before is useless there, and nothing can be loaded: the threads that all
// models share are gone, too.
#pragma once

#include "base/result.h"

namespace celer {

// Something with threads is made. An error in a child of a process that had made something.
Status NoteThreads();
// An error in such a child.
Status CheckFork();
// The same as a question: what waits for threads must not be destroyed there.
bool IsOrphaned();

}  // namespace celer
