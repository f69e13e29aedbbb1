#include "kernels/llm/low_rank/low_rank_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <numeric>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

// What an adapter has for one matrix, on both sides.
struct Term {
  int rank = 0;
  LowRankType type = LowRankType::kF32;
  bool dora = false, shift = false, whole = false;

  std::vector<float> a = {}, b = {}, row_scale = {}, offsets = {}, all = {};
  std::vector<std::shared_ptr<void>> kept = {};
  DeviceTerm device = {};
};

class Case {
 public:
  // Tokens with mixes of adapters, each with a term for every matrix of a product.
  Case(int tokens, int cols, std::vector<int> rows, std::vector<std::vector<Term>> adapters,
       std::vector<std::vector<std::pair<int, float>>> mixes, std::vector<int> mix_of)
      : tokens_(tokens),
        cols_(cols),
        rows_(std::move(rows)),
        adapters_(std::move(adapters)),
        mixes_(std::move(mixes)),
        mix_of_(std::move(mix_of)),
        stride_(std::accumulate(rows_.begin(), rows_.end(), 0)) {
    uint64_t seed = 100;
    for (std::vector<Term>& of_adapter : adapters_)
      for (size_t m = 0; m < of_adapter.size(); ++m) Fill(&of_adapter[m], rows_[m], &seed);
    x_ = RandomFloats(int64_t{tokens_} * cols_, 1);
    product_ = RandomFloats(int64_t{tokens_} * stride_, 2);
    norm_ = RandomFloats(cols_, 3);
    bias_ = RandomFloats(stride_, 4);
    residual_ = RandomFloats(int64_t{tokens_} * stride_, 5);
  }

