// Tile registers for the AMX kernels: C in 0 and 1, A (tokens) in 2, B (weights) in 3.
//
// Four are in use, no more. Renaming has ten or so while the other hyperthread of a core is busy, each one
// that holds something takes one away, and every load and product needs a fresh one until it retires. With
// all eight in use, as two by two tiles would have it, a product with its loads takes twice as long
// (docs/adr/0004).
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

// `depth` bytes of each token, so depth / 4 rows of B.
class TileShape {
 public:
  ~TileShape() {
    if (tokens_ > 0) _tile_release();
  }
  void Use(int tokens, int depth) {
    if (tokens == tokens_ && depth == depth_) return;
    tokens_ = tokens, depth_ = depth;
    TileConfig config;
    config.Set(0, tokens, 64);
    config.Set(1, tokens, 64);
    config.Set(2, tokens, depth);
    config.Set(3, depth / 4, 64);
    asm volatile("" ::"r"(&config) : "memory");  // read as a whole, which the function below does not say
    _tile_loadconfig(&config);
    StoresDone();
  }

 private:
  int tokens_ = 0, depth_ = 0;
};

}  // namespace
}  // namespace celer::x86
