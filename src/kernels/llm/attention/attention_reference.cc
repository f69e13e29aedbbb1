#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/llm/attention/attention.h"
#include "kernels/llm/attention/cpu/attention_tile.h"
#include "kernels/llm/kv_row.h"

namespace celer {
namespace {

void AttendOne(const AttentionArgs& args, int64_t seq, int64_t token, int64_t head) {
  const int64_t dim = args.kv.head_dim, kv_head = head / (args.heads / args.kv.kv_heads);
  const int64_t position = args.batch.positions[token];
  const int64_t first = FirstKeyOf(position, args.window, args.chunked);
  const float* q = args.q + (token * args.heads + head) * dim;
  std::vector<float> row(dim);
  const auto load = [&](const std::byte* part, int64_t key) {
    const int64_t block = args.batch.block_table[seq * args.batch.max_blocks + key / args.kv.block_size];
    LoadKvRow(args.kv, part, block, kv_head, key % args.kv.block_size, row.data());
  };

  std::vector<double> weights;
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t key = first; key <= position; ++key) {
    load(args.kv.k, key);
    double dot = 0;
    for (int64_t d = 0; d < dim; ++d) dot += double{q[d]} * row[d];
    const double score = dot * args.scale, cap = args.softcap;
    weights.push_back(cap != 0 ? cap * std::tanh(score / cap) : score);
    if (args.slopes)
      weights.back() += double{AlibiBias(args.slopes[head], key, position, args.rounded_slopes, args.scale)};
    max = std::max(max, weights.back());
  }
  if (args.sinks) {
    max = std::max(max, double{args.sinks[head]});
    sum = std::exp(args.sinks[head] - max);
  }
  std::vector<double> out(dim);
  for (int64_t key = first; key <= position; ++key) {
    load(args.kv.v, key);
    const double weight = std::exp(weights[key - first] - max);
    sum += weight;
    for (size_t d = 0; d < out.size(); ++d) out[d] += weight * row[d];
  }
  for (size_t d = 0; d < out.size(); ++d)
    args.out[(token * args.heads + head) * dim + static_cast<int64_t>(d)] = static_cast<float>(out[d] / sum);
}

}  // namespace

void reference::Attention(const AttentionArgs& args) {
  for (int64_t s = 0; s < args.batch.seqs(); ++s) {
    const int64_t begin = args.batch.seq_start[s];
    const int64_t end = args.batch.seq_start[s + 1];
    args.pool->ParallelForDynamic((end - begin) * args.heads, 1, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) AttendOne(args, s, begin + i / args.heads, i % args.heads);
    });
  }
}

}  // namespace celer
