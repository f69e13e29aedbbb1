#include "io/file/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace celer {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial-";
constexpr size_t kMaxStem = 200;  // of the 255 bytes of a name, so that a long one has room for the numbers
constexpr int kMaxLinks = 40;     // the system's own limit

// Never destroyed: a signal may ask for them while the process ends.
struct Partials {
  std::mutex mutex;
  std::set<std::string> paths;
};
Partials& AllPartials() {
  static auto* const partials = new Partials;
  return *partials;
}

Error CannotWrite(const fs::path& path, int why) {
  return Error::Io(path.string(), ": cannot be written: ", std::strerror(why));
}

// A device that fails is no mistake of the user's.
Error WriteFailed(const fs::path& path, int why) {
  return Error::Device(path.string(), ": cannot be written: ", std::strerror(why));
}

std::string StemOf(const fs::path& target) {
  return target.filename().string().substr(0, kMaxStem);
}

// "model.gguf.partial-1234-0": the process id and a number keep two writers of the same target apart.
fs::path NextPartial(const fs::path& target) {
  static std::atomic<int> writers{0};
  return target.parent_path() / (StemOf(target) + std::string(kPartial) + std::to_string(::getpid()) + "-" +
                                 std::to_string(writers++));
}

bool IsPartial(std::string_view name, std::string_view stem) {
  const size_t at = name.rfind(kPartial);
  if (at == std::string_view::npos || (!stem.empty() && name.substr(0, at) != stem)) return false;
  const std::string_view numbers = name.substr(at + kPartial.size());
  return !numbers.empty() && numbers.find_first_not_of("0123456789-") == std::string_view::npos;
}

// The file that a link ends at, there or not.
Result<fs::path> FollowLinks(const fs::path& path) {
  fs::path at = path;
  for (int links = 0; links < kMaxLinks; ++links) {
    std::error_code error;
    const fs::path to = fs::read_symlink(at, error);
    if (error) return at;
    at = to.is_absolute() ? to : at.parent_path() / to;
  }
  return Error::Io(path.string(), ": cannot be written: its links lead in a circle");
}

bool SameFile(const struct stat& a, int fd) {
  struct stat b = {};
  return ::fstat(fd, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// What an output's name stands for.
struct Output {
  fs::path target;                    // with links followed; of a file or a new name
  std::optional<struct stat> before;  // of a file that is there
  bool through = false;               // not to be replaced by a rename
  int stream = -1;                    // ours that it is, or none
};

Result<Output> FindOutput(const fs::path& path) {
  Output out;
  out.target = path;
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno != ENOENT) return CannotWrite(path, errno);
    CELER_ASSIGN(out.target, FollowLinks(path));
    if (!out.target.has_filename())
      return Error::Invalid("'", path.string(), "': expected the name of a file to write");
    return out;
  }
  if (S_ISDIR(status.st_mode))
    return Error::Invalid(path.string(), ": is a folder, expected the name of a file to write");
  if (S_ISBLK(status.st_mode) || S_ISSOCK(status.st_mode))
    return Error::Invalid(path.string(), ": is a ", S_ISBLK(status.st_mode) ? "block device" : "socket",
                          ", which celer does not write to; give the name of a file");
  // /dev/stdout of `celer ... > file`: a rename would leave the shell's file behind, empty.
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
    if (S_ISREG(status.st_mode) && SameFile(status, fd)) out.stream = fd;
  out.through = !S_ISREG(status.st_mode) || out.stream >= 0;
  if (out.through) return out;
  out.before = status;
  CELER_ASSIGN(out.target, FollowLinks(path));
  return out;
}

// Permissions and owner of the replaced file are kept, as far as we may set them.
void KeepAccess(int fd, const struct stat& before) {
  struct stat now = {};
  bool ours = ::fstat(fd, &now) == 0 && now.st_uid == before.st_uid && now.st_gid == before.st_gid;
  if (!ours) ours = ::fchown(fd, before.st_uid, before.st_gid) == 0;
  if (!ours && now.st_gid != before.st_gid)  // rights of a group must not go to another one
    ::fchmod(fd, before.st_mode & 0707);
  else
    ::fchmod(fd, before.st_mode & 0777);
}

}  // namespace

PartialPath::PartialPath(fs::path path) : path_(std::move(path)) {
  const std::lock_guard lock(AllPartials().mutex);
  AllPartials().paths.insert(path_.string());
}

PartialPath::PartialPath(PartialPath&& other) noexcept : path_(std::exchange(other.path_, {})) {}

PartialPath::~PartialPath() {
  if (path_.empty()) return;
  const std::lock_guard lock(AllPartials().mutex);
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  AllPartials().paths.erase(path_.string());
}

Status PartialPath::MoveTo(const fs::path& target) {
  const std::lock_guard lock(AllPartials().mutex);
  std::error_code error;
  fs::rename(path_, target, error);
  if (error) return Error::Io(target.string(), ": cannot be written: ", error.message());
  AllPartials().paths.erase(path_.string());
  path_.clear();
  return {};
}

void RemovePartials() {
  AllPartials().mutex.lock();  // for good
  std::error_code ignored;
  for (const std::string& path : AllPartials().paths) fs::remove_all(path, ignored);
}

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

