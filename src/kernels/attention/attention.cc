#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/check.h"
#include "formats/decode.h"
#include "kernels/vec.h"

namespace celer {
namespace {

// Queries that share each load of a key block. More would only help once K and V no longer fit the L1 cache.
constexpr int64_t kTileTokens = 16;

// One query head's running softmax: the weights so far are relative to `max`.
struct Running {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

struct Unit {
  int64_t seq, kv_head, first_token, tokens;
};

// One kv head against a tile of queries of one sequence. Blocks are visited in order, and which blocks a
// query visits depends on its position alone: neither chunking nor company changes a bit of the result.
class TileWorker {
 public:
  explicit TileWorker(const AttentionArgs& args)
      : args_(args),
        group_(args.heads / args.kv.kv_heads),
        k_(static_cast<size_t>(args.kv.block_size * args.kv.head_dim)),
        v_(k_.size()),
        scores_(static_cast<size_t>(args.kv.block_size)),
        running_(static_cast<size_t>(kTileTokens * group_)) {}

  void Run(const Unit& unit) {
    const int64_t dim = args_.kv.head_dim;
    const int64_t size = args_.kv.block_size;
    std::fill(running_.begin(), running_.end(), Running{});
    for (int64_t t = 0; t < unit.tokens; ++t) std::fill_n(Out(unit, t), group_ * dim, 0.0f);

    const int64_t first_key = FirstKey(Position(unit, 0));
    const int64_t last_key = Position(unit, unit.tokens - 1);
    for (int64_t block = first_key / size; block <= last_key / size; ++block) {
      Load(unit, block);
      for (int64_t t = 0; t < unit.tokens; ++t) {
        const int64_t position = Position(unit, t);
        const int64_t begin = std::max(block * size, FirstKey(position)) - block * size;
        const int64_t end = std::min((block + 1) * size, position + 1) - block * size;
        if (begin >= end) continue;
        for (int64_t g = 0; g < group_; ++g) Update(unit, t, g, begin, end);
      }
    }
    for (int64_t t = 0; t < unit.tokens; ++t)
      for (int64_t g = 0; g < group_; ++g)
        vec::Scale(1.0f / running_[static_cast<size_t>(t * group_ + g)].sum, Out(unit, t) + g * dim, dim);
  }

 private:
  int64_t Position(const Unit& unit, int64_t t) const {
    return args_.batch.positions[static_cast<size_t>(unit.first_token + t)];
  }
  int64_t FirstKey(int64_t position) const {
    return args_.window > 0 ? std::max<int64_t>(0, position - args_.window + 1) : 0;
  }
  // The group's heads of one token are neighbours: [group, head_dim].
  int64_t HeadOffset(const Unit& unit, int64_t t) const {
    return ((unit.first_token + t) * args_.heads + unit.kv_head * group_) * args_.kv.head_dim;
  }
  float* Out(const Unit& unit, int64_t t) const { return args_.out + HeadOffset(unit, t); }

  void Load(const Unit& unit, int64_t block) {
    const int64_t physical =
        args_.batch.block_table[static_cast<size_t>(unit.seq * args_.batch.max_blocks + block)];
    const int64_t n = args_.kv.block_size * args_.kv.head_dim;
    const int64_t offset = args_.kv.Row(physical, unit.kv_head, 0) * Info(args_.kv.dtype).block_bytes;
    DecodeRow(args_.kv.dtype, args_.kv.k + offset, n, k_.data());
    DecodeRow(args_.kv.dtype, args_.kv.v + offset, n, v_.data());
  }

  void Update(const Unit& unit, int64_t t, int64_t g, int64_t begin, int64_t end) {
    const int64_t dim = args_.kv.head_dim;
    const float* q = args_.q + HeadOffset(unit, t) + g * dim;
    float* out = Out(unit, t) + g * dim;
    Running& running = running_[static_cast<size_t>(t * group_ + g)];

    float max = running.max;
    for (int64_t i = begin; i < end; ++i) {
      scores_[static_cast<size_t>(i)] = vec::Dot(q, k_.data() + i * dim, dim) * args_.scale;
      max = std::max(max, scores_[static_cast<size_t>(i)]);
    }
    if (max > running.max) {
      const float shrink = std::exp(running.max - max);  // exp(-inf) = 0 on the first block
      running.sum *= shrink;
      vec::Scale(shrink, out, dim);
      running.max = max;
    }
    for (int64_t i = begin; i < end; ++i) {
      const float weight = std::exp(scores_[static_cast<size_t>(i)] - running.max);
      running.sum += weight;
      vec::Axpy(weight, v_.data() + i * dim, out, dim);
    }
  }

  const AttentionArgs& args_;
  int64_t group_;
  std::vector<float> k_, v_;      // [block_size, head_dim], decoded
  std::vector<float> scores_;     // [block_size]
  std::vector<Running> running_;  // [kTileTokens, group]
};

}  // namespace

void Attention(const AttentionArgs& args) {
  CELER_CHECK_EQ(args.heads % args.kv.kv_heads, 0);
  std::vector<Unit> units;
  for (int64_t s = 0; s < args.batch.seqs(); ++s) {
    const int64_t begin = args.batch.seq_start[static_cast<size_t>(s)];
    const int64_t end = args.batch.seq_start[static_cast<size_t>(s + 1)];
    for (int64_t t = begin; t < end; t += kTileTokens)
      for (int64_t h = 0; h < args.kv.kv_heads; ++h)
        units.push_back({s, h, t, std::min(kTileTokens, end - t)});
  }
  // Late tiles of a long prompt see more keys than early ones, so units are handed out as threads get free.
  args.pool->ParallelForDynamic(static_cast<int64_t>(units.size()), 1, [&](int64_t begin, int64_t end) {
    TileWorker worker(args);
    for (int64_t i = begin; i < end; ++i) worker.Run(units[static_cast<size_t>(i)]);
  });
}

}  // namespace celer
