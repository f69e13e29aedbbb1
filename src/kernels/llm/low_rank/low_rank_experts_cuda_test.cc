#include "kernels/llm/low_rank/low_rank_experts_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "kernels/llm/low_rank/low_rank_heads_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

// Tokens with mixes of two adapters and none, and tiles of them, as a runner makes them.
struct Tokens {
  explicit Tokens(int count) {
    // Of none, of the first, of the second, of both.
    uses = {{.slot = 0, .scale = 0.5f, .low_at = 0}, {.slot = 1, .scale = -2.0f, .low_at = kLowRankStep}};
    uses.push_back({.slot = 1, .scale = 1.0f, .low_at = 0});
    const LowRankTile kinds[] = {{.plain = 1},
                                 {.first_use = 0, .uses = 1, .rank = kLowRankStep},
                                 {.first_use = 2, .uses = 1, .rank = 2 * kLowRankStep},
                                 {.first_use = 0, .uses = 2, .rank = 3 * kLowRankStep}};
    std::map<int, int> open;
    for (int t = 0; t < count; ++t) {
      const int kind = t * 7 % 5 % 4;
      mix_of.push_back(kind);
      if (!open.contains(kind)) {
        open[kind] = static_cast<int>(tiles.size());
        tiles.push_back(kinds[kind]);
      }
      LowRankTile& tile = tiles[static_cast<size_t>(open[kind])];
      tile_of.push_back(open[kind]);
      tile.rows[static_cast<size_t>(tile.count++)] = t;
      if (tile.count == kLowRankTile) open.erase(kind);
    }
  }
  std::vector<std::pair<int, float>> UsesOf(int token) const {  // adapters and scales
    const int kind = mix_of[static_cast<size_t>(token)];
    std::vector<std::pair<int, float>> out;
    if (kind == 1 || kind == 3) out.emplace_back(0, 0.5f);
    if (kind == 2) out.emplace_back(1, 1.0f);
    if (kind == 3) out.emplace_back(1, -2.0f);
    return out;
  }

  std::vector<DeviceUse> uses;
  std::vector<LowRankTile> tiles;
  std::vector<int32_t> tile_of;
  std::vector<int> mix_of;
};

// What routing leaves: slots sorted by expert, in jobs.
struct Routed {
  Routed(int tokens, int top, int experts, int job_tokens) {
    std::vector<std::vector<int32_t>> of_expert(static_cast<size_t>(experts));
    for (int t = 0; t < tokens; ++t)
      for (int k = 0; k < top; ++k)
        of_expert[static_cast<size_t>((t * t + 3 * t + k) % experts)].push_back(t);
    for (int e = 0; e < experts; ++e) {
      const auto& all = of_expert[static_cast<size_t>(e)];
      for (size_t first = 0; first < all.size(); first += static_cast<size_t>(job_tokens)) {
        const auto n = std::min<size_t>(static_cast<size_t>(job_tokens), all.size() - first);
        jobs.push_back({e, static_cast<int32_t>(row.size()), static_cast<int32_t>(n), 0, 1});
        for (size_t i = 0; i < n; ++i) {
          row.push_back(all[first + i]);
          expert.push_back(e);
        }
      }
    }
    counts = {static_cast<int32_t>(jobs.size()), 0};
  }
  std::vector<int32_t> row, expert, counts;  // of slots: the token, the expert
  std::vector<ExpertJob> jobs;
};

struct OnGpu {
  OnGpu(const Tokens& tokens, const Routed& routed)
      : count(std::vector<int32_t>{static_cast<int32_t>(tokens.tiles.size())}),
        tile_of(tokens.tile_of),
        row(routed.row),
        counts(routed.counts),
        tiles(tokens.tiles),
        slot_tiles(std::vector<LowRankTile>(routed.row.size())),
        tile_count(std::vector<int32_t>{123}),
        uses(tokens.uses),
        jobs(routed.jobs) {}

