#include "kernels/llm/attention/cpu/attention_flash.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/shared/simd.h"

namespace celer {
namespace {

using S = Simd;

// One kv head and a tile of queries of one sequence.
struct Unit {
  int64_t seq, kv_head, first_token, tokens;
  int64_t first_split, splits;  // of kSplitKeys keys, counted from key 0
  int64_t partial;              // index of the first split's result, if splits are separate items
};
// A work item: all splits of a unit, one after the other, or one of them.
struct Item {
  int64_t unit, split;  // split -1: all
};

// Partial result of one split of one tile: running maximum, sum and accumulators.
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
  if (static_cast<int64_t>(floats.size()) < n + 16) floats.resize(n + 16);
  return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(floats.data()) + 63) / 64 * 64);
}

// Merges two partial softmaxes, a <- a and b, where b's keys come later. A side whose row saw no key has a
// maximum of minus infinity, a sum of zero and zeros: it contributes nothing.
void Merge(const Partial& a, const Partial& b, int64_t rows, int64_t padded) {
  for (int64_t first = 0; first < rows; first += S::kLanes) {
    const int64_t n = std::min<int64_t>(S::kLanes, rows - first);
    const S::F max_a = LoadSome(a.max + first, n), max_b = LoadSome(b.max + first, n);
    const S::F max = S::Max(max_a, max_b), base = S::Max(max, S::Set(std::numeric_limits<float>::lowest()));
    S::F factors[2] = {S::Sub(max_a, base), S::Sub(max_b, base)};
    ExpNonPositive(factors);
    const S::F sum =
        S::Fma(LoadSome(a.sum + first, n), factors[0], S::Mul(LoadSome(b.sum + first, n), factors[1]));
    StoreSome(a.max + first, max, n);
    StoreSome(a.sum + first, sum, n);
    float from_a[S::kLanes], from_b[S::kLanes];
    S::Store(from_a, factors[0]);
    S::Store(from_b, factors[1]);
    for (int64_t i = 0; i < n; ++i) {
      const S::F by_a = S::Set(from_a[i]), by_b = S::Set(from_b[i]);
      float *to = a.acc + (first + i) * padded, *from = b.acc + (first + i) * padded;
      for (int64_t d = 0; d < padded; d += S::kLanes)
        S::Store(to + d, S::Fma(S::Load(to + d), by_a, S::Mul(S::Load(from + d), by_b)));
    }
  }
}

// What values' weighted sums are multiplied with: the softmax has one more logit, `sink`, that has no value.
float InverseWithSink(float sum, float max, float sink) {
  if (sink <= max) return 1.0f / (sum + kWeightRoom * std::exp(sink - max));
  const float shrink = std::exp(max - sink);
  return shrink / (sum * shrink + kWeightRoom);
}

// Scratch of a call, kept from call to call: a decode step has no time to allocate.
struct Scratch {
  std::vector<Unit> units;
  std::vector<Item> items;
  std::vector<int32_t> left;         // splits to go, per unit
  std::vector<int64_t> next;         // the next item of each thread's part
  std::vector<int32_t> head_blocks;  // the block tables, counting what one head reads of a block as tiles do
  std::vector<float> partials;
};

class Flash {
 public:
  Flash(const AttentionArgs& args, AttentionTileFn attend, Scratch& scratch)
      : args_(args),
        attend_(attend),
        group_(args.heads / args.kv.kv_heads),
        padded_(PaddedDim(args.kv.head_dim)),
        scratch_(scratch),
        units_(scratch.units),
        items_(scratch.items),
        left_(scratch.left),
        next_(scratch.next) {
    units_.clear();
    items_.clear();
  }

