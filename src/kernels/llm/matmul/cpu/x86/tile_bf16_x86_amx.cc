// bf16 weights times activations rounded to bf16, accumulated in f32 by tdpbf16ps: tiles of up to 16 tokens
// times 16 rows, 32 columns at a time. A single token is a tile of one row: it is memory-bound, and the order
// of additions stays that of every other batch.
#include <stdint.h>

#include "kernels/llm/matmul/cpu/x86/activation_tile.h"
#include "kernels/llm/matmul/cpu/x86/amx_x86.h"
#include "kernels/llm/matmul/cpu/x86/tile_x86.h"
#include "kernels/llm/matmul/cpu/x86/vec_x86.h"

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
        for (int i = t; i < end; i += kXTokens)
          for (int g = 0; g < job_.groups; g += 2)
            g + 1 < job_.groups ? Block<2>(i, end - i, g, c) : Block<1>(i, end - i, g, c);
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

  // Up to sixteen tokens times kB row groups.
  template <int kB>
  void Block(int t, int tokens, int g, int64_t c) {
    shape_.Use(tokens < kXTokens ? tokens : kXTokens, 64);
    const uint8_t* const x = job_.x + t / kXTokens * job_.x_bytes;
    float* const out = job_.out + t * job_.out_stride + g * kRows;
    const int64_t out_stride = job_.out_stride * 4;
    if (c == 0) {
      _tile_zero(0);
      if constexpr (kB == 2) _tile_zero(1);
    } else {
      _tile_loadd(0, out, out_stride);
      if constexpr (kB == 2) _tile_loadd(1, out + kRows, out_stride);
    }
    const int64_t end = c + kChunkCols < job_.cols ? c + kChunkCols : job_.cols;
    for (int64_t k = c; k < end; k += kStepCols) {
      const bool whole = k + kStepCols <= job_.cols;
      _tile_loadd(2, x + XAt(2 * k), 64);
      _tile_loadd(3, whole ? Values(g) + k * kRows * 2 : tail_[g], 64);
      _tile_dpbf16ps(0, 2, 3);
      if constexpr (kB == 2) {
        _tile_loadd(3, whole ? Values(g + 1) + k * kRows * 2 : tail_[g + 1], 64);
        _tile_dpbf16ps(1, 2, 3);
      }
    }
    _tile_stored(0, out, out_stride);
    if constexpr (kB == 2) _tile_stored(1, out + kRows, out_stride);
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
