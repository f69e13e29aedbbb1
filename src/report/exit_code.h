// How a command ends.
#pragma once

#include "base/result.h"

namespace celer::cli {

// 0: done. 1: the work failed (a device fault, a full disk, say). 2: a user error: a wrong flag, an unknown
// name, an unreadable or corrupt file. 3: partial success, with the rest in the error file (celer batch).
// 130, 143: SIGINT, SIGTERM (InterruptGuard::ExitCode()).
enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kPartly = 3 };

// Prints "error: <message>" and gives the exit code for it.
int Fail(const Error& error);

}  // namespace celer::cli
