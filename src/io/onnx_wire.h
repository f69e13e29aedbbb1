// The wire form of protobuf messages, as much as ONNX files need: fields one after the other, each checked
// against the bytes that are left. Nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace celer {

struct WireField {
  enum class Kind : uint8_t { kVarint, kFixed64, kBytes, kFixed32 };

  uint32_t number = 0;
  Kind kind = Kind::kVarint;
  uint64_t value = 0;                     // of all kinds but kBytes
  std::span<const std::byte> bytes = {};  // of kBytes

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool done() const { return rest_.empty(); }
  // The next field; nullopt when the bytes are not one (cut short, a bad kind, field number 0).
  std::optional<WireField> Next();
  // A number that stands alone, inside a packed list.
  std::optional<uint64_t> Varint();
  template <class T>
  std::optional<T> Fixed() {
    if (rest_.size() < sizeof(T)) return std::nullopt;
    T value;
    __builtin_memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace celer
