// How rows of a matrix travel to a GPU: as the file has them where the GPU can repack them; blocks whose numbers need tables
// as int8 in groups, exactly; all others as f32.
#pragma once

#include <cstdint>

#include "formats/codec.h"
#include "kernels/llm/weight_view.h"

namespace celer {

struct SentRows {
  explicit SentRows(const WeightView& host);

  // Rows [row, row + rows) to `to` and, where there are any, their scales to `scales`.
  void Copy(const WeightView& host, int64_t row, int64_t rows, std::byte* to, std::byte* scales) const;

  const Codec* unpacked = nullptr;
  bool decoded = false;  // to f32
  DType dtype;           // of what is sent
  int64_t row_bytes = 0;
  int64_t group = 0;  // of scales; 0: there are none
  int64_t scale_row_bytes = 0;
};

}  // namespace celer
