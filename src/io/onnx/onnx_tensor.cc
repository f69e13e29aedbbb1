// The elements of an ONNX tensor: raw bytes, lists of numbers, or a part of another file.
#include <algorithm>
#include <cstring>

#include "base/safe_math.h"
#include "io/file/contained_path.h"
#include "io/file/printable.h"
#include "io/onnx/onnx.h"

namespace celer {
namespace {

using Bytes = std::span<const std::byte>;

struct OnnxTypeRow {
  const char* name;
  std::optional<DType> dtype;
  int bits;   // of an element in raw data; 0: it has none
  int field;  // of TensorProto, that lists the elements when there is no raw data
};

// By TensorProto.DataType.
constexpr OnnxTypeRow kOnnxTypes[] = {
    {"UNDEFINED", std::nullopt, 0, 0},
    {"FLOAT", DType::kF32, 32, 4},
    {"UINT8", DType::kU8, 8, 5},
    {"INT8", DType::kI8, 8, 5},
    {"UINT16", DType::kU16, 16, 5},
    {"INT16", DType::kI16, 16, 5},
    {"INT32", DType::kI32, 32, 5},
    {"INT64", DType::kI64, 64, 7},
    {"STRING", std::nullopt, 0, 6},
    {"BOOL", DType::kBool, 8, 5},
    {"FLOAT16", DType::kF16, 16, 5},
    {"DOUBLE", DType::kF64, 64, 10},
    {"UINT32", DType::kU32, 32, 11},
    {"UINT64", DType::kU64, 64, 11},
    {"COMPLEX64", std::nullopt, 64, 4},
    {"COMPLEX128", std::nullopt, 128, 10},
    {"BFLOAT16", DType::kBf16, 16, 5},
    {"FLOAT8E4M3FN", DType::kFp8E4M3, 8, 5},
    {"FLOAT8E4M3FNUZ", DType::kFp8E4M3Fnuz, 8, 5},
    {"FLOAT8E5M2", DType::kFp8E5M2, 8, 5},
    {"FLOAT8E5M2FNUZ", DType::kFp8E5M2Fnuz, 8, 5},
    {"UINT4", DType::kU4, 4, 5},
    {"INT4", DType::kI4, 4, 5},
    {"FLOAT4E2M1", DType::kFp4E2M1, 4, 5},
    {"FLOAT8E8M0", DType::kFp8E8M0, 8, 5},
    {"UINT2", DType::kU2, 2, 5},
    {"INT2", DType::kI2, 2, 5},
};

const OnnxTypeRow* OnnxRow(int32_t data_type) {
  return data_type >= 0 && static_cast<size_t>(data_type) < std::size(kOnnxTypes) ? &kOnnxTypes[data_type]
                                                                                  : nullptr;
}

bool OnnxAligned(const std::byte* data, DType dtype) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(Info(dtype).block_bytes) == 0;
}

// Elements of 4 or 2 bits, the first in the lowest bits, become one byte each.
void OnnxUnpack(Bytes packed, int bits, bool is_signed, std::span<std::byte> out) {
  const int per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1;
  for (size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<unsigned>(packed[i / static_cast<size_t>(per_byte)]);
    unsigned value = byte >> (i % static_cast<size_t>(per_byte)) * static_cast<size_t>(bits) & mask;
    if (is_signed && value >> (bits - 1)) value |= ~mask;
    out[i] = static_cast<std::byte>(value);
  }
}

// What a tensor's type and dimensions ask for.
struct OnnxWanted {
  std::string where;  // for errors
  const OnnxTypeRow* row = nullptr;
  DType dtype = DType::kF32;
  Shape shape = {};
  size_t elements = 0;
  size_t bytes = 0;          // as raw data
  size_t element_bytes = 0;  // in memory

