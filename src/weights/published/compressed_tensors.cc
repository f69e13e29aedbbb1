// compressed-tensors, as llm-compressor writes it. N outputs, K inputs, G groups, b bits:
//
//   pack-quantized   X.weight_packed int32 [N, K * b / 32], lowest k in the lowest bits, stored + 2^(b-1);
//                    X.weight_scale [N, G]; X.weight_shape int64 [2]; asymmetric: X.weight_zero_point int32
//                    [N * b / 32, G], packed along N; act-order of older writers: X.weight_g_idx int32 [K]
//   int-quantized    X.weight int8 [N, K]; X.weight_scale [N, 1], [1] or [N, G]; X.weight_zero_point likewise
//   float-quantized  X.weight fp8 E4M3 [N, K]; X.weight_scale the same, or a table of blocks
//   mxfp4            X.weight_packed uint8 [N, K / 2]; X.weight_scale uint8 [N, K / 32], powers of two
//   nvfp4            the same with X.weight_scale fp8 E4M3 [N, K / 16], divided by X.weight_global_scale [1]
//
// Widths that do not divide 32 go on from one word into the next; writers before 0.10 left the rest of a word
// empty. The number of words tells which.
#include <algorithm>
#include <optional>

#include "io/file/printable.h"
#include "weights/published/family.h"
#include "weights/published/scaled.h"

namespace celer::published {
namespace {

// One of "config_groups".
struct Group {
  int bits = 4;
  bool floats = false;
  int64_t group = 0;                       // columns that share a scale; 0: the strategy has no groups
  int64_t block_rows = 0, block_cols = 0;  // strategy "block"
  bool symmetric = true, act_order = false;
  std::string format = {};

  std::string Name() const {
    std::string out = fmt::format("{}{}", floats ? (bits == 4 ? "fp" : "fp") : "int", bits);
    if (floats && bits == 4) out = group == 16 ? "nvfp4" : "mxfp4";
    if (group > 0) out += fmt::format("-g{}", group);
    if (block_rows > 0) out += fmt::format(" in blocks of {} x {}", block_rows, block_cols);
    return out;
  }
};

Result<Group> ReadGroup(const JsonFields& json, const JsonFields& weights, const std::string& format) {
  Group out;
  CELER_ASSIGN(out.format, json.GetString("format", format));
  CELER_ASSIGN(const int64_t bits, weights.GetInt("num_bits", 1, 64, 8));
  out.bits = static_cast<int>(bits);
  CELER_ASSIGN(const std::string type, weights.GetString("type", "int"));
  out.floats = type == "float";
  CELER_ASSIGN(out.symmetric, weights.GetBool("symmetric", true));
  if (const auto* order = weights.Find("actorder"))
    out.act_order = order->is_string() ? *order == "group" : *order == true;
  CELER_ASSIGN(const std::string strategy, weights.GetString("strategy", "tensor"));
  if (strategy == "group" || strategy == "tensor_group") {
    CELER_ASSIGN(out.group, weights.GetInt("group_size", 1, int64_t{1} << 24));
  } else if (strategy == "block") {
    CELER_ASSIGN(const std::vector<int64_t> block, weights.GetInts("block_structure"));
    if (block.size() != 2 || block[0] < 1 || block[1] < 1)
      return Error::Corrupt(weights.where(), ": 'block_structure' is not two numbers");
    out.block_rows = block[0];
    out.block_cols = block[1];
  } else if (strategy != "tensor" && strategy != "channel") {
    return Error::Unsupported(weights.where(), ": strategy '", Printable(strategy),
                              "' is not supported; tensor, channel, group, tensor_group and block are");
  }
  const bool known = out.floats ? bits == 8 || bits == 4 : bits >= 2 && bits <= 8;
  if (!known || (type != "int" && type != "float"))
    return Error::Unsupported(weights.where(), ": weights of the type '", Printable(type), "' with ", bits,
                              " bits are not supported; int with 2 to 8 and float with 4 or 8 are");
  return out;
}

Result<std::vector<Group>> ReadGroups(const JsonFields& config) {
  CELER_ASSIGN(const std::string format, config.GetString("format", "dense"));
  if (const auto* sparse = config.Find("sparsity_config"); sparse && sparse->is_object()) {
    const auto found = sparse->find("format");
    if (found != sparse->end() && *found != "dense")
      return Error::Unsupported(config.where(), ": sparse weights ('sparsity_config') are not supported");
  }
  if (const auto* transform = config.Find("transform_config"); transform && !transform->empty())
    return Error::Unsupported(config.where(), ": rotated weights ('transform_config') are not supported");
  CELER_ASSIGN(const JsonFields groups, config.GetObject("config_groups"));
  std::vector<Group> out;
  for (const auto& [key, value] : groups.json().items()) {
    const std::string where = config.where() + ": '" + Printable(key) + "'";
    if (value.is_string())
      return Error::Unsupported(where, " is the preset '", Printable(value.get<std::string>()),
                                "', which is not written out");
    CELER_ASSIGN(const JsonFields json, JsonFields::Of(value, where));
    if (!json.Has("weights")) continue;  // activations alone
    CELER_ASSIGN(const JsonFields weights, json.GetObject("weights"));
    CELER_ASSIGN(Group group, ReadGroup(json, weights, format));
    out.push_back(std::move(group));
  }
  return out;
}

class PackedMatrix final : public Matrix {
 public:
  PackedMatrix(const TensorRecord& values, int64_t n, int64_t k, int bits, bool padded,
               const ScaleTable& scales, const TensorRecord* zeros)
      : bits_(bits), padded_(padded), values_(values), scales_(scales), zeros_(zeros) {
    rows = n;
    cols = k;
    group = scales.block_cols;
    low = -(1 << (bits - 1));
    high = -low - 1;
    parts = {&values, scales.record};
    if (zeros) parts.push_back(zeros);
  }

