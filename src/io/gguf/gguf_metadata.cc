// Typed access to metadata. The parser has checked that every value lies in the file.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "io/file/printable.h"
#include "io/gguf/gguf.h"

namespace celer {
namespace {

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// An integer of any GGUF type: negative ones in `negative`, the others in `positive`.
struct Integer {
  bool is_negative;
  int64_t negative;
  uint64_t positive;
};

std::optional<Integer> LoadInteger(GgufType type, const std::byte* from) {
  const auto from_signed = [](int64_t value) {
    return value < 0 ? Integer{true, value, 0} : Integer{false, 0, static_cast<uint64_t>(value)};
  };
  const auto from_unsigned = [](uint64_t value) { return Integer{false, 0, value}; };
  switch (type) {
    case GgufType::kUint8:
      return from_unsigned(Load<uint8_t>(from));
    case GgufType::kInt8:
      return from_signed(Load<int8_t>(from));
    case GgufType::kUint16:
      return from_unsigned(Load<uint16_t>(from));
    case GgufType::kInt16:
      return from_signed(Load<int16_t>(from));
    case GgufType::kUint32:
      return from_unsigned(Load<uint32_t>(from));
    case GgufType::kInt32:
      return from_signed(Load<int32_t>(from));
    case GgufType::kUint64:
      return from_unsigned(Load<uint64_t>(from));
    case GgufType::kInt64:
      return from_signed(Load<int64_t>(from));
    default:
      return std::nullopt;
  }
}

std::optional<int64_t> ToInt64(const Integer& integer) {
  if (integer.is_negative) return integer.negative;
  if (integer.positive > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(integer.positive);
}

std::string_view TypeText(GgufType type) {
  constexpr std::string_view kNames[] = {"u8",   "i8",  "u16", "i16", "u32", "i32", "f32",
                                         "bool", "str", "arr", "u64", "i64", "f64"};
  return kNames[static_cast<size_t>(type)];
}

// One scalar or string at `from`, which moves behind it.
std::string ElementText(GgufType type, const std::byte*& from) {
  if (type == GgufType::kString) {
    const auto length = static_cast<size_t>(Load<uint64_t>(from));
    const std::string_view text(reinterpret_cast<const char*>(from + 8), length);
    from += 8 + length;
    return "\"" + Printable(text, 60) + "\"";
  }
  const std::byte* value = from;
  from += gguf_internal::ScalarBytes(type);
  if (type == GgufType::kBool) return Load<uint8_t>(value) ? "true" : "false";
  if (type == GgufType::kFloat32) return fmt::format("{}", Load<float>(value));
  if (type == GgufType::kFloat64) return fmt::format("{}", Load<double>(value));
  const Integer integer = *LoadInteger(type, value);
  return integer.is_negative ? std::to_string(integer.negative) : std::to_string(integer.positive);
}

}  // namespace

std::string GgufValue::TypeName() const {
  if (type != GgufType::kArray) return std::string(TypeText(type));
  return fmt::format("{}[{}]", TypeText(element_type), count);
}

std::string GgufValue::ToText(size_t max_elements) const {
  const std::byte* from = data.data();
  if (type == GgufType::kString)
    return Printable({reinterpret_cast<const char*>(data.data()), data.size()}, 16 * max_elements);
  if (type != GgufType::kArray) return ElementText(type, from);
  if (element_type == GgufType::kArray) return fmt::format("[{} arrays]", count);
  std::string out = "[";
  for (uint64_t i = 0; i < count && i < max_elements; ++i) {
    if (i > 0) out += ", ";
    out += ElementText(element_type, from);
  }
  return out + (count > max_elements ? ", ...]" : "]");
}

const GgufValue* GgufFile::FindValue(std::string_view key) const {
  const auto it = keys_.find(key);
  return it == keys_.end() ? nullptr : &metadata_[it->second];
}

std::optional<uint64_t> GgufFile::GetUint(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  const auto integer = value ? LoadInteger(value->type, value->data.data()) : std::nullopt;
  if (!integer || integer->is_negative) return std::nullopt;
  return integer->positive;
}

std::optional<int64_t> GgufFile::GetInt(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  const auto integer = value ? LoadInteger(value->type, value->data.data()) : std::nullopt;
  return integer ? ToInt64(*integer) : std::nullopt;
}

std::optional<double> GgufFile::GetFloat(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (!value) return std::nullopt;
  if (value->type == GgufType::kFloat32) return Load<float>(value->data.data());
  if (value->type == GgufType::kFloat64) return Load<double>(value->data.data());
  const auto integer = LoadInteger(value->type, value->data.data());
  if (!integer) return std::nullopt;
  return integer->is_negative ? static_cast<double>(integer->negative)
                              : static_cast<double>(integer->positive);
}

std::optional<bool> GgufFile::GetBool(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (!value || value->type != GgufType::kBool) return std::nullopt;
  return value->data[0] != std::byte{0};
}

std::optional<std::string_view> GgufFile::GetString(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (!value || value->type != GgufType::kString) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(value->data.data()), value->data.size());
}

std::optional<std::vector<std::string_view>> GgufFile::GetStringArray(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (!value || value->type != GgufType::kArray || value->element_type != GgufType::kString)
    return std::nullopt;
  std::vector<std::string_view> out;
  out.reserve(static_cast<size_t>(value->count));
  const std::byte* from = value->data.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = static_cast<size_t>(Load<uint64_t>(from));
    out.emplace_back(reinterpret_cast<const char*>(from + 8), length);
    from += 8 + length;
  }
  return out;
}

std::optional<std::vector<float>> GgufFile::GetFloatArray(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (!value || value->type != GgufType::kArray) return std::nullopt;
  const bool wide = value->element_type == GgufType::kFloat64;
  if (!wide && value->element_type != GgufType::kFloat32) return std::nullopt;
  std::vector<float> out(static_cast<size_t>(value->count));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = wide ? static_cast<float>(Load<double>(value->data.data() + 8 * i))
                  : Load<float>(value->data.data() + 4 * i);
  return out;
}

std::optional<std::vector<int64_t>> GgufFile::GetIntArray(std::string_view key) const {
  const GgufValue* value = FindValue(key);
  if (!value || value->type != GgufType::kArray) return std::nullopt;
  const bool boolean = value->element_type == GgufType::kBool;
  const size_t step = gguf_internal::ScalarBytes(value->element_type);
  if (step == 0) return std::nullopt;
  std::vector<int64_t> out(static_cast<size_t>(value->count));
  for (size_t i = 0; i < out.size(); ++i) {
    const std::byte* from = value->data.data() + step * i;
    if (boolean) {
      out[i] = *from != std::byte{0};
      continue;
    }
    const auto integer = LoadInteger(value->element_type, from);
    const auto number = integer ? ToInt64(*integer) : std::nullopt;
    if (!number) return std::nullopt;
    out[i] = *number;
  }
  return out;
}

}  // namespace celer
