#include "io/gguf/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <limits>

#include "base/safe_math.h"
#include "io/file/printable.h"

namespace celer {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and mapped as they are");

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr size_t kMinKeyValue = 13;      // key length, one byte of key or value, type
constexpr size_t kMinTensorInfo = 32;    // name length, rank, one dimension, type, offset
constexpr size_t kMaxName = 65535;
constexpr std::string_view kDamaged = "; the file is cut short or damaged: fetch it again";
constexpr uint64_t kMaxAlignment = uint64_t{1} << 30;

// Those that others write and celer does not read; base/dtype.cc has the numbers of the others.
struct UnsupportedType {
  uint32_t id;
  const char* name;
};
constexpr UnsupportedType kUnsupportedTypes[] = {
    {4, "Q4_2"},      {5, "Q4_3"},      {9, "Q8_1"},  {15, "Q8_K"}, {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"}, {41, "Q1_0"}, {42, "Q2_0"},
};

std::optional<DType> FindTensorType(uint32_t id) {
  for (const DTypeInfo& info : DTypes())
    if (info.gguf_type >= 0 && static_cast<uint32_t>(info.gguf_type) == id) return info.dtype;
  return std::nullopt;
}

// As GGUF spells it: "BF16", "Q4_K".
std::string UpperName(DType dtype) {
  std::string out(Name(dtype));
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

// Of the types that weights have.
std::string WeightTypeNames() {
  std::string out;
  for (const DTypeInfo& info : DTypes())
    if (info.gguf_file_type >= 0) out += (out.empty() ? "" : ", ") + UpperName(info.dtype);
  return out;
}

// Walks the file; every read is checked against the bytes that are left.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : left_(bytes), size_(bytes.size()) {}

  size_t position() const { return size_ - left_.size(); }
  size_t left() const { return left_.size(); }
  const std::byte* here() const { return left_.data(); }

  template <class T>
  bool Read(T* value) {
    if (left_.size() < sizeof(T)) return false;
    std::memcpy(value, left_.data(), sizeof(T));
    left_ = left_.subspan(sizeof(T));
    return true;
  }
  bool Take(uint64_t count, std::span<const std::byte>* out) {
    if (count > left_.size()) return false;
    *out = left_.first(count);
    left_ = left_.subspan(count);
    return true;
  }
  bool ReadString(std::string_view* out) {  // a 64-bit length, compared as such
    uint64_t length = 0;
    std::span<const std::byte> text;
    if (!Read(&length) || !Take(length, &text)) return false;
    *out = {reinterpret_cast<const char*>(text.data()), text.size()};
    return true;
  }

 private:
  std::span<const std::byte> left_;
  size_t size_;
};

}  // namespace

namespace gguf_internal {

// Bytes of a scalar; 0 for strings and arrays, whose size the file tells.
size_t ScalarBytes(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return 0;
}

}  // namespace gguf_internal

namespace {

using gguf_internal::ScalarBytes;

class Parser {
 public:
  Parser(std::span<const std::byte> bytes, const std::string& source) : cursor_(bytes), source_(source) {}

  Result<int> ReadHeader() {
    uint32_t magic = 0, version = 0;
    if (!cursor_.Read(&magic) || magic != kMagic)
      return Error::Corrupt(source_, ": does not begin with 'GGUF', so it is no GGUF file");
    if (!cursor_.Read(&version)) return CutShort("the version");
    if (version != 0 && (version & 0xffff) == 0)
      return Error::Unsupported(source_, ": is a big-endian GGUF (version ", __builtin_bswap32(version),
                                "); convert it to little-endian");
    if (version < 2 || version > 3)
      return Error::Unsupported(source_, ": GGUF version ", version, "; versions 2 and 3 are supported");
    if (!cursor_.Read(&tensor_count_) || !cursor_.Read(&metadata_count_)) return CutShort("the counts");
    if (metadata_count_ > cursor_.left() / kMinKeyValue)
      return TooMany(metadata_count_, "metadata entries", cursor_.left());
    if (tensor_count_ > cursor_.left() / kMinTensorInfo)
      return TooMany(tensor_count_, "tensors", cursor_.left());
    return static_cast<int>(version);
  }

