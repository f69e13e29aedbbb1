// Any bytes as a safetensors file.
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/safetensors/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = celer::SafetensorsFile::FromBytes(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file) return file.error().message().empty() ? -1 : 0;
  size_t sum = 0;
  for (const celer::TensorRecord& tensor : file->tensors())
    if (!tensor.bytes.empty())
      sum += static_cast<size_t>(tensor.bytes.front()) + static_cast<size_t>(tensor.bytes.back());
  volatile size_t used = sum;
  static_cast<void>(used);
  return 0;
}
