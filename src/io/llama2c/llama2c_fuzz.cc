// Any bytes as a llama2.c checkpoint.
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/llama2c/llama2c.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = celer::Llama2cFile::FromBytes(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file) return file.error().message().empty() ? -1 : 0;
  size_t sum = 0;
  for (const celer::TensorRecord& tensor : file->tensors())
    sum += static_cast<size_t>(tensor.bytes.front()) + static_cast<size_t>(tensor.bytes.back());
  volatile size_t used = sum;
  static_cast<void>(used);
  return 0;
}
