#include "kernels/attention/attention_flash.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <vector>

#include "core/check.h"
#include "kernels/simd.h"

namespace celer {
namespace {

using S = Simd;

// One kv head and a tile of queries of one sequence.
struct Unit {
  int64_t seq, kv_head, first_token, tokens;
  int64_t first_piece, pieces;  // of kPieceKeys keys, counted from key 0
  int64_t partial;              // index of the first piece's result, if pieces are separate items
};
// What a thread takes: all pieces of a unit, one after the other, or one of them.
struct Item {
  int64_t unit, piece;  // piece -1: all
};

// Results of one piece of one tile.
struct Partial {
  float *max, *sum, *acc;
};
Partial PartialAt(float* base, int64_t rows, int64_t padded) {
  return {base + rows * padded, base + rows * (padded + 1), base};
}
// Rounded up, so that the accumulators of all partials start a cache line.
int64_t PartialFloats(int64_t rows, int64_t padded) {
  return (rows * (padded + 2) + 15) / 16 * 16;
}

KvKind KindOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return KvKind::kF32;
    case DType::kF16:
      return KvKind::kF16;
    case DType::kBf16:
      return KvKind::kBf16;
    default:
      CELER_CHECK(dtype == DType::kI8);
      return KvKind::kI8;
  }
}

float* Aligned(std::vector<float>& floats, int64_t n) {
  if (static_cast<int64_t>(floats.size()) < n + 16) floats.resize(static_cast<size_t>(n + 16));
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(floats.data()) + 63) / 64 * 64);
}

// a <- a and b, where b's keys come later.
void Merge(const Partial& a, const Partial& b, int64_t rows, int64_t padded) {
  for (int64_t r = 0; r < rows; ++r) {
    if (b.sum[r] == 0) continue;  // the row saw nothing of b
    if (a.sum[r] == 0) {
      a.max[r] = b.max[r];
      a.sum[r] = b.sum[r];
      std::copy_n(b.acc + r * padded, padded, a.acc + r * padded);
      continue;
    }
    const float max = std::max(a.max[r], b.max[r]);
    const float from_a = Exp1(a.max[r] - max), from_b = Exp1(b.max[r] - max);
    a.max[r] = max;
    a.sum[r] = a.sum[r] * from_a + b.sum[r] * from_b;
    const S::F by_a = S::Set(from_a), by_b = S::Set(from_b);
    float *to = a.acc + r * padded, *from = b.acc + r * padded;
    for (int64_t d = 0; d < padded; d += S::kLanes)
      S::Store(to + d, S::Fma(S::Load(to + d), by_a, S::Mul(S::Load(from + d), by_b)));
  }
}

class Flash {
 public:
  Flash(const AttentionArgs& args, AttentionTileFn attend)
      : args_(args),
        attend_(attend),
        group_(args.heads / args.kv.kv_heads),
        padded_(PaddedDim(args.kv.head_dim)) {}

