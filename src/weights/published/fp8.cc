// fp8 E4M3 with scales beside it:
//
//   X.weight            fp8 [N, K]
//   X.weight_scale_inv  [ceil(N / 128), ceil(K / 128)]  "weight_block_size", as DeepSeek and Qwen3 publish;
//                                                       E8M0 or f32
//   X.weight_scale      [1], [N] or [N, 1]              per tensor, or per row
//
//   w = value * scale, also where the scale is called an inverse.
#include "io/file/printable.h"
#include "weights/published/family.h"
#include "weights/published/scaled.h"

namespace celer::published {
namespace {

struct Block {
  int64_t rows = 0, cols = 0;  // 0: no blocks
};

Result<Block> ReadConfig(const JsonFields& config) {
  CELER_ASSIGN(const std::string format, config.GetString("fmt", "e4m3"));
  if (format != "e4m3")
    return Error::Unsupported(config.where(), ": 'fmt' is '", Printable(format), "'; fp8 is read as e4m3");
  Block out;
  if (!config.Has("weight_block_size")) return out;
  CELER_ASSIGN(const std::vector<int64_t> size, config.GetInts("weight_block_size"));
  if (size.size() != 2 || size[0] < 1 || size[1] < 1 || size[0] > (1 << 24) || size[1] > (1 << 24))
    return Error::Corrupt(config.where(), ": 'weight_block_size' is not two numbers");
  return Block{size[0], size[1]};
}

}  // namespace

Result<std::string> DescribeFp8(const JsonFields& config) {
  CELER_ASSIGN(const Block block, ReadConfig(config));
  return block.rows > 0 ? fmt::format("fp8 e4m3, blocks of {} x {}", block.rows, block.cols)
                        : std::string("fp8 e4m3");
}

Result<Matrices> ReadFp8(const JsonFields& config, const TensorSource& file) {
  CELER_ASSIGN(const Block block, ReadConfig(config));
  constexpr std::string_view kWeight = ".weight";
  Matrices out;
  for (const TensorRecord& record : file.tensors()) {
    if (!record.name.ends_with(kWeight) || record.dtype != DType::kFp8E4M3) continue;
    const Parts parts(file, record, kWeight);
    CELER_RETURN_IF_ERROR(parts.CheckFirst({DType::kFp8E4M3}, 2));
    const char* const suffix = parts.Find(".weight_scale_inv") ? ".weight_scale_inv" : ".weight_scale";
    CELER_ASSIGN(const TensorRecord* scales,
                 parts.Need(suffix, {DType::kF32, DType::kF16, DType::kBf16, DType::kFp8E8M0}));
    CELER_ASSIGN(const ScaleTable table,
                 ReadScaleTable(parts, *scales, record.shape[0], record.shape[1], block.rows, block.cols));
    auto matrix = MakeFp8(parts, table);
    matrix->name = record.name;
    matrix->scheme = block.rows > 0 ? fmt::format("fp8 in blocks of {} x {}", block.rows, block.cols)
                     : scales->shape.elements() == 1 ? "fp8 with one scale"
                                                     : "fp8 with a scale to a row";
    out.push_back(std::move(matrix));
  }
  return out;
}

}  // namespace celer::published