  Result<std::vector<GgufValue>> ReadMetadata() {
    std::vector<GgufValue> out;
    out.reserve(metadata_count_);
    for (uint64_t i = 0; i < metadata_count_; ++i) {
      GgufValue value;
      uint32_t type = 0;
      if (!cursor_.ReadString(&value.key)) return CutShort("a metadata key");
      if (value.key.empty() || value.key.size() > kMaxName)
        return Error::Corrupt(source_, ": metadata key ", i, " has ", value.key.size(), " bytes");
      if (!cursor_.Read(&type)) return CutShort(Field(value.key));
      if (type > static_cast<uint32_t>(GgufType::kFloat64))
        return Error::Corrupt(source_, ": ", Field(value.key), " has the unknown type ", type);
      value.type = static_cast<GgufType>(type);
      CELER_RETURN_IF_ERROR(ReadValue(&value));
      out.push_back(value);
    }
    return out;
  }

  struct TensorInfo {
    TensorSpec spec;
    uint64_t offset;
    int64_t bytes;
  };

  Result<std::vector<TensorInfo>> ReadTensorInfos(int64_t alignment) {
    if (tensor_count_ > cursor_.left() / kMinTensorInfo)
      return TooMany(tensor_count_, "tensors", cursor_.left());
    std::vector<TensorInfo> out;
    out.reserve(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; ++i) {
      CELER_ASSIGN(TensorInfo info, ReadTensorInfo(alignment));
      out.push_back(std::move(info));
    }
    return out;
  }

  size_t position() const { return cursor_.position(); }

 private:
  static std::string Field(std::string_view key) { return "'" + Printable(key) + "'"; }
  Error CutShort(std::string_view what) const {
    return Error::Corrupt(source_, ": the file ends inside ", what, ", at byte ", cursor_.position(),
                          kDamaged);
  }
  Error TooMany(uint64_t count, std::string_view what, size_t left) const {
    return Error::Corrupt(source_, ": claims ", count, " ", what, ", but only ", left, " bytes follow",
                          kDamaged);
  }

  Status ReadValue(GgufValue* value) {
    if (value->type == GgufType::kArray) return ReadArray(value);
    if (value->type == GgufType::kString) {
      std::string_view text;
      if (!cursor_.ReadString(&text)) return CutShort(Field(value->key));
      value->data = std::as_bytes(std::span(text));
      return {};
    }
    if (!cursor_.Take(ScalarBytes(value->type), &value->data)) return CutShort(Field(value->key));
    if (value->type == GgufType::kBool && static_cast<uint8_t>(value->data[0]) > 1)
      return Error::Corrupt(source_, ": ", Field(value->key), " is a bool with the value ",
                            static_cast<int>(value->data[0]));
    return {};
  }

  Status ReadArray(GgufValue* value) {
    uint32_t type = 0;
    if (!ReadArrayHeader(&type, &value->count)) return CutShort(Field(value->key));
    const std::byte* begin = cursor_.here();
    CELER_RETURN_IF_ERROR(SkipElements(value->key, type, value->count, 1));
    value->element_type = static_cast<GgufType>(type);
    value->data = {begin, static_cast<size_t>(cursor_.here() - begin)};
    return {};
  }

  bool ReadArrayHeader(uint32_t* type, uint64_t* count) { return cursor_.Read(type) && cursor_.Read(count); }

