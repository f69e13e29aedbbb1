#include "io/npy/npy.h"

#include <cstring>
#include <optional>

#include "base/safe_math.h"
#include "base/utf8.h"
#include "io/file/atomic_file.h"
#include "io/file/mapped_file.h"
#include "io/file/printable.h"
#include "io/npy/store_zip.h"

namespace celer {
namespace {

struct NpyType {
  const char* descr;
  DType dtype;
};
constexpr NpyType kNpyTypes[] = {{"<f4", DType::kF32}, {"<f8", DType::kF64}, {"<f2", DType::kF16},
                                 {"|i1", DType::kI8},  {"|u1", DType::kU8},  {"<i2", DType::kI16},
                                 {"<u2", DType::kU16}, {"<i4", DType::kI32}, {"<u4", DType::kU32},
                                 {"<i8", DType::kI64}, {"<u8", DType::kU64}, {"|b1", DType::kBool}};

constexpr std::string_view kNpyMagic = "\x93NUMPY";

// The text behind 'key': of the header, which is a Python dictionary that NumPy writes in one way only.
std::optional<std::string_view> NpyField(std::string_view header, std::string_view key) {
  const size_t at = header.find("'" + std::string(key) + "':");
  if (at == std::string_view::npos) return std::nullopt;
  header.remove_prefix(at + key.size() + 3);
  while (!header.empty() && header[0] == ' ') header.remove_prefix(1);
  const size_t end = header.starts_with("(") ? header.find(')') : header.find_first_of(",}");
  return header.substr(0, end);
}

Result<std::string> NpyHeader(const NpzEntry& entry) {
  std::string descr = entry.descr;
  for (const NpyType& type : kNpyTypes)
    if (entry.descr.empty() && type.dtype == entry.dtype) descr = type.descr;
  if (descr.empty())
    return Error::Unsupported("NumPy has no type for ", Name(entry.dtype), " of '", Printable(entry.name),
                              "'");
  std::string dict = std::string("{'descr': '") + descr + "', 'fortran_order': False, 'shape': (";
  for (const int64_t dim : entry.shape.dims()) dict += std::to_string(dim) + ", ";
  if (entry.shape.rank() > 1) dict.resize(dict.size() - 2);
  if (entry.shape.rank() == 1) dict.resize(dict.size() - 1);
  dict += "), }";
  while ((10 + dict.size() + 1) % 64 != 0) dict += ' ';
  dict += '\n';
  const auto size = static_cast<uint16_t>(dict.size());
  return std::string(kNpyMagic) + std::string("\1\0", 2) + static_cast<char>(size & 255) +
         static_cast<char>(size >> 8) + dict;
}

// The header, and what is behind it.
struct NpyParts {
  std::string descr;  // with its quotes
  Shape shape;
  std::span<const std::byte> data;
  bool fortran = false;  // the first dimension varies fastest
};
Result<NpyParts> SplitNpy(std::span<const std::byte> bytes, const std::string& source) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kNpyMagic) || text.size() < 12)
    return Error::Corrupt(source, ": is not a .npy file; numpy.save() makes one");
  const bool short_length = text[6] == 1;
  size_t length = 0;
  for (size_t i = 0; i < (short_length ? 2u : 4u); ++i)
    length |= size_t{static_cast<uint8_t>(text[8 + i])} << 8 * i;
  const size_t begin = short_length ? 10 : 12;
  if (length > text.size() - begin) return Error::Corrupt(source, ": its header leads out of the file");
  const std::string_view header = text.substr(begin, length);
  const auto descr = NpyField(header, "descr"), order = NpyField(header, "fortran_order"),
             shape = NpyField(header, "shape");
  if (!descr || !order || !shape || shape->empty() || (*shape)[0] != '(')
    return Error::Corrupt(source, ": its header is not one that NumPy writes");
  if (*order != "False" && *order != "True")
    return Error::Corrupt(source, ": its header is not one that NumPy writes");
  std::vector<int64_t> dims;
  int64_t number = -1;
  for (const char c : *shape) {
    if (c >= '0' && c <= '9') {
      const auto next = CheckedMul(number < 0 ? 0 : number, 10);
      if (!next || *next > INT64_MAX - 9) return Error::Corrupt(source, ": a dimension that is too large");
      number = *next + (c - '0');
    } else if (number >= 0) {
      dims.push_back(number);
      number = -1;
    }
  }
  if (number >= 0) dims.push_back(number);
  if (dims.size() > Shape::kMaxRank) return Error::Unsupported(source, ": has ", dims.size(), " dimensions");
  return NpyParts{std::string(*descr), Shape(std::span<const int64_t>(dims)), bytes.subspan(begin + length),
                  *order == "True" && dims.size() > 1};
}

}  // namespace

