// bitsandbytes. Four bits (nf4 and fp4), N outputs, K inputs, over the elements in the order of the rows:
//
//   X.weight                                 uint8 [N * K / 2, 1], the earlier element in the high half
//   X.weight.quant_map                       f32 [16], what the four bits mean
//   X.weight.absmax                          f32 [blocks], a factor to each "blocksize" elements
//   X.weight.quant_state.bitsandbytes__nf4   JSON: blocksize, shape, ...
//
//   double quantization: absmax is uint8, and
//   absmax = nested_quant_map[absmax] * nested_absmax[b / nested_blocksize] + nested_offset
//
// Eight bits: X.weight int8 [N, K]; X.SCB f32 [N]; w = value * SCB / 127.
#include <array>
#include <cmath>
#include <optional>

#include "io/file/printable.h"
#include "weights/published/family.h"
#include "weights/published/parts.h"

namespace celer::published {
namespace {

struct QuantState {
  int64_t block = 64, rows = 0, cols = 0;
  bool nested = false;
  int64_t nested_block = 256;
  float nested_offset = 0;
};

Result<QuantState> ReadState(const Parts& parts, const TensorRecord& record) {
  const std::string where = parts.path() + ": tensor '" + Printable(record.name) + "'";
  const std::string_view text(reinterpret_cast<const char*>(record.bytes.data()), record.bytes.size());
  CELER_ASSIGN(const nlohmann::json json, ParseJson(text, where, {.max_bytes = 65536, .max_depth = 8}));
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, where));
  QuantState out;
  CELER_ASSIGN(out.block, fields.GetInt("blocksize", 1, int64_t{1} << 24));
  CELER_ASSIGN(const std::vector<int64_t> shape, fields.GetInts("shape"));
  if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > (int64_t{1} << 30) ||
      shape[1] > (int64_t{1} << 30))
    return Error::Corrupt(where, ": 'shape' is not that of a matrix");
  out.rows = shape[0];
  out.cols = shape[1];
  out.nested = fields.Has("nested_blocksize");
  if (out.nested) {
    CELER_ASSIGN(out.nested_block, fields.GetInt("nested_blocksize", 1, int64_t{1} << 24));
    CELER_ASSIGN(const double offset, fields.GetDouble("nested_offset"));
    out.nested_offset = static_cast<float>(offset);
  }
  return out;
}

class FourBitMatrix final : public Matrix {
 public:
  FourBitMatrix(const QuantState& state, const TensorRecord& values, const TensorRecord& absmax,
                const TensorRecord& map, const TensorRecord* nested_absmax, const TensorRecord* nested_map)
      : state_(state),
        values_(values),
        absmax_(absmax),
        nested_absmax_(nested_absmax),
        nested_map_(nested_map) {
    rows = state.rows;
    cols = state.cols;
    parts = {&values, &absmax, &map};
    if (nested_absmax) parts.insert(parts.end(), {nested_absmax, nested_map});
    for (size_t i = 0; i < map_.size(); ++i) map_[i] = At<float>(map, static_cast<int64_t>(i));
    note = "its sixteen levels are not evenly spaced";
  }

  void Floats(int64_t row, float* out) const override {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = row * cols + c;
      const auto pair = At<uint8_t>(values_, i / 2);
      out[c] = map_[i % 2 == 0 ? pair >> 4 : pair & 15] * Factor(i / state_.block);
    }
  }

  Status CheckScales(const std::string& path) const override {
    for (int64_t b = 0; b < absmax_.shape.elements().value_or(0); ++b)
      if (const float factor = Factor(b); !std::isfinite(factor))
        return BadScale(path, nested_absmax_ ? nested_absmax_->name : absmax_.name, b * state_.block / cols,
                        b, factor);
    return {};
  }

 private:
  float Factor(int64_t block) const {
    if (!nested_absmax_) return At<float>(absmax_, block);
    // Volatile, so that the product is rounded before the sum, as the writer does it, and not fused with it.
    const volatile float product = At<float>(*nested_map_, At<uint8_t>(absmax_, block)) *
                                   At<float>(*nested_absmax_, block / state_.nested_block);
    return product + state_.nested_offset;
  }

  QuantState state_;
  const TensorRecord &values_, &absmax_;
  const TensorRecord *nested_absmax_, *nested_map_;
  std::array<float, 16> map_ = {};
};