  cudaError_t Sort(int slots) {
    LowRankSlotsArgs args;
    args.tokens.tile_count = count.get(), args.tokens.tiles = tiles.get(), args.tokens.uses = uses.get();
    args.tile_of = tile_of.get();
    args.slots.row = row.get(), args.slots.jobs = jobs.get(), args.slots.counts = counts.get();
    args.count = slots;
    args.tiles = slot_tiles.get();
    args.tile_count = tile_count.get();
    return LaunchLowRankSlots(args, nullptr);
  }

  OnDevice<int32_t> count, tile_of, row, counts;
  OnDevice<LowRankTile> tiles, slot_tiles;
  OnDevice<int32_t> tile_count;
  OnDevice<DeviceUse> uses;
  OnDevice<ExpertJob> jobs;
};

TEST(LowRankExpertsCuda, TilesHaveEachSlotOnce) {
  NEEDS_GPU();
  for (const auto& [count, top, experts, job_tokens] :
       {std::tuple{1, 1, 1, 1}, {5, 2, 4, 3}, {37, 3, 5, 8}, {300, 4, 7, 64}, {1000, 1, 2, 64}}) {
    const Tokens tokens(count);
    const Routed routed(count, top, experts, job_tokens);
    const auto slots = static_cast<int>(routed.row.size());
    OnGpu gpu(tokens, routed);
    ASSERT_EQ(cudaSuccess, gpu.Sort(slots));
    const int made = gpu.tile_count.Read()[0];
    const std::vector<LowRankTile> tiles = gpu.slot_tiles.Read();
    ASSERT_LE(made, slots);
    std::set<int> seen;
    for (int i = 0; i < made; ++i) {
      const LowRankTile& tile = tiles[static_cast<size_t>(i)];
      ASSERT_GE(tile.count, 1);
      ASSERT_LE(tile.count, kLowRankTile);
      for (int t = 0; t < tile.count; ++t) {
        const auto slot = static_cast<size_t>(tile.rows[static_cast<size_t>(t)]);
        ASSERT_LT(slot, routed.row.size());
        ASSERT_TRUE(seen.insert(static_cast<int>(slot)).second) << slot;
        EXPECT_EQ(tile.expert, routed.expert[slot]);
        const auto of = static_cast<size_t>(tokens.tile_of[static_cast<size_t>(routed.row[slot])]);
        EXPECT_EQ(tile.first_use, tokens.tiles[of].first_use);
        EXPECT_EQ(tile.uses, tokens.tiles[of].uses);
        EXPECT_EQ(tile.rank, tokens.tiles[of].rank);
        EXPECT_EQ(tile.plain, tokens.tiles[of].plain);
      }
    }
    EXPECT_EQ(std::ssize(seen), slots);
    // No more than a tile for each eight of a job's slots with the same adapters, and one beside them.
    int most = 0;
    for (const ExpertJob& job : routed.jobs) {
      std::map<int, int> of_kind;
      for (int i = 0; i < job.count; ++i)
        ++of_kind[tokens.mix_of[static_cast<size_t>(routed.row[static_cast<size_t>(job.begin + i)])]];
      for (const auto& [kind, n] : of_kind) most += (n + kLowRankTile - 1) / kLowRankTile;
    }
    EXPECT_EQ(made, most);
  }
}

// Two adapters of ranks 5 and 20 for two matrices of each expert, with biases behind them.
class ExpertTerms : public ::testing::TestWithParam<std::tuple<int, int, int, bool>> {};

