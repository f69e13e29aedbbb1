#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <system_error>

namespace celer {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial-";

// "model.gguf.partial-1234-0": the process id and a number keep two writers of the same target apart.
bool IsPartial(std::string_view name, std::string_view target) {
  const size_t at = name.rfind(kPartial);
  if (at == std::string_view::npos || (!target.empty() && name.substr(0, at) != target)) return false;
  const std::string_view numbers = name.substr(at + kPartial.size());
  return !numbers.empty() && numbers.find_first_not_of("0123456789-") == std::string_view::npos;
}

}  // namespace

void RemoveLeftovers(const fs::path& folder, std::string_view target) {
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end;
       it.increment(error)) {
    if (!IsPartial(it->path().filename().string(), target)) continue;
    const int fd = ::open(it->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    // A writer holds the lock, and the system lets go of it when the writer dies, however it does.
    if (::flock(fd, LOCK_EX | LOCK_NB) == 0) ::unlink(it->path().c_str());
    ::close(fd);
  }
}

Result<AtomicFile> AtomicFile::Create(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error))
    return Error::Invalid(path.string(), ": is a folder, expected the name of a file to write");
  RemoveLeftovers(path.parent_path(), path.filename().string());
  static std::atomic<int> writers{0};
  while (true) {
    fs::path partial = path;
    partial += std::string(kPartial) + std::to_string(::getpid()) + "-" + std::to_string(writers++);
    const int fd = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) continue;  // of a process in another container
    std::FILE* file = fd < 0 ? nullptr : ::fdopen(fd, "wb");
    if (!file) return Error::Io(path.string(), ": cannot be written: ", std::strerror(errno));
    AtomicFile created(path, std::move(partial), file);
    ::flock(fd, LOCK_EX | LOCK_NB);  // on a file system without locks nobody can take it either
    struct stat status = {};
    // Somebody may have taken it for a leftover in the moment before it was locked.
    if (::fstat(fd, &status) == 0 && status.st_nlink > 0) return created;
  }
}

AtomicFile::~AtomicFile() {
  if (!file_) return;
  file_.reset();
  std::error_code ignored;
  std::filesystem::remove(partial_, ignored);
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};  // its pointer may be null, which fwrite does not take
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
    return Error::Device(path_.string(), ": cannot be written: ", std::strerror(errno));
  return {};
}

Status AtomicFile::Commit() {
  const bool flushed = std::fflush(file_.get()) == 0;
  const int why = errno;
  std::error_code error;
  if (flushed) std::filesystem::rename(partial_, path_, error);
  if (!flushed) return Error::Device(path_.string(), ": cannot be written: ", std::strerror(why));
  if (error) return Error::Io(path_.string(), ": cannot be written: ", error.message());
  file_.reset();
  return {};
}

}  // namespace celer