  void Run() {
    MakeItems();
    FindHeadBlocks();
    partials_ = Aligned(scratch_.partials, partial_count_ * partial_floats_);
    left_.assign(units_.size(), 0);
    for (size_t u = 0; u < units_.size(); ++u) left_[u] = static_cast<int32_t>(units_[u].splits);
    const auto count = static_cast<int64_t>(items_.size());
    if (!separate_) {
      // Items go round the kv heads. Threads begin with different heads, so that each reads the keys and
      // values of few of them, which other cores have just written; a thread that is done steals from the
      // others.
      const int64_t heads = args_.kv.kv_heads;
      next_.assign(heads, 0);
      args_.pool->Run([&](int thread) {
        for (int64_t i = 0; i < heads; ++i) {
          const int64_t head = (thread * heads / args_.pool->size() + i) % heads;
          std::atomic_ref<int64_t> next(next_[head]);
          for (int64_t at = 0; (at = next.fetch_add(1, std::memory_order_relaxed) * heads + head) < count;)
            RunItem(items_[at], nullptr, false);
        }
      });
      return;
    }
    // Each thread walks through a part of its own, so that it can prefetch the next split before it ends the
    // one at hand; when it is through, it steals from the other parts.
    const int64_t parts = args_.pool->size();
    next_.resize(parts);
    const auto part_begin = [&](int64_t part) { return part * count / parts; };
    for (int64_t i = 0; i < parts; ++i) next_[i] = part_begin(i);
    args_.pool->ParallelForDynamic(parts, 1, [&](int64_t begin, int64_t end) {
      int64_t unit = -1;  // of the item before
      for (int64_t own = begin; own < end; ++own)
        for (int64_t i = 0; i < parts; ++i) {
          const int64_t part = (own + i) % parts, part_end = part_begin(part + 1);
          std::atomic_ref<int64_t> next(next_[part]);
          for (int64_t at = 0; (at = next.fetch_add(1, std::memory_order_relaxed)) < part_end;) {
            const Item& item = items_[at];
            RunItem(item, at + 1 < part_end ? &items_[at + 1] : nullptr, item.unit == unit);
            unit = item.unit;
          }
        }
    });
  }

 private:
  void MakeItems() {
    const int64_t tile_tokens = std::max<int64_t>(1, kMaxTileRows / group_);
    for (int64_t s = 0; s < args_.batch.seqs(); ++s) {
      const int64_t begin = args_.batch.seq_start[s];
      const int64_t end = args_.batch.seq_start[s + 1];
      if (begin == end) continue;
      // Longest first: late tiles of a long prompt see more keys than early ones, and no thread should be
      // left with one of them when the others are done.
      for (int64_t t = begin + (end - begin - 1) / tile_tokens * tile_tokens; t >= begin; t -= tile_tokens) {
        const int64_t tokens = std::min(tile_tokens, end - t);
        const int64_t first = FirstKey(Position(t)) / kSplitKeys;
        const int64_t last = Position(t + tokens - 1) / kSplitKeys;
        for (int64_t h = 0; h < args_.kv.kv_heads; ++h)
          units_.push_back({s, h, t, tokens, first, last - first + 1, 0});
      }
    }
    // Split-KV (flash decoding): splits are separate items where there are too few tiles to keep every thread
    // busy to the end. The arithmetic is the same either way.
    separate_ = static_cast<int64_t>(units_.size()) < 4 * args_.pool->size();
    for (size_t u = 0; u < units_.size(); ++u) {
      Unit& unit = units_[u];
      max_rows_ = std::max(max_rows_, unit.tokens * group_);
      if (!separate_ || unit.splits == 1) {
        items_.push_back({static_cast<int64_t>(u), -1});
        continue;
      }
      unit.partial = partial_count_;
      partial_count_ += unit.splits;
      for (int64_t p = 0; p < unit.splits; ++p) items_.push_back({static_cast<int64_t>(u), p});
    }
    partial_floats_ = PartialFloats(max_rows_, padded_);
  }

  void FindHeadBlocks() {
    const RaggedBatch& batch = args_.batch;
    std::vector<int32_t>& head_blocks = scratch_.head_blocks;
    if (head_blocks.size() < batch.block_table.size()) head_blocks.resize(batch.block_table.size());
    for (int64_t s = 0; s < batch.seqs(); ++s) {
      const int64_t end = batch.seq_start[s + 1];
      if (end == batch.seq_start[s]) continue;
      const int64_t blocks = Position(end - 1) / args_.kv.block_size + 1, at = s * batch.max_blocks;
      for (int64_t b = at; b < at + blocks; ++b)
        head_blocks[b] = static_cast<int32_t>(args_.kv.HeadPiece(batch.block_table[b]));
    }
    head_blocks_ = head_blocks.data();
  }

  int64_t Position(int64_t token) const { return args_.batch.positions[token]; }
  int64_t FirstKey(int64_t position) const { return FirstKeyOf(position, args_.window, args_.chunked); }

  // `next` is what this thread is likely to run after it, if that is known; `same_unit` as it ran just
  // before.
  void RunItem(const Item& item, const Item* next, bool same_unit) {
    static thread_local std::vector<float> memory;
    float* scratch =
        Aligned(memory, TileScratchFloats(max_rows_, args_.kv.head_dim) + 16 + 2 * partial_floats_);
    const Unit& unit = units_[item.unit];
    const int64_t rows = unit.tokens * group_;
    if (item.split >= 0) {
      Attend(unit, item.split, scratch, SharedPartial(unit, item.split), next, same_unit);
      // The thread that finishes the last split combines all of them, in order.
      std::atomic_ref<int32_t> left(left_[item.unit]);
      if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      const Partial total = SharedPartial(unit, 0);
      for (int64_t p = 1; p < unit.splits; ++p) Merge(total, SharedPartial(unit, p), rows, padded_);
      return Finish(unit, total);
    }
    float* own = scratch + (TileScratchFloats(max_rows_, args_.kv.head_dim) + 15) / 16 * 16;
    const Partial total = PartialAt(own, rows, padded_),
                  more = PartialAt(own + partial_floats_, rows, padded_);
    Attend(unit, 0, scratch, total, next, false);
    for (int64_t p = 1; p < unit.splits; ++p) {
      Attend(unit, p, scratch, more, nullptr, true);
      Merge(total, more, rows, padded_);
    }
    Finish(unit, total);
  }