  // The products of all tokens, or of those of `only`, in that order.
  // With `activated`, where a kernel does that: in place of each gate its activation, from both outputs of that.
  std::vector<float> Run(bool normed, bool adds, const std::vector<int>& only,
                         std::vector<uint16_t>* activated = nullptr) const {
    std::vector<DeviceTerm> terms;
    const int places = static_cast<int>(rows_.size());
    std::vector<int> ranks;
    for (const auto& of_adapter : adapters_) {
      int most = 0;
      for (const Term& term : of_adapter) {
        terms.push_back(term.device);
        most = std::max(most, term.rank);
      }
      ranks.push_back((most + kLowRankStep - 1) / kLowRankStep * kLowRankStep);
    }
    std::vector<DeviceUse> uses;
    std::vector<LowRankTile> kinds(mixes_.size()), tiles;
    int most_rank = 0, most_plain_rank = 0;
    for (size_t i = 0; i < mixes_.size(); ++i) {
      bool plain = true;
      kinds[i].first_use = static_cast<int>(uses.size());
      kinds[i].uses = static_cast<int>(mixes_[i].size());
      for (const auto& [adapter, scale] : mixes_[i]) {
        uses.push_back({.slot = adapter, .scale = scale, .low_at = kinds[i].rank});
        kinds[i].rank += ranks[static_cast<size_t>(adapter)];
        for (const Term& term : adapters_[static_cast<size_t>(adapter)])
          plain = plain && (term.rank == 0 || term.type != LowRankType::kF32) && !term.dora && !term.shift &&
                  !term.whole;
      }
      most_rank = std::max(most_rank, kinds[i].rank);
      if (!plain || kinds[i].rank > kPlainRank) continue;
      kinds[i].plain = 1;
      most_plain_rank = std::max(most_plain_rank, kinds[i].rank);
    }
    std::map<int, size_t> open;
    for (size_t i = 0; i < only.size(); ++i) {
      const int mix = mix_of_[static_cast<size_t>(only[i])];
      if (!open.contains(mix)) {
        open[mix] = tiles.size();
        tiles.push_back(mix < 0 ? LowRankTile{.plain = 1} : kinds[static_cast<size_t>(mix)]);
      }
      LowRankTile& tile = tiles[open[mix]];
      tile.rows[static_cast<size_t>(tile.count++)] = static_cast<int>(i);
      if (tile.count == kLowRankTile) open.erase(mix);
    }
    if (uses.empty()) uses.resize(1);
    const OnDevice<DeviceTerm> dterms(terms);
    const OnDevice<DeviceUse> duses(uses);
    const OnDevice<LowRankTile> dtiles(tiles);
    const OnDevice<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(tiles.size())});
    const OnDevice<float> x(x_), norm(norm_), bias(bias_);
    std::vector<float> before, residual;
    for (const int token : only)
      for (int i = 0; i < stride_; ++i) {
        before.push_back(product_[static_cast<size_t>(token * stride_ + i)]);
        residual.push_back(residual_[static_cast<size_t>(token * stride_ + i)]);
      }
    const OnDevice<float> product(before), sums(residual);
    const OnDevice<float> low(static_cast<int64_t>(only.size()) * 3 * std::max(1, most_rank));
    const int64_t room = int64_t{PlainPieces(cols_)} * PlainWidth(places);
    const OnDevice<float> plain_low(static_cast<int64_t>(only.size()) * room);
    const OnDevice<int32_t> x_rows(std::vector<int32_t>(only.begin(), only.end()));
    LowRankArgs args;
    args.plan = {count.get(), dtiles.get(), duses.get(), dterms.get(), places};
    args.rows = static_cast<int>(only.size());
    args.most_rank = most_rank;
    args.x = x.get();
    args.x_rows = x_rows.get();
    args.x_stride = args.cols = cols_;
    args.norm = normed ? norm.get() : nullptr;
    args.eps = 1e-5f;
    args.low = low.get();
    args.low_stride = 3 * std::max(1, most_rank);
    args.plain_low = plain_low.get();
    args.plain_room = room;
    args.most_plain_rank = most_plain_rank;
    args.others = std::any_of(kinds.begin(), kinds.end(), [](const LowRankTile& k) { return k.plain == 0; });
    args.count = places;
    int at = 0;
    for (int m = 0; m < places; ++m) {
      args.matrices[static_cast<size_t>(m)] = {.place = m,
                                               .rows = rows_[static_cast<size_t>(m)],
                                               .product = product.get() + at,
                                               .stride = stride_,
                                               .bias = adds ? bias.get() + at : nullptr,
                                               .add_to = adds ? sums.get() + at : nullptr};
      at += rows_[static_cast<size_t>(m)];
    }
    EXPECT_EQ(cudaSuccess, LaunchLowRankShrink(args, nullptr));
    if (activated) {
      EXPECT_TRUE(LowRankActivates(args));
      const OnDevice<uint16_t> narrow(static_cast<int64_t>(only.size()) * stride_);
      EXPECT_EQ(cudaSuccess,
                LaunchLowRankExpandActivate(
                    args, {.out = args.matrices[1].product, .out_bf16 = narrow.get() + rows_[0]}, nullptr));
      *activated = narrow.Read();
      return product.Read();
    }
    EXPECT_EQ(cudaSuccess, LaunchLowRankExpand(args, nullptr));
    EXPECT_EQ(cudaSuccess, LaunchLowRankWhole(args, nullptr));
    return adds ? sums.Read() : product.Read();
  }

  std::vector<double> InDouble(bool normed, bool adds) const {
    std::vector<double> out;
    for (int t = 0; t < tokens_; ++t) {
      std::vector<double> x(x_.begin() + t * cols_, x_.begin() + (t + 1) * cols_);
      double squares = 0;
      for (const double v : x) squares += v * v / cols_;
      for (int c = 0; normed && c < cols_; ++c)
        x[static_cast<size_t>(c)] *= norm_[static_cast<size_t>(c)] / std::sqrt(squares + 1e-5);
      int at = 0;
      for (size_t m = 0; m < rows_.size(); at += rows_[m], ++m)
        for (int r = 0; r < rows_[m]; ++r) {
          const auto row = static_cast<size_t>(r), i = static_cast<size_t>(t * stride_ + at + r);
          double sum = product_[i];
          const int mix = mix_of_[static_cast<size_t>(t)];
          for (const auto& [adapter, scale] :
               mix < 0 ? decltype(mixes_)::value_type() : mixes_[static_cast<size_t>(mix)])
            sum += scale * Change(adapters_[static_cast<size_t>(adapter)][m], x, row, rows_[m], product_[i]);
          out.push_back(adds ? sum + bias_[static_cast<size_t>(at + r)] + residual_[i] : sum);
        }
    }
    return out;
  }

  int tokens() const { return tokens_; }
  int stride() const { return stride_; }

 private:
  template <class T>
  const T* Keep(Term* term, const std::vector<T>& values) {
    auto memory = std::make_shared<OnDevice<T>>(values);
    const T* const at = memory->get();
    term->kept.push_back(std::move(memory));
    return at;
  }
  // Rounded to the type, and in it.
  const void* Typed(Term* term, LowRankType type, std::vector<float>* values) {
    if (type == LowRankType::kF32) return Keep(term, *values);
    std::vector<uint16_t> halves;
    for (float& v : *values) {
      const bool bf16 = type == LowRankType::kBf16;
      halves.push_back(bf16 ? FloatToBf16(v) : FloatToF16(v));
      v = bf16 ? Bf16ToFloat(halves.back()) : F16ToFloat(halves.back());
    }
    return Keep(term, halves);
  }

  void Fill(Term* term, int rows, uint64_t* seed) {
    DeviceTerm& d = term->device;
    d.rank = term->rank;
    d.a_type = d.b_type = d.whole_type = term->type;
    if (term->rank > 0) {
      term->a = RandomFloats(int64_t{term->rank} * cols_, ++*seed, 0.5f);
      term->b = RandomFloats(int64_t{term->rank} * rows, ++*seed, 0.5f);
      d.a = Typed(term, term->type, &term->a);
      d.b = Typed(term, term->type, &term->b);
      d.a_stride = cols_;
      d.b_stride = rows;
    }
    if (term->dora) d.row_scale = Keep(term, term->row_scale = RandomFloats(rows, ++*seed));
    if (term->shift) d.shift = Keep(term, term->offsets = RandomFloats(rows, ++*seed));
    if (term->whole) {
      term->all = RandomFloats(int64_t{rows} * cols_, ++*seed, 0.5f);
      d.whole = Typed(term, term->type, &term->all);
      d.whole_stride = cols_;
    }
  }

  double Change(const Term& term, const std::vector<double>& x, size_t row, int rows, double product) const {
    double change = 0;
    const auto cols = static_cast<size_t>(cols_);
    for (size_t k = 0; k < static_cast<size_t>(term.rank); ++k) {
      double dot = 0;
      for (size_t c = 0; c < cols; ++c) dot += term.a[k * cols + c] * x[c];
      change += dot * term.b[k * static_cast<size_t>(rows) + row];
    }
    if (term.whole) {
      change = -product;
      for (size_t c = 0; c < cols; ++c) change += term.all[row * cols + c] * x[c];
    }
    if (term.dora) change = (term.row_scale[row] - 1.0) * product + term.row_scale[row] * change;
    return change + (term.shift ? term.offsets[row] : 0);
  }

  int tokens_, cols_;
  std::vector<int> rows_;
  std::vector<std::vector<Term>> adapters_;
  std::vector<std::vector<std::pair<int, float>>> mixes_;
  std::vector<int> mix_of_;
  int stride_;
  std::vector<float> x_, product_, norm_, bias_, residual_;
};

