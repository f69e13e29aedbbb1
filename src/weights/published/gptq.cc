// GPTQ, as AutoGPTQ, GPTQModel and auto-round write it. N outputs, K inputs, G groups, b bits:
//
//   X.qweight  int32 [K * b / 32, N]  integers 0 .. 2^b - 1, b bits each, lowest k in the lowest bits
//   X.qzeros   int32 [G, N * b / 32]  likewise along N; format "gptq" stores them less 1, "gptq_v2" as is
//   X.scales   f16   [G, N]
//   X.g_idx    int32 [K]              the group of each column; missing or k / group_size without act-order
//
//   w[n, k] = (q - zero[g, n]) * scale[g, n]
//
// Three-bit values may straddle two words.
#include <utility>

#include "io/file/printable.h"
#include "weights/published/family.h"
#include "weights/published/parts.h"

namespace celer::published {
namespace {

struct GptqConfig {
  int bits = 4;
  int64_t group = 128;  // 0: a whole row
  bool act_order = false, symmetric = true;
  bool zeros_minus_one = true;  // zeros: format "gptq"
};

Result<GptqConfig> ReadConfig(const JsonFields& config) {
  GptqConfig out;
  CELER_ASSIGN(const int64_t bits, config.GetInt("bits", 1, 32));
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
    return Error::Unsupported(config.where(), ": 'bits' is ", bits, "; GPTQ is read with 2, 3, 4 or 8");
  out.bits = static_cast<int>(bits);
  CELER_ASSIGN(out.group, GroupSize(config, "group_size"));
  CELER_ASSIGN(out.act_order, config.GetBool("desc_act", false));
  CELER_ASSIGN(out.symmetric, config.GetBool("sym", true));
  // auto-round writes none of the two, and what is "gptq" elsewhere.
  CELER_ASSIGN(std::string format, config.GetString("format", "gptq"));
  CELER_ASSIGN(format, config.GetString("checkpoint_format", format));
  if (format != "gptq" && format != "gptq_v2")
    return Error::Unsupported(config.where(), ": GPTQ's format '", Printable(format),
                              "' is not supported; 'gptq' and 'gptq_v2' are");
  out.zeros_minus_one = format == "gptq";
  for (const char* key : {"dynamic", "extra_config"})
    if (const auto* value = config.Find(key); value && !value->empty())
      return Error::Unsupported(config.where(), ": '", key,
                                "' gives some layers a scheme of their own, which is not supported");
  return out;
}

class GptqMatrix final : public Matrix {
 public:
  GptqMatrix(const GptqConfig& config, const TensorRecord& values, const TensorRecord& zeros,
             const TensorRecord& scales)
      : bits_(config.bits),
        zeros_minus_one_(config.zeros_minus_one),
        values_(values),
        zeros_(zeros),
        scales_(scales) {
    rows = values.shape[1];
    cols = values.shape[0] * 32 / config.bits;
    parts = {&values, &scales, &zeros};
    low = 0;
    high = (1 << bits_) - 1;
  }

  void Integers(int64_t row, int16_t* q) const override {
    const auto word = [&](int64_t i) { return At<uint32_t>(values_, i * rows + row); };
    for (int64_t k = 0; k < cols; ++k) q[k] = static_cast<int16_t>(BitsAt(word, k, bits_));
  }

  void Groups(int64_t row, float* scales, int16_t* zeros) const override {
    for (int64_t g = 0; g < scales_.shape[0]; ++g) {
      scales[g] = ScaleAt(scales_, g * rows + row);
      zeros[g] = Zero(g, row);
    }
  }

  // Whether all zeros are stored as `value`.
  bool StoredZerosAre(uint32_t value) const {
    for (int64_t g = 0; g < zeros_.shape[0]; ++g)
      for (int64_t n = 0; n < rows; ++n)
        if (StoredZero(g, n) != value) return false;
    return true;
  }
  void set_zeros_minus_one(bool zeros_minus_one) { zeros_minus_one_ = zeros_minus_one; }

