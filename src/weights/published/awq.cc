// AWQ in the "gemm" packing, as AutoAWQ and auto-round write it. N outputs, K inputs, G groups:
//
//   X.qweight  int32 [K, N / 8]  eight outputs to a word
//   X.qzeros   int32 [G, N / 8]  likewise
//   X.scales   f16   [G, N]
//
//   w[n, k] = (q - zero[g, n]) * scale[g, n]
//
// Output j of eight stands in the four bits number kPlace[j].
#include <array>

#include "io/file/printable.h"
#include "weights/published/family.h"
#include "weights/published/parts.h"

namespace celer::published {
namespace {

constexpr std::array<int, 8> kPlace = {0, 4, 1, 5, 2, 6, 3, 7};

struct AwqConfig {
  int64_t group = 128;  // 0: a whole row
  bool zero_point = true;
};

Result<AwqConfig> ReadConfig(const JsonFields& config) {
  AwqConfig out;
  CELER_ASSIGN(int64_t bits, config.GetInt("w_bit", 1, 32, 4));
  CELER_ASSIGN(bits, config.GetInt("bits", 1, 32, bits));
  if (bits != 4) return Error::Unsupported(config.where(), ": 'bits' is ", bits, "; AWQ is read with 4");
  CELER_ASSIGN(std::string version, config.GetString("version", "gemm"));
  for (char& c : version) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (version != "gemm")
    return Error::Unsupported(config.where(), ": AWQ's packing '", Printable(version),
                              "' is not supported; 'gemm' is");
  CELER_ASSIGN(int64_t group, GroupSize(config, "q_group_size"));
  if (config.Has("group_size")) {
    CELER_ASSIGN(group, GroupSize(config, "group_size"));
  }
  out.group = group;
  CELER_ASSIGN(out.zero_point, config.GetBool("zero_point", true));
  if (const auto* value = config.Find("extra_config"); value && !value->empty())
    return Error::Unsupported(
        config.where(), ": 'extra_config' gives some layers a scheme of their own, which is not supported");
  return out;
}

class AwqMatrix final : public Matrix {
 public:
  AwqMatrix(const TensorRecord& values, const TensorRecord& scales, const TensorRecord* zeros)
      : values_(values), scales_(scales), zeros_(zeros) {
    rows = values.shape[1] * 8;
    cols = values.shape[0];
    parts = {&values, &scales};
    if (zeros) parts.push_back(zeros);
    low = 0;
    high = 15;
  }

  void Integers(int64_t row, int16_t* q) const override {
    for (int64_t k = 0; k < cols; ++k) q[k] = Nibble(values_, k, row);
  }
  void Groups(int64_t row, float* scales, int16_t* zeros) const override {
    for (int64_t g = 0; g < scales_.shape[0]; ++g) {
      scales[g] = ScaleAt(scales_, g * rows + row);
      zeros[g] = zeros_ ? Nibble(*zeros_, g, row) : int16_t{8};
    }
  }

 private:
  int16_t Nibble(const TensorRecord& record, int64_t line, int64_t row) const {
    const auto word = At<uint32_t>(record, line * (rows / 8) + row / 8);
    return static_cast<int16_t>(word >> (4 * kPlace[row % 8]) & 15);
  }

  const TensorRecord &values_, &scales_;
  const TensorRecord* zeros_;  // none: 8 everywhere
};

Result<std::unique_ptr<Matrix>> ReadOne(const AwqConfig& config, const Parts& parts) {
  const TensorRecord& values = parts.first();
  CELER_RETURN_IF_ERROR(parts.CheckFirst({DType::kI32}, 2));
  const int64_t n = values.shape[1] * 8, k = values.shape[0], group = config.group > 0 ? config.group : k;
  const int64_t groups = (k + group - 1) / group;
  const std::string because =
      config.group > 0 ? fmt::format("'group_size' is {} and there are {} columns", config.group, k)
                       : fmt::format("'group_size' is -1, one group for the {} columns", k);
  CELER_ASSIGN(const TensorRecord* scales, parts.Need(".scales", kScaleTypes, {groups, n}, because));
  const TensorRecord* zeros = nullptr;
  if (config.zero_point || parts.Find(".qzeros")) {
    CELER_ASSIGN(zeros, parts.Need(".qzeros", {DType::kI32}, {groups, n / 8}, because));
  }
  auto out = std::make_unique<AwqMatrix>(values, *scales, zeros);
  out->name = parts.prefix() + ".weight";
  out->scheme = fmt::format("awq int4{}", config.group > 0 ? fmt::format("-g{}", config.group) : "");
  out->group = group;
  return std::unique_ptr<Matrix>(std::move(out));
}

}  // namespace

Result<std::string> DescribeAwq(const JsonFields& json) {
  CELER_ASSIGN(const AwqConfig config, ReadConfig(json));
  return fmt::format("AWQ, 4 bits, {}, {}",
                     config.group > 0 ? fmt::format("groups of {}", config.group) : "a scale to a row",
                     config.zero_point ? "asymmetric" : "symmetric");
}

Result<Matrices> ReadAwq(const JsonFields& json, const TensorSource& file) {
  CELER_ASSIGN(const AwqConfig config, ReadConfig(json));
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
