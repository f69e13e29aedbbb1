#include "io/file/mapping_records.h"

#include <mutex>

namespace celer {
namespace {

std::atomic<MappingRecord*> g_records = nullptr;
std::mutex g_writers;  // the handler takes none

}  // namespace

const MappingRecord* FindMapping(uintptr_t address) {
  for (const MappingRecord* record = g_records.load(std::memory_order_acquire); record;
       record = record->next) {
    const uintptr_t begin = record->begin.load(std::memory_order_acquire);
    if (begin != 0 && address >= begin && address - begin < record->size.load(std::memory_order_acquire) &&
        record->begin.load(std::memory_order_acquire) == begin)
      return record;
  }
  return nullptr;
}

void RememberMapping(std::span<const std::byte> bytes, const std::string& path, const struct stat& about) {
  const std::lock_guard lock(g_writers);
  MappingRecord* record = g_records.load();
  while (record && record->begin.load() != 0) record = record->next;
  const bool fresh = record == nullptr;
  if (fresh) record = new MappingRecord;
  record->path = path;
  record->device = about.st_dev;
  record->inode = about.st_ino;
  record->size.store(bytes.size(), std::memory_order_release);
  record->begin.store(reinterpret_cast<uintptr_t>(bytes.data()), std::memory_order_release);
  if (fresh) {
    record->next = g_records.load();
    g_records.store(record, std::memory_order_release);
  }
}

void ForgetMapping(std::span<const std::byte> bytes) {
  const std::lock_guard lock(g_writers);
  for (MappingRecord* record = g_records.load(); record; record = record->next)
    if (record->begin.load() == reinterpret_cast<uintptr_t>(bytes.data())) record->begin.store(0);
}

}  // namespace celer