  Partial SharedPartial(const Unit& unit, int64_t split) const {
    return PartialAt(partials_ + (unit.partial + split) * partial_floats_, unit.tokens * group_, padded_);
  }

  void Attend(const Unit& unit, int64_t split, float* scratch, const Partial& result, const Item* next,
              bool same_queries) const {
    const KvLayerView& kv = args_.kv;
    const int64_t key = (unit.first_split + split) * kSplitKeys;
    AttentionTile tile{.kind = KindOf(kv.dtype),
                       .k = HeadRows(kv.k, unit),
                       .v = HeadRows(kv.v, unit),
                       .block_bytes = kv.HeadBytes(),
                       .row_bytes = kv.RowBytes(),
                       .scale_offset = kv.block_size * kv.RowBytes(),
                       .block_size = kv.block_size,
                       .blocks = Blocks(unit),
                       .q = args_.q + HeadOffset(unit),
                       .token_stride = args_.heads * kv.head_dim,
                       .tokens = unit.tokens,
                       .group = group_,
                       .head_dim = kv.head_dim,
                       .positions = args_.batch.positions.data() + unit.first_token,
                       .window = args_.window,
                       .chunked = args_.chunked,
                       .scale = args_.scale,
                       .softcap = args_.softcap,
                       .slopes = args_.slopes ? args_.slopes + unit.kv_head * group_ : nullptr,
                       .rounded_slopes = args_.rounded_slopes,
                       .key_begin = key,
                       .key_end = key + kSplitKeys,
                       .scratch = scratch,
                       .same_queries = same_queries,
                       .max = result.max,
                       .sum = result.sum,
                       .acc = result.acc};
    if (next) {
      const Unit& later = units_[next->unit];
      tile.next_k = HeadRows(kv.k, later);
      tile.next_v = HeadRows(kv.v, later);
      tile.next_blocks = Blocks(later);
      tile.next_begin = std::max((later.first_split + std::max<int64_t>(next->split, 0)) * kSplitKeys,
                                 FirstKey(Position(later.first_token)) / kSegmentKeys * kSegmentKeys);
      tile.next_end = Position(later.first_token + later.tokens - 1) + 1;
    }
    attend_(tile);
  }
  const uint8_t* HeadRows(const std::byte* part, const Unit& unit) const {
    return reinterpret_cast<const uint8_t*>(part + args_.kv.RowOffset(0, unit.kv_head, 0));
  }
  const int32_t* Blocks(const Unit& unit) const { return head_blocks_ + unit.seq * args_.batch.max_blocks; }

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
        const float inverse =
            args_.sinks ? InverseWithSink(total.sum[r], total.max[r], args_.sinks[unit.kv_head * group_ + g])
                        : 1.0f / total.sum[r];
        // A mean of the largest numbers may round to infinity.
        constexpr float kLargest = std::numeric_limits<float>::max();
        for (int64_t d = 0; d < dim; ++d) {
          const float sum = total.acc[r * padded_ + d], mean = sum * inverse;
          out[d] = std::isinf(mean) && std::isfinite(sum) ? std::copysign(kLargest, mean) : mean;
        }
      }
  }

  const AttentionArgs& args_;
  const AttentionTileFn attend_;
  const int64_t group_, padded_;
  Scratch& scratch_;
  std::vector<Unit>& units_;
  std::vector<Item>& items_;
  std::vector<int32_t>& left_;
  std::vector<int64_t>& next_;
  bool separate_ = false;  // splits are separate items
  const int32_t* head_blocks_ = nullptr;
  float* partials_ = nullptr;
  int64_t partial_count_ = 0, partial_floats_ = 0, max_rows_ = 0;
};

}  // namespace

void FlashAttention(const AttentionArgs& args, AttentionTileFn attend) {
  CELER_CHECK_EQ(args.kv.block_size % kSegmentKeys, 0);
  static thread_local Scratch scratch;
  Flash(args, attend, scratch).Run();
}

}  // namespace celer
