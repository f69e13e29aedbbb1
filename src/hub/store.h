// Files that were fetched: written as FILE.part, hashed, renamed, and stamped with FILE.sha256 (the form that
// `sha256sum -c` reads), so that a later look need not hash again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/result.h"

namespace celer::cli {

struct ExpectedFile {
  std::filesystem::path path;  // where it belongs
  int64_t bytes = 0;
  std::string sha256;         // of large files; empty: not known
  std::string git_hash = {};  // of small ones, as git names their content
};

inline std::filesystem::path WithSuffix(std::filesystem::path path, const char* suffix) {
  return path += suffix;
}

enum class Check { kQuick, kFull };  // kQuick trusts a stamp that is not older than the file

struct FetchOptions {
  Check check = Check::kQuick;
  int64_t patience_s = 60;  // give up after this long without data
};

struct Verdict {
  bool good = false;
  std::string why;  // in words, if not good: "is missing", "has 12 bytes, expected 98362432"
};
// Looks at the file; hashes it when asked to or when there is no stamp to trust, and stamps it when it is
// good.
Result<Verdict> VerifyFile(const ExpectedFile& expected, Check check);

// Hashes expected.path + ".part"; renames it into place and stamps it, or deletes it and says why.
Status AcceptPart(const ExpectedFile& expected);

// Creates the folder (and those above it).
Status MakeFolder(const std::filesystem::path& folder);
// One sentence if there are less than `bytes` free for `path`.
Status CheckSpace(const std::filesystem::path& path, int64_t bytes);

// Keeps a second process from fetching the same thing at the same time; released by the destructor.
class FetchLock {
 public:
  // Waits for another holder, and says so on stderr.
  static Result<FetchLock> Take(const std::filesystem::path& path);
  FetchLock(FetchLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  ~FetchLock();

 private:
  explicit FetchLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace celer::cli
