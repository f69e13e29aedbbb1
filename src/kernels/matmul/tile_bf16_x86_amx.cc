// bf16 weights times activations rounded to bf16, summed in f32 by tdpbf16ps: tiles of up to 16 tokens times
// 16 rows, 32 columns at a time. A single token is a tile of one row: memory is the limit there, and the
// order of additions stays that of every other batch.
#include <stdint.h>

#include "kernels/matmul/amx_x86.h"
#include "kernels/matmul/tile_x86.h"
#include "kernels/matmul/vec_x86.h"
#include "kernels/matmul/x_tile.h"

namespace celer::x86 {
namespace {

constexpr int kStepCols = 32;
constexpr int kTileBytes = 16 * 64;
constexpr int kChunkCols = 256;  // of two row groups and 64 tokens: they stay in the L1 and L2 caches

class Product {
 public:
  explicit Product(const TileJob& job) : job_(job) {}

  void Run() {
    if (job_.cols % kStepCols != 0)
      for (int g = 0; g < job_.groups; ++g) FillTail(g);
    StoresDone();
    constexpr int kTokens = 64;
    for (int t = 0; t < job_.tokens; t += kTokens) {
      const int end = t + kTokens < job_.tokens ? t + kTokens : job_.tokens;
      for (int64_t c = 0; c < job_.cols; c += kChunkCols)
        for (int i = t; i < end; i += 2 * kXTokens)
          for (int g = 0; g < job_.groups; g += 2) Block(i, end - i, g, c);
    }
  }

 private:
  const uint8_t* Values(int group) const { return job_.w + group * job_.group_bytes; }

  // Pairs of columns beyond the last are zeros; an odd last column has a zero beside it already.
  void FillTail(int g) {
    const int64_t whole = job_.cols / kStepCols * kStepCols;
    const uint8_t* p = Values(g) + whole * kRows * 2;
    for (int s = 0; s < 16; ++s)
      StoreI(tail_[g] + s * 64, whole + 2 * s < job_.cols ? LoadI(p + s * 64) : ZeroI());
  }

  void Block(int t, int tokens, int g, int64_t c) {
    const bool two_groups = g + 1 < job_.groups;
    if (tokens > kXTokens)
      two_groups ? Block<2, 2>(t, tokens, g, c) : Block<2, 1>(t, tokens, g, c);
    else
      two_groups ? Block<1, 2>(t, tokens, g, c) : Block<1, 1>(t, tokens, g, c);
  }

  template <int kA, int kB>
  void Block(int t, int tokens, int g, int64_t c) {
    const int first = tokens < kXTokens ? tokens : kXTokens;
    const int second = kA == 1 ? 0 : tokens < 2 * kXTokens ? tokens - kXTokens : kXTokens;
    shape_.Use(first, second, 64);
    const uint8_t* const x0 = job_.x + t / kXTokens * job_.x_bytes;
    const uint8_t* const x1 = x0 + (kA - 1) * job_.x_bytes;
    float* const out0 = job_.out + t * job_.out_stride + g * kRows;
    float* const out1 = out0 + (kA - 1) * kXTokens * job_.out_stride;
    const int64_t out_stride = job_.out_stride * 4;
    if (c == 0) {
      _tile_zero(0);
      if constexpr (kB == 2) _tile_zero(1);
      if constexpr (kA == 2) _tile_zero(2);
      if constexpr (kA == 2 && kB == 2) _tile_zero(3);
    } else {
      _tile_loadd(0, out0, out_stride);
      if constexpr (kB == 2) _tile_loadd(1, out0 + kRows, out_stride);
      if constexpr (kA == 2) _tile_loadd(2, out1, out_stride);
      if constexpr (kA == 2 && kB == 2) _tile_loadd(3, out1 + kRows, out_stride);
    }
    const int64_t end = c + kChunkCols < job_.cols ? c + kChunkCols : job_.cols;
    for (int64_t k = c; k < end; k += kStepCols) {
      const bool whole = k + kStepCols <= job_.cols;
      _tile_loadd(4, x0 + XAt(2 * k), 64);
      _tile_loadd(6, whole ? Values(g) + k * kRows * 2 : tail_[g], 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kB == 2) {
        _tile_loadd(7, whole ? Values(g + 1) + k * kRows * 2 : tail_[g + 1], 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kA == 2) {
        _tile_loadd(5, x1 + XAt(2 * k), 64);
        _tile_dpbf16ps(2, 5, 6);
        if constexpr (kB == 2) _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, out0, out_stride);
    if constexpr (kB == 2) _tile_stored(1, out0 + kRows, out_stride);
    if constexpr (kA == 2) _tile_stored(2, out1, out_stride);
    if constexpr (kA == 2 && kB == 2) _tile_stored(3, out1 + kRows, out_stride);
  }

  const TileJob& job_;
  TileShape shape_;
  alignas(64) uint8_t tail_[4][kTileBytes];  // the last columns where they do not fill a tile
};

}  // namespace

void TileBf16Amx(const TileJob& job) {
  Product(job).Run();
}

}  // namespace celer::x86
