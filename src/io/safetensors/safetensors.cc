#include "io/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/safe_math.h"
#include "io/file/printable.h"

namespace celer {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian and mapped as they are");

constexpr uint64_t kMaxHeader = 100'000'000;  // the bound of the format's own implementation

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {
    {"F32", DType::kF32}, {"F16", DType::kF16},   {"BF16", DType::kBf16},       {"F64", DType::kF64},
    {"I8", DType::kI8},   {"U8", DType::kU8},     {"I16", DType::kI16},         {"I32", DType::kI32},
    {"I64", DType::kI64}, {"BOOL", DType::kBool}, {"F8_E4M3", DType::kFp8E4M3}, {"F8_E8M0", DType::kFp8E8M0},
};

std::optional<DType> ParseTypeName(std::string_view name) {
  for (const TypeName& type : kTypes)
    if (type.name == name) return type.dtype;
  return std::nullopt;
}

// One tensor as the header describes it.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<int64_t> offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// A SAX handler: nothing is kept that a tensor does not need, so a hostile header cannot make the parser
// build a large tree, and a duplicate name is seen.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string_view source) : source_(source) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::optional<Error> error;

  bool null() override { return Value("null"); }
  bool boolean(bool) override { return Value("a boolean"); }
  bool number_float(double, const std::string& text) override { return Value(text); }
  bool number_integer(int64_t value) override { return Value(std::to_string(value)); }
  bool binary(nlohmann::json::binary_t&) override { return Value("binary"); }

  bool number_unsigned(uint64_t value) override {
    if (!list_) return Value(std::to_string(value));
    const size_t most = list_ == &entries.back().offsets ? 2 : static_cast<size_t>(Shape::kMaxRank);
    if (list_->size() == most)
      return Fail("tensor '", Printable(entries.back().name), "': '", Printable(field_), "' has more than ",
                  most, " numbers");
    if (value > static_cast<uint64_t>(INT64_MAX))
      return Fail("tensor '", Printable(entries.back().name), "': '", Printable(field_), "' holds ", value,
                  ", which is too large");
    list_->push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) {
      if (!metadata.emplace(field_, value).second)
        return Fail("'__metadata__' has the key '", Printable(field_), "' twice");
      return true;
    }
    if (state_ != State::kTensor || list_ || field_ != "dtype") return Value("a string");
    entries.back().dtype = value;
    return true;
  }

  bool start_object(size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTop:
        if (field_ == "__metadata__") {
          if (had_metadata_) return Fail("'__metadata__' comes twice");
          had_metadata_ = true;
          state_ = State::kMetadata;
        } else {
          entries.emplace_back().name = field_;
          state_ = State::kTensor;
        }
        return true;
      default:
        return Value("an object");
    }
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      const Entry& entry = entries.back();
      const char* missing = !entry.has_dtype ? "dtype" : !entry.has_shape ? "shape" : nullptr;
      if (!missing && !entry.has_offsets) missing = "data_offsets";
      if (missing) return Fail("tensor '", Printable(entry.name), "': '", missing, "' is missing");
      if (entry.offsets.size() != 2)
        return Fail("tensor '", Printable(entry.name), "': 'data_offsets' has ", entry.offsets.size(),
                    " numbers, not 2");
    }
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (state_ != State::kTensor || list_) return Value("an array");
    if (field_ == "shape")
      list_ = &entries.back().shape;
    else if (field_ == "data_offsets")
      list_ = &entries.back().offsets;
    else
      return Value("an array");
    return true;
  }

  bool end_array() override {
    list_ = nullptr;
    return true;
  }

  bool key(std::string& name) override {
    field_ = name;
    if (state_ != State::kTensor) return true;
    Entry& entry = entries.back();
    bool* seen = name == "dtype"          ? &entry.has_dtype
                 : name == "shape"        ? &entry.has_shape
                 : name == "data_offsets" ? &entry.has_offsets
                                          : nullptr;
    if (!seen) return Fail("tensor '", Printable(entry.name), "': unknown field '", Printable(name), "'");
    if (*seen) return Fail("tensor '", Printable(entry.name), "': '", name, "' comes twice");
    *seen = true;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return Fail("the header is not valid JSON at its byte ", position);
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kEnd };

  template <class... T>
  bool Fail(const T&... parts) {
    error = Error::Corrupt(source_, ": ", parts...);
    return false;
  }
  bool Value(std::string_view found) {
    if (state_ == State::kStart) return Fail("the header is not a JSON object");
    if (state_ == State::kTensor)
      return Fail("tensor '", Printable(entries.back().name), "': '", Printable(field_), "' is ", found);
    return Fail("'", Printable(field_), "' in the header is ", found);
  }

  std::string source_;
  State state_ = State::kStart;
  std::string field_;
  std::vector<int64_t>* list_ = nullptr;  // the array being read
  bool had_metadata_ = false;
};

