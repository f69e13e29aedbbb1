#include "weights/pack_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <vector>

#include "base/log.h"
#include "base/safe_math.h"
#include "io/file/atomic_file.h"
#include "io/file/content_hash.h"
#include "io/file/disk_space.h"
#include "io/file/sha256.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "CELERPAK";
// The kind of checksum is part of the version.
uint32_t FileVersion() {
  return ContentHashIsXxh3() ? 2 : 3;
}
constexpr size_t kAlign = 64, kDigest = 64;
constexpr size_t kPage = 4096, kStride = size_t{1} << 20;  // of the content that enters the key

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Sizes and mtimes of a source's files: itself, or all in its folder.
std::string FileStamps(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> files = {path};
  if (fs::is_directory(path, error)) {
    files.clear();
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error))
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
  }
  std::string out;
  for (const fs::path& file : files) {
    struct stat about = {};
    if (::stat(file.c_str(), &about) != 0) continue;
    out += fmt::format("{} {} {}.{:09}\n", file.filename().string(), about.st_size, about.st_mtim.tv_sec,
                       about.st_mtim.tv_nsec);
  }
  return out;
}

// Appends to and reads from the directory, in the byte order of this machine: packed weights have it too.
template <class T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  bool Get(T* value) {
    if (bytes_.size() - at_ < sizeof(T)) return false;
    std::memcpy(value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return true;
  }
  bool Text(size_t n, std::string* out) {
    if (bytes_.size() - at_ < n) return false;
    out->assign(reinterpret_cast<const char*>(bytes_.data() + at_), n);
    at_ += n;
    return true;
  }
  size_t at() const { return at_; }

 private:
  std::span<const std::byte> bytes_;
  size_t at_ = 0;
};

bool AllZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

uint64_t Checksum(const PackCache::Entries& entries, ThreadPool& pool) {
  std::vector<std::span<const std::byte>> values;
  for (const auto& [name, bytes] : entries) values.push_back(bytes);
  return ContentHash(values, pool);
}

// Everything in front of the values.
std::string Directory(const std::string& key, const PackCache::Entries& entries, uint64_t checksum,
                      size_t* file_bytes) {
  size_t directory = kMagic.size() + 8 + 8 + 8 + key.size() + kDigest;
  for (const auto& [name, bytes] : entries) directory += 4 + name.size() + 16;
  size_t offset = RoundUp(directory, kAlign);
  std::string list;
  for (const auto& [name, bytes] : entries) {
    Put(list, static_cast<uint32_t>(name.size()));
    list += name;
    Put(list, static_cast<uint64_t>(offset));
    Put(list, static_cast<uint64_t>(bytes.size()));
    offset += RoundUp(bytes.size(), kAlign);
  }
  *file_bytes = offset;
  std::string out(kMagic);
  Put(out, FileVersion());
  Put(out, static_cast<uint32_t>(entries.size()));
  Put(out, static_cast<uint64_t>(offset));
  Put(out, checksum);
  out += key + list;
  Sha256 sum;
  sum.Update(BytesOf(out));
  out += sum.Finish();
  out.resize(RoundUp(directory, kAlign), '\0');
  return out;
}

}  // namespace

std::string PackKey(const TensorSource& source, std::string_view how) {
  Sha256 key;
  const auto add = [&](std::string_view text) { key.Update(BytesOf(text)); };
  add(fmt::format("{}\n{}", how, FileStamps(source.path())));
  for (const TensorRecord& tensor : source.tensors()) {
    add(fmt::format("{} {} {} {}\n", tensor.name, Name(tensor.dtype), tensor.shape.ToString(),
                    tensor.bytes.size()));
    for (size_t at = 0; at < tensor.bytes.size(); at += kStride)
      key.Update(tensor.bytes.subspan(at, std::min(kPage, tensor.bytes.size() - at)));
    if (tensor.bytes.size() > kPage) key.Update(tensor.bytes.last(kPage));
  }
  return key.Finish();
}