  bool below_byte() const { return row->bits < 8; }
  void Unpack(Bytes packed, OnnxElements* out) const {
    OnnxUnpack(packed, row->bits, dtype == DType::kI4 || dtype == DType::kI2,
               {out->owned.get(), elements * element_bytes});
  }
  OnnxElements Borrow(Bytes from) const {
    OnnxElements out;
    out.dtype = dtype;
    out.shape = shape;
    out.bytes = from;
    return out;
  }
  // Elements are counted before memory is taken for them, so a small file cannot ask for much.
  OnnxElements Own() const {
    OnnxElements out = Borrow({});
    out.owned = std::shared_ptr<std::byte[]>(new std::byte[std::max<size_t>(elements * element_bytes, 1)]);
    out.bytes = Bytes(out.owned.get(), elements * element_bytes);
    return out;
  }
};

Result<OnnxWanted> WantedOf(const OnnxTensor& tensor, std::string where) {
  OnnxWanted wanted;
  wanted.row = OnnxRow(tensor.data_type);
  if (!wanted.row || !wanted.row->dtype)
    return Error::Unsupported(where, ": elements are ", OnnxTypeName(tensor.data_type),
                              "; numbers and booleans are supported");
  wanted.dtype = *wanted.row->dtype;
  if (tensor.dims.size() > Shape::kMaxRank)
    return Error::Unsupported(where, ": has ", tensor.dims.size(), " dimensions; at most ", Shape::kMaxRank,
                              " are supported");
  for (const int64_t dim : tensor.dims)
    if (dim < 0) return Error::Corrupt(where, ": has a dimension of ", dim);
  wanted.shape = Shape(std::span<const int64_t>(tensor.dims));
  const auto count = wanted.shape.elements();
  const auto bits = count ? CheckedMul(*count, wanted.row->bits) : std::nullopt;
  if (!bits) return Error::Corrupt(where, ": the shape ", wanted.shape.ToString(), " has too many elements");
  wanted.elements = static_cast<size_t>(*count);
  wanted.bytes = static_cast<size_t>(CeilDiv(*bits, 8));
  wanted.element_bytes = static_cast<size_t>(Info(wanted.dtype).block_bytes);
  wanted.where = std::move(where);
  return wanted;
}

// Raw bytes of the right size: used where they lie if they can be, else copied.
OnnxElements ElementsOfRaw(Bytes raw, const OnnxWanted& wanted) {
  // A C++ bool is 0 or 1; a file may hold any byte.
  const bool odd_bools = wanted.dtype == DType::kBool &&
                         std::any_of(raw.begin(), raw.end(), [](std::byte b) { return b > std::byte{1}; });
  if (!wanted.below_byte() && OnnxAligned(raw.data(), wanted.dtype) && !odd_bools) return wanted.Borrow(raw);
  OnnxElements out = wanted.Own();
  if (wanted.below_byte())
    wanted.Unpack(raw, &out);
  else if (odd_bools)
    for (size_t i = 0; i < wanted.elements; ++i) out.owned[i] = std::byte{raw[i] != std::byte{0}};
  else
    std::memcpy(out.owned.get(), raw.data(), raw.size());
  return out;
}

// The low bytes of a number. Copies of a size that the compiler knows are quick.
void PutLowBytes(uint64_t value, size_t bytes, std::byte* to) {
  switch (bytes) {
    case 1:
      std::memcpy(to, &value, 1);
      break;
    case 2:
      std::memcpy(to, &value, 2);
      break;
    case 4:
      std::memcpy(to, &value, 4);
      break;
    default:
      std::memcpy(to, &value, 8);
  }
}

// Lists of numbers. int32_data holds the bits of the smaller types; those below a byte are packed as in raw
// data.
Result<OnnxElements> ElementsOfLists(std::span<const WireField> lists, const OnnxWanted& wanted) {
  const std::string& where = wanted.where;
  const OnnxTypeRow& row = *wanted.row;
  const size_t expected = wanted.below_byte() ? wanted.bytes : wanted.elements;
  size_t available = 0;
  for (const WireField& field : lists)
    available += field.kind == WireField::Kind::kBytes ? field.bytes.size() : 1;
  if (available < expected)
    return Error::Corrupt(where, ": fewer elements than the ", expected, " of ", wanted.shape.ToString());
  OnnxElements out = wanted.Own();
  std::vector<std::byte> packed(wanted.below_byte() ? wanted.bytes : 0);
  std::byte* const first = wanted.below_byte() ? packed.data() : out.owned.get();
  size_t at = 0;
  const auto put = [&](uint64_t value) {
    if (wanted.dtype == DType::kBool) value = value != 0;
    if (at < expected) PutLowBytes(value, wanted.element_bytes, first + at * wanted.element_bytes);
    ++at;
  };
  for (const WireField& field : lists) {
    if (static_cast<int>(field.number) != row.field)
      return Error::Corrupt(where, ": elements of ", row.name, " in the wrong list");
    if (field.kind != WireField::Kind::kBytes) {
      put(field.value);
      continue;
    }
    for (WireReader reader(field.bytes); !reader.done();) {
      std::optional<uint64_t> value;
      if (row.field == 4)
        value = reader.Fixed<uint32_t>();
      else if (row.field == 10)
        value = reader.Fixed<uint64_t>();
      else
        value = reader.Varint();
      if (!value) return Error::Corrupt(where, ": a broken list of elements");
      put(*value);
    }
  }
  if (at != expected)
    return Error::Corrupt(where, ": ", at, " elements, but ", wanted.shape.ToString(), " of ", row.name,
                          " are ", expected);
  if (wanted.below_byte()) wanted.Unpack(packed, &out);
  return out;
}

}  // namespace

