// A mapped file that is cut short while it is read, or whose disk fails, has no bytes behind an address that
// was fine before: the system sends SIGBUS. This turns it into one sentence that names the file.
#pragma once

namespace celer {

// For main(): from now on such a fault writes "error: <file>: <what happened; what to do>" to stderr and ends
// the process with this code. A SIGBUS that is not about a mapped file goes where it went before.
void ReportMappingFaults(int exit_code);

}  // namespace celer