  void Integers(int64_t row, int16_t* q) const override {
    const int64_t words = values_.shape[1];
    const auto word = [&](int64_t i) { return At<uint32_t>(values_, row * words + i); };
    for (int64_t k = 0; k < cols; ++k) q[k] = Field(word, k);
  }
  void Groups(int64_t row, float* scales, int16_t* zeros) const override {
    for (int64_t g = 0; g < groups(); ++g) {
      scales[g] = scales_.At(row, g);
      zeros[g] = 0;
      if (zeros_ && zeros_->dtype == DType::kI8) {
        zeros[g] = At<int8_t>(*zeros_, row * groups() + g);
      } else if (zeros_) {
        const auto word = [&](int64_t i) { return At<uint32_t>(*zeros_, i * groups() + g); };
        zeros[g] = Field(word, row);
      }
    }
  }

 private:
  template <class Word>
  int16_t Field(const Word& word, int64_t i) const {
    const int per_word = 32 / bits_;
    const uint32_t field =
        padded_ ? word(i / per_word) >> (i % per_word * bits_) & ((1u << bits_) - 1) : BitsAt(word, i, bits_);
    return static_cast<int16_t>(static_cast<int>(field) + low);
  }

  int bits_;
  bool padded_;
  const TensorRecord& values_;
  ScaleTable scales_;
  const TensorRecord* zeros_;
};

int64_t Words(int64_t fields, int bits, bool padded) {
  const int per_word = 32 / bits;
  return padded ? (fields + per_word - 1) / per_word : (fields * bits + 31) / 32;
}

Result<std::unique_ptr<Matrix>> ReadPacked(const Group& group, const Parts& parts, int64_t n, int64_t k) {
  const bool padded = parts.first().shape[1] != Words(k, group.bits, false);
  CELER_ASSIGN(const TensorRecord* scales, parts.Need(".weight_scale", kScaleTypes));
  CELER_ASSIGN(const ScaleTable table,
               ReadScaleTable(parts, *scales, n, k, group.block_rows,
                              group.block_rows > 0 ? group.block_cols : std::min(group.group, k)));
  const TensorRecord* zeros = nullptr;
  if (!group.symmetric) {
    CELER_ASSIGN(zeros, parts.Need(".weight_zero_point", {DType::kI32, DType::kI8}));
    const int64_t groups = (k + table.block_cols - 1) / table.block_cols;
    const Shape expected = {zeros->dtype == DType::kI8 ? n : Words(n, group.bits, padded), groups};
    if (zeros->shape != expected || table.block_rows != 1)
      return Error::Corrupt(parts.path(), ": tensor '", Printable(zeros->name), "' has shape ",
                            zeros->shape.ToString(), ", expected ", expected.ToString());
  }
  auto out = std::make_unique<PackedMatrix>(parts.first(), n, k, group.bits, padded, table, zeros);
  CELER_RETURN_IF_ERROR(ReadOrder(parts, ".weight_g_idx", group.act_order, out.get()));
  return std::unique_ptr<Matrix>(std::move(out));
}

// "weight_shape", which tells how many columns the words hold.
Result<std::pair<int64_t, int64_t>> ReadShape(const Parts& parts) {
  CELER_ASSIGN(const TensorRecord* shape, parts.Need(".weight_shape", {DType::kI64, DType::kI32}, {2},
                                                     "the numbers of rows and columns"));
  const auto at = [&](int64_t i) {
    return shape->dtype == DType::kI64 ? At<int64_t>(*shape, i) : int64_t{At<int32_t>(*shape, i)};
  };
  const int64_t n = at(0), k = at(1);
  if (n != parts.first().shape[0] || k < 1 || k > int64_t{1} << 40)
    return parts.Wrong("shape ", parts.first().shape.ToString(), " does not hold the ", n, " x ", k, " of '",
                       Printable(shape->name), "'");
  return std::pair(n, k);
}

Result<std::unique_ptr<Matrix>> ReadIntegers(std::span<const Group> groups, const Parts& parts) {
  CELER_ASSIGN(const auto shape, ReadShape(parts));
  const auto [n, k] = shape;
  const int64_t words = parts.first().shape[1];
  for (const Group& group : groups) {
    if (group.floats || (Words(k, group.bits, false) != words && Words(k, group.bits, true) != words))
      continue;
    // Where groups of one width differ in more than that, the scales tell.
    auto matrix = ReadPacked(group, parts, n, k);
    if (!matrix && &group != &groups.back()) continue;
    if (matrix) (*matrix)->scheme = group.Name() + (group.symmetric ? "" : " asymmetric") + (*matrix)->scheme;
    return matrix;
  }
  return parts.Wrong("shape ", parts.first().shape.ToString(), " holds ", n, " x ", k,
                     " integers of no width that 'config_groups' has");
}

Result<std::unique_ptr<Matrix>> ReadFp4(const Parts& parts) {
  const int64_t n = parts.first().shape[0], k = parts.first().shape[1] * 2;
  CELER_ASSIGN(const TensorRecord* any, parts.Need(".weight_scale", {DType::kU8, DType::kFp8E4M3}));
  const int64_t group = any->dtype == DType::kU8 ? 32 : 16;
  CELER_ASSIGN(const TensorRecord* scales,
               parts.Need(".weight_scale", {any->dtype}, {n, (k + group - 1) / group},
                          fmt::format("a scale to {} of {} columns", group, k)));
  const TensorRecord* global = nullptr;
  if (group == 16) {
    CELER_ASSIGN(global, parts.Need(".weight_global_scale", {DType::kF32}));
    if (global->shape.elements() != 1)
      return parts.Wrong("'", Printable(global->name), "' has shape ", global->shape.ToString(),
                         ", expected [1]");
  }
  auto out = MakeFp4(parts, n, k, *scales, group, global);
  out->scheme = group == 32 ? "mxfp4" : "nvfp4";
  return out;
}

// "weight", int8 or fp8.
Result<std::unique_ptr<Matrix>> ReadPlain(std::span<const Group> groups, const Parts& parts) {
  CELER_RETURN_IF_ERROR(parts.CheckFirst({DType::kI8, DType::kFp8E4M3}, 2));
  const TensorRecord& values = parts.first();
  const bool floats = values.dtype == DType::kFp8E4M3;
  CELER_ASSIGN(const TensorRecord* scales, parts.Need(".weight_scale", kScaleTypes));
  const auto fits = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
    return group.bits == 8 && group.floats == floats;
  });
  if (fits == groups.end())
    return parts.Wrong("has type ", Name(values.dtype), ", and 'config_groups' has no such weights");
  CELER_ASSIGN(const ScaleTable table,
               ReadScaleTable(parts, *scales, values.shape[0], values.shape[1], fits->block_rows,
                              fits->block_rows > 0 ? fits->block_cols : fits->group));
  const TensorRecord* zeros = nullptr;
  if (!floats && !fits->symmetric) {
    CELER_ASSIGN(zeros, parts.Need(".weight_zero_point", {DType::kI8}, scales->shape,
                                   "one to a scale, which has that shape"));
  }
  auto out = floats ? MakeFp8(parts, table) : MakeInt8(parts, table, zeros);
  out->scheme = fits->Name();
  return out;
}

}  // namespace