Result<TensorRecord> MakeRecord(const Entry& entry, std::span<const std::byte> data,
                                std::string_view source) {
  const auto dtype = ParseTypeName(entry.dtype);
  if (!dtype)
    return Error::Unsupported(source, ": tensor '", Printable(entry.name), "' has the type '",
                              Printable(entry.dtype), "', which is not supported");
  TensorRecord record{entry.name, *dtype, Shape(entry.shape), {}};
  const auto elements = record.shape.elements();
  const auto bytes = elements ? BytesFor(*dtype, *elements) : std::nullopt;
  if (!bytes)
    return Error::Corrupt(source, ": tensor '", Printable(entry.name), "': shape ", record.shape.ToString(),
                          " is too large");
  const int64_t begin = entry.offsets[0], end = entry.offsets[1];
  const auto size = static_cast<int64_t>(data.size());
  if (begin > end || end > size)
    return Error::Corrupt(source, ": tensor '", Printable(entry.name), "': data_offsets [", begin, ", ", end,
                          "] do not lie in the ", size,
                          " bytes of data; the file is cut short or damaged: fetch it again");
  if (end - begin != *bytes)
    return Error::Corrupt(source, ": tensor '", Printable(entry.name), "': ", end - begin,
                          " bytes of data, but ", entry.dtype, " ", record.shape.ToString(), " needs ",
                          *bytes);
  record.bytes = data.subspan(begin, *bytes);
  return record;
}

}  // namespace

std::optional<std::string_view> SafetensorsTypeName(DType dtype) {
  for (const TypeName& type : kTypes)
    if (type.dtype == dtype) return type.name;
  return std::nullopt;
}

Result<SafetensorsFile> SafetensorsFile::FromBytes(std::span<const std::byte> bytes, std::string source) {
  uint64_t header_size = 0;
  if (bytes.size() < sizeof(header_size))
    return Error::Corrupt(source, ": ", bytes.size(), " bytes are too few for a safetensors file");
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto body = bytes.subspan(sizeof(header_size));
  if (header_size > kMaxHeader || header_size > body.size())
    return Error::Corrupt(source, ": the header claims ", header_size, " bytes, but ", body.size(),
                          " follow and at most ", kMaxHeader,
                          " are accepted; the file is cut short or no safetensors file: fetch it again");

  const auto* text = reinterpret_cast<const char*>(body.data());
  HeaderReader reader(source);
  try {
    // The header may be padded with spaces; anything else after it is an error.
    nlohmann::json::sax_parse(text, text + header_size, &reader);
  } catch (const std::exception& error) {
    if (!reader.error)
      reader.error = Error::Corrupt(source, ": the header is not valid JSON: ", error.what());
  }
  if (reader.error) return *reader.error;

  SafetensorsFile out;
  out.source_ = std::move(source);
  out.metadata_ = std::move(reader.metadata);
  std::sort(reader.entries.begin(), reader.entries.end(), [](const Entry& a, const Entry& b) {
    return a.offsets != b.offsets ? a.offsets < b.offsets : a.name < b.name;
  });
  const auto data = body.subspan(header_size);
  int64_t covered = 0;  // the data before this byte belongs to tensors
  for (const Entry& entry : reader.entries) {
    CELER_ASSIGN(const TensorRecord record, MakeRecord(entry, data, out.source_));
    if (!out.tensors_.Add(record))
      return Error::Corrupt(out.source_, ": tensor '", Printable(record.name), "' comes twice");
    if (entry.offsets[0] != covered)
      return Error::Corrupt(out.source_, ": tensor '", Printable(record.name), "' begins at byte ",
                            entry.offsets[0],
                            entry.offsets[0] < covered ? ", inside the tensor before it, which ends at "
                                                       : ", leaving a hole after ",
                            covered);
    covered = entry.offsets[1];
  }
  if (static_cast<size_t>(covered) != data.size())
    return Error::Corrupt(out.source_, ": ", data.size() - static_cast<size_t>(covered),
                          " bytes after the last tensor belong to none");
  return out;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path) {
  CELER_ASSIGN(MappedFile file, MappedFile::Open(path));
  CELER_ASSIGN(SafetensorsFile out, FromBytes(file.bytes(), path.string()));
  out.file_ = std::move(file);
  return out;
}

void SafetensorsFile::DropPages(const TensorRecord& tensor) const {
  if (file_) file_->DropPages(tensor.bytes);
}

}  // namespace celer
