#include <immintrin.h>

#include "limits/probe/probe_kernels.h"

// Two accumulator tiles (0, 1) and two operand tiles (2, 3), each 16 rows of 64 bytes. A tile product takes
// 16 cycles, and the next one on the same accumulator need not wait for its answer. More accumulators are
// slower while the core's other hyperthread is busy: tiles that hold something take away from those that
// renaming has, and with eight in use the rate is half.
namespace celer::probe {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

constexpr int kTileBytes = 16 * 64;

// Every tile is loaded with the two-byte pattern `low`, `high`, the accumulators with zeros.
void LoadTiles(uint8_t low, uint8_t high) {
  const TileConfig config;
  alignas(64) uint8_t data[kTileBytes];
  for (int i = 0; i < kTileBytes; ++i) data[i] = i % 2 == 0 ? low : high;
  // The compiler's own tile functions do not say how much memory they read, and GCC 12 drops the stores.
  asm volatile("" ::"r"(&config), "r"(data) : "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(2, data, 64);
  _tile_loadd(3, data, 64);
}

}  // namespace

// [16, 32] x [32, 16] bf16 per instruction: 8192 multiply-adds.
int64_t PeakBf16Amx(int64_t iterations) {
  LoadTiles(0x01, 0x3f);  // 0x3f01 = 0.504
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbf16ps(0, 2, 3);
    _tile_dpbf16ps(1, 2, 3);
    _tile_dpbf16ps(0, 2, 3);
    _tile_dpbf16ps(1, 2, 3);
  }
  _tile_release();
  return iterations * 4 * 8192 * 2;
}

// [16, 64] x [64, 16] int8 per instruction: 16384 multiply-adds.
int64_t PeakInt8Amx(int64_t iterations) {
  LoadTiles(77, 211);
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbssd(0, 2, 3);
    _tile_dpbssd(1, 2, 3);
    _tile_dpbssd(0, 2, 3);
    _tile_dpbssd(1, 2, 3);
  }
  _tile_release();
  return iterations * 4 * 16384 * 2;
}

}  // namespace celer::probe
