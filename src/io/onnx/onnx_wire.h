// The wire form of protobuf messages, as much as ONNX files need: fields one after the other, each checked
// against the bytes that are left. Nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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

// The other way round. A message inside a message is a string that was written before.
class WireWriter {
 public:
  void Int(uint32_t field, int64_t value) {
    Key(field, 0);
    Varint(static_cast<uint64_t>(value));
  }
  void Float(uint32_t field, float value);
  void Bytes(uint32_t field, std::string_view bytes) {
    Key(field, 2);
    Varint(bytes.size());
    out_ += bytes;
  }
  void Message(uint32_t field, const WireWriter& message) { Bytes(field, message.out_); }

  const std::string& bytes() const { return out_; }
  std::string Take() { return std::move(out_); }

 private:
  void Key(uint32_t field, uint32_t kind) { Varint(uint64_t{field} << 3 | kind); }
  void Varint(uint64_t value);

  std::string out_;
};

}  // namespace celer
