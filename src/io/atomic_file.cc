#include "io/atomic_file.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

namespace celer {

Result<AtomicFile> AtomicFile::Create(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return Error::Invalid(path.string(), ": is a folder, expected the name of a file to write");
  // The process id and a number keep two writers of the same target apart.
  static std::atomic<int> writers{0};
  std::filesystem::path partial = path;
  partial += ".partial-" + std::to_string(::getpid()) + "-" + std::to_string(writers++);
  std::FILE* file = std::fopen(partial.c_str(), "wb");
  if (!file) return Error::Io(path.string(), ": cannot be written: ", std::strerror(errno));
  return AtomicFile(path, std::move(partial), file);
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
    return Error::Io(path_.string(), ": cannot be written: ", std::strerror(errno));
  return {};
}

Status AtomicFile::Commit() {
  const bool flushed = std::fflush(file_.get()) == 0;
  const int why = errno;
  std::error_code error;
  if (flushed) std::filesystem::rename(partial_, path_, error);
  if (!flushed || error)
    return Error::Io(path_.string(), ": cannot be written: ", flushed ? error.message() : std::strerror(why));
  file_.reset();
  return {};
}

}  // namespace celer