Result<NpyView> ViewNpy(std::span<const std::byte> bytes, const std::string& source) {
  CELER_ASSIGN(const NpyParts parts, SplitNpy(bytes, source));
  NpyView out;
  const NpyType* type = nullptr;
  for (const NpyType& row : kNpyTypes)
    if (parts.descr == "'" + std::string(row.descr) + "'") type = &row;
  if (!type)
    return Error::Unsupported(source, ": elements of ", Printable(parts.descr),
                              "; little-endian numbers and booleans are read");
  out.dtype = type->dtype;
  out.shape = parts.shape;
  out.fortran = parts.fortran;
  const auto elements = out.shape.elements();
  const auto size = elements ? BytesFor(out.dtype, *elements) : std::nullopt;
  if (!size || static_cast<size_t>(*size) != parts.data.size())
    return Error::Corrupt(source, ": ", parts.data.size(), " bytes of data for ", out.shape.ToString(),
                          " of ", Name(out.dtype));
  out.bytes = parts.data;
  return out;
}

Result<NpyTexts> ReadNpyTexts(const std::filesystem::path& path) {
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
  CELER_ASSIGN(const NpyParts parts, SplitNpy(file.bytes(), path.string()));
  if (parts.fortran)
    return Error::Unsupported(path.string(), ": strings in Fortran order; save numpy.ascontiguousarray(x)");
  // 'U' has four bytes for each character, 'S' one; what is shorter than the longest ends with zeros.
  const bool wide = parts.descr.starts_with("'<U");
  int64_t length = 0;
  bool digits = parts.descr.size() > 4 && parts.descr.size() < 13;
  for (size_t i = 3; digits && i + 1 < parts.descr.size(); ++i) {
    digits = parts.descr[i] >= '0' && parts.descr[i] <= '9';
    length = length * 10 + (parts.descr[i] - '0');
  }
  if ((!wide && !parts.descr.starts_with("'|S")) || !digits)
    return Error::Unsupported(path.string(), ": elements of ", Printable(parts.descr),
                              "; strings are expected, as numpy.array(['a', 'b']) has them");
  const auto elements = parts.shape.elements();
  const auto size = elements ? CheckedMul(*elements, length * (wide ? 4 : 1)) : std::nullopt;
  if (!size || static_cast<size_t>(*size) != parts.data.size())
    return Error::Corrupt(path.string(), ": ", parts.data.size(), " bytes of data for ",
                          parts.shape.ToString(), " of ", Printable(parts.descr));
  NpyTexts out{parts.shape, std::vector<std::string>(static_cast<size_t>(*elements))};
  const std::byte* at = parts.data.data();
  for (std::string& text : out.texts) {
    for (int64_t i = 0; i < length; ++i) {
      uint32_t point = static_cast<uint8_t>(*at);
      if (wide) std::memcpy(&point, at, 4);
      at += wide ? 4 : 1;
      if (point == 0) continue;
      if (wide)
        utf8::Append(point > 0x10FFFF || (point >= 0xD800 && point < 0xE000) ? 0xFFFD : point, text);
      else
        text += static_cast<char>(point);
    }
  }
  return out;
}

NpzEntry TextEntry(std::string name, const Shape& shape, std::span<const std::string> texts,
                   std::vector<std::byte>* storage) {
  std::vector<std::vector<uint32_t>> points;
  size_t longest = 1;
  for (const std::string& text : texts) {
    std::vector<uint32_t>& one = points.emplace_back();
    for (size_t at = 0; at < text.size();) {
      const utf8::CodePoint next = utf8::Decode(std::string_view(text).substr(at));
      one.push_back(static_cast<uint32_t>(next.value));
      at += next.length;
    }
    longest = std::max(longest, one.size());
  }
  storage->assign(texts.size() * longest * 4, std::byte{0});
  for (size_t i = 0; i < points.size(); ++i)
    if (!points[i].empty())
      std::memcpy(storage->data() + i * longest * 4, points[i].data(), points[i].size() * 4);
  return {std::move(name), DType::kU32, shape, *storage, "<U" + std::to_string(longest)};
}

