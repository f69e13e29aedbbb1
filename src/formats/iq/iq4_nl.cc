#include "formats/iq/iq4_nl.h"

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "formats/float16.h"
#include "formats/iq/iq4_fit.h"

namespace celer {
namespace {

constexpr int kN = BlockIq4Nl::kElements;

// The compiler's own vectors, as in fit.cc.
using Vec = float __attribute__((vector_size(16)));

Vec Load(const float* x) {
  Vec out;
  std::memcpy(&out, x, sizeof(out));
  return out;
}
float Sum(const Vec& x) {
  return (x[0] + x[1]) + (x[2] + x[3]);
}

// The midpoints between neighbouring levels, and the step at each: a level is the lowest one plus every step
// whose midpoint lies below the value.
struct Edges {
  float edge[15], distance[15];
};
constexpr Edges kEdges = [] {
  Edges out = {};
  for (int i = 0; i < 15; ++i) {
    out.edge[i] = 0.5f * static_cast<float>(BlockIq4Nl::Level(i) + BlockIq4Nl::Level(i + 1));
    out.distance[i] = static_cast<float>(BlockIq4Nl::Level(i + 1) - BlockIq4Nl::Level(i));
  }
  return out;
}();

constexpr struct Equal {
  float at[kN];
} kEqual = [] {
  Equal out = {};
  for (float& value : out.at) value = 1;
  return out;
}();

const float* OrEqual(const float* importance) {
  return importance ? importance : kEqual.at;
}

struct Fit {
  float scale = 0;
  float gain = 0;  // what the sum of importance * x^2 loses by it: the more, the smaller the error
};

// The levels nearest to the values.
Vec NearestLevels(const Vec& scaled) {
  Vec level = Vec{} + static_cast<float>(BlockIq4Nl::Level(0));
  for (int e = 0; e < 15; ++e) level += scaled > kEdges.edge[e] ? Vec{} + kEdges.distance[e] : Vec{};
  return level;
}

// The scale of least squared error for the levels that 1 / inverse assigns.
Fit Refine(const float* x, float inverse, const float* importance) {
  Vec product = {}, square = {};
  for (int i = 0; i < kN; i += 4) {
    const Vec value = Load(x + i), level = NearestLevels(value * inverse);
    const Vec weighted = level * Load(importance + i);
    product += weighted * value;
    square += weighted * level;
  }
  const float products = Sum(product), squares = Sum(square);
  if (!(squares > 0)) return {};
  return {products / squares, products * (products / squares)};
}

}  // namespace

int NearestIq4Level(float value) {
  int q = 0;
  for (const float edge : kEdges.edge) q += static_cast<int>(value > edge);
  return q;
}

// Grids that put the value farthest from zero on or around either end.
float FitIq4Scale(const float* x, const float* importance) {
  importance = OrEqual(importance);
  float extreme = 0;
  for (int i = 0; i < kN; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  if (!(std::fabs(extreme) > 0x1p-100f)) return 0;
  Fit best;
  for (const float end : {-127.0f, 113.0f})
    for (int step = -3; step <= 3; ++step) {
      const Fit fit = Refine(x, end * (1.0f + 0.07f * static_cast<float>(step)) / extreme, importance);
      if (fit.gain > best.gain) best = fit;
    }
  // All columns have importance 0: weigh them equally.
  return best.gain > 0 || importance == kEqual.at ? best.scale : FitIq4Scale(x, kEqual.at);
}

Iq4Sums SumIq4(const float* x, float scale, const float* importance) {
  importance = OrEqual(importance);
  const float inverse = ReciprocalOrZero(scale);
  Vec product = {}, square = {}, error = {};
  for (int i = 0; i < kN; i += 4) {
    const Vec value = Load(x + i), level = NearestLevels(value * inverse), weight = Load(importance + i);
    const Vec weighted = level * weight, miss = value - level * scale;
    product += weighted * value;
    square += weighted * level;
    error += miss * miss * weight;
  }
  return {Sum(product), Sum(square), Sum(error)};
}

void BlockIq4Nl::Encode(const float* x, const float* importance) {
  d = FloatToF16(FitIq4Scale(x, importance));
  const float inverse = ReciprocalOrZero(F16ToFloat(d));
  for (int j = 0; j < 16; ++j)
    qs[j] = static_cast<uint8_t>(NearestIq4Level(x[j] * inverse) | NearestIq4Level(x[j + 16] * inverse) << 4);
}

}  // namespace celer
