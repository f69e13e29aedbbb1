// Rows and columns of one model in the order of Hugging Face files, and in that of files whose converters move them.
#pragma once

#include <cstdint>
#include <vector>

#include "models/lora/places.h"

namespace celer {

// Row i of the model's matrix is row order[i] of an adapter's, with `gguf` one in llama.cpp's order; empty if they are
// the same.
std::vector<int32_t> RowOrder(const DecoderConfig& config, const PlacedMatrix& at, bool gguf);
std::vector<int32_t> ColumnOrder(const DecoderConfig& config, const PlacedMatrix& at, bool gguf);

// Row i of q or k with heads of `dim` rows in llama.cpp's order is row [i] of Hugging Face's.
std::vector<int32_t> InterleavedRows(int64_t rows, int64_t dim);
// The same of what the value heads of recurrent layers have a row or several each of.
std::vector<int32_t> TiledRows(const RecurrentConfig& config, int64_t rows);
// Whether the family's converter tiles them.
bool TilesInGguf(const DecoderConfig& config);

}  // namespace celer
