// One job of a product after the other, by whichever thread: row groups of packed weights times some tokens.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/llm/matmul/cpu/activations.h"
#include "kernels/llm/matmul/cpu/pack.h"
#include "kernels/llm/matmul/cpu/tiles.h"

namespace celer {

constexpr int kMaxTileRows = 64;

// One output of a call whose weights are packed.
struct Part {
  const MatmulOutput* to;
  PackedShape shape;
  int64_t first_tile = 0;  // where its row tiles begin among those of all parts
};

class Products {
 public:
  Products(const TileIsa& isa, const Activations& activations) : isa_(isa), activations_(activations) {}

  // Row groups first, first + apart, ... (`count` of them) of a part, times some tokens. To the part's
  // output, or to `kept` [tokens, count * rows of a group].
  void Run(const uint8_t* x, const Part& part, int64_t first, int64_t apart, int64_t count, int64_t token,
           int64_t tokens, std::span<const uint8_t> ahead = {}, float* kept = nullptr) const;

  // Row groups [begin, end) times few tokens, weights straight from memory. With one token as many memory
  // streams as a tile has groups: each is long, so that the hardware prefetches it, and together they keep
  // more reads in flight than one would. To the part's output, or, of one token, to `kept`, row by row from
  // the first group on.
  void Stream(const uint8_t* x, const Part& part, int64_t begin, int64_t end, int64_t tokens,
              float* kept = nullptr) const;

  // Prefetches the beginnings of the streams that one token will read of row groups [begin, end): kernels
  // prefetch from some distance on only.
  void PrefetchHeads(const Part& part, int64_t begin, int64_t end) const;

  // Prefetches rows of the output for writing: other cores have read them last, so that their lines take long
  // to come.
  static void PrefetchTarget(const MatmulOutput& to, int64_t row, int64_t rows);

 private:
  // One token; stream s has row groups begin + s * length to begin + (s + 1) * length.
  void RunStreams(const uint8_t* x, const Part& part, int64_t begin, int64_t length, float* kept) const;
  // Adds what the tokens' outliers contribute to row groups that are `bytes` apart; sums are [tokens,
  // stride].
  void AddOutliers(const uint8_t* x, int64_t token, int64_t tokens, const Part& part, const uint8_t* group,
                   int64_t bytes, int groups, float* sums, int64_t stride) const;
  static uint64_t NextCall();

  const TileIsa& isa_;
  const Activations& activations_;
  const uint64_t call_ = NextCall();
};

}  // namespace celer
