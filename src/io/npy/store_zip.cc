#include "io/npy/store_zip.h"

#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <optional>

#include "io/file/atomic_file.h"
#include "io/file/printable.h"

namespace celer {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kEnd64Locator = 0x07064b50;
constexpr uint64_t kLocalSize = 30, kCentralSize = 46, kEndSize = 22, kEnd64Size = 56, kLocatorSize = 20;
constexpr uint64_t kLongestComment = 0xffff;
constexpr uint32_t kIn64 = 0xffffffff;  // the number stands in the zip64 field
constexpr uint16_t kField64 = 1;
constexpr uint16_t kEncrypted = 1, kSizesBehind = 8;
constexpr uint64_t kMostEntries = 1'000'000;

// Little-endian numbers at offsets that the caller has checked.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const { return bytes_.size(); }
  bool Has(uint64_t at, uint64_t count) const { return at <= size() && count <= size() - at; }
  template <class T>
  T Read(uint64_t at) const {
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }
  uint16_t U16(uint64_t at) const { return Read<uint16_t>(at); }
  uint32_t U32(uint64_t at) const { return Read<uint32_t>(at); }
  uint64_t U64(uint64_t at) const { return Read<uint64_t>(at); }
  std::string_view Text(uint64_t at, uint64_t count) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + at, count};
  }
  std::span<const std::byte> Part(uint64_t at, uint64_t count) const { return bytes_.subspan(at, count); }

 private:
  std::span<const std::byte> bytes_;
};

struct Directory {
  uint64_t entries = 0, at = 0;
};

std::optional<Directory> FindDirectory(const Bytes& in) {
  if (in.size() < kEndSize) return std::nullopt;
  const uint64_t last = in.size() - kEndSize, first = last > kLongestComment ? last - kLongestComment : 0;
  for (uint64_t at = last + 1; at-- > first;) {
    if (in.U32(at) != kEnd || at + kEndSize + in.U16(at + 20) != in.size()) continue;
    Directory found{in.U16(at + 10), in.U32(at + 16)};
    if ((found.entries != 0xffff && found.at != kIn64) || at < kLocatorSize) return found;
    const uint64_t locator = at - kLocatorSize;
    if (in.U32(locator) != kEnd64Locator) return found;
    const uint64_t end64 = in.U64(locator + 8);
    if (!in.Has(end64, kEnd64Size) || in.U32(end64) != kEnd64) return std::nullopt;
    return Directory{in.U64(end64 + 32), in.U64(end64 + 48)};
  }
  return std::nullopt;
}

// Numbers that did not fit stand in the extra field, in this order.
bool ReadField64(const Bytes& in, uint64_t at, uint64_t size, std::initializer_list<uint64_t*> numbers) {
  bool wanted = false;
  for (const uint64_t* number : numbers) wanted |= *number == kIn64;
  if (!wanted) return true;
  for (const uint64_t end = at + size; at + 4 <= end;) {
    const uint64_t id = in.U16(at), length = in.U16(at + 2);
    at += 4;
    if (length > end - at) return false;
    if (id != kField64) {
      at += length;
      continue;
    }
    uint64_t left = length;
    for (uint64_t* number : numbers) {
      if (*number != kIn64) continue;
      if (left < 8) return false;
      *number = in.U64(at);
      at += 8;
      left -= 8;
    }
    return true;
  }
  return false;
}

}  // namespace

