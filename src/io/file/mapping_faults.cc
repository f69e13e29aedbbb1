#include "io/file/mapping_faults.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "io/file/mapping_records.h"

namespace celer {
namespace {

struct sigaction g_before;
int g_exit_code = 1;
std::atomic_flag g_reported;

// One line in a buffer on the stack: a signal handler may neither allocate nor format.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    const size_t n = std::min(text.size(), sizeof(text_) - size_);
    std::memcpy(text_ + size_, text.data(), n);
    size_ += n;
    return *this;
  }
  Line& operator<<(uint64_t number) {
    char digits[20];
    size_t at = sizeof(digits);
    do digits[--at] = static_cast<char>('0' + number % 10);
    while (number /= 10);
    return *this << std::string_view(digits + at, sizeof(digits) - at);
  }
  void Write() const {
    for (size_t at = 0; at < size_;) {
      const ssize_t n = ::write(STDERR_FILENO, text_ + at, size_ - at);
      if (n <= 0) return;
      at += static_cast<size_t>(n);
    }
  }

 private:
  char text_[5000];  // PATH_MAX and a sentence
  size_t size_ = 0;
};

void OnBusError(int, siginfo_t* info, void*) {
  const bool sent = info->si_code <= 0;  // by kill(): there is no address
  const MappingRecord* record = sent ? nullptr : FindMapping(reinterpret_cast<uintptr_t>(info->si_addr));
  if (!record) {
    ::sigaction(SIGBUS, &g_before, nullptr);  // the same instruction faults again, and this time as before
    if (sent) ::raise(SIGBUS);
    return;
  }
  while (g_reported.test_and_set()) ::pause();  // another thread is writing the sentence
  Line line;
  line << "error: " << record->path;
  const size_t size = record->size.load();
  struct stat now = {};
  const bool same =
      ::stat(record->path.c_str(), &now) == 0 && now.st_dev == record->device && now.st_ino == record->inode;
  if (same && now.st_size >= 0 && static_cast<uint64_t>(now.st_size) < size)
    line << ": was cut short while it was in use: it has " << static_cast<uint64_t>(now.st_size)
         << " bytes and had " << size << "; fetch it again, and let nothing write to it\n";
  else
    line << ": can no longer be read: it was overwritten while it was in use, or its disk or network drive "
            "fails; check it, and fetch it again if it is damaged\n";
  line.Write();
  ::_exit(g_exit_code);
}

}  // namespace

void ReportMappingFaults(int exit_code) {
  g_exit_code = exit_code;
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, &g_before);
}

}  // namespace celer