Result<AtomicFile> AtomicFile::Through(const fs::path& path, int fd) {
  std::FILE* const file = fd < 0 ? nullptr : ::fdopen(fd, "wb");
  if (file) return AtomicFile(path, path, file);
  const int why = errno;
  if (fd >= 0) ::close(fd);
  return CannotWrite(path, why);
}

Result<AtomicFile> AtomicFile::Create(const fs::path& path) {
  CELER_ASSIGN(const Output out, FindOutput(path));
  if (out.stream >= 0) return Through(path, ::fcntl(out.stream, F_DUPFD_CLOEXEC, 3));
  if (out.through) return Through(path, ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY));
  RemoveLeftovers(out.target.parent_path(), StemOf(out.target));
  while (true) {
    const fs::path partial = NextPartial(out.target);
    std::unique_lock lock(AllPartials().mutex);  // made and noted in one step
    const int fd = ::open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0 && errno == EEXIST) continue;  // of a process in another container
    std::FILE* const file = fd < 0 ? nullptr : ::fdopen(fd, "w+b");
    if (!file) return CannotWrite(path, errno);
    AllPartials().paths.insert(partial.string());
    lock.unlock();
    AtomicFile created(path, out.target, file);
    created.partial_.path_ = partial;
    ::flock(fd, LOCK_EX | LOCK_NB);  // on a file system without locks nobody can take it either
    struct stat status = {};
    // Somebody may have taken it for a leftover in the moment before it was locked.
    if (::fstat(fd, &status) != 0 || status.st_nlink == 0) continue;
    if (out.before) KeepAccess(fd, *out.before);
    return created;
  }
}

Status AtomicFile::Write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};  // its pointer may be null, which fwrite does not take
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
    return WriteFailed(path_, errno);
  return {};
}

Result<fs::path> AtomicFile::Written() {
  if (std::fflush(file_.get()) != 0) return WriteFailed(path_, errno);
  return partial_.path();
}

Result<int> AtomicFile::CommitAndKeepOpen() {
  if (std::fflush(file_.get()) != 0) return WriteFailed(path_, errno);
  const int fd = ::fcntl(descriptor(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return WriteFailed(path_, errno);
  // Some file systems tell only at a close() that there was no room. Closing file_ would let go of its lock.
  const int other = ::dup(fd);
  Status moved = other < 0 || ::close(other) != 0 ? Status(WriteFailed(path_, errno)) : Status();
  if (moved && whole()) moved = partial_.MoveTo(target_);
  if (!moved) {
    ::close(fd);
    return moved.error();
  }
  file_.reset();
  return fd;
}

Status AtomicFile::Commit() {
  CELER_ASSIGN(const int fd, CommitAndKeepOpen());
  return ::close(fd) == 0 ? Status() : Status(WriteFailed(path_, errno));
}

Status WriteWholeFile(const fs::path& path, std::string_view text) {
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  CELER_RETURN_IF_ERROR(file.Write(text));
  return file.Commit();
}

Status CheckWritable(const fs::path& path) {
  CELER_ASSIGN(const Output out, FindOutput(path));
  if (!out.through) {
    const auto made = AtomicFile::Create(path);
    return made ? Status() : Status(made.error());
  }
  // Not by opening it: the reader of a pipe would take that for all there is.
  return out.stream >= 0 || ::access(path.c_str(), W_OK) == 0 ? Status() : Status(CannotWrite(path, errno));
}

Result<AtomicFolder> AtomicFolder::Create(const fs::path& path) {
  fs::path named = path;
  if (!named.has_filename()) named = named.parent_path();  // "folder/"
  CELER_ASSIGN(const fs::path target, FollowLinks(named));
  std::error_code error;
  if (fs::exists(target, error) && !fs::is_directory(target, error))
    return Error::Invalid(path.string(), ": is no folder; give another name");
  if (!target.parent_path().empty()) fs::create_directories(target.parent_path(), error);
  while (true) {
    const fs::path partial = NextPartial(target);
    if (::mkdir(partial.c_str(), 0777) == 0) return AtomicFolder(target, PartialPath(partial));
    if (errno != EEXIST) return Error::Io(partial.string(), ": cannot be made: ", std::strerror(errno));
  }
}

Status AtomicFolder::Commit() {
  return partial_.MoveTo(target_);
}

Result<int> OpenToAppend(const fs::path& path, unsigned mode) {
  const int fd = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                        static_cast<mode_t>(mode));
  if (fd < 0 && errno == EISDIR)
    return Error::Invalid(path.string(), ": is a folder, expected the name of a file to write");
  if (fd < 0) return CannotWrite(path, errno);
  struct stat status = {};
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) return fd;
  ::close(fd);
  return Error::Invalid(path.string(), ": is no regular file, so nothing can be resumed from it");
}

Status ReplaceFile(const fs::path& from, const fs::path& to) {
  CELER_ASSIGN(const Output out, FindOutput(to));
  if (out.through) return Error::Invalid(to.string(), ": is no regular file; remove it or give another name");
  std::error_code error;
  fs::rename(from, out.target, error);
  return error ? Status(Error::Io(to.string(), ": cannot be written: ", error.message())) : Status();
}

}  // namespace celer