  // Checks that the elements of an array lie in the file, and steps over them.
  Status SkipElements(std::string_view key, uint32_t raw_type, uint64_t count, int depth) {
    if (raw_type > static_cast<uint32_t>(GgufType::kFloat64))
      return Error::Corrupt(source_, ": ", Field(key), " is an array of the unknown type ", raw_type);
    if (depth > GgufFile::kMaxArrayDepth)
      return Error::Corrupt(source_, ": ", Field(key), " nests arrays more than ", GgufFile::kMaxArrayDepth,
                            " deep");
    const auto type = static_cast<GgufType>(raw_type);
    const size_t smallest = type == GgufType::kString ? 8 : type == GgufType::kArray ? 12 : ScalarBytes(type);
    if (count > cursor_.left() / smallest)
      return Error::Corrupt(source_, ": ", Field(key), " claims ", count, " elements, but only ",
                            cursor_.left(), " bytes follow", kDamaged);
    if (type != GgufType::kString && type != GgufType::kArray) {
      std::span<const std::byte> skipped;
      if (!cursor_.Take(count * smallest, &skipped)) return CutShort(Field(key));  // no overflow: see above
      return {};
    }
    for (uint64_t i = 0; i < count; ++i) {
      if (type == GgufType::kString) {
        std::string_view text;
        if (!cursor_.ReadString(&text)) return CutShort(Field(key));
      } else {
        uint32_t inner_type = 0;
        uint64_t inner_count = 0;
        if (!ReadArrayHeader(&inner_type, &inner_count)) return CutShort(Field(key));
        CELER_RETURN_IF_ERROR(SkipElements(key, inner_type, inner_count, depth + 1));
      }
    }
    return {};
  }

