#include "models/lora/row_order.h"

#include <algorithm>
#include <string_view>

namespace celer {
namespace {

// Families whose rows of q and k llama.cpp's converters (and llama2.c's) reorder, so that neighbours rotate together.
constexpr std::string_view kReordered[] = {
    "llama",   "mistral",    "mixtral",          "minicpm", "smollm3",          "ministral3",
    "granite", "granitemoe", "granitemoeshared", "bamba",   "granitemoehybrid",
};
// Families whose value heads they take from groups, one for each key head, into tiles.
constexpr std::string_view kTiled[] = {"qwen3_5_text", "qwen3_5_moe_text"};

template <size_t n>
bool IsOneOf(const std::string_view (&names)[n], const std::string& family) {
  return std::find(std::begin(names), std::end(names), family) != std::end(names);
}

// Of heads of `dim` rows: halves to neighbours, or back.
std::vector<int32_t> Interleave(int64_t rows, int64_t dim, bool model_interleaved) {
  std::vector<int32_t> order(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / dim * dim, i = row % dim, half = dim / 2;
    order[row] =
        static_cast<int32_t>(head + (model_interleaved ? i % 2 * half + i / 2 : i % half * 2 + i / half));
  }
  return order;
}

std::vector<int32_t> Tile(const RecurrentConfig& r, int64_t rows, bool model_tiled) {
  const int64_t unit = rows / r.value_heads, groups = r.key_heads, each = r.value_heads / groups;
  std::vector<int32_t> order(static_cast<size_t>(rows));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / unit;
    const int64_t other =
        model_tiled ? head % groups * each + head / groups : head % each * groups + head / each;
    order[row] = static_cast<int32_t>(other * unit + row % unit);
  }
  return order;
}

bool TilesDiffer(const DecoderConfig& c, bool gguf) {
  return TilesInGguf(c) && c.recurrent.tiled_values != gguf;
}

}  // namespace

std::vector<int32_t> InterleavedRows(int64_t rows, int64_t dim) {
  return Interleave(rows, dim, /*model_interleaved=*/true);
}

std::vector<int32_t> TiledRows(const RecurrentConfig& config, int64_t rows) {
  return Tile(config, rows, /*model_tiled=*/true);
}

bool TilesInGguf(const DecoderConfig& config) {
  return IsOneOf(kTiled, config.family);
}

std::vector<int32_t> RowOrder(const DecoderConfig& c, const PlacedMatrix& at, bool gguf) {
  switch (at.place.part) {
    case LoraPart::kQ:
    case LoraPart::kK: {
      const bool interleaved = c.rope.layout == RopeLayout::kInterleaved;
      if (interleaved == gguf || !IsOneOf(kReordered, c.family)) return {};
      return Interleave(at.rows, c.HeadDim(at.place.layer), interleaved);
    }
    case LoraPart::kStateV:
    case LoraPart::kStateZ:
    case LoraPart::kStateB:
    case LoraPart::kStateA:
      return TilesDiffer(c, gguf) ? Tile(c.recurrent, at.rows, !gguf) : std::vector<int32_t>();
    default:
      return {};
  }
}

std::vector<int32_t> ColumnOrder(const DecoderConfig& c, const PlacedMatrix& at, bool gguf) {
  if (at.place.part != LoraPart::kStateOut || !TilesDiffer(c, gguf)) return {};
  return Tile(c.recurrent, at.cols, !gguf);
}

}  // namespace celer
