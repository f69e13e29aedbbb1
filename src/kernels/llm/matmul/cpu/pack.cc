#include "kernels/llm/matmul/cpu/pack.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "formats/codec.h"
#include "formats/float16.h"
#include "formats/fp4/mxfp4.h"
#include "formats/int4.h"
#include "formats/iq/iq4_xs.h"

namespace celer {
namespace {

enum class Values { kNibble, kSix, kByte };
constexpr int BitsOf(Values values) {
  return values == Values::kByte ? 8 : values == Values::kSix ? 6 : 4;
}

struct FormatInfo {
  PackedFormat format;
  Values values;
  int scale_bytes;  // of one row in a header
  bool has_min;
  int subs;   // of a super-block; 0: plain blocks
  int reach;  // of super-blocks: the largest Codec::reach that the kernels' integer sums have room for
};
// Narrower values first: stored blocks take the first that holds them.
constexpr FormatInfo kFormats[] = {
    {PackedFormat::kNibble, Values::kNibble, 2, false, 0, 0},
    {PackedFormat::kByte, Values::kByte, 2, false, 0, 0},
    {PackedFormat::kNibbleMin, Values::kNibble, 2, true, 0, 0},
    {PackedFormat::kLevels, Values::kNibble, 4, false, 0, 0},
    {PackedFormat::kLevelsIq4, Values::kNibble, 4, false, 0, 0},
    {PackedFormat::kByteMin, Values::kByte, 2, true, 0, 0},
    {PackedFormat::kByteWide, Values::kByte, 4, false, 0, 0},
    {PackedFormat::kByteRow, Values::kByte, 4, false, 0, 0},
    {PackedFormat::kSuperQ2, Values::kNibble, 2, true, 16, 15 * 3 + 15},
    {PackedFormat::kSuperQ3, Values::kNibble, 2, false, 16, 32 * 4},
    {PackedFormat::kSuperQ4, Values::kNibble, 2, true, 8, 63 * 15 + 63},
    {PackedFormat::kSuperQ5, Values::kByte, 2, true, 8, 63 * 31 + 63},
    {PackedFormat::kSuperQ6, Values::kSix, 2, false, 16, 128 * 32},
};

const FormatInfo& InfoOf(PackedFormat format) {
  for (const FormatInfo& info : kFormats)
    if (info.format == format) return info;
  CELER_CHECK(false);
  return kFormats[0];
}

bool IsFloat(PackedFormat format) {
  return format >= PackedFormat::kF32;
}

PackedFormat FormatOf(const WeightView& w) {
  if (w.kind == WeightView::Kind::kInt8)
    return w.group == w.cols ? PackedFormat::kByteRow : PackedFormat::kByteWide;
  if (w.kind == WeightView::Kind::kInt4) return PackedFormat::kNibbleMin;
  if (w.kind != WeightView::Kind::kStored) return PackedFormat::kNone;
  if (w.dtype == DType::kF32) return PackedFormat::kF32;
  if (w.dtype == DType::kF16) return PackedFormat::kF16;
  if (w.dtype == DType::kBf16) return PackedFormat::kBf16;
  if (w.dtype == DType::kMxfp4) return PackedFormat::kLevels;
  if (w.dtype == DType::kIq4Nl || w.dtype == DType::kIq4Xs) return PackedFormat::kLevelsIq4;
  const Codec* codec = FindCodec(w.dtype);
  if (!codec) return PackedFormat::kNone;
  if (codec->unpack)
    for (const FormatInfo& info : kFormats)
      if (info.has_min == codec->has_min && info.subs == codec->subs && codec->bits <= BitsOf(info.values) &&
          (info.subs == 0 || codec->reach <= info.reach))
        return info.format;
  return codec->unpack32 && codec->group >= kBlockCols ? PackedFormat::kByteWide : PackedFormat::kNone;
}

// Columns 32b to 32b + 31 of a row whose integers have a float scale: as bytes, or as the codes that name their levels.
float UnpackWide(const WeightView& w, const std::byte* row, int64_t b, bool codes, int8_t* values) {
  if (!codes) {
    Scaled32 part;
    FindCodec(w.dtype)->unpack32(row, b, &part);
    std::memcpy(values, part.value, 32);
    return part.scale[0];
  }
  const auto put = [&](const auto& code) {
    for (int i = 0; i < 32; ++i) values[i] = static_cast<int8_t>(code(i));
  };
  if (w.dtype == DType::kMxfp4) {
    const auto block = LoadBlock<BlockMxfp4>(row, b);
    put([&](int i) { return block.Code(i); });
    return block.Scale();
  }
  if (w.dtype == DType::kIq4Nl) {
    const auto block = LoadBlock<BlockIq4Nl>(row, b);
    put([&](int i) { return block.Code(i / 16, i % 16); });
    return F16ToFloat(block.d);
  }
  const auto block = LoadBlock<BlockIq4Xs>(row, b / 8);
  const int group = static_cast<int>(b % 8);
  put([&](int i) { return block.Code(2 * group + i / 16, i % 16); });
  return F16ToFloat(block.d) * static_cast<float>(block.Scale(group));
}

bool HoldsLevels(PackedFormat format) {
  return format == PackedFormat::kLevels || format == PackedFormat::kLevelsIq4;
}

int64_t ValueBytes(Values values) {  // of 32 columns of one row
  return 32 * BitsOf(values) / 8;
}

int64_t FloatBytes(PackedFormat format) {
  return format == PackedFormat::kF32 ? 4 : 2;
}
int FloatStep(PackedFormat format, const PackGeometry& g) {
  return format == PackedFormat::kBf16 ? g.bf16_step : 1;
}

// The bits of a byte to flip so that its two halves are what `halves` says: flipping the sign bit of a signed
// 4-bit number makes it an unsigned one that is 8 larger, and the other way round.
uint8_t FlippedBits(PackedFormat format, Halves halves) {
  if (format == PackedFormat::kNibble)
    return halves == Halves::kExcess ? 0x88 : halves == Halves::kMixed ? 0x08 : 0;
  return format == PackedFormat::kSuperQ4 && halves == Halves::kMixed ? 0x80 : 0;
}

// Writes 32 columns of row r of a group.
template <int kRows, int kStep>
void PutValues(Values values, const int8_t* q, int r, uint8_t flip, uint8_t* out) {
  const auto at = [&](int step) { return out + (step * kRows + r) * kStep; };
  switch (values) {
    case Values::kByte:
      for (int s = 0; s < 32 / kStep; ++s)
        for (int i = 0; i < kStep; ++i) at(s)[i] = static_cast<uint8_t>(q[s * kStep + i]);
      return;
    case Values::kNibble:
      for (int s = 0; s < 16 / kStep; ++s)
        for (int i = 0; i < kStep; ++i) {
          const int low = q[2 * s * kStep + i], high = q[(2 * s + 1) * kStep + i];
          at(s)[i] = static_cast<uint8_t>(((low & 15) | high << 4) ^ flip);
        }
      return;
    case Values::kSix:
      for (int s = 0; s < 8 / kStep; ++s)
        for (int i = 0; i < kStep; ++i) {
          const auto value = [&](int j) { return q[(4 * s + j) * kStep + i] & 63; };
          for (int j = 0; j < 3; ++j)
            at(3 * s + j)[i] = static_cast<uint8_t>(value(j) << 2 | (value(3) >> (4 - 2 * j) & 3));
        }
      return;
  }
}

void Put(const PackGeometry& g, Values values, const int8_t* q, int r, uint8_t flip, uint8_t* out) {
  if (g.rows == 8 && g.step == 8) return PutValues<8, 8>(values, q, r, flip, out);
  if (g.rows == 8 && g.step == 4) return PutValues<8, 4>(values, q, r, flip, out);
  CELER_CHECK(g.rows == 16 && g.step == 4);
  PutValues<16, 4>(values, q, r, flip, out);
}

void PackBlocks(const WeightView& w, const PackGeometry& g, const PackedShape& shape, int64_t group,
                uint8_t* out) {
  const FormatInfo& info = InfoOf(shape.format);
  const uint8_t flip = FlippedBits(shape.format, g.halves);
  const int64_t mins = info.scale_bytes * g.rows;
  const int64_t header = mins + (info.has_min ? 2 * g.rows : 0);
  const int64_t rows = std::min<int64_t>(g.rows, w.rows - group * g.rows);
  const Codec* codec = w.kind == WeightView::Kind::kStored ? FindBlockCodec(w.dtype) : nullptr;
  UnpackedBlock block = {};
  for (int64_t c = 0; c < w.cols; c += shape.span) {
    std::memset(out, 0, static_cast<size_t>(header));
    for (int64_t r = 0; r < g.rows; ++r) {
      const int64_t row = group * g.rows + r;
      for (int64_t b = c / 32; b < (c + shape.span) / 32; ++b) {
        if (r >= rows) {
          std::memset(block.value, 0, 32);
        } else {
          if (w.kind == WeightView::Kind::kInt8) {
            std::memcpy(block.value, w.Row(row) + b * 32, 32);
            std::memcpy(out + 4 * r, static_cast<const float*>(w.RowScales(row)) + c / w.group, 4);
          } else if (w.kind == WeightView::Kind::kInt4) {
            const auto* packed = reinterpret_cast<const uint8_t*>(w.Row(row)) + b * 16;
            for (int i = 0; i < 16; ++i) {
              block.value[2 * i] = static_cast<int8_t>(packed[i] & 15);
              block.value[2 * i + 1] = static_cast<int8_t>(packed[i] >> 4);
            }
            const Int4Group& shared = static_cast<const Int4Group*>(w.RowScales(row))[c / w.group];
            block.scale = shared.scale;
            block.min = shared.min;
          } else if (info.scale_bytes == 4) {
            const float scale = UnpackWide(w, w.Row(row), b, HoldsLevels(shape.format), block.value);
            std::memcpy(out + 4 * r, &scale, 4);
          } else {
            codec->unpack(w.Row(row), b, &block);
          }
          if (info.scale_bytes == 2) std::memcpy(out + 2 * r, &block.scale, 2);
          if (info.has_min) std::memcpy(out + mins + 2 * r, &block.min, 2);
        }
        Put(g, info.values, block.value, static_cast<int>(r), flip,
            out + header + (b - c / 32) * ValueBytes(info.values) * g.rows);
      }
    }
    out += header + shape.span / 32 * ValueBytes(info.values) * g.rows;
  }
}

void PackSupers(const WeightView& w, const PackGeometry& g, const PackedShape& shape, int64_t group,
                uint8_t* out) {
  const FormatInfo& info = InfoOf(shape.format);
  const uint8_t flip = FlippedBits(shape.format, g.halves);
  const int64_t scales = 2 * g.rows * (info.has_min ? 2 : 1);
  const int64_t mins = scales + info.subs * g.rows;
  const int64_t values = mins + (info.has_min ? info.subs * g.rows : 0);
  const Codec* codec = FindBlockCodec(w.dtype);
  UnpackedBlock super = {};
  for (int64_t b = 0; b < w.cols / kSuperCols; ++b) {
    for (int64_t r = 0; r < g.rows; ++r) {
      if (const int64_t row = group * g.rows + r; row < w.rows)
        codec->unpack(w.Row(row), b, &super);
      else
        super = {};
      std::memcpy(out + 2 * r, &super.scale, 2);
      if (info.has_min) std::memcpy(out + 2 * (g.rows + r), &super.min, 2);
      for (int s = 0; s < info.subs; ++s) {
        out[scales + s * g.rows + r] = static_cast<uint8_t>(super.sub_scale[s]);
        if (info.has_min)
          out[mins + (s / g.min_step * g.rows + r) * g.min_step + s % g.min_step] = super.sub_min[s];
      }
      for (int i = 0; i < 8; ++i)
        Put(g, info.values, super.value + 32 * i, static_cast<int>(r), flip,
            out + values + i * ValueBytes(info.values) * g.rows);
    }
    out += values + 8 * ValueBytes(info.values) * g.rows;
  }
}

void PackFloats(const WeightView& w, const PackGeometry& g, const PackedShape& shape, int64_t group,
                uint8_t* out) {
  const int64_t bytes = FloatBytes(shape.format), step = FloatStep(shape.format, g);
  std::memset(out, 0, static_cast<size_t>(shape.group_bytes));
  for (int64_t r = 0; r < std::min<int64_t>(g.rows, w.rows - group * g.rows); ++r) {
    const std::byte* row = w.Row(group * g.rows + r);
    for (int64_t c = 0; c < w.cols; c += step)
      std::memcpy(out + (c * g.rows + r * step) * bytes, row + c * bytes,
                  static_cast<size_t>(std::min(step, w.cols - c) * bytes));
  }
}

}  // namespace

PackedShape PackedShapeOf(const WeightView& w, const PackGeometry& g) {
  PackedShape shape{.format = FormatOf(w), .groups = (w.rows + g.rows - 1) / g.rows};
  if (shape.format == PackedFormat::kNone) return {};
  if (IsFloat(shape.format)) {
    shape.step = 4;  // a multiple of every FloatStep(), and columns are padded to it
    shape.step_bytes = shape.step * g.rows * FloatBytes(shape.format);
    shape.group_bytes = (w.cols + shape.step - 1) / shape.step * shape.step_bytes + g.gap;
    return shape;
  }
  const FormatInfo& info = InfoOf(shape.format);
  const int64_t unit = info.subs > 0 ? kSuperCols : kBlockCols;
  if (w.kind != WeightView::Kind::kStored) shape.span = w.group;
  if (w.cols % unit != 0 || shape.span % kBlockCols != 0) return {};
  if (info.subs == 0) {
    const int64_t header = info.scale_bytes + (info.has_min ? 2 : 0);
    shape.step = shape.span;
    shape.step_bytes = (header + shape.span / kBlockCols * ValueBytes(info.values)) * g.rows;
    shape.group_bytes = w.cols / shape.step * shape.step_bytes + g.gap;
  } else {
    const int64_t header = (2 + info.subs) * (info.has_min ? 2 : 1);
    shape.step = kSuperCols;
    shape.step_bytes = (header + kSuperCols / kBlockCols * ValueBytes(info.values)) * g.rows;
    shape.group_bytes = w.cols / shape.step * shape.step_bytes;
  }
  return shape;
}

PackedShape ShapeInMemory(const WeightView& w, const PackGeometry& g) {
  PackedShape shape = PackedShapeOf(w, g);
  shape.group_bytes = w.packed_group_bytes;
  return shape;
}

void PackGroups(const WeightView& w, const PackGeometry& g, const PackedShape& shape, int64_t begin,
                int64_t end, std::byte* out) {
  for (int64_t group = begin; group < end; ++group) {
    auto* target = reinterpret_cast<uint8_t*>(out + group * shape.group_bytes);
    if (IsFloat(shape.format))
      PackFloats(w, g, shape, group, target);
    else if (InfoOf(shape.format).subs == 0)
      PackBlocks(w, g, shape, group, target);
    else
      PackSupers(w, g, shape, group, target);
  }
}

void DecodePackedRow(const WeightView& w, const PackGeometry& g, int64_t row, float* out) {
  const PackedShape shape = ShapeInMemory(w, g);
  const FormatInfo& info = InfoOf(shape.format);
  CELER_CHECK(w.kind != WeightView::Kind::kStored);
  const int64_t mins = info.scale_bytes * g.rows;
  const int64_t header = mins + (info.has_min ? 2 * g.rows : 0);
  const int64_t r = row % g.rows, step = g.step;
  const auto* p = reinterpret_cast<const uint8_t*>(w.packed) + row / g.rows * shape.group_bytes;
  for (int64_t c = 0; c < w.cols; c += shape.span) {
    float scale = 0, min = 0;
    if (info.scale_bytes == 4) {
      std::memcpy(&scale, p + 4 * r, 4);
    } else {
      uint16_t half;
      std::memcpy(&half, p + 2 * r, 2);
      scale = F16ToFloat(half);
    }
    if (info.has_min) {
      uint16_t half;
      std::memcpy(&half, p + mins + 2 * r, 2);
      min = F16ToFloat(half);
    }
    const uint8_t* values = p + header;
    for (int64_t k = 0; k < shape.span; ++k) {
      int q;
      if (info.values == Values::kByte) {
        const uint8_t byte = values[((k / step) * g.rows + r) * step + k % step];
        q = static_cast<int8_t>(byte);
      } else {
        const uint8_t byte = values[((k / (2 * step)) * g.rows + r) * step + k % step];
        q = k / step % 2 == 0 ? byte & 15 : byte >> 4;
      }
      out[c + k] = static_cast<float>(q) * scale + min;
    }
    p = values + shape.span / 32 * ValueBytes(info.values) * g.rows;
  }
}

PackedColumn FindColumn(const PackedShape& shape, const PackGeometry& g, int64_t col) {
  const FormatInfo& info = InfoOf(shape.format);
  const int64_t block_bytes = ValueBytes(info.values) * g.rows;
  PackedColumn out;
  int64_t at;  // of the block's values
  if (info.subs == 0) {
    const int64_t mins = info.scale_bytes * g.rows;
    const int64_t header = mins + (info.has_min ? 2 * g.rows : 0);
    const int64_t span = col / shape.span * (header + shape.span / kBlockCols * block_bytes);
    out.wide_scale = info.scale_bytes == 4;
    out.scale = static_cast<int32_t>(span);
    if (info.has_min) out.min = static_cast<int32_t>(span + mins);
    at = span + header + col % shape.span / kBlockCols * block_bytes;
  } else {
    const int64_t scales = 2 * g.rows * (info.has_min ? 2 : 1), mins = scales + info.subs * g.rows;
    const int64_t values = mins + (info.has_min ? info.subs * g.rows : 0);
    const int64_t super = col / kSuperCols * (values + 8 * block_bytes);
    const int64_t sub = col % kSuperCols / (kSuperCols / info.subs);
    out.scale = static_cast<int32_t>(super);
    out.sub_scale = static_cast<int32_t>(super + scales + sub * g.rows);
    if (info.has_min) {
      out.min = static_cast<int32_t>(super + 2 * g.rows);
      out.sub_min =
          static_cast<int32_t>(super + mins + sub / g.min_step * g.rows * g.min_step + sub % g.min_step);
      out.min_step = static_cast<int8_t>(g.min_step);
    }
    at = super + values + col % kSuperCols / kBlockCols * block_bytes;
  }
  const int64_t k = col % kBlockCols, step = k / g.step, byte = k % g.step;
  const auto bits = static_cast<int8_t>(8 * (byte % 4));  // below the byte in its word
  int64_t plane = step;                                   // of `step` columns of all rows
  out.levels = shape.format == PackedFormat::kLevels      ? Levels::kFp4
               : shape.format == PackedFormat::kLevelsIq4 ? Levels::kIq4
                                                          : Levels::kNone;
  out.is_signed = !info.has_min && out.levels == Levels::kNone;
  switch (info.values) {
    case Values::kByte:
      out.left = static_cast<int8_t>(24 - bits);
      out.right = 24;
      break;
    case Values::kNibble: {
      plane = step / 2;
      const int half = step % 2 == 0 ? 0 : 4;
      out.left = static_cast<int8_t>(28 - bits - half);
      out.right = 28;
      out.flip = uint32_t{FlippedBits(shape.format, g.halves)} << bits;
      break;
    }
    case Values::kSix:
      plane = step / 4 * 3 + (step % 4 < 3 ? step % 4 : 0);
      out.six_in_parts = step % 4 == 3;
      out.left = static_cast<int8_t>((out.six_in_parts ? 30 : 24) - bits);
      out.right = 26;
      break;
  }
  out.values = static_cast<int32_t>(at + plane * g.rows * g.step);
  out.second_word = byte >= 4;
  return out;
}

void ReadColumnPlain(const PackedColumn& c, const PackGeometry& g, const uint8_t* group, float* out) {
  for (int r = 0; r < g.rows; ++r) {
    const auto word = [&](int further) {
      uint32_t w;
      std::memcpy(&w, group + c.values + (further * g.rows + r) * g.step + (c.second_word ? 4 : 0), 4);
      return w;
    };
    const auto half = [&](int64_t at) {
      uint16_t bits;
      std::memcpy(&bits, group + at + 2 * r, 2);
      return F16ToFloat(bits);
    };
    uint32_t bits = (word(0) ^ c.flip) << c.left;
    if (c.six_in_parts) {
      bits = 0;
      for (int i = 0; i < 3; ++i) bits |= (word(i) << c.left & 3u << 30) >> (2 * i);
    }
    float q = c.is_signed ? static_cast<float>(static_cast<int32_t>(bits) >> c.right)
                          : static_cast<float>(bits >> c.right);
    const auto code = static_cast<int>(bits >> c.right);
    if (c.levels == Levels::kFp4) q = static_cast<float>(BlockMxfp4::Level(code));
    if (c.levels == Levels::kIq4) q = static_cast<float>(BlockIq4Nl::Level(code));
    float scale;
    if (c.wide_scale)
      std::memcpy(&scale, group + c.scale + 4 * r, 4);
    else
      scale = half(c.scale);
    if (c.sub_scale >= 0) scale *= static_cast<float>(static_cast<int8_t>(group[c.sub_scale + r]));
    out[r] = q * scale;
    if (c.min >= 0)
      out[r] +=
          c.sub_min >= 0 ? -half(c.min) * static_cast<float>(group[c.sub_min + r * c.min_step]) : half(c.min);
  }
}

}  // namespace celer
