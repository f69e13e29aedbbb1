// Zip archives whose entries are stored as they are, so that a mapped file is read in place. This is how PNNX
// keeps its weights. Zip64 included; compressed or encrypted entries are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "io/file/mapped_file.h"

namespace celer {

class StoreZip {
 public:
  static Result<StoreZip> Open(const std::filesystem::path& path);
  // `bytes` outlive the result.
  static Result<StoreZip> Parse(std::span<const std::byte> bytes, const std::string& source);

  struct Entry {
    std::string name;
    std::span<const std::byte> bytes;
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const Entry* Find(std::string_view name) const;
  // Keeps the entries' bytes alive; null after Parse().
  const std::shared_ptr<const MappedFile>& file() const { return file_; }

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::shared_ptr<const MappedFile> file_;
};

// Writes such an archive. It appears under its name when it is complete.
Status WriteStoreZip(const std::filesystem::path& path,
                     std::span<const std::pair<std::string, std::span<const std::byte>>> entries);

// Little-endian numbers one after the other, as the archive's headers have them.
struct ZipFields {
  template <class T>
  ZipFields& Put(T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  ZipFields& U16(uint64_t value) { return Put(static_cast<uint16_t>(value)); }
  ZipFields& U32(uint64_t value) { return Put(static_cast<uint32_t>(value)); }
  ZipFields& U64(uint64_t value) { return Put(value); }

  std::string out;
};

// The checksum of an entry; 0 at first, then that of what came before.
uint32_t ZipCrc32(uint32_t before, std::span<const std::byte> bytes);

}  // namespace celer