Result<std::string> DescribeCompressedTensors(const JsonFields& config) {
  CELER_ASSIGN(const std::vector<Group> groups, ReadGroups(config));
  std::string out = "compressed-tensors";
  for (const Group& group : groups)
    out += fmt::format(", {} ({}{})", group.Name(), Printable(group.format),
                       group.symmetric ? "" : ", asymmetric");
  return out;
}

Result<Matrices> ReadCompressedTensors(const JsonFields& config, const TensorSource& file) {
  CELER_ASSIGN(const std::vector<Group> groups, ReadGroups(config));
  constexpr std::string_view kPacked = ".weight_packed", kWeight = ".weight";
  Matrices out;
  for (const TensorRecord& record : file.tensors()) {
    const bool packed = record.name.ends_with(kPacked);
    if (!packed && !(record.name.ends_with(kWeight) && file.Find(record.name + "_scale"))) continue;
    const Parts parts(file, record, packed ? kPacked : kWeight);
    if (packed) CELER_RETURN_IF_ERROR(parts.CheckFirst({DType::kI32, DType::kU8}, 2));
    CELER_ASSIGN(auto matrix, !packed                       ? ReadPlain(groups, parts)
                              : record.dtype == DType::kI32 ? ReadIntegers(groups, parts)
                                                            : ReadFp4(parts));
    matrix->name = parts.prefix() + ".weight";
    matrix->scheme = "compressed-tensors " + matrix->scheme;
    if (const TensorRecord* shape = parts.Find(".weight_shape")) matrix->parts.push_back(shape);
    out.push_back(std::move(matrix));
  }
  return out;
}

}  // namespace celer::published
