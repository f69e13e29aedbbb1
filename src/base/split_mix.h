// SplitMix64's finalizer: mixes the bits, so that consecutive seeds give unrelated numbers.
#pragma once

#include <cstdint>

namespace celer {

inline uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace celer
