// Tile registers for the AMX kernels: C in 0..3, A (tokens) in 4 and 5, B (weights) in 6 and 7.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace celer::x86 {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void Set(int tile, int tile_rows, int bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

// The compiler's tile loads do not say that they read memory: what was stored before must be there.
inline void StoresDone() {
  asm volatile("" ::: "memory");
}

// Tiles for products of up to two by two: A 4 of `first` tokens, A 5 of `second` tokens (or none), C 0 and 1
// and C 2 and 3 beside them; `depth` bytes of each token, so depth / 4 rows of B.
class TileShape {
 public:
  ~TileShape() {
    if (first_ > 0) _tile_release();
  }
  void Use(int first, int second, int depth) {
    if (first == first_ && second == second_ && depth == depth_) return;
    first_ = first, second_ = second, depth_ = depth;
    TileConfig config;
    config.Set(0, first, 64);
    config.Set(1, first, 64);
    config.Set(4, first, depth);
    config.Set(2, second > 0 ? second : first, 64);
    config.Set(3, second > 0 ? second : first, 64);
    config.Set(5, second > 0 ? second : first, depth);
    config.Set(6, depth / 4, 64);
    config.Set(7, depth / 4, 64);
    asm volatile("" ::"r"(&config) : "memory");  // read as a whole, which the function below does not say
    _tile_loadconfig(&config);
    StoresDone();
  }

 private:
  int first_ = 0, second_ = 0, depth_ = 0;
};

}  // namespace
}  // namespace celer::x86