TEST_P(ExpertTerms, MatchDouble) {
  NEEDS_GPU();
  const auto [count, cols, rows, bf16] = GetParam();
  constexpr int kExperts = 5, kTop = 3, kMatrices = 2;
  const int ranks[] = {5, 20};
  const Tokens made(count);
  Tokens tokens = made;
  if (bf16)
    for (LowRankTile& tile : tokens.tiles) tile.plain = 1;
  const Routed routed(count, kTop, kExperts, 8);
  const auto slots = static_cast<int>(routed.row.size());
  std::vector<std::unique_ptr<OnDevice<float>>> floats;
  std::vector<std::unique_ptr<OnDevice<uint16_t>>> halves;
  const auto put = [&](std::vector<float>* values) -> const void* {
    if (!bf16) return floats.emplace_back(std::make_unique<OnDevice<float>>(*values))->get();
    std::vector<uint16_t> narrow;
    for (float& v : *values) {
      narrow.push_back(FloatToBf16(v));
      v = Bf16ToFloat(narrow.back());
    }
    return halves.emplace_back(std::make_unique<OnDevice<uint16_t>>(narrow))->get();
  };
  // [adapters, experts, matrices]
  std::vector<std::vector<float>> a, b;
  std::vector<DeviceTerm> terms;
  for (const int rank : ranks)
    for (int i = 0; i < kExperts * kMatrices; ++i) {
      a.push_back(RandomFloats(int64_t{rank} * cols, 10 + a.size(), 0.5f));
      b.push_back(RandomFloats(int64_t{rank} * rows, 90 + a.size(), 0.5f));
      const LowRankType type = bf16 ? LowRankType::kBf16 : LowRankType::kF32;
      DeviceTerm term{.rank = rank, .a_stride = cols, .b_stride = rows, .a_type = type, .b_type = type};
      term.a = put(&a.back()), term.b = put(&b.back());
      terms.push_back(term);
    }
  const std::vector<float> x = RandomFloats(int64_t{count} * cols, 1), norm = RandomFloats(cols, 2),
                           bias = RandomFloats(kMatrices * kExperts * rows, 3),
                           products = RandomFloats(int64_t{kMatrices} * slots * rows, 4);
  OnGpu gpu(tokens, routed);
  ASSERT_EQ(cudaSuccess, gpu.Sort(slots));
  const OnDevice<DeviceTerm> device_terms(terms);
  const OnDevice<float> device_x(x), device_norm(norm), device_bias(bias), out(products);
  constexpr int kMostRank = 64;
  const int64_t room = int64_t{PlainPieces(cols)} * PlainWidth(kMatrices);
  const OnDevice<float> low(int64_t{slots} * 3 * kMostRank), plain_low(slots * room);
  LowRankArgs args;
  args.plan = {gpu.tile_count.get(), gpu.slot_tiles.get(), gpu.uses.get(),
               device_terms.get(),   kExperts * kMatrices, /*late=*/true};
  args.rows = slots;
  args.most_rank = kMostRank;
  args.x = device_x.get();
  args.x_rows = gpu.row.get();
  args.x_stride = args.cols = cols;
  args.norm = device_norm.get();
  args.eps = 1e-5f;
  args.low = low.get();
  args.low_stride = 3 * kMostRank;
  args.plain_low = plain_low.get();
  args.plain_room = room;
  args.most_plain_rank = bf16 ? 48 : 0;
  args.others = !bf16;
  args.count = kMatrices;
  for (int m = 0; m < kMatrices; ++m)
    args.matrices[static_cast<size_t>(m)] = {.place = m,
                                             .expert_places = kMatrices,
                                             .rows = rows,
                                             .product = out.get() + int64_t{m} * slots * rows,
                                             .stride = rows,
                                             .bias = device_bias.get() + m * kExperts * rows};
  ASSERT_EQ(cudaSuccess, LaunchLowRankShrink(args, nullptr));
  ASSERT_EQ(cudaSuccess, LaunchLowRankExpand(args, nullptr));
  const std::vector<float> got = out.Read();
  double worst = 0, greatest = 0;
  for (int m = 0; m < kMatrices; ++m)
    for (int s = 0; s < slots; ++s) {
      const int token = routed.row[static_cast<size_t>(s)], e = routed.expert[static_cast<size_t>(s)];
      double squares = 0;
      for (int c = 0; c < cols; ++c)
        squares += double{x[static_cast<size_t>(token * cols + c)]} *
                   x[static_cast<size_t>(token * cols + c)] / cols;
      for (int r = 0; r < rows; ++r) {
        const auto at = static_cast<size_t>((int64_t{m} * slots + s) * rows + r);
        double sum = products[at] + bias[static_cast<size_t>((m * kExperts + e) * rows + r)];
        for (const auto& [adapter, scale] : tokens.UsesOf(token)) {
          const auto which = static_cast<size_t>((adapter * kExperts + e) * kMatrices + m);
          for (int k = 0; k < ranks[adapter]; ++k) {
            double dot = 0;
            for (int c = 0; c < cols; ++c)
              dot += double{a[which][static_cast<size_t>(k * cols + c)]} *
                     x[static_cast<size_t>(token * cols + c)] * norm[static_cast<size_t>(c)] /
                     std::sqrt(squares + 1e-5);
            sum += scale * dot * b[which][static_cast<size_t>(k * rows + r)];
          }
        }
        greatest = std::max(greatest, std::abs(sum));
        const double apart = std::abs(got[at] - sum);
        worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
      }
    }
  EXPECT_LT(worst, 1e-5 * greatest);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExpertTerms,
                         ::testing::Values(std::tuple{1, 18, 10, false}, std::tuple{9, 33, 21, false},
                                           std::tuple{40, 64, 96, false}, std::tuple{1, 64, 4, true},
                                           std::tuple{23, 72, 36, true}, std::tuple{23, 33, 36, true},
                                           std::tuple{70, 1032, 132, true}));