uint32_t ZipCrc32(uint32_t before, std::span<const std::byte> bytes) {
  if (bytes.empty()) return before;  // zlib would start anew for a null pointer
  return static_cast<uint32_t>(crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

Result<StoreZip> StoreZip::Open(const std::filesystem::path& path) {
  CELER_ASSIGN(MappedFile mapped, MappedFile::Open(path));
  auto file = std::make_shared<const MappedFile>(std::move(mapped));
  CELER_ASSIGN(StoreZip zip, Parse(file->bytes(), path.string()));
  zip.file_ = std::move(file);
  return zip;
}

Result<StoreZip> StoreZip::Parse(std::span<const std::byte> bytes, const std::string& source) {
  const Bytes in(bytes);
  const auto directory = FindDirectory(in);
  if (!directory)
    return Error::Corrupt(source, ": not a zip archive, or cut short: its directory is missing");
  if (directory->entries > kMostEntries || !in.Has(directory->at, directory->entries * kCentralSize))
    return Error::Corrupt(source, ": its directory of ", directory->entries,
                          " entries does not fit into the file; fetch it again");
  StoreZip zip;
  zip.entries_.reserve(directory->entries);
  uint64_t at = directory->at;
  for (uint64_t i = 0; i < directory->entries; ++i) {
    const auto bad = [&](const std::string& what) {
      return Error::Corrupt(source, ": entry ", i, " of the archive ", what);
    };
    if (!in.Has(at, kCentralSize) || in.U32(at) != kCentral) return bad("is not where the directory says");
    const uint16_t flags = in.U16(at + 8), method = in.U16(at + 10);
    uint64_t packed = in.U32(at + 20), size = in.U32(at + 24), local = in.U32(at + 42);
    const uint64_t name_size = in.U16(at + 28), extra = in.U16(at + 30), comment = in.U16(at + 32);
    if (!in.Has(at + kCentralSize, name_size + extra + comment)) return bad("has a name that is cut short");
    const std::string name(in.Text(at + kCentralSize, name_size));
    const auto refuse = [&](const char* what) {
      return Error::Unsupported(source, ": '", Printable(name), "' is ", what,
                                "; write the archive without compression or encryption");
    };
    if ((flags & kEncrypted) != 0) return refuse("encrypted");
    if (method != 0) return refuse("compressed");
    if ((flags & kSizesBehind) != 0) return refuse("written as a stream");
    if (!ReadField64(in, at + kCentralSize + name_size, extra, {&size, &packed, &local}))
      return bad("has no sizes");
    if (packed != size) return bad("has two sizes");
    at += kCentralSize + name_size + extra + comment;

    if (!in.Has(local, kLocalSize) || in.U32(local) != kLocal) return bad("does not begin where it says");
    const uint64_t head = kLocalSize + in.U16(local + 26) + in.U16(local + 28);
    if (!in.Has(local, head) || !in.Has(local + head, size))
      return bad("'" + Printable(name) + "' has " + std::to_string(size) + " bytes, more than are left");
    zip.entries_.push_back({name, in.Part(local + head, size)});
  }
  for (size_t i = 0; i < zip.entries_.size(); ++i)
    if (!zip.by_name_.emplace(zip.entries_[i].name, i).second)
      return Error::Corrupt(source, ": two entries of the archive are called '",
                            Printable(zip.entries_[i].name), "'");
  return zip;
}

const StoreZip::Entry* StoreZip::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &entries_[found->second];
}

Status WriteStoreZip(const std::filesystem::path& path,
                     std::span<const std::pair<std::string, std::span<const std::byte>>> entries) {
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  ZipFields directory;
  uint64_t at = 0;
  for (const auto& [name, bytes] : entries) {
    if (name.size() > 0xffff)
      return Error::Invalid("an archive's entry has a name of ", name.size(), " bytes");
    const uint32_t crc = ZipCrc32(0, bytes);
    ZipFields local;
    local.U32(kLocal).U16(45).U16(0).U16(0).U16(0).U16(0).U32(crc).U32(kIn64).U32(kIn64);
    local.U16(name.size()).U16(20);
    local.out += name;
    local.U16(kField64).U16(16).U64(bytes.size()).U64(bytes.size());
    CELER_RETURN_IF_ERROR(file.Write(local.out));
    CELER_RETURN_IF_ERROR(file.Write(bytes));
    directory.U32(kCentral).U16(45).U16(45).U16(0).U16(0).U16(0).U16(0).U32(crc).U32(kIn64).U32(kIn64);
    directory.U16(name.size()).U16(28).U16(0).U16(0).U16(0).U32(0).U32(kIn64);
    directory.out += name;
    directory.U16(kField64).U16(24).U64(bytes.size()).U64(bytes.size()).U64(at);
    at += local.out.size() + bytes.size();
  }
  const uint64_t size = directory.out.size(), count = entries.size();
  directory.U32(kEnd64)
      .U64(kEnd64Size - 12)
      .U16(45)
      .U16(45)
      .U32(0)
      .U32(0)
      .U64(count)
      .U64(count)
      .U64(size)
      .U64(at);
  directory.U32(kEnd64Locator).U32(0).U64(at + size).U32(1);
  directory.U32(kEnd).U16(0).U16(0).U16(0xffff).U16(0xffff).U32(kIn64).U32(kIn64).U16(0);
  CELER_RETURN_IF_ERROR(file.Write(directory.out));
  return file.Commit();
}

}  // namespace celer
