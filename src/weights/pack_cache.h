// An on-disk cache of packed weights, so that a later start maps them instead of packing again. One file
// holds one model in one layout; a file that does not match exactly is ignored and rewritten. Files of the
// folder may be removed at any time.
//
//   "CELERPAK", uint32 version, uint32 entries, uint64 bytes of the file, uint64 checksum of the values,
//   key (64 characters),
//   per entry: uint32 length of the name, name, uint64 offset (a multiple of 64), uint64 bytes,
//   SHA-256 of all of that (64 characters); the bytes of the entries, zeros between them
//
// The checksum is XXH3 of the XXH3 of each MiB of the entries, which all threads compute at the speed of
// memory; so a byte that changed on the disk is found before it becomes wrong text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "device/thread_pool.h"
#include "io/file/mapped_file.h"
#include "weights/tensor_source.h"

namespace celer {

// The cache key, 64 hexadecimal digits: a hash of how the weights are packed (`how`), names, types, shapes and sizes of
// the tensors, one page in every MiB of them, and sizes and mtimes of the files. Hashing all of the content
// would be safer, but would read the whole model at every start.
std::string PackKey(const TensorSource& source, std::string_view how);

class PackCache {
 public:
  // Maps the file of this key if it exists and is valid; else logs why not.
  PackCache(std::filesystem::path folder, std::string key, ThreadPool& pool);

  bool mapped() const { return file_.has_value(); }

  // A matrix of exactly this many packed bytes, aligned to 64; nullptr if there is none. It lives as long as
  // this object.
  const std::byte* Find(const std::string& name, int64_t bytes) const;

  // Replaces the file atomically (written beside it and renamed). An existing mapping stays valid.
  using Entries = std::map<std::string, std::span<const std::byte>>;
  Status Write(const Entries& entries) const;

  const std::filesystem::path& path() const { return path_; }

 private:
  Status Map();

  std::filesystem::path path_;
  std::string key_;
  ThreadPool& pool_;
  std::optional<MappedFile> file_;
  Entries entries_;
};

}  // namespace celer
