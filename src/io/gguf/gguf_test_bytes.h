// For tests: GGUF files built field by field, so that any field can lie.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf/gguf.h"

namespace celer {

template <class T>
std::string Raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}
inline std::string RawString(std::string_view text) {
  return Raw<uint64_t>(text.size()) + std::string(text);
}
inline std::string RawKey(std::string_view key, GgufType type) {
  return RawString(key) + Raw(static_cast<uint32_t>(type));
}
inline std::string RawTensor(std::string_view name, std::initializer_list<uint64_t> innermost_first,
                             uint32_t type, uint64_t offset) {
  std::string out = RawString(name) + Raw(static_cast<uint32_t>(innermost_first.size()));
  for (const uint64_t dim : innermost_first) out += Raw(dim);
  return out + Raw(type) + Raw(offset);
}

struct GgufBytes {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::string> metadata;
  std::vector<std::string> tensors;
  int64_t extra_metadata = 0;  // added to the counts that the header claims
  int64_t extra_tensors = 0;
  size_t alignment = 32;
  size_t data_bytes = 0;

  std::string Make() const {
    std::string out = magic + Raw(version) +
                      Raw(static_cast<uint64_t>(static_cast<int64_t>(tensors.size()) + extra_tensors)) +
                      Raw(static_cast<uint64_t>(static_cast<int64_t>(metadata.size()) + extra_metadata));
    for (const std::string& entry : metadata) out += entry;
    for (const std::string& entry : tensors) out += entry;
    if (!tensors.empty()) out.resize((out.size() + alignment - 1) / alignment * alignment);
    for (size_t i = 0; i < data_bytes; ++i) out += static_cast<char>(i);
    return out;
  }
};

}  // namespace celer