Case MakeCase(int tokens, int cols, const std::vector<int>& rows, const std::vector<Term>& kinds) {
  std::vector<std::vector<Term>> adapters;
  for (const Term& kind : kinds) adapters.emplace_back(rows.size(), kind);
  if (rows.size() > 1) adapters[0][1] = Term();  // it changes some of the matrices only
  const int last = static_cast<int>(kinds.size()) - 1;
  std::vector<std::vector<std::pair<int, float>>> mixes = {
      {{0, 1.0f}}, {{last, -0.5f}}, {{0, 0.25f}, {last, 1.0f}}};
  std::vector<int> mix_of;
  for (int t = 0; t < tokens; ++t) mix_of.push_back(t * 7 % 5 % 4 - 1);
  return Case(tokens, cols, rows, std::move(adapters), std::move(mixes), std::move(mix_of));
}

std::vector<Case> Cases() {
  using enum LowRankType;
  std::vector<Case> all;
  for (const auto& [tokens, cols] : {std::pair{1, 64}, {5, 100}, {9, 33}, {40, 1028}, {70, 4097}})
    for (const LowRankType type : {kF32, kBf16, kF16}) {
      all.push_back(
          MakeCase(tokens, cols, {96, 33, 300}, {{.rank = 16, .type = type}, {.rank = 3, .type = type}}));
      all.push_back(MakeCase(tokens, cols, {260},
                             {{.rank = 70, .type = type, .dora = true, .shift = true},
                              {.type = type, .shift = true, .whole = true}}));
    }
  // Those of the tensor cores, alone and beside others in a batch.
  for (const auto& [tokens, cols] : {std::pair{1, 8}, {13, 72}, {40, 1024}, {37, 2056}, {9, 5000}})
    for (const LowRankType type : {kBf16, kF16}) {
      all.push_back(
          MakeCase(tokens, cols, {96, 36, 1300}, {{.rank = 16, .type = type}, {.rank = 24, .type = type}}));
      all.push_back(
          MakeCase(tokens, cols, {516, 4}, {{.rank = 1, .type = type}, {.rank = 64, .type = type}}));
      all.push_back(MakeCase(tokens, cols, {260},
                             {{.rank = 8, .type = type}, {.rank = 20, .type = type, .dora = true}}));
    }
  all.push_back(MakeCase(2100, 40, {64}, {{.rank = 8, .type = kBf16}, {.rank = 17, .type = kBf16}}));
  return all;
}

