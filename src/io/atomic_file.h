// A file that appears whole or not at all: written beside its target and renamed by Commit().
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "core/result.h"

namespace celer {

class AtomicFile {
 public:
  // Removes what dead processes left of the same target.
  static Result<AtomicFile> Create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&&) = default;
  ~AtomicFile();  // without Commit(): removes what was written

  Status Write(std::span<const std::byte> bytes);
  Status Write(std::string_view text) { return Write(std::as_bytes(std::span(text))); }
  Status Commit();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  AtomicFile(std::filesystem::path path, std::filesystem::path partial, std::FILE* file)
      : path_(std::move(path)), partial_(std::move(partial)), file_(file) {}

  std::filesystem::path path_;
  std::filesystem::path partial_;
  std::unique_ptr<std::FILE, Close> file_;  // empty after Commit() or a move
};

// Removes half-written files whose writers have died: of one target in the folder, or of all if it is empty.
void RemoveLeftovers(const std::filesystem::path& folder, std::string_view target = "");

}  // namespace celer
