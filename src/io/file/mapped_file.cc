#include "io/file/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "io/file/mapping_records.h"

namespace celer {

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  const std::string name = path.string();
  // Non-blocking, so that a pipe with no writer is refused below and does not hang us.
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return Error::NotFound(name, ": no such file");
    return Error::Io(name, ": cannot be opened: ", std::strerror(errno));
  }
  struct stat info = {};
  if (::fstat(fd, &info) != 0) {
    const int why = errno;
    ::close(fd);
    return Error::Io(name, ": cannot be examined: ", std::strerror(why));
  }
  if (S_ISDIR(info.st_mode) || !S_ISREG(info.st_mode) || info.st_size == 0) {
    ::close(fd);
    if (S_ISDIR(info.st_mode)) return Error::Invalid(name, ": is a folder, expected a file");
    if (!S_ISREG(info.st_mode)) return Error::Invalid(name, ": is not a regular file");
    return Error::Corrupt(name, ": is empty (0 bytes); fetch it again");
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int why = errno;
  ::close(fd);  // the mapping keeps the file open
  if (data == MAP_FAILED)
    return Error::Io(name, ": ", size, " bytes cannot be mapped into memory: ", std::strerror(why));
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(data), size);
  RememberMapping(bytes, name, info);
  return MappedFile(path, bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  ForgetMapping(bytes_);
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::DropPages(std::span<const std::byte> part) const {
  const auto base = reinterpret_cast<uintptr_t>(bytes_.data());
  auto begin = reinterpret_cast<uintptr_t>(part.data());
  if (part.empty() || begin < base || begin - base > bytes_.size() ||
      part.size() > bytes_.size() - (begin - base))
    return;
  auto end = begin + part.size();
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  // Rounded inward: a page shared with a neighbouring tensor stays. The mapping itself starts on a page.
  begin = (begin + page - 1) / page * page;
  if (end != base + bytes_.size()) end = end / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace celer