TEST(LowRankCuda, MatchesDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const Case& one : Cases())
    for (const bool normed : {false, true})
      for (const bool adds : {false, true}) {
        std::vector<int> all(static_cast<size_t>(one.tokens()));
        std::iota(all.begin(), all.end(), 0);
        const std::vector<double> expected = one.InDouble(normed, adds);
        const std::vector<float> got = one.Run(normed, adds, all);
        ASSERT_EQ(got.size(), expected.size());
        double greatest = 0, worst = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          greatest = std::max(greatest, std::abs(expected[i]));
          const double apart = std::abs(got[i] - expected[i]);
          worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
        }
        EXPECT_LT(worst, 1e-5 * greatest) << one.tokens() << " tokens, " << one.stride() << " rows";
      }
}

TEST(LowRankCuda, ATokenDoesNotDependOnTheOthers) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const Case& one : Cases()) {
    std::vector<int> all(static_cast<size_t>(one.tokens()));
    std::iota(all.begin(), all.end(), 0);
    const std::vector<float> together = one.Run(true, true, all);
    std::vector<int> turned(all.rbegin(), all.rend());
    const std::vector<float> other = one.Run(true, true, turned);
    const auto width = static_cast<size_t>(one.stride());
    for (const int token : {0, one.tokens() / 2, one.tokens() - 1}) {
      const std::vector<float> alone = one.Run(true, true, {token});
      const auto at = static_cast<size_t>(token) * width,
                 back = static_cast<size_t>(one.tokens() - 1 - token) * width;
      for (size_t i = 0; i < width; ++i) {
        ASSERT_EQ(alone[i], together[at + i]) << "token " << token << " row " << i;
        ASSERT_EQ(alone[i], other[back + i]) << "token " << token << " row " << i;
      }
    }
  }
}

TEST(LowRankCuda, ExpandsAndActivates) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const auto& [tokens, rows] : {std::pair{1, 4}, {21, 516}, {70, 1100}}) {
    const Case one =
        MakeCase(tokens, 264, {rows, rows},
                 {{.rank = 16, .type = LowRankType::kBf16}, {.rank = 24, .type = LowRankType::kF16}});
    std::vector<int> all(static_cast<size_t>(tokens));
    std::iota(all.begin(), all.end(), 0);
    const std::vector<float> apart = one.Run(true, false, all);
    std::vector<uint16_t> narrow;
    const std::vector<float> got = one.Run(true, false, all, &narrow);
    for (int t = 0; t < tokens; ++t)
      for (int r = 0; r < rows; ++r) {
        const auto up = static_cast<size_t>(t * 2 * rows + r), gate = up + static_cast<size_t>(rows);
        const float expected = apart[gate] / (1 + std::exp(-apart[gate])) * apart[up];
        ASSERT_NEAR(got[gate], expected, 1e-5 * (1 + std::abs(expected))) << t << " " << r;
        ASSERT_EQ(narrow[gate], FloatToBf16(got[gate])) << t << " " << r;
      }
  }
}

