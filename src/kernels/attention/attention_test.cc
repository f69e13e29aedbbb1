#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "formats/decode.h"
#include "kernels/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

struct Case {
  int64_t heads, kv_heads, dim, window;
  DType dtype;
  std::vector<std::pair<int64_t, int64_t>> sequences;  // tokens already there, tokens in this batch
};

void ExpectMatchesDouble(const Case& c) {
  const int64_t size = 16, blocks = 64;
  const auto k = RandomFloats(blocks * c.kv_heads * size * c.dim, 1, 2.0f);
  const auto v = RandomFloats(blocks * c.kv_heads * size * c.dim, 2);
  const auto n = static_cast<int64_t>(k.size());
  std::vector<std::byte> k_bytes(static_cast<size_t>(n) * 4), v_bytes(static_cast<size_t>(n) * 4);
  EncodeRow(c.dtype, k.data(), n, k_bytes.data());
  EncodeRow(c.dtype, v.data(), n, v_bytes.data());
  std::vector<float> k_seen(k.size()), v_seen(v.size());  // as the cache holds them
  DecodeRow(c.dtype, k_bytes.data(), n, k_seen.data());
  DecodeRow(c.dtype, v_bytes.data(), n, v_seen.data());
  const KvLayerView kv{k_bytes.data(), v_bytes.data(), c.dtype, blocks, c.kv_heads, size, c.dim};

  std::vector<int32_t> tokens, positions, starts = {0}, table;
  const int64_t max_blocks = 16;
  int32_t next_block = static_cast<int32_t>(blocks) - 1;
  for (const auto& [past, now] : c.sequences) {
    for (int64_t i = 0; i < now; ++i)
      tokens.push_back(0), positions.push_back(static_cast<int32_t>(past + i));
    starts.push_back(static_cast<int32_t>(tokens.size()));
    for (int64_t b = 0; b < max_blocks; ++b)
      table.push_back(b <= (past + now - 1) / size ? next_block-- : -1);
  }
  const auto count = static_cast<int64_t>(tokens.size());
  const auto q = RandomFloats(count * c.heads * c.dim, 3, 2.0f);
  std::vector<float> out(q.size());
  ThreadPool pool({.threads = 3});
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  Attention({.batch = {tokens, positions, starts, table, max_blocks, {}},
             .kv = kv,
             .q = q.data(),
             .heads = c.heads,
             .scale = scale,
             .window = c.window,
             .out = out.data(),
             .pool = &pool});

  for (size_t s = 0; s + 1 < starts.size(); ++s)
    for (int64_t t = starts[s]; t < starts[s + 1]; ++t)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t position = positions[static_cast<size_t>(t)];
        const int64_t first = c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
        const float* query = q.data() + (t * c.heads + h) * c.dim;
        std::vector<double> weights;
        std::vector<int64_t> rows;
        for (int64_t p = first; p <= position; ++p) {
          const int64_t block = table[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(p / size)];
          rows.push_back(kv.Row(block, h / (c.heads / c.kv_heads), p % size));
          double dot = 0;
          for (int64_t d = 0; d < c.dim; ++d)
            dot += double{query[d]} * k_seen[static_cast<size_t>(rows.back() + d)];
          weights.push_back(dot * scale);
        }
        const double max = *std::max_element(weights.begin(), weights.end());
        for (double& w : weights) w = std::exp(w - max);
        const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
        for (int64_t d = 0; d < c.dim; ++d) {
          double expected = 0;
          for (size_t i = 0; i < rows.size(); ++i)
            expected += weights[i] / total * v_seen[static_cast<size_t>(rows[i] + d)];
          // Values are within [-1, 1]; scores of up to ~8 make exp() relative errors of ~8 epsilon each.
          ASSERT_NEAR(out[static_cast<size_t>((t * c.heads + h) * c.dim + d)], expected, 2e-5)
              << "sequence " << s << " token " << t << " head " << h;
        }
      }
}

TEST(Attention, MatchesDouble) {
  ExpectMatchesDouble({4, 4, 8, 0, DType::kF32, {{0, 1}}});
  ExpectMatchesDouble({6, 2, 20, 0, DType::kF32, {{0, 37}}});
  ExpectMatchesDouble({9, 3, 64, 0, DType::kF16, {{100, 1}, {0, 5}, {15, 2}, {16, 1}}});
  ExpectMatchesDouble({8, 1, 7, 0, DType::kBf16, {{31, 33}, {200, 1}}});
}

TEST(Attention, SlidingWindow) {
  ExpectMatchesDouble({4, 2, 8, 1, DType::kF32, {{0, 20}}});
  ExpectMatchesDouble({4, 2, 8, 16, DType::kF32, {{0, 50}, {60, 3}}});
  ExpectMatchesDouble({3, 1, 12, 21, DType::kF16, {{100, 40}}});
}

}  // namespace
}  // namespace celer
