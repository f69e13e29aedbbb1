// The points that the codes of IQ1, IQ2 and IQ3 name: a code stands for eight weights (IQ3: four), whose magnitudes are a
// point of a lattice. A point is packed as indices into the format's levels: coordinate i in bits 2i, of IQ3 in bits 3i.
#pragma once

#include <cstdint>

namespace celer {

extern const uint16_t kGridIq1[2048];
extern const uint16_t kGridIq2Xxs[256], kGridIq2Xs[512], kGridIq2S[1024];
extern const uint16_t kGridIq3Xxs[256], kGridIq3S[512];

// Signs of eight weights in seven bits: the eighth makes their number even.
constexpr uint8_t EvenSigns(unsigned seven) {
  const unsigned folded = seven ^ seven >> 4, pairs = folded ^ folded >> 2;
  return static_cast<uint8_t>(seven | ((pairs ^ pairs >> 1) & 1) << 7);
}

}  // namespace celer
