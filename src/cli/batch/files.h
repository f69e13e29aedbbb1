// The files of a batch: an input that is streamed line by line, and outputs with crash-safe appends: a
// process that is killed at any moment loses no line and writes none twice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/tokenizer/model/flat_map.h"

namespace celer::cli {

// RAII file descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

// Reads a file line by line, in memory for one line.
class LinesFile {
 public:
  static constexpr size_t kMaxLine = size_t{64} << 20;

  struct Line {
    std::string text = {};  // without its end; empty if it is too long
    int64_t number = 0;     // from 1
    int64_t offset = 0;     // of its first byte
    size_t bytes = 0;       // with its end
    bool ended = true;      // by a newline; the last one need not be
    bool too_long = false;
  };

  static Result<LinesFile> Open(const std::filesystem::path& path, size_t max_line = kMaxLine);
  // None at the end of the file.
  Result<std::optional<Line>> Next();
  int64_t size() const { return size_; }  // of the file, in bytes

 private:
  LinesFile(std::filesystem::path path, FileDescriptor file, int64_t size, size_t max_line)
      : path_(std::move(path)), file_(std::move(file)), size_(size), max_line_(max_line) {}

  std::filesystem::path path_;
  FileDescriptor file_;
  int64_t size_;
  size_t max_line_;
  std::string buffer_;
  size_t at_ = 0;  // in the buffer
  int64_t offset_ = 0, number_ = 0;
};

// Lines that need not be looked at again, by key or by number. Keys are held as 64 bits of a SHA-256: of ten
// million, two are taken for one with a chance of three in a million.
class LineSet {
 public:
  void Add(std::string_view key, int64_t number);
  bool Has(std::string_view key, int64_t number) const;
  int64_t size() const { return size_; }

 private:
  FlatMap<bool> keys_;
  std::vector<bool> numbers_;
  int64_t size_ = 0;
};

// An append-only file, each line with one write(), under an exclusive lock.
class AppendedLines {
 public:
  // Makes the file if there is none; `restart` empties it. What an earlier process wrote is added to `done`,
  // by key if `by_key`, else by number. Its last line is repaired if it was torn. A file that was not written
  // by a batch is refused.
  static Result<AppendedLines> Open(const std::filesystem::path& path, bool restart, bool by_key,
                                    LineSet* done);

  AppendedLines(AppendedLines&&) = default;
  AppendedLines& operator=(AppendedLines&&) = default;
  ~AppendedLines();  // removes a file that this process created and wrote nothing to, unless Keep() was
                     // called

  // With its newline, or nothing of it.
  Status Append(std::string_view line);
  void Keep() { made_ = false; }  // also if it is empty
  Status Sync();                  // to the disk
  int64_t lines() const { return lines_; }
  int64_t repaired_bytes() const { return repaired_; }  // of a torn line that was cut off
  const std::filesystem::path& path() const { return path_; }

 private:
  AppendedLines(std::filesystem::path path, FileDescriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}
  Status Recover(bool by_key, LineSet* done);

  std::filesystem::path path_;
  FileDescriptor file_;
  int64_t lines_ = 0, repaired_ = 0;
  bool made_ = false;
};

}  // namespace celer::cli
