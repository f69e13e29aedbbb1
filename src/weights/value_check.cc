#include "weights/value_check.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/codec.h"
#include "formats/float16.h"
#include "formats/fp4/mxfp4.h"
#include "io/file/printable.h"

namespace celer {
namespace {

constexpr uint16_t kLargestHalf = 0x7bff;

// Without the sign, the bits of floats are in the order of their magnitudes; infinity and NaN are above all.
// No branches in the loops, so that they become vectors.
template <class Word>
bool WordsInRange(const std::byte* data, int64_t n, Word most) {
  constexpr auto kMagnitude = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
  Word over = 0;
  for (int64_t i = 0; i < n; ++i) {
    Word word;
    std::memcpy(&word, data + i * static_cast<int64_t>(sizeof word), sizeof word);
    over |= static_cast<Word>(static_cast<Word>(word & kMagnitude) > most);
  }
  return over == 0;
}
bool FloatsInRange(const void* data, int64_t n, float most) {
  return WordsInRange<uint32_t>(static_cast<const std::byte*>(data), n, std::bit_cast<uint32_t>(most));
}

// Of e4m3, whose only numbers that are none have all bits but the sign set.
bool NoFp8Nan(const std::byte* data, int64_t n) {
  return WordsInRange<uint8_t>(data, n, 0x7e);
}

// 12 times a block's scale, the largest value, is in range.
bool Mxfp4InRange(const std::byte* data, int64_t elements, float most) {
  int largest = 0;
  for (int64_t b = 0; b < elements / BlockMxfp4::kElements; ++b)
    largest = std::max(largest, static_cast<int>(data[b * sizeof(BlockMxfp4)]));
  return largest <= 127 + std::min(std::ilogb(most), 126) - 3;
}

bool BlocksInRange(const Codec& codec, const std::byte* data, int64_t elements, float most) {
  // One step less than rounding gives, in case it went up.
  const float scale = most / static_cast<float>(codec.reach);
  const int half = scale >= 65504.0f ? kLargestHalf : std::max(1, static_cast<int>(FloatToF16(scale))) - 1;
  return codec.largest_scale(data, elements / Info(codec.dtype).block) <= half;
}

}  // namespace

bool InRange(const float* row, int64_t n, const ValueRange& range) {
  return FloatsInRange(row, n, range.most);
}

bool SurelyInRange(const WeightView& w, int64_t begin, int64_t end, const ValueRange& range) {
  if (!w.contiguous()) {  // some columns of a larger matrix
    for (int64_t r = begin; r < end; ++r) {
      WeightView row = *w.SliceRows(r, 1);
      row.row_bytes = row.format().RowBytes(row.cols);
      row.scale_row_bytes = 0;
      if (!SurelyInRange(row, 0, 1, range)) return false;
    }
    return true;
  }
  if (w.kind == WeightView::Kind::kInt8)
    return FloatsInRange(w.RowScales(begin), (end - begin) * w.groups_per_row(), range.most / 128);
  if (w.kind == WeightView::Kind::kFp8)
    return FloatsInRange(w.RowScales(begin), (end - begin) * w.groups_per_row(), range.most / kFp8Largest) &&
           NoFp8Nan(w.Row(begin), (end - begin) * w.cols);
  if (w.kind != WeightView::Kind::kStored) return false;
  const std::byte* data = w.Row(begin);
  const int64_t n = (end - begin) * w.cols;
  const float most = range.most;
  switch (w.dtype) {
    case DType::kF32:
      return FloatsInRange(data, n, most);
    case DType::kF16:
      return WordsInRange<uint16_t>(data, n, kLargestHalf);
    case DType::kBf16:
      return WordsInRange<uint16_t>(data, n, static_cast<uint16_t>(std::bit_cast<uint32_t>(most) >> 16));
    case DType::kMxfp4:
      return Mxfp4InRange(data, n, most);
    default:
      const Codec* codec = FindCodec(w.dtype);
      return codec && codec->largest_scale && BlocksInRange(*codec, data, n, most);
  }
}

Status CheckRows(const WeightView& w, int64_t begin, int64_t end, const ValueRange& range) {
  std::vector<float> row(w.cols);
  for (int64_t r = begin; r < end; ++r) {
    DecodeWeightRow(w, r, row.data());
    if (InRange(row.data(), w.cols, range)) continue;
    const auto bad =
        std::find_if(row.begin(), row.end(), [&](float v) { return !(std::fabs(v) <= range.most); });
    const int64_t col = bad - row.begin();
    if (!std::isfinite(*bad))
      return Error::Corrupt("tensor '", Printable(w.name), "' holds ", *bad, " at row ", r, ", column ", col,
                            "; weights must be finite numbers: the file is damaged or its training went "
                            "astray, fetch it again");
    return Error::Unsupported("tensor '", Printable(w.name), "' holds ", *bad, " at row ", r, ", column ",
                              col, ", and ", range.holder, " holds at most ", range.most,
                              "; try `weights` f32 or int8");
  }
  return {};
}

Status CheckValues(const WeightView& w, const ValueRange& range, ThreadPool& pool) {
  constexpr int64_t kElements = 1 << 18;  // of a piece: tens of microseconds
  std::atomic<int64_t> first{w.rows};     // row that is not surely in range, of those that were looked at
  const int64_t rows = std::max<int64_t>(1, kElements / std::max<int64_t>(1, w.cols));
  pool.ParallelForDynamic(w.rows, rows, [&](int64_t begin, int64_t end) {
    if (begin >= first.load() || SurelyInRange(w, begin, end, range)) return;
    for (int64_t seen = first.load(); begin < seen && !first.compare_exchange_weak(seen, begin);) {
    }
  });
  return first == w.rows ? Status{} : CheckRows(w, first, w.rows, range);
}

Status CheckVector(std::string_view name, const float* values, int64_t n) {
  if (InRange(values, n, kAnyFinite)) return {};
  const float* bad = std::find_if(values, values + n, [](float v) { return !std::isfinite(v); });
  return Error::Corrupt("tensor '", Printable(name), "' holds ", *bad, " at element ", bad - values,
                        "; weights must be finite numbers: the file is damaged or its training went astray, "
                        "fetch it again");
}

}  // namespace celer
