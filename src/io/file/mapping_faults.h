// A mapped file that is cut short while it is read, or whose disk fails, has no bytes behind an address that
// was fine before: the system sends SIGBUS. This turns it into one sentence that names the file.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <span>
#include <string>

namespace celer {

// For main(): from now on such a fault writes "error: <file>: <what happened; what to do>" to stderr and ends
// the process with this code. A SIGBUS that is not about a mapped file goes where it went before.
void ReportMappingFaults(int exit_code);

// For MappedFile: what the sentence can say about an address. `about` is of the file when it was mapped.
void RememberMapping(std::span<const std::byte> bytes, const std::string& path, const struct stat& about);
void ForgetMapping(std::span<const std::byte> bytes);

}  // namespace celer
