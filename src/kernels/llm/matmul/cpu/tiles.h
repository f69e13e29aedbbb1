// A matmul variant made of tile kernels over packed weights (packed.h): what an instruction set has to bring.
#pragma once

#include <cstdint>

#include "kernels/llm/matmul/cpu/column.h"
#include "kernels/llm/matmul/cpu/packed.h"
#include "kernels/llm/matmul/matmul.h"

namespace celer {

constexpr int64_t kJobTokens = 128;  // their activations stay in the L2 cache while the rows go by

struct TileIsa {
  PackGeometry geometry = {};
  int tile_groups = 4;  // row groups that one job should have at least, if there are that many
  int streams = 4;      // of memory that one thread reads at once for a single token, a row group each
  // Up to this many tokens, memory is what a product waits for: every thread reads a contiguous part of it.
  int64_t stream_tokens = 16;
  int few_groups = 0;      // row groups of a job of few tokens, two at least; 0: as many as streams
  int64_t head_bytes = 0;  // of each stream, asked for before the activations are prepared
  int x_tokens = 1;        // tokens in one unit of activations
  int64_t walk_tokens =
      1;  // a thread takes a row tile over this many tokens: their activations fit its L2 cache
  int64_t (*x_bytes)(XKind kind, int64_t cols) = nullptr;  // of one unit
  int prepare_tokens = 0;  // of a kRow unit, that a thread prepares at a time; 0: the whole unit
  // `tokens` (1 to x_tokens) rows of `cols` floats to one unit. Rows of a kRow unit may be null: another call
  // prepares them.
  void (*prepare)(XKind kind, const float* const* rows, int tokens, int64_t cols, uint8_t* out) = nullptr;
  // One row x / rms(x) * weight; none: NormInputRow(), as for LayerNorm.
  void (*norm)(const float* x, const float* weight, float eps, int64_t cols, float* out) = nullptr;
  ColumnKernels columns = {};
  struct Kernel {
    TileFn run = nullptr;  // none: this format is read as stored, by the portable kernel
    XKind x = XKind::kFloat;
    int64_t direct_tokens = INT64_MAX;  // from this many tokens on it stores to TileJob::to by itself
    int rounds = 1;                     // of one job, at most (TileJob::rounds)
    // Of one job, at most. More than kJobTokens only where it stores by itself.
    int64_t job_tokens = kJobTokens;
    int job_groups = INT32_MAX;
  };
  Kernel kernels[kPackedFormats] = {};
  int64_t max_row_cols = INT64_MAX;  // of kByteRow

  Kernel& operator[](PackedFormat format) { return kernels[static_cast<int>(format)]; }
  const Kernel& operator[](PackedFormat format) const { return kernels[static_cast<int>(format)]; }
};

int64_t TilePackedBytes(const TileIsa& isa, const WeightView& w);
void TilePack(const TileIsa& isa, const WeightView& w, ThreadPool& pool, std::byte* out);
void TileDecodeRow(const TileIsa& isa, const WeightView& w, int64_t row, float* out);
PackedGrid TileGrid(const TileIsa& isa, const WeightView& w);
// `self` is the variant that this is the product of: weights must be packed for it.
void TileMatmul(const TileIsa& isa, const MatmulKernels& self, const MatmulArgs& args);

template <const TileIsa& (*kIsa)(), const MatmulKernels& kSelf>
constexpr MatmulKernels MakeTileKernels(std::string_view name) {
  return {
      .name = name,
      .packed_bytes = [](const WeightView& w) { return TilePackedBytes(kIsa(), w); },
      .pack = [](const WeightView& w, ThreadPool& pool, std::byte* out) { TilePack(kIsa(), w, pool, out); },
      .grid = [](const WeightView& w) { return TileGrid(kIsa(), w); },
      .decode_row = [](const WeightView& w, int64_t row, float* out) { TileDecodeRow(kIsa(), w, row, out); },
      .run = [](const MatmulArgs& args) { TileMatmul(kIsa(), kSelf, args); }};
}

}  // namespace celer