TEST(LowRankExpertsCuda, RowsAreGatheredAndActivated) {
  NEEDS_GPU();
  for (const int cols : {1, 18, 64, 300}) {
    constexpr int kTokens = 7, kSlots = 19;
    const std::vector<float> x = RandomFloats(kTokens * cols, 1), up = RandomFloats(kSlots * cols, 2);
    std::vector<int32_t> rows;
    for (int s = 0; s < kSlots; ++s) rows.push_back(s * 5 % kTokens);
    const OnDevice<float> device_x(x), device_up(up), out(int64_t{kSlots} * cols);
    const OnDevice<int32_t> device_rows(rows);
    ASSERT_EQ(cudaSuccess, LaunchGatherRows(device_x.get(), device_rows.get(), kSlots, int64_t{4} * cols,
                                            out.get(), nullptr));
    const std::vector<float> gate = out.Read();
    for (int s = 0; s < kSlots; ++s)
      for (int c = 0; c < cols; ++c)
        ASSERT_EQ(gate[static_cast<size_t>(s * cols + c)],
                  x[static_cast<size_t>(rows[static_cast<size_t>(s)] * cols + c)]);
    const int64_t stride = cols + 5;
    const OnDevice<uint16_t> narrow(std::vector<uint16_t>(static_cast<size_t>(kSlots * stride), 7));
    for (const float limit : {0.0f, 0.5f}) {
      const OnDevice<float> mid(gate);
      ASSERT_EQ(cudaSuccess, LaunchLowRankActivateSlots({.gate = mid.get(),
                                                         .up = device_up.get(),
                                                         .count = kSlots,
                                                         .cols = cols,
                                                         .limit = limit,
                                                         .out = mid.get(),
                                                         .out_bf16 = narrow.get(),
                                                         .bf16_stride = stride},
                                                        nullptr));
      const std::vector<float> got = mid.Read();
      const std::vector<uint16_t> got_narrow = narrow.Read();
      for (int s = 0; s < kSlots; ++s)
        for (int c = 0; c < cols + 5; ++c) {
          const auto at = static_cast<size_t>(s * cols + c), to = static_cast<size_t>(s * stride + c);
          if (c >= cols) {
            ASSERT_EQ(got_narrow[to], 7);
            continue;
          }
          const double g = limit > 0 ? std::min(gate[at], limit) : gate[at],
                       u = limit > 0 ? std::clamp(up[at], -limit, limit) + 1.0 : up[at];
          ASSERT_NEAR(got[at], g / (1 + std::exp(-(limit > 0 ? 1.702 : 1) * g)) * u, 1e-5);
          ASSERT_EQ(got_narrow[to], FloatToBf16(got[at]));
        }
    }
  }
}