NpyArray RowMajor(const NpyView& view) {
  NpyArray out{view.dtype, view.shape, {}};
  if (!view.fortran) {
    out.bytes.assign(view.bytes.begin(), view.bytes.end());
    return out;
  }
  out.bytes.resize(view.bytes.size());
  const auto size = static_cast<size_t>(*BytesFor(view.dtype, 1));
  const auto rank = static_cast<size_t>(view.shape.rank());
  std::vector<size_t> index(rank), stride(rank);  // of the file, in elements
  for (size_t d = 0, step = 1; d < rank; ++d) {
    stride[d] = step;
    step *= static_cast<size_t>(view.shape[static_cast<int>(d)]);
  }
  size_t from = 0;
  for (size_t to = 0; to < out.bytes.size(); to += size) {
    std::memcpy(&out.bytes[to], &view.bytes[from * size], size);
    for (size_t d = rank; d-- > 0;) {  // the next index, the last dimension first
      from += stride[d];
      if (++index[d] < static_cast<size_t>(view.shape[static_cast<int>(d)])) break;
      from -= index[d] * stride[d];
      index[d] = 0;
    }
  }
  return out;
}

Result<NpyArray> ParseNpy(std::span<const std::byte> bytes, const std::string& source) {
  CELER_ASSIGN(const NpyView view, ViewNpy(bytes, source));
  return RowMajor(view);
}

Result<NpyArray> ReadNpy(const std::filesystem::path& path) {
  CELER_ASSIGN(const MappedFile file, MappedFile::Open(path));
  return ParseNpy(file.bytes(), path.string());
}

Status WriteNpy(const std::filesystem::path& path, const NpzEntry& entry) {
  CELER_ASSIGN(const std::string header, NpyHeader(entry));
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  CELER_RETURN_IF_ERROR(file.Write(std::string_view(header)));
  CELER_RETURN_IF_ERROR(file.Write(entry.bytes));
  return file.Commit();
}

// Sizes beyond 4 GiB would need zip64; such outputs are refused rather than written wrongly.
Status WriteNpz(const std::filesystem::path& path, std::span<const NpzEntry> entries) {
  CELER_ASSIGN(AtomicFile file, AtomicFile::Create(path));
  ZipFields directory;
  uint64_t offset = 0;
  for (const NpzEntry& entry : entries) {
    CELER_ASSIGN(const std::string header, NpyHeader(entry));
    const uint64_t size = header.size() + entry.bytes.size();
    if (offset + size > 0xFFFF0000u)
      return Error::Unsupported(path.string(), ": an .npz of more than 4 GiB; write fewer outputs");
    const uint32_t crc = ZipCrc32(ZipCrc32(0, std::as_bytes(std::span(header))), entry.bytes);
    const std::string name = entry.name + ".npy";
    ZipFields common;
    common
        .U16(20)           // version needed
        .U16(0x800)        // names are UTF-8
        .U16(0)            // stored
        .U32(0x00210000);  // 1980-01-01: the same file for the same data
    common.U32(crc).U32(size).U32(size).U16(name.size()).U16(0);
    const std::string local = ZipFields().U32(0x04034b50).out + common.out + name;
    directory.U32(0x02014b50).U16(20);
    directory.out += common.out;
    directory.U16(0).U16(0).U16(0).U32(0).U32(offset);
    directory.out += name;
    CELER_RETURN_IF_ERROR(file.Write(std::string_view(local)));
    CELER_RETURN_IF_ERROR(file.Write(std::string_view(header)));
    CELER_RETURN_IF_ERROR(file.Write(entry.bytes));
    offset += local.size() + size;
  }
  const uint64_t size = directory.out.size();
  directory.U32(0x06054b50).U32(0).U16(entries.size()).U16(entries.size()).U32(size).U32(offset).U16(0);
  CELER_RETURN_IF_ERROR(file.Write(std::string_view(directory.out)));
  return file.Commit();
}

}  // namespace celer
