#include "formats/iq4_nl.h"

#include <cmath>
#include <cstring>
#include <initializer_list>

#include "formats/float16.h"

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
  Vec product = {}, square = {};
  for (int i = 0; i < kN; i += 4) {
    const Vec value = Load(x + i), scaled = value * inverse;
    Vec level = Vec{} + static_cast<float>(BlockIq4Nl::Level(0));
    for (int e = 0; e < 15; ++e) level += scaled > kEdges.edge[e] ? Vec{} + kEdges.distance[e] : Vec{};
    const Vec weighted = level * Load(importance + i);
    product += weighted * value;
    square += weighted * level;
  }
  const float products = Sum(product), squares = Sum(square);
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
    for (int step = -3; step <= 3; ++step) {
      const Fit fit = Refine(x, end * (1.0f + 0.07f * static_cast<float>(step)) / extreme, importance);
      if (fit.gain > best.gain) best = fit;
    }
  // All columns have importance 0: weigh them equally.
  return best.gain > 0 || importance == kEqual.at ? best.scale : FitScale(x, kEqual.at);
}

}  // namespace

void BlockIq4Nl::Encode(const float* x, const float* importance) {
  d = FloatToF16(FitScale(x, importance ? importance : kEqual.at));
  const float inverse = ReciprocalOrZero(F16ToFloat(d));
  for (int j = 0; j < 16; ++j)
    qs[j] = static_cast<uint8_t>(Nearest(x[j] * inverse) | Nearest(x[j + 16] * inverse) << 4);
}

}  // namespace celer
