#include "kernels/llm/attention/cpu/attention_expand.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/aligned_vector.h"
#include "kernels/llm/kv_row.h"

namespace celer {
namespace {

// Scratch, kept from call to call: a decode step has no time to allocate.
struct Scratch {
  AlignedVector<float> k, v;
  std::vector<int32_t> table;   // the batch's, with numbers of blocks here
  std::vector<int32_t> source;  // the block that each one comes from
  std::vector<int32_t> tokens;  // that are seen of it
  AlignedVector<float> q;       // rotated as the keys are
};

// The blocks that each sequence sees, and how many rows of the last one there are.
void List(const AttentionArgs& args, Scratch* scratch) {
  const RaggedBatch& batch = args.batch;
  scratch->table.assign(batch.block_table.size(), 0);
  scratch->source.clear();
  scratch->tokens.clear();
  const int64_t size = args.kv.block_size;
  for (int64_t s = 0; s < batch.seqs(); ++s) {
    const auto begin = static_cast<size_t>(batch.seq_start[s]),
               end = static_cast<size_t>(batch.seq_start[s + 1]);
    if (begin == end) continue;
    const auto [low, high] = std::minmax_element(batch.positions.begin() + static_cast<int64_t>(begin),
                                                 batch.positions.begin() + static_cast<int64_t>(end));
    const int64_t first = FirstKeyOf(*low, args.window, args.chunked);
    for (int64_t b = first / size; b <= *high / size; ++b) {
      const auto at = static_cast<size_t>(s * batch.max_blocks + b);
      scratch->table[at] = static_cast<int32_t>(scratch->source.size());
      scratch->source.push_back(batch.block_table[at]);
      scratch->tokens.push_back(static_cast<int32_t>(std::min<int64_t>(size, *high + 1 - b * size)));
    }
  }
}

void RotateRows(const AttentionArgs& args, float* x, int64_t rows) {
  const int64_t dim = args.kv.head_dim;
  args.pool->ParallelFor(rows, 16, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) RotateKvRow(x + r * dim, dim);
  });
}

}  // namespace

bool NeedsExpansion(const KvLayerView& kv) {
  return kv.dtype == DType::kFp8E4M3 || IsBlockQuantized(kv.dtype) || kv.channel_keys;
}

void ExpandedAttention(const AttentionArgs& args, AttentionFn run) {
  static thread_local Scratch scratch;
  List(args, &scratch);
  const KvLayerView& from = args.kv;
  KvLayerView to = from;
  to.dtype = DType::kF32;
  to.blocks = static_cast<int64_t>(scratch.source.size());
  to.run = 1;
  to.channel_keys = false;
  const auto floats = static_cast<size_t>(to.blocks * to.BlockBytes() / 4);
  for (auto* part : {&scratch.k, &scratch.v})
    if (part->size() < floats) part->resize(floats);
  to.k = reinterpret_cast<std::byte*>(scratch.k.data());
  to.v = reinterpret_cast<std::byte*>(scratch.v.data());
  Scratch* const shared = &scratch;  // not each thread's own
  args.pool->ParallelFor(to.blocks * from.kv_heads, 4, [&, shared](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t block = i / from.kv_heads, head = i % from.kv_heads;
      const int64_t source = shared->source[block];
      const int64_t tokens = shared->tokens[block];
      for (int64_t slot = 0; slot < tokens; ++slot) {
        const int64_t at = to.RowOffset(block, head, slot);
        LoadStoredKvRow(from, from.k, source, head, slot, reinterpret_cast<float*>(to.k + at));
        LoadStoredKvRow(from, from.v, source, head, slot, reinterpret_cast<float*>(to.v + at));
      }
      // Rows behind the last token of a block are not seen, but kernels may multiply them with zero.
      const int64_t rest = to.RowOffset(block, head, tokens);
      for (std::byte* part : {to.k, to.v})
        std::memset(part + rest, 0, static_cast<size_t>((to.block_size - tokens) * to.RowBytes()));
    }
  });
  AttentionArgs expanded = args;
  expanded.kv = to;
  expanded.batch.block_table = scratch.table;
  const int64_t rows = args.batch.token_count() * args.heads;
  if (!RotatesKv(from.dtype)) return run(expanded);
  scratch.q.assign(args.q, args.q + rows * from.head_dim);
  RotateRows(args, scratch.q.data(), rows);
  expanded.q = scratch.q.data();
  run(expanded);
  RotateRows(args, args.out, rows);
}

}  // namespace celer
