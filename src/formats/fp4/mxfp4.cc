#include "formats/fp4/mxfp4.h"

#include <algorithm>
#include <limits>

namespace celer {
namespace {

// The level nearest to a magnitude over the scale: 0 1 2 3 4 6 8 12. NaN becomes 0.
int NearestLevel(double magnitude) {
  int q = 0;
  for (const double edge : {0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0}) q += static_cast<int>(magnitude > edge);
  return q;
}

// Sets the codes for the block's scale, and gives the sum of importance * error^2.
double Assign(const float* x, const float* importance, BlockMxfp4* block) {
  const double scale = std::ldexp(1.0, block->e - 128), inverse = 1 / scale;
  double error = 0;
  for (int j = 0; j < BlockMxfp4::kElements; ++j) {
    const double magnitude = std::fabs(static_cast<double>(x[j]));
    const int level = NearestLevel(magnitude * inverse);
    SetBits(&block->qs[j % 16], j < 16 ? 0 : 4, 4, level | (x[j] < 0 && level > 0 ? 8 : 0));
    const double miss = magnitude - scale * BlockMxfp4::Level(level);
    error += (importance ? static_cast<double>(importance[j]) : 1.0) * miss * miss;
  }
  return error;
}

}  // namespace

void BlockMxfp4::Encode(const float* x, const float* importance) {
  float most = 0;
  for (int j = 0; j < kElements; ++j) most = std::fmax(most, std::fabs(x[j]));
  if (!(most > 0)) {
    *this = {};
    return;
  }
  const int middle = std::clamp(std::isfinite(most) ? std::ilogb(most) + 125 : 254, 0, 254);
  double least = std::numeric_limits<double>::infinity();
  BlockMxfp4 best = {.e = static_cast<uint8_t>(middle), .qs = {}};
  Assign(x, nullptr, &best);
  for (const int exponent : {middle, middle + 1, middle - 1}) {
    if (exponent < 0 || exponent > 254) continue;
    BlockMxfp4 tried = {.e = static_cast<uint8_t>(exponent), .qs = {}};
    const double error = Assign(x, importance, &tried);
    if (error < least) least = error, best = tried;
  }
  *this = best;
}

}  // namespace celer
