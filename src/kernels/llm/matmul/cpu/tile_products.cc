#include "kernels/llm/matmul/cpu/tile_products.h"

#include <algorithm>
#include <atomic>

#include "device/aligned_vector.h"
#include "kernels/llm/matmul/cpu/outliers.h"

namespace celer {
namespace {

constexpr int kStreamSums = 2048;  // of a job with several rounds
constexpr int64_t kCachedBytes = 56 << 10;

}  // namespace

void Products::Run(const uint8_t* x, const Part& part, int64_t first, int64_t apart, int64_t count,
                   int64_t token, int64_t tokens, std::span<const uint8_t> ahead, float* kept) const {
  alignas(64) float own[kJobTokens * kMaxTileRows];
  const TileIsa::Kernel& kernel = isa_[part.shape.format];
  const int64_t rows = isa_.geometry.rows, stride = count * rows;
  float* const tile = kept && tokens < kernel.direct_tokens ? kept : own;
  const auto* w = reinterpret_cast<const uint8_t*>(part.to->w.packed);
  TileTarget to;
  if (tokens >= kernel.direct_tokens) {
    const int64_t row = first * rows, at = token * part.to->out_stride + row;
    to = {.out = part.to->out + at,
          .residual = part.to->residual ? part.to->residual + at : nullptr,
          .bias = part.to->bias ? part.to->bias + row : nullptr,
          .stride = part.to->out_stride,
          .rows = std::min(stride, part.to->w.rows - row)};
    if (kept) to = {.out = kept, .stride = stride, .rows = to.rows};
  }
  kernel.run({.w = w + first * part.shape.group_bytes,
              .group_bytes = apart * part.shape.group_bytes,
              .groups = static_cast<int>(count),
              .x = activations_.At(x, kernel.x, token),
              .x_bytes = activations_.unit_bytes(kernel.x),
              .tokens = static_cast<int>(tokens),
              .cols = part.to->w.cols,
              .span = part.shape.span,
              .out = tile,
              .out_stride = stride,
              .ahead = ahead.data(),
              .ahead_bytes = static_cast<int64_t>(ahead.size()),
              .to = to});
  AddOutliers(x, token, tokens, part, w + first * part.shape.group_bytes, apart * part.shape.group_bytes,
              static_cast<int>(count), tile, stride);
  if (to.out || kept) return;
  const auto store = [&](int64_t group, int64_t groups, const float* from) {
    const int64_t row = group * rows;
    StoreTile(*part.to, row, std::min(groups * rows, part.to->w.rows - row), token, tokens, from, stride);
  };
  if (apart == 1) return store(first, count, tile);
  for (int64_t i = 0; i < count; ++i) store(first + i * apart, 1, tile + i * rows);
}

void Products::Stream(const uint8_t* x, const Part& part, int64_t begin, int64_t end, int64_t tokens,
                      float* kept) const {
  const int64_t streams = isa_.streams;
  const auto kept_at = [&, first = begin](int64_t group) {
    return kept ? kept + (group - first) * isa_.geometry.rows : nullptr;
  };
  if (tokens == 1) {
    const int64_t length = (end - begin) / streams;
    RunStreams(x, part, begin, length, kept);
    begin += length * streams;
  }
  const int64_t groups = tokens > 1 && isa_.few_groups > 0 ? isa_.few_groups : streams;
  for (; begin < end; begin += groups)
    Run(x, part, begin, 1, std::min(groups, end - begin), 0, tokens, {}, kept_at(begin));
}

void Products::PrefetchHeads(const Part& part, int64_t begin, int64_t end) const {
  const int64_t length = (end - begin) / isa_.streams * part.shape.group_bytes;
  const auto* w = reinterpret_cast<const uint8_t*>(part.to->w.packed) + begin * part.shape.group_bytes;
  for (int64_t at = 0; at < std::min(isa_.head_bytes, length); at += 64)
    for (int64_t s = 0; s < isa_.streams; ++s) __builtin_prefetch(w + s * length + at, 0, 1);
  asm volatile("");  // else g++ takes this for a function without effect and removes the call
}

void Products::PrefetchTarget(const MatmulOutput& to, int64_t row, int64_t rows) {
  constexpr int64_t kLine = 16;
  for (const int64_t end = std::min(row + rows, to.w.rows); row < end; row += kLine)
    __builtin_prefetch(to.out + row, 1, 2);
  asm volatile("");  // as in PrefetchHeads
}

void Products::RunStreams(const uint8_t* x, const Part& part, int64_t begin, int64_t length,
                          float* kept) const {
  const TileIsa::Kernel& kernel = isa_[part.shape.format];
  const int64_t rows = isa_.geometry.rows, streams = isa_.streams;
  const auto outliers = activations_.Outliers(x, kernel.x, 0, 1);
  int64_t most = std::min<int64_t>(kernel.rounds, kStreamSums / (streams * rows));
  // Few enough rounds for their weights to be in the L1 cache still when the outliers' columns are read.
  if (!outliers.empty() && outliers[0].count > 0)
    most = std::clamp<int64_t>(kCachedBytes / (streams * part.shape.group_bytes), 1, most);
  alignas(64) float sums[kStreamSums];
  for (int64_t i = 0; i < length;) {
    const int64_t rounds = std::min(most, length - i);
    for (int64_t s = 0; s < streams && !kept; ++s)
      PrefetchTarget(*part.to, (begin + s * length + i) * rows, rounds * rows);
    const uint8_t* const w =
        reinterpret_cast<const uint8_t*>(part.to->w.packed) + (begin + i) * part.shape.group_bytes;
    kernel.run({.w = w,
                .group_bytes = length * part.shape.group_bytes,
                .groups = static_cast<int>(streams),
                .x = activations_.At(x, kernel.x, 0),
                .x_bytes = activations_.unit_bytes(kernel.x),
                .tokens = 1,
                .cols = part.to->w.cols,
                .span = part.shape.span,
                .out = sums,
                .out_stride = streams * rows,
                .rounds = static_cast<int>(rounds),
                .round_bytes = part.shape.group_bytes});
    for (int64_t s = 0; s < streams; ++s) {
      float* const of_stream = sums + s * rounds * rows;
      AddOutliers(x, 0, 1, part, w + s * length * part.shape.group_bytes, part.shape.group_bytes,
                  static_cast<int>(rounds), of_stream, rounds * rows);
      const int64_t row = (begin + s * length + i) * rows;
      if (kept)
        std::copy_n(of_stream, rounds * rows, kept + (s * length + i) * rows);
      else
        StoreTile(*part.to, row, std::min(rounds * rows, part.to->w.rows - row), 0, 1, of_stream, 0);
    }
    i += rounds;
  }
}

void Products::AddOutliers(const uint8_t* x, int64_t token, int64_t tokens, const Part& part,
                           const uint8_t* group, int64_t bytes, int groups, float* sums,
                           int64_t stride) const {
  const std::span<const TokenOutliers> outliers =
      activations_.Outliers(x, isa_[part.shape.format].x, token, tokens);
  if (outliers.empty()) return;
  static thread_local OutlierColumns found;
  found.Find(call_, token, outliers, part.shape, isa_.geometry, part.to->w.cols);
  const std::span<const PackedColumn> columns = found.columns();
  if (columns.empty()) return;
  if (tokens == 1)
    return isa_.columns.add(columns.data(), outliers[0].value, outliers[0].count, group, bytes, groups, sums);
  static thread_local AlignedVector<float> values;
  const int64_t rows = isa_.geometry.rows;
  const int64_t of_group = std::ssize(columns) * rows;
  values.resize(groups * of_group);
  isa_.columns.read(columns.data(), static_cast<int>(columns.size()), group, bytes, groups, values.data());
  for (int g = 0; g < groups; ++g)
    isa_.columns.add_read(values.data() + g * of_group, found.slots(0), outliers.data(),
                          static_cast<int>(tokens), sums + g * rows, stride);
}

uint64_t Products::NextCall() {
  static std::atomic<uint64_t> calls{0};
  return calls.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace celer
