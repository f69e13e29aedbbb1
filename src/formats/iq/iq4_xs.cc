#include "formats/iq/iq4_xs.h"

#include <cmath>

#include "formats/float16.h"
#include "formats/iq/iq4_fit.h"

namespace celer {
namespace {

constexpr int kGroups = BlockIq4Xs::kElements / BlockIq4Xs::kGroup;

// The scales of the groups in units of d, and what the block loses by them.
struct Assignment {
  uint16_t d = 0;  // f16
  int scale[kGroups] = {};
  double error = HUGE_VAL;
  double best_d = 0;  // of least error for these scales and the levels that they give
};

// A neighbour of the nearest integer may lose less, since the levels change with it.
Assignment Assign(const float* x, const float* importance, const float* wanted, float d_wanted) {
  Assignment out{.d = FloatToF16(d_wanted), .error = 0};
  const float d = F16ToFloat(out.d), inverse = ReciprocalOrZero(d);
  double products = 0, squares = 0;
  for (int g = 0; g < kGroups; ++g) {
    const float* values = x + 32 * g;
    const float* weights = importance ? importance + 32 * g : nullptr;
    const int nearest = RoundClamped(wanted[g] * inverse, -32, 31);
    Iq4Sums best = SumIq4(values, d * static_cast<float>(nearest), weights);
    out.scale[g] = nearest;
    for (const int other : {nearest - 1, nearest + 1}) {
      if (other < -32 || other > 31) continue;
      const Iq4Sums sums = SumIq4(values, d * static_cast<float>(other), weights);
      if (sums.error < best.error) best = sums, out.scale[g] = other;
    }
    const double scale = out.scale[g];
    products += scale * static_cast<double>(best.product);
    squares += scale * scale * static_cast<double>(best.square);
    out.error += static_cast<double>(best.error);
  }
  if (squares > 0) out.best_d = products / squares;
  return out;
}

}  // namespace

void BlockIq4Xs::Encode(const float* x, const float* importance) {
  float wanted[kGroups], extreme = 0;
  for (int g = 0; g < kGroups; ++g) {
    wanted[g] = FitIq4Scale(x + 32 * g, importance ? importance + 32 * g : nullptr);
    if (std::fabs(wanted[g]) > std::fabs(extreme)) extreme = wanted[g];
  }
  // The largest scale becomes the largest number of either sign: whichever suits the others.
  Assignment best;
  for (const float end : {-32.0f, 31.0f}) {
    Assignment tried = Assign(x, importance, wanted, extreme / end);
    for (int i = 0; i < 2; ++i) {
      if (tried.error < best.error) best = tried;
      if (tried.best_d == 0) break;
      tried = Assign(x, importance, wanted, static_cast<float>(tried.best_d));
    }
    if (tried.error < best.error) best = tried;
  }
  d = best.d;
  for (int g = 0; g < kGroups; ++g) {
    PutScale(g, best.scale[g]);
    const float inverse = ReciprocalOrZero(F16ToFloat(d) * static_cast<float>(best.scale[g]));
    for (int j = 0; j < 16; ++j)
      qs[16 * g + j] = static_cast<uint8_t>(NearestIq4Level(x[32 * g + j] * inverse) |
                                            NearestIq4Level(x[32 * g + 16 + j] * inverse) << 4);
  }
}

}  // namespace celer