 private:
  uint32_t StoredZero(int64_t g, int64_t n) const {
    const auto word = [&](int64_t i) { return At<uint32_t>(zeros_, g * zeros_.shape[1] + i); };
    return BitsAt(word, n, bits_);
  }
  int16_t Zero(int64_t g, int64_t n) const {
    if (!zeros_minus_one_) return static_cast<int16_t>(StoredZero(g, n));
    if (32 % bits_ != 0) return static_cast<int16_t>((StoredZero(g, n) + 1) & ((1u << bits_) - 1));
    // The writer subtracts 1 from every field of a word at once, so that a zero borrows from its neighbour.
    const uint32_t ones = ~0u / ((1u << bits_) - 1);
    const auto word = [&](int64_t i) { return At<uint32_t>(zeros_, g * zeros_.shape[1] + i) + ones; };
    return static_cast<int16_t>(BitsAt(word, n, bits_));
  }

  int bits_;
  bool zeros_minus_one_;
  const TensorRecord &values_, &zeros_, &scales_;
};

Result<std::unique_ptr<Matrix>> ReadOne(const GptqConfig& config, const Parts& parts) {
  const TensorRecord& values = parts.first();
  CELER_RETURN_IF_ERROR(parts.CheckFirst({DType::kI32}, 2));
  const int64_t n = values.shape[1], bits_of_column = values.shape[0] * 32;
  if (bits_of_column % config.bits != 0 || n * config.bits % 32 != 0)
    return parts.Wrong("shape ", values.shape.ToString(), " does not hold whole integers of ", config.bits,
                       " bits");
  const int64_t k = bits_of_column / config.bits, group = config.group > 0 ? config.group : k;
  const int64_t groups = (k + group - 1) / group;
  const std::string because =
      config.group > 0 ? fmt::format("'group_size' is {} and there are {} columns", config.group, k)
                       : fmt::format("'group_size' is -1, one group for the {} columns", k);
  CELER_ASSIGN(const TensorRecord* scales, parts.Need(".scales", kScaleTypes, {groups, n}, because));
  CELER_ASSIGN(const TensorRecord* zeros,
               parts.Need(".qzeros", {DType::kI32}, {groups, n * config.bits / 32}, because));
  auto out = std::make_unique<GptqMatrix>(config, values, *zeros, *scales);
  out->name = parts.prefix() + ".weight";
  out->scheme = fmt::format("gptq int{}{}{}", config.bits,
                            config.group > 0 ? fmt::format("-g{}", config.group) : std::string(),
                            config.symmetric ? "" : " asymmetric");
  out->group = group;
  if (config.act_order && config.group > 0 && !parts.Find(".g_idx"))
    return parts.Wrong("'desc_act' is true and there is no '", Printable(parts.prefix()), ".g_idx'");
  CELER_RETURN_IF_ERROR(ReadOrder(parts, ".g_idx", config.act_order, out.get()));
  // Some files say one format and hold the other: symmetric zeros tell which.
  if (const uint32_t middle = 1u << (config.bits - 1);
      config.symmetric && out->StoredZerosAre(config.zeros_minus_one ? middle : middle - 1)) {
    out->set_zeros_minus_one(!config.zeros_minus_one);
    out->warning = config.zeros_minus_one ? "says that it is 'gptq' and stores zeros as 'gptq_v2' does"
                                          : "says that it is 'gptq_v2' and stores zeros as 'gptq' does";
  }
  return std::unique_ptr<Matrix>(std::move(out));
}

}  // namespace

Result<std::string> DescribeGptq(const JsonFields& json) {
  CELER_ASSIGN(const GptqConfig config, ReadConfig(json));
  return fmt::format("GPTQ{}, {} bits, {}, {}{}", config.zeros_minus_one ? "" : " v2", config.bits,
                     config.group > 0 ? fmt::format("groups of {}", config.group) : "a scale to a row",
                     config.symmetric ? "symmetric" : "asymmetric", config.act_order ? ", act-order" : "");
}

Result<Matrices> ReadGptq(const JsonFields& json, const TensorSource& file) {
  CELER_ASSIGN(const GptqConfig config, ReadConfig(json));
  constexpr std::string_view kValues = ".qweight";
  Matrices out;
  for (const TensorRecord& record : file.tensors()) {
    if (!record.name.ends_with(kValues)) continue;
    CELER_ASSIGN(auto matrix, ReadOne(config, Parts(file, record, kValues)));
    out.push_back(std::move(matrix));
  }
  return out;
}

}  // namespace celer::published
