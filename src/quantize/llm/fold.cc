#include "quantize/llm/fold.h"

#include <algorithm>
#include <cmath>

#include "formats/decode.h"
#include "quantize/llm/fp8_matrix.h"
#include "quantize/llm/int_tensor.h"

namespace celer {
namespace {

void DivideRows(LayerFloats::Matrix* m, std::vector<float>* bias, const std::vector<float>& by) {
  for (int64_t r = 0; r < m->rows; ++r) {
    for (int64_t c = 0; c < m->cols; ++c) m->values[static_cast<size_t>(r * m->cols + c)] /= by[r];
    if (!bias->empty()) (*bias)[r] /= by[r];
  }
}

// visit(channel, column) for all columns of o's input.
template <class Visit>
void ForEachColumn(const DecoderConfig& c, const Visit& visit) {
  const int64_t group = c.heads / c.kv_heads;
  for (int64_t h = 0; h < c.heads; ++h)
    for (int64_t d = 0; d < c.head_dim; ++d)
      visit(static_cast<size_t>(h / group * c.head_dim + d), static_cast<size_t>(h * c.head_dim + d));
}

}  // namespace

std::vector<float> ChannelMean(const DecoderConfig& c, LayerInput input, const std::vector<float>& columns) {
  if (input != LayerInput::kO) return columns;
  std::vector<float> out(static_cast<size_t>(c.kv_heads * c.head_dim));
  ForEachColumn(c, [&](size_t channel, size_t column) {
    out[channel] += columns[column] / static_cast<float>(c.heads / c.kv_heads);
  });
  return out;
}

std::vector<float> ChannelMax(const DecoderConfig& c, LayerInput input, const std::vector<float>& columns) {
  if (input != LayerInput::kO) return columns;
  std::vector<float> out(static_cast<size_t>(c.kv_heads * c.head_dim));
  ForEachColumn(
      c, [&](size_t channel, size_t column) { out[channel] = std::max(out[channel], columns[column]); });
  return out;
}

std::vector<float> BroadcastToColumns(const DecoderConfig& c, LayerInput input,
                                      const std::vector<float>& channels) {
  if (input != LayerInput::kO) return channels;
  std::vector<float> out(static_cast<size_t>(c.heads * c.head_dim));
  ForEachColumn(c, [&](size_t channel, size_t column) { out[column] = channels[channel]; });
  return out;
}

void Fold(LayerInput input, const std::vector<float>& channels, const std::vector<float>& columns,
          LayerFloats* layer) {
  for (int p = 0; p < kProjections; ++p) {
    if (InputOf(static_cast<Projection>(p)) != input) continue;
    LayerFloats::Matrix& m = layer->matrices[p];
    for (int64_t r = 0; r < m.rows; ++r)
      for (int64_t c = 0; c < m.cols; ++c) m.values[r * m.cols + c] *= columns[c];
  }
  switch (input) {
    case LayerInput::kQkv:
      for (size_t i = 0; i < channels.size(); ++i) layer->attention_norm[i] /= channels[i];
      return;
    case LayerInput::kGateUp:
      for (size_t i = 0; i < channels.size(); ++i) layer->ffn_norm[i] /= channels[i];
      return;
    case LayerInput::kO:
      return DivideRows(&(*layer)[Projection::kV], &layer->v_bias, channels);
    case LayerInput::kDown:
      return DivideRows(&(*layer)[Projection::kUp], &layer->up_bias, channels);
  }
}

AlignedVector<float> SampleRows(const LayerFloats::Matrix& m, int64_t most, int64_t* rows) {
  const int64_t step = std::max<int64_t>(1, m.rows / most);
  *rows = (m.rows + step - 1) / step;
  AlignedVector<float> out(static_cast<size_t>(*rows * m.cols));
  for (int64_t r = 0; r < *rows; ++r)
    std::copy_n(m.values.data() + r * step * m.cols, m.cols, out.data() + r * m.cols);
  return out;
}

void FakeQuantize(const float* w, int64_t rows, int64_t cols, const Target& target, const float* importance,
                  int candidates, float* out, ThreadPool& pool) {
  if (target.kind == Target::Kind::kKeep) {
    std::copy_n(w, rows * cols, out);
  } else if (target.kind == Target::Kind::kInt) {
    RoundToNearest(w, rows, cols, target, importance, candidates, pool).Decode(out, pool);
  } else if (target.kind == Target::Kind::kFp8) {
    const Fp8Matrix fp8 = Fp8Matrix::Of(w, rows, cols, pool);
    for (int64_t r = 0; r < rows; ++r) fp8.DecodeRow(r, out + r * cols);
  } else {
    const auto bytes = static_cast<size_t>(*BytesFor(target.dtype, cols));
    pool.ParallelFor(rows, 8, [&](int64_t begin, int64_t end) {
      std::vector<std::byte> row(bytes);
      for (int64_t r = begin; r < end; ++r) {
        EncodeRow(target.dtype, w + r * cols, cols, row.data(), importance);
        DecodeRow(target.dtype, row.data(), cols, out + r * cols);
      }
    });
  }
}

}  // namespace celer
