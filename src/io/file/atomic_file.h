// The one place that writes files. What a user names as an output may be anything: a new name, a file, a
// link, a pipe, a device. tools/check_writers.py keeps other writers out of src/.
//
//   a new name, a file   appears whole or not at all: written beside its target and renamed by Commit()
//   a symbolic link      is followed, as cp does: the target is replaced and the link stays
//   a pipe, a character  is written through: a rename would put a regular file in the place of the device
//   device, our stdout
//   a folder, a block    is refused
//   device, a socket
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"

namespace celer {

// A file or folder that is removed with this object, or by RemovePartials() when a signal ends the process.
class PartialPath {
 public:
  PartialPath() = default;
  explicit PartialPath(std::filesystem::path path);  // of what has just been made
  PartialPath(PartialPath&& other) noexcept;
  PartialPath& operator=(PartialPath&&) = delete;
  ~PartialPath();

  const std::filesystem::path& path() const { return path_; }
  // Renames it over a file or to a new name. From then on it stays.
  Status MoveTo(const std::filesystem::path& target);

 private:
  friend class AtomicFile;
  std::filesystem::path path_;  // empty: nothing to remove
};

// Removes every PartialPath of this process, which must end then: threads that would make, keep or remove one
// wait for that.
void RemovePartials();

class AtomicFile {
 public:
  // Removes what dead processes left of the same target.
  static Result<AtomicFile> Create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&&) = default;

  Status Write(std::span<const std::byte> bytes);
  Status Write(std::string_view text) { return Write(std::as_bytes(std::span(text))); }
  Status Commit();  // without it, what was written is removed
  // Commit() for a log that goes on growing in its place. The caller closes the descriptor.
  Result<int> CommitAndKeepOpen();

  // Where all that was written lies until Commit(), for a reader of this process; if whole().
  Result<std::filesystem::path> Written();

  int descriptor() const { return ::fileno(file_.get()); }  // can also be read, if whole()
  bool whole() const { return !partial_.path().empty(); }   // false: written through, bytes are gone at once

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  AtomicFile(std::filesystem::path path, std::filesystem::path target, std::FILE* file)
      : path_(std::move(path)), target_(std::move(target)), file_(file) {}
  static Result<AtomicFile> Through(const std::filesystem::path& path, int fd);

  std::filesystem::path path_, target_;     // as named, and with links followed
  std::unique_ptr<std::FILE, Close> file_;  // empty after Commit() or a move
  PartialPath partial_;
};

// All three steps.
Status WriteWholeFile(const std::filesystem::path& path, std::string_view text);

// Whether Create() would succeed, for a command that is about to work for minutes. Leaves nothing behind, not
// even an empty file.
Status CheckWritable(const std::filesystem::path& path);

// A folder that gets its name when all of it is there.
class AtomicFolder {
 public:
  static Result<AtomicFolder> Create(const std::filesystem::path& path);
  const std::filesystem::path& path() const { return partial_.path(); }  // where to write
  Status Commit();

 private:
  AtomicFolder(std::filesystem::path target, PartialPath partial)
      : target_(std::move(target)), partial_(std::move(partial)) {}
  std::filesystem::path target_;
  PartialPath partial_;
};

// A descriptor to read and append to a regular file, which is made if it is not there, empty: for what grows
// by whole lines, and for locks. The caller closes it.
Result<int> OpenToAppend(const std::filesystem::path& path, unsigned mode = 0666);

// Renames a finished file to its name, which may be taken by a file or a link, and by nothing else.
Status ReplaceFile(const std::filesystem::path& from, const std::filesystem::path& to);

// Removes half-written files whose writers have died: of one target in the folder, or of all if it is empty.
// Folders stay: the pattern of their names is not proof enough to delete what is in them.
void RemoveLeftovers(const std::filesystem::path& folder, std::string_view target = "");

}  // namespace celer