std::optional<DType> OnnxDType(int32_t data_type) {
  const OnnxTypeRow* const row = OnnxRow(data_type);
  return row ? row->dtype : std::nullopt;
}

int32_t OnnxDataType(DType dtype) {
  for (size_t i = 0; i < std::size(kOnnxTypes); ++i)
    if (kOnnxTypes[i].dtype == dtype) return static_cast<int32_t>(i);
  return 0;
}

std::string OnnxTypeName(int32_t data_type) {
  const OnnxTypeRow* const row = OnnxRow(data_type);
  return row ? row->name : "type " + std::to_string(data_type);
}

Result<Bytes> OnnxFile::External(const OnnxTensor& tensor, const std::string& where) {
  if (!file_) return Error::Unsupported(where, ": its data is in another file, and this model is none");
  CELER_ASSIGN(const auto path, ResolveInside(file_->path().parent_path(), tensor.location, where));
  const MappedFile* data = nullptr;
  for (const MappedFile& open : external_)
    if (open.path() == path) data = &open;
  if (!data) {
    CELER_ASSIGN(MappedFile file, MappedFile::Open(path));
    external_.push_back(std::move(file));
    data = &external_.back();
    file_bytes_ += static_cast<int64_t>(data->bytes().size());
  }
  const Bytes all = data->bytes();
  if (tensor.offset > all.size())
    return Error::Corrupt(where, ": its data begins at byte ", tensor.offset, " of ",
                          path.filename().string(), ", which has ", all.size());
  const uint64_t rest = all.size() - tensor.offset, length = tensor.length.value_or(rest);
  if (length > rest)
    return Error::Corrupt(where, ": its data of ", length, " bytes at byte ", tensor.offset, " leads out of ",
                          path.filename().string(), ", which has ", all.size());
  return all.subspan(tensor.offset, length);
}

Result<OnnxElements> OnnxFile::Read(const OnnxTensor& tensor) {
  CELER_ASSIGN(const OnnxWanted wanted,
               WantedOf(tensor, source_ + ": tensor '" + Printable(tensor.name) + "'"));
  if (!tensor.raw && !tensor.external) return ElementsOfLists(tensor.typed, wanted);
  Bytes raw;
  if (tensor.external) {
    CELER_ASSIGN(raw, External(tensor, wanted.where));
  } else {
    raw = *tensor.raw;
  }
  // Without a length, external data runs to the end of its file.
  if (tensor.external && !tensor.length && raw.size() > wanted.bytes) raw = raw.first(wanted.bytes);
  if (raw.size() != wanted.bytes)
    return Error::Corrupt(wanted.where, ": ", raw.size(), " bytes of data, but ", wanted.shape.ToString(),
                          " of ", wanted.row->name, " are ", wanted.bytes);
  return ElementsOfRaw(raw, wanted);
}

}  // namespace celer
