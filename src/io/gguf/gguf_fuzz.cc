// Any bytes as a GGUF file: parsed, and when accepted every value and every tensor's ends are read.
#include <cstddef>
#include <cstdint>
#include <span>

#include "io/gguf/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = celer::GgufFile::FromBytes(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file) return file.error().message().empty() ? -1 : 0;
  size_t sum = 0;
  for (const celer::GgufValue& value : file->metadata()) {
    sum += value.TypeName().size() + value.ToText(3).size();
    sum += file->GetInt(value.key).has_value() + file->GetUint(value.key).has_value();
    sum += file->GetFloat(value.key).has_value() + file->GetBool(value.key).has_value();
    if (const auto strings = file->GetStringArray(value.key))
      for (const std::string_view text : *strings)
        for (const char c : text) sum += static_cast<unsigned char>(c);
    if (const auto floats = file->GetFloatArray(value.key)) sum += floats->size();
    if (const auto ints = file->GetIntArray(value.key)) sum += ints->size();
  }
  for (const celer::TensorRecord& tensor : file->tensors())
    sum += static_cast<size_t>(tensor.bytes.front()) + static_cast<size_t>(tensor.bytes.back());
  volatile size_t used = sum;
  static_cast<void>(used);
  return 0;
}
