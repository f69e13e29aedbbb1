#include "hub/store.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "hub/git_hash.h"
#include "io/file/atomic_file.h"
#include "io/file/disk_space.h"
#include "io/file/sha256.h"
#include "io/json/json.h"
#include "report/output.h"
#include "report/progress.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

fs::path StampPath(const fs::path& path) {
  return WithSuffix(path, ".sha256");
}

// The hash that the stamp holds, if the file has not been written since.
std::string TrustedStamp(const fs::path& path) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  if (error) return "";
  const auto stamped = fs::last_write_time(StampPath(path), error);
  if (error || stamped < written) return "";
  const auto text = ReadTextFile(StampPath(path), 4096);
  if (!text || text->size() < 64) return "";
  return text->substr(0, 64);
}

Status WriteStamp(const fs::path& path, const std::string& sha256) {
  return WriteWholeFile(StampPath(path), sha256 + "  " + path.filename().string() + "\n");
}

Result<std::string> HashWithProgress(const fs::path& path, int64_t bytes) {
  ProgressLine progress("checking " + path.filename().string(), bytes);
  return Sha256File(path, [&](int64_t done) { progress.Update(done); });
}

// Empty if size and hash are right.
Result<std::string> Fault(const fs::path& path, const ExpectedFile& expected, bool* hashed) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::string("is missing");
  const auto bytes = static_cast<int64_t>(fs::file_size(path, error));
  if (error) return Error::Io(path.string(), ": cannot be read: ", error.message());
  if (bytes != expected.bytes) return fmt::format("has {} bytes, expected {}", bytes, expected.bytes);
  if (expected.sha256.empty()) {
    if (expected.git_hash.empty()) return std::string();
    CELER_ASSIGN(const std::string hash, GitBlobHash(path));
    return hash.empty() || hash == expected.git_hash
               ? std::string()
               : "has git hash " + hash + ", expected " + expected.git_hash;
  }
  if (hashed && *hashed) return std::string();
  CELER_ASSIGN(const std::string hash, HashWithProgress(path, bytes));
  if (hash != expected.sha256) return "has sha256 " + hash + ", expected " + expected.sha256;
  return std::string();
}

}  // namespace

Result<Verdict> VerifyFile(const ExpectedFile& expected, Check check) {
  bool trusted =
      check == Check::kQuick && !expected.sha256.empty() && TrustedStamp(expected.path) == expected.sha256;
  CELER_ASSIGN(const std::string fault, Fault(expected.path, expected, &trusted));
  if (!fault.empty()) return Verdict{false, fault};
  if (!trusted && !expected.sha256.empty()) CELER_RETURN_IF_ERROR(WriteStamp(expected.path, expected.sha256));
  return Verdict{true, ""};
}

Status AcceptPart(const ExpectedFile& expected) {
  const fs::path part = WithSuffix(expected.path, ".part");
  CELER_ASSIGN(const std::string fault, Fault(part, expected, nullptr));
  std::error_code error;
  if (!fault.empty()) {
    fs::remove(part, error);
    return Error::Corrupt(expected.path.string(), ": what was fetched ", fault, "; it has been deleted");
  }
  CELER_RETURN_IF_ERROR(ReplaceFile(part, expected.path));
  if (!expected.sha256.empty()) CELER_RETURN_IF_ERROR(WriteStamp(expected.path, expected.sha256));
  return {};
}

Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return Error::Io(folder.string(), ": cannot be made: ", error.message(),
                     "; set CELER_CACHE to a folder that can be written");
  return {};
}

Status CheckSpace(const fs::path& path, int64_t bytes) {
  return CheckFreeSpace(path, bytes, "make room, or set CELER_CACHE to a folder on another disk");
}

Result<FetchLock> FetchLock::Take(const fs::path& path) {
  for (bool said = false;;) {
    CELER_ASSIGN(const int fd, OpenToAppend(path));
    FetchLock lock(fd);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return lock;  // a file system without locks: go on without one
      if (!std::exchange(said, true)) Say("another celer pull is fetching this; waiting for it\n");
      while (::flock(fd, LOCK_EX) != 0)
        if (errno != EINTR) return Error::Io(path.string(), ": cannot be locked: ", std::strerror(errno));
    }
    // The process before us may have removed the file, and a third one created it again.
    struct stat ours = {}, there = {};
    if (::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
        ours.st_dev == there.st_dev)
      return lock;
    if (const Status folder = MakeFolder(path.parent_path()); !folder) return folder.error();
  }
}

FetchLock::~FetchLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace celer::cli
