#include "io/onnx/onnx_wire.h"

namespace celer {

std::optional<uint64_t> WireReader::Varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) return std::nullopt;
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_ = rest_.subspan(1);
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (!(byte & 0x80)) return value;
  }
  return std::nullopt;
}

std::optional<WireField> WireReader::Next() {
  const auto key = Varint();
  if (!key || *key >> 3 == 0 || *key >> 32 != 0) return std::nullopt;
  WireField field{.number = static_cast<uint32_t>(*key >> 3)};
  std::optional<uint64_t> value;
  switch (*key & 7) {
    case 0:
      value = Varint();
      break;
    case 1:
      field.kind = WireField::Kind::kFixed64;
      value = Fixed<uint64_t>();
      break;
    case 2:
      field.kind = WireField::Kind::kBytes;
      value = Varint();
      if (!value || *value > rest_.size()) return std::nullopt;
      field.bytes = rest_.first(*value);
      rest_ = rest_.subspan(field.bytes.size());
      return field;
    case 5:
      field.kind = WireField::Kind::kFixed32;
      value = Fixed<uint32_t>();
      break;
    default:
      break;
  }
  if (!value) return std::nullopt;
  field.value = *value;
  return field;
}

void WireWriter::Varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
  out_ += static_cast<char>(value);
}

void WireWriter::Float(uint32_t field, float value) {
  Key(field, 5);
  char bytes[sizeof(value)];
  __builtin_memcpy(bytes, &value, sizeof(value));
  out_.append(bytes, sizeof(bytes));
}

}  // namespace celer
