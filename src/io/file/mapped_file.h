// A file mapped read-only. Parsers hand out spans into it, so it lives as long as they do.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace celer {

class MappedFile {
 public:
  // Refuses what is missing, not a regular file, empty or unreadable.
  static Result<MappedFile> Open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

  // Tells the system that a part of the file is done with: its pages leave this process's memory (they come
  // back from the file if they are read again), so that a load tensor by tensor stays small. Ignores a span
  // that is not inside this mapping.
  void DropPages(std::span<const std::byte> part) const;

 private:
  MappedFile(std::filesystem::path path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;  // the whole mapping; empty after a move
};

}  // namespace celer