// kv_b of latent attention, absorbed: keys turned, values straight.
TEST(LowRankHeadsCuda, MatchDouble) {
  NEEDS_GPU();
  for (const auto& [count, heads, kv_rank, nope, values] :
       {std::tuple{1, 1, 4, 3, 5}, {11, 3, 13, 8, 6}, {40, 2, 512, 128, 128}, {17, 16, 70, 192, 33}}) {
    const Tokens tokens(count);
    const int ranks[] = {16, 21};
    std::vector<std::vector<float>> a, b;
    std::vector<std::unique_ptr<OnDevice<float>>> kept;
    std::vector<DeviceTerm> terms;
    for (const int rank : ranks) {
      a.push_back(RandomFloats(int64_t{rank} * kv_rank, 10 + rank, 0.5f));
      b.push_back(RandomFloats(int64_t{rank} * heads * (nope + values), 20 + rank, 0.5f));
      DeviceTerm term{.rank = rank, .a_stride = kv_rank, .b_stride = heads * (nope + values)};
      term.a = kept.emplace_back(std::make_unique<OnDevice<float>>(a.back()))->get();
      term.b = kept.emplace_back(std::make_unique<OnDevice<float>>(b.back()))->get();
      terms.push_back(term);
    }
    const OnDevice<DeviceTerm> device_terms(terms);
    const OnDevice<int32_t> tile_count(std::vector<int32_t>{static_cast<int32_t>(tokens.tiles.size())});
    const OnDevice<LowRankTile> tiles(tokens.tiles);
    const OnDevice<DeviceUse> uses(tokens.uses);
    for (const bool keys : {true, false}) {
      const int in = keys ? nope : kv_rank, out = keys ? kv_rank : values, in_head = in + 3,
                out_head = out + 2;
      for (const int first : {0, count / 2}) {
        const int some = count - first;
        const std::vector<float> x = RandomFloats(int64_t{some} * heads * in_head, 5),
                                 before = RandomFloats(int64_t{some} * heads * out_head, 6);
        const OnDevice<float> device_x(x), to(before);
        LowRankHeadsArgs args;
        args.plan = {tile_count.get(), tiles.get(), uses.get(), device_terms.get(), 1};
        args.rows = count, args.first = first, args.count = some;
        args.heads = heads, args.kv_rank = kv_rank, args.nope_dim = nope, args.value_dim = values;
        args.keys = keys;
        args.x = device_x.get(), args.x_row = int64_t{heads} * in_head, args.x_head = in_head;
        args.out = to.get(), args.out_row = int64_t{heads} * out_head, args.out_head = out_head;
        ASSERT_EQ(cudaSuccess, LaunchLowRankHeads(args, nullptr));
        const std::vector<float> got = to.Read();
        for (int t = 0; t < some; ++t)
          for (int h = 0; h < heads; ++h)
            for (int c = 0; c < out_head; ++c) {
              const auto at = static_cast<size_t>((t * heads + h) * out_head + c);
              double sum = before[at], size = std::abs(sum);
              for (const auto& [adapter, scale] : tokens.UsesOf(first + t)) {
                const auto which = static_cast<size_t>(adapter);
                for (int r = 0; c < out && r < ranks[adapter]; ++r) {
                  const auto head_row = [&](int i) {
                    return double{b[which][static_cast<size_t>((r * heads + h) * (nope + values) + i)]};
                  };
                  const auto latent = [&](int i) {
                    return double{a[which][static_cast<size_t>(r * kv_rank + i)]};
                  };
                  double dot = 0;
                  for (int i = 0; i < in; ++i)
                    dot += (keys ? head_row(i) : latent(i)) *
                           x[static_cast<size_t>((t * heads + h) * in_head + i)];
                  sum += scale * dot * (keys ? latent(c) : head_row(nope + c));
                  size += std::abs(scale * dot);
                }
              }
              ASSERT_NEAR(got[at], sum, 1e-5 * (1 + size)) << keys << " " << t << " " << h << " " << c;
            }
      }
    }
  }
}

}  // namespace
}  // namespace celer::cuda
