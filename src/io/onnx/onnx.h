// ONNX files as they are written: the messages of onnx.proto that inference needs, read by our own wire
// reader. Names and weights are views into the mapped file; what a message means is the graph loader's
// business (src/graph/load/load_onnx.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/shape.h"
#include "io/file/mapped_file.h"
#include "io/onnx/onnx_wire.h"

namespace celer {

struct OnnxTensor {
  std::string_view name;
  int32_t data_type = 0;  // TensorProto.DataType
  std::vector<int64_t> dims;
  std::optional<std::span<const std::byte>> raw;
  std::vector<WireField> typed;  // float_data, int32_data, ...: as they lie in the file
  bool external = false;
  std::string_view location;  // of external data: a file beside the model
  uint64_t offset = 0;
  std::optional<uint64_t> length;
};

struct OnnxType {
  enum class Kind : uint8_t { kNone, kTensor, kSequence, kOptional, kMap, kSparse };
  struct Dim {
    int64_t value = -1;       // -1: not fixed
    std::string_view symbol;  // its name, or empty
  };
  Kind kind = Kind::kNone;
  int32_t data_type = 0;
  bool has_shape = false;
  std::vector<Dim> dims;
  std::vector<OnnxType> element;  // of a sequence or an optional: one
};

struct OnnxValue {
  std::string_view name;
  OnnxType type;
};

struct OnnxGraph;

struct OnnxAttribute {
  // The numbers are those of AttributeProto.AttributeType.
  enum class Type : int32_t {
    kUndefined = 0,
    kFloat = 1,
    kInt = 2,
    kString = 3,
    kTensor = 4,
    kGraph = 5,
    kFloats = 6,
    kInts = 7,
    kStrings = 8,
    kTensors = 9,
    kGraphs = 10,
    kSparseTensor = 11,
    kTypeProto = 13
  };
  std::string_view name;
  std::string_view reference;  // inside a function: the attribute of the call that this one stands for
  Type type = Type::kUndefined;
  float f = 0;
  int64_t i = 0;
  std::string_view s;
  std::vector<float> floats;
  std::vector<int64_t> ints;
  std::vector<std::string_view> strings;
  std::vector<OnnxTensor> tensors;  // of kTensor: one
  std::vector<OnnxGraph> graphs;    // of kGraph: one
};

struct OnnxNode {
  std::string_view name, op, domain;
  std::vector<std::string_view> inputs, outputs;
  std::vector<OnnxAttribute> attributes;
};

struct OnnxGraph {
  std::string_view name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxValue> inputs, outputs, values;
  size_t sparse_initializers = 0;  // counted, not read
};

struct OnnxOpset {
  std::string_view domain;
  int64_t version = 0;
};

struct OnnxFunction {
  std::string_view name, domain;
  std::vector<std::string_view> inputs, outputs, attributes;
  std::vector<OnnxAttribute> defaults;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxOpset> opsets;
};

struct OnnxModel {
  int64_t ir_version = 0;
  std::string_view producer;
  std::vector<OnnxOpset> opsets;
  OnnxGraph graph;
  std::vector<OnnxFunction> functions;
};

// The elements of a tensor, dense and row-major, one byte per element for types below a byte.
struct OnnxElements {
  DType dtype = DType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;  // into the file, or into `owned`; aligned for the type
  std::shared_ptr<std::byte[]> owned;
};

class OnnxFile {
 public:
  static Result<OnnxFile> Open(const std::filesystem::path& path);
  // `bytes` outlive the result; `source` is what error sentences call it. External data is refused.
  static Result<OnnxFile> FromBytes(std::span<const std::byte> bytes, std::string source);

  const OnnxModel& model() const { return *model_; }
  const std::string& source() const { return source_; }
  int64_t file_bytes() const { return file_bytes_; }

  // A view where the file's bytes can be used as they are, else a copy. Maps a file of external data when it
  // is first asked for; it then stays mapped as long as this does.
  Result<OnnxElements> Read(const OnnxTensor& tensor);

 private:
  Result<std::span<const std::byte>> External(const OnnxTensor& tensor, const std::string& where);

  std::optional<MappedFile> file_;
  std::vector<MappedFile> external_;
  std::string source_;
  int64_t file_bytes_ = 0;
  std::unique_ptr<OnnxModel> model_;
};

// The element type of TensorProto.DataType; nullopt for strings, complex numbers and numbers it does not
// know.
std::optional<DType> OnnxDType(int32_t data_type);
int32_t OnnxDataType(DType dtype);            // the other way round; 0 for a type that ONNX does not have
std::string OnnxTypeName(int32_t data_type);  // "FLOAT16", or "type 99"

// A file that holds one tensor, a sequence of tensors, or an optional of either, as the data of ONNX's own
// tests does.
Result<OnnxTensor> ParseOnnxTensor(std::span<const std::byte> bytes, const std::string& source);
struct OnnxSequence {
  bool present = true;  // false: an optional that holds nothing
  std::vector<OnnxTensor> tensors;
};
Result<OnnxSequence> ParseOnnxSequence(std::span<const std::byte> bytes, const std::string& source);
Result<OnnxSequence> ParseOnnxOptional(std::span<const std::byte> bytes, const std::string& source,
                                       bool* is_sequence);

}  // namespace celer
