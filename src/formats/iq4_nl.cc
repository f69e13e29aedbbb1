#include "formats/iq4_nl.h"

#include <cmath>
#include <initializer_list>

#include "formats/block_io.h"
#include "formats/float16.h"

namespace celer {
namespace {

constexpr int kN = BlockIq4Nl::kElements;

// Where the next level becomes the nearest one, and how far it is: a level is the lowest one and every
// distance whose edge lies below the value. Plain loops over a block, which compilers turn into vectors.
struct Edges {
  float edge[15], distance[15];
};
constexpr Edges kEdges = [] {
  Edges out = {};
  for (int i = 0; i < 15; ++i) {
    out.edge[i] = 0.5f * static_cast<float>(kIq4NlLevels.at[i] + kIq4NlLevels.at[i + 1]);
    out.distance[i] = static_cast<float>(kIq4NlLevels.at[i + 1] - kIq4NlLevels.at[i]);
  }
  return out;
}();

int Nearest(float value) {
  int q = 0;
  for (const float edge : kEdges.edge) q += static_cast<int>(value > edge);
  return q;
}

constexpr struct Equal {
  float at[kN];
} kEqual = [] {
  Equal out = {};
  for (float& value : out.at) value = 1;
  return out;
}();

struct Fit {
  float scale = 0;
  float gain = 0;  // what the sum of importance * x^2 loses by it: the more, the smaller the error
};

// The scale of least squared error for the levels that 1 / inverse assigns.
Fit Refine(const float* x, float inverse, const float* importance) {
  float level[kN], scaled[kN];
  for (int i = 0; i < kN; ++i) {
    scaled[i] = x[i] * inverse;
    level[i] = kIq4NlLevels.at[0];
  }
  for (int e = 0; e < 15; ++e)
    for (int i = 0; i < kN; ++i) level[i] += scaled[i] > kEdges.edge[e] ? kEdges.distance[e] : 0.0f;
  float product[4] = {}, square[4] = {};
  for (int i = 0; i < kN; i += 4)
    for (int j = 0; j < 4; ++j) {
      const float weighted = importance[i + j] * level[i + j];
      product[j] += weighted * x[i + j];
      square[j] += weighted * level[i + j];
    }
  const float products = product[0] + product[1] + product[2] + product[3],
              squares = square[0] + square[1] + square[2] + square[3];
  if (!(squares > 0)) return {};
  return {products / squares, products * (products / squares)};
}

// Grids that put the value farthest from zero on or around either end.
float FitScale(const float* x, const float* importance) {
  float extreme = 0;
  for (int i = 0; i < kN; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  if (!(std::fabs(extreme) > 0x1p-100f)) return 0;
  Fit best;
  for (const float end : {-127.0f, 113.0f})
    for (int step = -7; step <= 7; ++step) {
      const Fit fit = Refine(x, end * (1.0f + 0.03f * static_cast<float>(step)) / extreme, importance);
      if (fit.gain > best.gain) best = fit;
    }
  // Columns that count for nothing, all of them: then each as much as the others.
  return best.gain > 0 || importance == kEqual.at ? best.scale : FitScale(x, kEqual.at);
}

}  // namespace

void DecodeIq4Nl(const std::byte* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, out += kN) {
    const auto block = LoadBlock<BlockIq4Nl>(in, b);
    const float d = F16ToFloat(block.d);
    for (int j = 0; j < 16; ++j) {
      out[j] = d * static_cast<float>(kIq4NlLevels.at[block.qs[j] & 15]);
      out[j + 16] = d * static_cast<float>(kIq4NlLevels.at[block.qs[j] >> 4]);
    }
  }
}

void EncodeIq4Nl(const float* in, int64_t blocks, std::byte* out, const float* importance) {
  for (int64_t b = 0; b < blocks; ++b, in += kN) {
    BlockIq4Nl block = {};
    block.d = FloatToF16(FitScale(in, importance ? importance + b * kN : kEqual.at));
    const float inverse = ReciprocalOrZero(F16ToFloat(block.d));
    for (int j = 0; j < 16; ++j)
      block.qs[j] = static_cast<uint8_t>(Nearest(in[j] * inverse) | Nearest(in[j + 16] * inverse) << 4);
    StoreBlock(block, b, out);
  }
}

}  // namespace celer