PackCache::PackCache(fs::path folder, std::string key, ThreadPool& pool)
    : path_(std::move(folder) / ("packed-" + key.substr(0, 32))), key_(std::move(key)), pool_(pool) {
  std::error_code error;
  if (!fs::exists(path_, error)) {
    log::Info("{}: not there yet; weights are packed and kept there", path_.string());
  } else if (const Status status = Map(); !status) {
    file_.reset();
    entries_.clear();
    if (status.error().code() == Error::Code::kUnsupported)
      log::Info("{}; weights are packed again", status.error().message());
    else
      log::Warning("{}; weights are packed again and the file is replaced", status.error().message());
  } else {
    log::Info("{}: {} packed matrices are mapped", path_.string(), entries_.size());
  }
}

Status PackCache::Map() {
  CELER_ASSIGN(file_, MappedFile::Open(path_));
  const std::span<const std::byte> all = file_->bytes();
  const auto wrong = [&](std::string_view what) {
    return Error::Corrupt(path_.string(), ": is no file of packed weights that can be used: ", what);
  };
  Reader reader(all);
  std::string text;
  uint32_t version = 0, count = 0;
  uint64_t file_bytes = 0, checksum = 0;
  if (!reader.Text(kMagic.size(), &text) || text != kMagic) return wrong("it begins with something else");
  if (!reader.Get(&version)) return wrong("it ends after a few bytes");
  if (version != FileVersion())
    return Error::Unsupported(path_.string(), ": was written by another version of celer");
  if (!reader.Get(&count) || !reader.Get(&file_bytes) || !reader.Get(&checksum) || file_bytes != all.size())
    return wrong("its size is not the one it had");
  if (!reader.Text(key_.size(), &text) || text != key_) return wrong("it is of another model");
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t length = 0;
    uint64_t offset = 0, bytes = 0;
    std::string name;
    if (!reader.Get(&length) || !reader.Text(length, &name) || !reader.Get(&offset) || !reader.Get(&bytes))
      return wrong("its list of matrices is cut off");
    if (offset % kAlign != 0 || offset > all.size() || bytes > all.size() - offset)
      return wrong("a matrix lies outside of it");
    entries_[name] = all.subspan(offset, bytes);
  }
  Sha256 sum;
  sum.Update(all.first(reader.at()));
  if (!reader.Text(kDigest, &text) || text != sum.Finish()) return wrong("its checksum differs");
  // From here on the list is as it was written: in the order of the names, one after the other.
  size_t end = reader.at();
  for (const auto& [name, bytes] : entries_) {
    const auto begin = static_cast<size_t>(bytes.data() - all.data());
    if (begin < end || !AllZero(all.subspan(end, begin - end)))
      return wrong("there is something between matrices");
    end = begin + bytes.size();
  }
  if (!AllZero(all.subspan(end))) return wrong("there is something behind the last matrix");
  if (Checksum(entries_, pool_) != checksum) return wrong("the checksum of its values differs");
  return {};
}

const std::byte* PackCache::Find(const std::string& name, int64_t bytes) const {
  const auto it = entries_.find(name);
  if (it == entries_.end() || it->second.size() != static_cast<size_t>(bytes)) return nullptr;
  return it->second.data();
}

Status PackCache::Write(const Entries& entries) const {
  std::error_code error;
  fs::create_directories(path_.parent_path(), error);
  size_t file_bytes = 0;
  const std::string directory = Directory(key_, entries, Checksum(entries, pool_), &file_bytes);
  CELER_RETURN_IF_ERROR(CheckFreeSpace(path_, static_cast<int64_t>(file_bytes),
                                       "make room, or start without the cache of packed weights"));
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path_));
  CELER_RETURN_IF_ERROR(file.Write(directory));
  for (const auto& [name, bytes] : entries) {
    CELER_RETURN_IF_ERROR(file.Write(bytes));
    CELER_RETURN_IF_ERROR(file.Write(std::string(RoundUp(bytes.size(), kAlign) - bytes.size(), '\0')));
  }
  return file.Commit();
}

}  // namespace celer