Result<std::unique_ptr<Matrix>> ReadFourBits(const Parts& parts, const TensorRecord& state_record,
                                             std::string_view type) {
  CELER_ASSIGN(const QuantState state, ReadState(parts, state_record));
  const TensorRecord& values = parts.first();
  const int64_t elements = state.rows * state.cols, blocks = (elements + state.block - 1) / state.block;
  if (values.dtype != DType::kU8 || values.shape.elements() != (elements + 1) / 2)
    return parts.Wrong("has type ", Name(values.dtype), " and shape ", values.shape.ToString(), ", expected ",
                       (elements + 1) / 2, " bytes for ", state.rows, " x ", state.cols);
  const std::string because = fmt::format("{} elements in blocks of {}", elements, state.block);
  CELER_ASSIGN(const TensorRecord* map, parts.Need(".quant_map", {DType::kF32}, {16}, "four bits"));
  CELER_ASSIGN(const TensorRecord* absmax,
               parts.Need(".absmax", {state.nested ? DType::kU8 : DType::kF32}, {blocks}, because));
  const TensorRecord *nested_absmax = nullptr, *nested_map = nullptr;
  if (state.nested) {
    CELER_ASSIGN(nested_map, parts.Need(".nested_quant_map", {DType::kF32}, {256}, "eight bits"));
    CELER_ASSIGN(nested_absmax,
                 parts.Need(".nested_absmax", {DType::kF32},
                            {(blocks + state.nested_block - 1) / state.nested_block}, because));
  }
  std::unique_ptr<Matrix> out =
      std::make_unique<FourBitMatrix>(state, values, *absmax, *map, nested_absmax, nested_map);
  out->parts.push_back(&state_record);
  out->name = parts.prefix();
  out->scheme = fmt::format("bitsandbytes {}{}", type, state.nested ? " double" : "");
  return out;
}

class EightBitMatrix final : public Matrix {
 public:
  EightBitMatrix(const TensorRecord& values, const TensorRecord& scb) : values_(values), scb_(scb) {
    rows = values.shape[0];
    cols = values.shape[1];
    group = cols;
    low = -128;
    high = 127;
    parts = {&values, &scb};
  }
  void Integers(int64_t row, int16_t* q) const override {
    for (int64_t c = 0; c < cols; ++c) q[c] = At<int8_t>(values_, row * cols + c);
  }
  void Groups(int64_t row, float* scales, int16_t* zeros) const override {
    scales[0] = At<float>(scb_, row) / 127.0f;
    zeros[0] = 0;
  }

 private:
  const TensorRecord &values_, &scb_;
};

Result<std::unique_ptr<Matrix>> ReadEightBits(const Parts& parts) {
  CELER_RETURN_IF_ERROR(parts.CheckFirst({DType::kI8}, 2));
  const TensorRecord& values = parts.first();
  CELER_ASSIGN(const TensorRecord* scb,
               parts.Need(".SCB", {DType::kF32}, {values.shape[0]}, "one factor to a row"));
  std::unique_ptr<Matrix> out = std::make_unique<EightBitMatrix>(values, *scb);
  out->name = values.name;
  out->scheme = "bitsandbytes int8";
  if (const TensorRecord* order = parts.Find(".weight_format")) {
    if (order->bytes.size() != 1 || At<uint8_t>(*order, 0) != 0)
      return Error::Unsupported(parts.path(), ": tensor '", Printable(order->name),
                                "': the values are in the order of one GPU's tiles; only rows are supported");
    out->parts.push_back(order);
  }
  return out;
}

}  // namespace

Result<std::string> DescribeBitsAndBytes(const JsonFields& config) {
  CELER_ASSIGN(const bool eight, config.GetBool("load_in_8bit", false));
  if (eight) return std::string("bitsandbytes int8");
  CELER_ASSIGN(const std::string type, config.GetString("bnb_4bit_quant_type", "fp4"));
  CELER_ASSIGN(const bool nested, config.GetBool("bnb_4bit_use_double_quant", false));
  if (type != "nf4" && type != "fp4")
    return Error::Unsupported(config.where(), ": 'bnb_4bit_quant_type' is '", Printable(type),
                              "'; nf4 and fp4 are read");
  CELER_ASSIGN(const std::string storage, config.GetString("bnb_4bit_quant_storage", "uint8"));
  if (storage != "uint8")
    return Error::Unsupported(config.where(), ": 'bnb_4bit_quant_storage' is '", Printable(storage),
                              "'; uint8 is read");
  return fmt::format("bitsandbytes {}{}", type, nested ? ", double quantization" : "");
}

Result<Matrices> ReadBitsAndBytes(const JsonFields&, const TensorSource& file) {
  Matrices out;
  for (const TensorRecord& record : file.tensors()) {
    if (!record.name.ends_with(".weight")) continue;
    bool found = false;
    for (const std::string_view type : {"nf4", "fp4"}) {
      const Parts parts(file, record, "");
      const TensorRecord* state = parts.Find(fmt::format(".quant_state.bitsandbytes__{}", type));
      if (!state) continue;
      CELER_ASSIGN(auto matrix, ReadFourBits(parts, *state, type));
      out.push_back(std::move(matrix));
      found = true;
    }
    if (found || record.dtype != DType::kI8) {
      if (!found && record.dtype == DType::kU8)
        return Error::Corrupt(file.path(), ": tensor '", Printable(record.name),
                              "' has packed values and no '.quant_state.bitsandbytes__nf4' beside it");
      continue;
    }
    CELER_ASSIGN(auto matrix, ReadEightBits(Parts(file, record, ".weight")));
    out.push_back(std::move(matrix));
  }
  return out;
}

}  // namespace celer::published
