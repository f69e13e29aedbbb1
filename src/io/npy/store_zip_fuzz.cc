// Any bytes as an archive of weights. Every byte of every entry is read.
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/npy/store_zip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace celer;
  const auto zip = StoreZip::Parse(std::as_bytes(std::span(data, size)), "fuzz.bin");
  if (!zip) return zip.error().message().empty() ? -1 : 0;
  unsigned sum = 0;
  for (const StoreZip::Entry& entry : zip->entries()) {
    for (const std::byte byte : entry.bytes) sum += static_cast<unsigned>(byte);
    if (!zip->Find(entry.name)) return -1;
  }
  volatile unsigned kept = sum;
  (void)kept;
  return 0;
}
