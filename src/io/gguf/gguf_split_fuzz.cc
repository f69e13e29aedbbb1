// Any bytes as two parts of a split GGUF: a 16-bit length, the first part, the second part.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "io/gguf/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  uint16_t length = 0;
  if (size < sizeof length) return 0;
  std::memcpy(&length, data, sizeof length);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(sizeof length);
  if (length > bytes.size()) return 0;
  std::vector<celer::GgufFile> parts;
  for (const auto part : {bytes.first(length), bytes.subspan(length)}) {
    auto file = celer::GgufFile::FromBytes(part, "fuzz");
    if (!file) return 0;
    parts.push_back(std::move(*file));
  }
  const auto whole = celer::GgufFile::Join(std::move(parts));
  if (!whole) return whole.error().message().empty() ? -1 : 0;
  size_t sum = 0;
  for (const celer::GgufValue& value : whole->metadata())
    sum += value.ToText(3).size() + whole->Has(value.key);
  for (const celer::TensorRecord& tensor : whole->tensors())
    sum += static_cast<size_t>(tensor.bytes.front()) + static_cast<size_t>(tensor.bytes.back());
  volatile size_t used = sum;
  static_cast<void>(used);
  return 0;
}