TEST(LowRankCuda, EmbeddingsAreLookedUp) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  constexpr int kTokens = 19, kVocab = 50, kCols = 130, kRank = 5;
  const std::vector<float> table = RandomFloats(kVocab * kCols, 1), a = RandomFloats(kVocab * kRank, 2),
                           b = RandomFloats(kRank * kCols, 3), whole = RandomFloats(kVocab * kCols, 4),
                           before = RandomFloats(kTokens * kCols, 5);
  std::vector<int32_t> tokens;
  for (int t = 0; t < kTokens; ++t) tokens.push_back(t * 11 % kVocab);
  DeviceMatrix matrix;
  matrix.format = Format::kF32;
  matrix.rows = kVocab;
  matrix.cols = kCols;
  matrix.padded = 2 * kColumnPad;
  matrix.row_bytes = PaddedRowBytes(Format::kF32, kCols);
  std::vector<float> rows(static_cast<size_t>(matrix.data_bytes() / 4));
  for (int r = 0; r < kVocab; ++r)
    for (int c = 0; c < kCols; ++c)
      rows[static_cast<size_t>(matrix.Offset(r, c * 4) / 4)] = table[static_cast<size_t>(r * kCols + c)];
  const OnDevice<float> dtable(rows), da(a), db(b), dwhole(whole), out(before);
  const OnDevice<int32_t> dtokens(tokens);
  const OnDevice<DeviceTerm> terms(std::vector<DeviceTerm>{
      {.a = da.get(), .b = db.get(), .rank = kRank, .a_stride = kRank, .b_stride = kCols},
      {.whole = dwhole.get(), .whole_stride = kCols}});
  const OnDevice<DeviceUse> uses(
      std::vector<DeviceUse>{{.slot = 0, .scale = 0.5f}, {.slot = 1, .scale = 2.0f, .low_at = 8}});
  std::vector<LowRankTile> tiles;
  for (int t = 0; t < kTokens; ++t) {  // of none, of the first, of the second, of both
    tiles.push_back({.count = 1,
                     .first_use = t % 4 == 2 ? 1 : 0,
                     .uses = t % 4 == 0   ? 0
                             : t % 4 == 3 ? 2
                                          : 1,
                     .rank = 8});
    tiles.back().rows[0] = t;
  }
  const OnDevice<LowRankTile> dtiles(tiles);
  const OnDevice<int32_t> count(std::vector<int32_t>{kTokens});
  matrix.data = reinterpret_cast<const std::byte*>(dtable.get());
  ASSERT_EQ(cudaSuccess, LaunchLowRankEmbed({.plan = {count.get(), dtiles.get(), uses.get(), terms.get(), 1},
                                             .rows = kTokens,
                                             .place = 0,
                                             .tokens = dtokens.get(),
                                             .table = matrix,
                                             .scale = 3,
                                             .out = out.get()},
                                            nullptr));
  const std::vector<float> got = out.Read();
  for (int t = 0; t < kTokens; ++t)
    for (int c = 0; c < kCols; ++c) {
      const auto token = static_cast<size_t>(tokens[static_cast<size_t>(t)]), col = static_cast<size_t>(c);
      double low = 0;
      for (size_t r = 0; r < kRank; ++r) low += 3.0 * a[token * kRank + r] * b[r * kCols + col];
      const double all = 3.0 * (double{whole[token * kCols + col]} - table[token * kCols + col]);
      const auto at = static_cast<size_t>(t * kCols + c);
      const double expected = before[at] + (t % 2 == 1 ? 0.5 * low : 0) + (t % 4 >= 2 ? 2 * all : 0);
      ASSERT_NEAR(got[at], expected, 1e-5 * (1 + std::abs(expected))) << t << " " << c;
    }
}

}  // namespace
}  // namespace celer::cuda