  Result<TensorInfo> ReadTensorInfo(int64_t alignment) {
    TensorInfo info;
    std::string_view name;
    uint32_t rank = 0, type_id = 0;
    if (!cursor_.ReadString(&name)) return CutShort("a tensor's name");
    if (name.empty() || name.size() > kMaxName)
      return Error::Corrupt(source_, ": a tensor's name has ", name.size(), " bytes");
    const std::string what = "tensor " + Field(name);
    if (!cursor_.Read(&rank)) return CutShort(what);
    if (rank < 1 || rank > 4)
      return Error::Corrupt(source_, ": ", what, " has ", rank, " dimensions, expected 1 to 4");
    std::array<int64_t, 4> dims{};
    for (uint32_t i = 0; i < rank; ++i) {
      uint64_t dim = 0;
      if (!cursor_.Read(&dim)) return CutShort(what);
      if (dim == 0 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
        return Error::Corrupt(source_, ": ", what, " has a dimension of ", dim);
      dims[rank - 1 - i] = static_cast<int64_t>(dim);  // the file has the innermost first
    }
    if (!cursor_.Read(&type_id) || !cursor_.Read(&info.offset)) return CutShort(what);
    const auto type = FindTensorType(type_id);
    if (!type)
      return Error::Unsupported(source_, ": ", what, " has the type ", GgufTensorTypeName(type_id),
                                ", which is not supported (", WeightTypeNames(), " are)");
    info.spec = {std::string(name), *type, Shape(std::span<const int64_t>(dims.data(), rank))};
    const int64_t cols = dims[rank - 1];
    if (cols % Info(*type).block != 0)
      return Error::Corrupt(source_, ": ", what, " has rows of ", cols, " elements, but ", UpperName(*type),
                            " needs a multiple of ", Info(*type).block);
    const auto elements = info.spec.shape.elements();
    const auto bytes = elements ? BytesFor(*type, *elements) : std::nullopt;
    if (!bytes)
      return Error::Corrupt(source_, ": ", what, " has the shape ", info.spec.shape.ToString(),
                            ", which is too large");
    info.bytes = *bytes;
    if (info.offset % static_cast<uint64_t>(alignment) != 0)
      return Error::Corrupt(source_, ": ", what, " has the offset ", info.offset,
                            ", which is no multiple of the alignment ", alignment);
    return info;
  }

  Cursor cursor_;
  const std::string& source_;
  uint64_t tensor_count_ = 0;
  uint64_t metadata_count_ = 0;
};

}  // namespace

Result<GgufFile> GgufFile::FromBytes(std::span<const std::byte> bytes, std::string source) {
  GgufFile out;
  out.source_ = std::move(source);
  Parser parser(bytes, out.source_);
  CELER_ASSIGN(out.version_, parser.ReadHeader());
  CELER_ASSIGN(out.metadata_, parser.ReadMetadata());
  for (size_t i = 0; i < out.metadata_.size(); ++i)
    if (!out.keys_.emplace(out.metadata_[i].key, i).second)
      return Error::Corrupt(out.source_, ": metadata key '", Printable(out.metadata_[i].key),
                            "' comes twice");

  if (out.Has("general.alignment")) {
    const auto alignment = out.GetUint("general.alignment");
    if (!alignment || !std::has_single_bit(*alignment) || *alignment > kMaxAlignment)
      return Error::Corrupt(out.source_, ": 'general.alignment' is ",
                            out.FindValue("general.alignment")->ToText(), ", expected a power of two");
    out.alignment_ = static_cast<int64_t>(*alignment);
  }

  CELER_ASSIGN(const auto infos, parser.ReadTensorInfos(out.alignment_));
  if (infos.empty()) return out;  // only a vocabulary
  const uint64_t data_start = RoundUp(parser.position(), static_cast<uint64_t>(out.alignment_));
  const auto data = data_start <= bytes.size() ? bytes.subspan(data_start) : std::span<const std::byte>();
  for (const auto& info : infos) {
    const auto size = static_cast<uint64_t>(info.bytes);
    if (info.offset > data.size() || size > data.size() - info.offset)
      return Error::Corrupt(out.source_, ": tensor '", Printable(info.spec.name), "' takes ", size,
                            " bytes at offset ", info.offset, ", but the data has ", data.size(), " bytes",
                            kDamaged);
    if (!out.tensors_.Add(
            {info.spec.name, info.spec.dtype, info.spec.shape, data.subspan(info.offset, size)}))
      return Error::Corrupt(out.source_, ": tensor '", Printable(info.spec.name), "' comes twice");
  }

  std::vector<const TensorRecord*> by_place;
  for (const TensorRecord& tensor : out.tensors()) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(),
            [](const auto* a, const auto* b) { return a->bytes.data() < b->bytes.data(); });
  for (size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i - 1]->bytes.data() + by_place[i - 1]->bytes.size() > by_place[i]->bytes.data())
      return Error::Corrupt(out.source_, ": tensors '", Printable(by_place[i - 1]->name), "' and '",
                            Printable(by_place[i]->name), "' overlap at offset ",
                            by_place[i]->bytes.data() - data.data());
  return out;
}

Result<GgufFile> GgufFile::OpenOne(const std::filesystem::path& path) {
  CELER_ASSIGN(MappedFile file, MappedFile::Open(path));
  CELER_ASSIGN(GgufFile out, FromBytes(file.bytes(), path.string()));
  out.mapped_.push_back(std::move(file));
  return out;
}

void GgufFile::DropPages(const TensorRecord& tensor) const {
  for (const MappedFile& file : mapped_) file.DropPages(tensor.bytes);  // a file ignores what is not its own
}

std::vector<std::filesystem::path> GgufFile::files() const {
  std::vector<std::filesystem::path> out;
  for (const MappedFile& file : mapped_) out.push_back(file.path());
  return out;
}

std::string GgufTensorTypeName(uint32_t type) {
  if (const auto dtype = FindTensorType(type)) return UpperName(*dtype);
  for (const UnsupportedType& each : kUnsupportedTypes)
    if (each.id == type) return each.name;
  return "type " + std::to_string(type);
}

std::optional<uint32_t> GgufTensorTypeId(DType dtype) {
  const int type = Info(dtype).gguf_type;
  return type < 0 ? std::nullopt : std::optional(static_cast<uint32_t>(type));
}

}  // namespace celer