  void Run() {
    Plan();
    static thread_local std::vector<float> partials;
    partials_ = Aligned(partials, partial_count_ * partial_floats_);
    left_.assign(units_.size(), 0);
    for (size_t u = 0; u < units_.size(); ++u) left_[u] = static_cast<int32_t>(units_[u].pieces);
    args_.pool->ParallelForDynamic(static_cast<int64_t>(items_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) RunItem(items_[static_cast<size_t>(i)]);
    });
  }

 private:
  void Plan() {
    const int64_t tile_tokens = std::max<int64_t>(1, kMaxTileRows / group_);
    for (int64_t s = 0; s < args_.batch.seqs(); ++s) {
      const int64_t begin = args_.batch.seq_start[static_cast<size_t>(s)];
      const int64_t end = args_.batch.seq_start[static_cast<size_t>(s + 1)];
      if (begin == end) continue;
      // Late tiles of a long prompt see more keys than early ones: they go first, so that no thread is left
      // with one of them when the others are done.
      for (int64_t t = begin + (end - begin - 1) / tile_tokens * tile_tokens; t >= begin; t -= tile_tokens) {
        const int64_t tokens = std::min(tile_tokens, end - t);
        const int64_t first = FirstKey(Position(t)) / kPieceKeys;
        const int64_t last = Position(t + tokens - 1) / kPieceKeys;
        for (int64_t h = 0; h < args_.kv.kv_heads; ++h)
          units_.push_back({s, h, t, tokens, first, last - first + 1, 0});
      }
    }
    // Pieces are separate items where there are too few tiles to keep every thread busy to the end. The
    // arithmetic is the same either way.
    const bool split = static_cast<int64_t>(units_.size()) < 4 * args_.pool->size();
    for (size_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      max_rows_ = std::max(max_rows_, unit.tokens * group_);
      if (!split || unit.pieces == 1) {
        items_.push_back({static_cast<int64_t>(u), -1});
        continue;
      }
      unit.partial = partial_count_;
      partial_count_ += unit.pieces;
      for (int64_t p = 0; p < unit.pieces; ++p) items_.push_back({static_cast<int64_t>(u), p});
    }
    partial_floats_ = PartialFloats(max_rows_, padded_);
  }

  int64_t Position(int64_t token) const { return args_.batch.positions[static_cast<size_t>(token)]; }
  int64_t FirstKey(int64_t position) const {
    return args_.window > 0 ? std::max<int64_t>(0, position - args_.window + 1) : 0;
  }

  void RunItem(const Item& item) {
    static thread_local std::vector<float> memory;
    float* scratch =
        Aligned(memory, TileScratchFloats(max_rows_, args_.kv.head_dim) + 16 + 2 * partial_floats_);
    const Unit& unit = units_[static_cast<size_t>(item.unit)];
    const int64_t rows = unit.tokens * group_;
    if (item.piece >= 0) {
      Attend(unit, item.piece, scratch, SharedPartial(unit, item.piece));
      // Whoever finishes the last piece combines all of them, in order.
      std::atomic_ref<int32_t> left(left_[static_cast<size_t>(item.unit)]);
      if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      const Partial total = SharedPartial(unit, 0);
      for (int64_t p = 1; p < unit.pieces; ++p) Merge(total, SharedPartial(unit, p), rows, padded_);
      return Finish(unit, total);
    }
    float* own = scratch + (TileScratchFloats(max_rows_, args_.kv.head_dim) + 15) / 16 * 16;
    const Partial total = PartialAt(own, rows, padded_),
                  next = PartialAt(own + partial_floats_, rows, padded_);
    Attend(unit, 0, scratch, total);
    for (int64_t p = 1; p < unit.pieces; ++p) {
      Attend(unit, p, scratch, next);
      Merge(total, next, rows, padded_);
    }
    Finish(unit, total);
  }

  Partial SharedPartial(const Unit& unit, int64_t piece) const {
    return PartialAt(partials_ + (unit.partial + piece) * partial_floats_, unit.tokens * group_, padded_);
  }

  void Attend(const Unit& unit, int64_t piece, float* scratch, const Partial& result) const {
    const KvLayerView& kv = args_.kv;
    const int64_t head = kv.RowOffset(0, unit.kv_head, 0);
    const int64_t key = (unit.first_piece + piece) * kPieceKeys;
    attend_({.kind = KindOf(kv.dtype),
             .k = reinterpret_cast<const uint8_t*>(kv.k) + head,
             .v = reinterpret_cast<const uint8_t*>(kv.v) + head,
             .block_bytes = kv.BlockBytes(),
             .row_bytes = kv.RowBytes(),
             .scale_offset = kv.block_size * kv.RowBytes(),
             .block_size = kv.block_size,
             .blocks = args_.batch.block_table.data() + unit.seq * args_.batch.max_blocks,
             .q = args_.q + HeadOffset(unit),
             .token_stride = args_.heads * kv.head_dim,
             .tokens = unit.tokens,
             .group = group_,
             .head_dim = kv.head_dim,
             .positions = args_.batch.positions.data() + unit.first_token,
             .window = args_.window,
             .scale = args_.scale,
             .key_begin = key,
             .key_end = key + kPieceKeys,
             .scratch = scratch,
             .max = result.max,
             .sum = result.sum,
             .acc = result.acc});
  }

  // The group's heads of one token are neighbours: [group, head_dim].
  int64_t HeadOffset(const Unit& unit) const {
    return (unit.first_token * args_.heads + unit.kv_head * group_) * args_.kv.head_dim;
  }

  void Finish(const Unit& unit, const Partial& total) const {
    const int64_t dim = args_.kv.head_dim;
    for (int64_t t = 0; t < unit.tokens; ++t)
      for (int64_t g = 0; g < group_; ++g) {
        const int64_t r = t * group_ + g;
        float* out = args_.out + HeadOffset(unit) + (t * args_.heads + g) * dim;
        const float inverse = 1.0f / total.sum[r];
        for (int64_t d = 0; d < dim; ++d) out[d] = total.acc[r * padded_ + d] * inverse;
      }
  }

  const AttentionArgs& args_;
  const AttentionTileFn attend_;
  const int64_t group_, padded_;
  std::vector<Unit> units_;
  std::vector<Item> items_;
  std::vector<int32_t> left_;  // pieces to go, per unit
  float* partials_ = nullptr;
  int64_t partial_count_ = 0, partial_floats_ = 0, max_rows_ = 0;
};

}  // namespace

void FlashAttention(const AttentionArgs& args, AttentionTileFn attend) {
  CELER_CHECK_EQ(args.kv.block_size % kSegmentKeys, 0);
  Flash(args, attend).Run();
}

}  // namespace celer
