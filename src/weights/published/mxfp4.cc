// MXFP4 as gpt-oss packs the experts of a layer, E of them, N rows, K columns:
//
//   X_blocks  uint8 [E, N, K / 32, 16]  fp4 E2M1, two to a byte, the even column in the low half
//   X_scales  uint8 [E, N, K / 32]      2^(value - 127) to 32 columns
#include "io/file/printable.h"
#include "weights/published/family.h"
#include "weights/published/scaled.h"

namespace celer::published {

Result<std::string> DescribeMxfp4(const JsonFields&) {
  return std::string("MXFP4, experts as blocks of 32");
}

Result<Matrices> ReadMxfp4(const JsonFields&, const TensorSource& file) {
  constexpr std::string_view kBlocks = "_blocks";
  Matrices out;
  for (const TensorRecord& record : file.tensors()) {
    if (!record.name.ends_with(kBlocks)) continue;
    const Parts parts(file, record, kBlocks);
    CELER_RETURN_IF_ERROR(parts.CheckFirst({DType::kU8}, 4));
    const Shape& shape = record.shape;
    if (shape[3] != 16)
      return parts.Wrong("has shape ", shape.ToString(), ", expected 16 bytes to a block of 32 columns");
    CELER_ASSIGN(const TensorRecord* scales,
                 parts.Need("_scales", {DType::kU8}, {shape[0], shape[1], shape[2]}, "one to a block"));
    auto matrix = MakeFp4(parts, shape[1], shape[2] * 32, *scales, 32, nullptr);
    matrix->count = shape[0];
    matrix->name = parts.prefix();
    matrix->scheme = "mxfp4";
    out.push_back(std::move(matrix));
  }
  return out;
}

}  // namespace celer::published
