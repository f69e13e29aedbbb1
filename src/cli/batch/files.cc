#include "cli/batch/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

#include "cli/batch/line.h"
#include "io/file/atomic_file.h"
#include "io/file/sha256.h"

namespace celer::cli {
namespace {

constexpr size_t kReadBytes = size_t{1} << 20;

Error IoError(const std::filesystem::path& path, const char* what) {
  return Error::Io(path.string(), ": ", what, ": ", std::strerror(errno));
}

// A device error, not a user error.
Error WriteError(const std::filesystem::path& path) {
  return Error::Device(path.string(), ": cannot be written: ", std::strerror(errno));
}

uint64_t HashOf(std::string_view key) {
  Sha256 hash;
  hash.Update(std::as_bytes(std::span(key)));
  const std::string digits = hash.Finish();
  uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + 16, value, 16);
  return value == FlatMap<bool>::kNone ? 0 : value;
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Result<LinesFile> LinesFile::Open(const std::filesystem::path& path, size_t max_line) {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 && errno == ENOENT) return Error::NotFound(path.string(), ": no such file");
  if (file.get() < 0) return IoError(path, "cannot be opened");
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return IoError(path, "cannot be examined");
  if (S_ISDIR(info.st_mode)) return Error::Invalid(path.string(), ": is a folder, expected a file");
  if (!S_ISREG(info.st_mode))
    return Error::Invalid(path.string(), ": is no regular file, and a batch must be able to read it again");
  return LinesFile(path, std::move(file), info.st_size, max_line);
}

Result<std::optional<LinesFile::Line>> LinesFile::Next() {
  Line line{.number = number_ + 1, .offset = offset_};
  size_t scanned = at_;
  while (true) {
    const size_t newline = buffer_.find('\n', scanned);
    const size_t end = newline == std::string::npos ? buffer_.size() : newline;
    if (end - at_ + line.bytes > max_line_) line.too_long = true;
    if (newline != std::string::npos) {
      if (!line.too_long) line.text = buffer_.substr(at_, end - at_);
      line.bytes += end + 1 - at_;
      at_ = end + 1;
      break;
    }
    // Drops consumed bytes, and all of a line that is too long.
    if (line.too_long) line.bytes += buffer_.size() - at_;
    buffer_.erase(0, line.too_long ? buffer_.size() : at_);
    at_ = 0;
    scanned = buffer_.size();
    buffer_.resize(scanned + kReadBytes);
    ssize_t got = 0;
    do got = ::read(file_.get(), buffer_.data() + scanned, kReadBytes);
    while (got < 0 && errno == EINTR);
    const int error = errno;
    buffer_.resize(scanned + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    errno = error;
    if (got < 0) return IoError(path_, "cannot be read");
    if (got > 0) continue;
    if (buffer_.empty() && line.bytes == 0) return std::optional<Line>();
    line.ended = false;
    line.bytes += buffer_.size();
    if (!line.too_long) line.text = std::move(buffer_);
    buffer_.clear();
    break;
  }
  ++number_;
  offset_ += static_cast<int64_t>(line.bytes);
  return std::optional(std::move(line));
}

void LineSet::Add(std::string_view key, int64_t number) {
  ++size_;
  if (!key.empty()) {
    keys_[HashOf(key)] = true;
    return;
  }
  const auto index = static_cast<size_t>(number);
  if (index >= numbers_.size()) numbers_.resize(std::max(index + 1, numbers_.size() * 2));
  numbers_[index] = true;
}

bool LineSet::Has(std::string_view key, int64_t number) const {
  if (!key.empty()) return keys_.Find(HashOf(key)) != nullptr;
  const auto index = static_cast<size_t>(number);
  return index < numbers_.size() && numbers_[index];
}

Result<AppendedLines> AppendedLines::Open(const std::filesystem::path& path, bool restart, bool by_key,
                                          LineSet* done) {
  std::error_code ignored;
  const bool made = !std::filesystem::exists(path, ignored);
  CELER_ASSIGN(const int fd, OpenToAppend(path));
  FileDescriptor file(fd);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
    return errno == EWOULDBLOCK
               ? Error::Invalid(path.string(), ": another celer batch is writing to it; wait for its end")
               : IoError(path, "cannot be locked");
  AppendedLines lines(path, std::move(file));
  lines.made_ = made;
  if (restart && ::ftruncate(lines.file_.get(), 0) != 0) return IoError(path, "cannot be emptied");
  CELER_RETURN_IF_ERROR(lines.Recover(by_key, done));
  return lines;
}

Status AppendedLines::Recover(bool by_key, LineSet* done) {
  CELER_ASSIGN(LinesFile written, LinesFile::Open(path_, std::numeric_limits<size_t>::max()));
  while (true) {
    CELER_ASSIGN(const std::optional<LinesFile::Line> line, written.Next());
    if (!line) return {};
    if (const auto name = NameOf(line->text)) {
      done->Add(by_key ? name->key : "", name->number);
      if (!line->ended) return Append("\n");  // only its newline was lost; it is counted there
      ++lines_;
      continue;
    }
    if (line->ended || !MayBegin(line->text))
      return Error::Invalid(path_.string(), ": line ", line->number,
                            " was not written by celer batch; choose another file, or give --restart to "
                            "empty this one");
    if (::ftruncate(file_.get(), line->offset) != 0) return IoError(path_, "cannot be shortened");
    repaired_ = static_cast<int64_t>(line->bytes);
    return {};
  }
}

AppendedLines::~AppendedLines() {
  struct stat info = {};
  if (made_ && file_.get() >= 0 && !path_.empty() && ::fstat(file_.get(), &info) == 0 && info.st_size == 0)
    ::unlink(path_.c_str());
}

Status AppendedLines::Append(std::string_view line) {
  const off_t end = ::lseek(file_.get(), 0, SEEK_END);
  while (!line.empty()) {
    const ssize_t done = ::write(file_.get(), line.data(), line.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) {
      const Error failed = WriteError(path_);
      if (end >= 0 && ::ftruncate(file_.get(), end) != 0) errno = 0;  // a torn line is repaired when resuming
      return failed;
    }
    line.remove_prefix(done);
  }
  ++lines_;
  return {};
}

Status AppendedLines::Sync() {
  if (::fdatasync(file_.get()) != 0 && errno != EINVAL) return WriteError(path_);
  return {};
}

}  // namespace celer::cli
