// Which files are mapped where, for the signal handler that says which of them failed (mapping_faults.h).
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace celer {

// Records are recycled and never freed, so that the signal handler may walk the list at any time (it is
// async-signal-safe). Only the record that holds the faulting address is read, and that mapping is in use, so
// it does not change.
struct MappingRecord {
  std::atomic<uintptr_t> begin = 0;  // 0: unused; written last and cleared first
  std::atomic<size_t> size = 0;
  std::string path;
  dev_t device = 0;
  ino_t inode = 0;
  MappingRecord* next = nullptr;
};

// The record of the mapping that holds this address, or null. Async-signal-safe.
const MappingRecord* FindMapping(uintptr_t address);

// For MappedFile: what the sentence can say about an address. `about` is of the file when it was mapped.
void RememberMapping(std::span<const std::byte> bytes, const std::string& path, const struct stat& about);
void ForgetMapping(std::span<const std::byte> bytes);

}  // namespace celer
