#include "kernels/llm/low_rank/low_rank_beside_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
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

#define NEEDS_CLUSTERS() \
  if (CudaDeviceCount() == 0 || !LowRankBesideRuns()) GTEST_SKIP() << "no CUDA device with clusters here"

// Tokens of none, of one adapter, of the other, and of both.
class Beside {
 public:
  Beside(int tokens, int cols, std::vector<int> rows, std::array<int, 2> ranks)
      : tokens_(tokens),
        cols_(cols),
        x_stride_(cols + 16),
        rows_(std::move(rows)),
        ranks_(ranks),
        stride_(std::accumulate(rows_.begin(), rows_.end(), 0)) {
    for (size_t i = 0; i < ranks_.size(); ++i)
      for (size_t m = 0; m < rows_.size(); ++m) {
        // The first adapter changes some of the matrices only.
        const int rank = i == 0 && m == 1 ? 0 : std::max(1, ranks_[i] - static_cast<int>(m));
        const LowRankType type = (i + m) % 2 == 0 ? LowRankType::kBf16 : LowRankType::kF16;
        a_.push_back(Numbers(int64_t{rank} * cols_, type));
        b_.push_back(Numbers(int64_t{rank} * rows_[m], type));
        terms_.push_back({.a = a_.back().device->get(),
                          .b = b_.back().device->get(),
                          .rank = rank,
                          .a_stride = cols_,
                          .b_stride = rows_[m],
                          .a_type = type,
                          .b_type = type});
      }
    x_ = Numbers(int64_t{tokens_} * x_stride_, LowRankType::kBf16).values;
    product_ = RandomFloats(int64_t{tokens_} * stride_, 2);
    for (float& v : product_) v = Bf16ToFloat(FloatToBf16(v));  // for both kinds of output
  }

  // Of the tokens of `only`, in that order. `activated`: of up and gate.
  std::vector<float> Run(const std::vector<int>& only, bool activated = false, float limit = 0) const {
    const auto up16 = [](int n) { return (n + kLowRankStep - 1) / kLowRankStep * kLowRankStep; };
    const int first = up16(ranks_[0]), second = up16(ranks_[1]);
    const std::vector<DeviceUse> uses = {{.slot = 0, .scale = 0.5f, .low_at = 0},
                                         {.slot = 1, .scale = -2.0f, .low_at = first},
                                         {.slot = 1, .scale = 1.0f, .low_at = 0}};
    const LowRankTile kinds[] = {{.plain = 1},
                                 {.first_use = 0, .uses = 1, .rank = first, .plain = 1},
                                 {.first_use = 2, .uses = 1, .rank = second, .plain = 1},
                                 {.first_use = 0, .uses = 2, .rank = first + second, .plain = 1}};
    std::vector<LowRankTile> tiles;
    std::map<int, size_t> open;
    std::vector<uint16_t> x;
    std::vector<float> product;
    for (size_t i = 0; i < only.size(); ++i) {
      const int kind = KindOf(only[i]);
      if (!open.contains(kind)) {
        open[kind] = tiles.size();
        tiles.push_back(kinds[kind]);
      }
      LowRankTile& tile = tiles[open[kind]];
      tile.rows[static_cast<size_t>(tile.count++)] = static_cast<int>(i);
      if (tile.count == kLowRankTile) open.erase(kind);
      for (int c = 0; c < x_stride_; ++c)
        x.push_back(FloatToBf16(x_[static_cast<size_t>(only[i] * x_stride_ + c)]));
      product.insert(product.end(), product_.begin() + int64_t{only[i]} * stride_,
                     product_.begin() + (int64_t{only[i]} + 1) * stride_);
    }
    std::vector<uint16_t> narrow;
    for (const float v : product) narrow.push_back(FloatToBf16(v));
    const OnDevice<LowRankTile> device_tiles(tiles);
    const OnDevice<DeviceUse> device_uses(uses);
    const OnDevice<DeviceTerm> terms(terms_);
    const OnDevice<int32_t> count(std::vector<int32_t>{static_cast<int32_t>(tiles.size())});
    const OnDevice<uint16_t> device_x(x), device_narrow(narrow);
    const OnDevice<float> out(product);
    LowRankBesideArgs args{.plan = {count.get(), device_tiles.get(), device_uses.get(), terms.get(),
                                    static_cast<int>(rows_.size())},
                           .rows = static_cast<int>(only.size()),
                           .x = device_x.get(),
                           .x_stride = x_stride_,
                           .cols = cols_,
                           .count = static_cast<int>(rows_.size())};
    int at = 0;
    for (size_t m = 0; m < rows_.size(); at += rows_[m], ++m)
      args.matrices[m] = {
          .place = static_cast<int>(m),
          .rows = rows_[m],
          .product = activated ? static_cast<void*>(device_narrow.get() + at) : out.get() + at,
          .stride = stride_};
    if (!activated) {
      EXPECT_EQ(cudaSuccess, LaunchLowRankBeside(args, nullptr));
      return out.Read();
    }
    const int64_t out_stride = rows_[0] + 8;
    const OnDevice<uint16_t> mid(static_cast<int64_t>(only.size()) * out_stride);
    EXPECT_EQ(cudaSuccess, LaunchLowRankBesideActivate(
                               args, {.limit = limit, .out = mid.get(), .out_stride = out_stride}, nullptr));
    std::vector<float> got;
    const std::vector<uint16_t> all = mid.Read();
    for (size_t i = 0; i < only.size(); ++i)
      for (int r = 0; r < rows_[0]; ++r)
        got.push_back(Bf16ToFloat(all[i * static_cast<size_t>(out_stride) + static_cast<size_t>(r)]));
    return got;
  }

  // Of one row of a matrix.
  double Expected(int token, size_t m, int row, int at) const {
    double sum = product_[static_cast<size_t>(token * stride_ + at + row)];
    const int kind = KindOf(token);
    const double scales[] = {kind == 1 || kind == 3 ? 0.5 : 0.0, kind == 2 ? 1.0 : kind == 3 ? -2.0 : 0.0};
    for (size_t i = 0; i < 2; ++i) {
      const size_t which = i * rows_.size() + m;
      for (int k = 0; scales[i] != 0 && k < terms_[which].rank; ++k) {
        double dot = 0;
        for (int c = 0; c < cols_; ++c)
          dot += double{a_[which].values[static_cast<size_t>(k * cols_ + c)]} *
                 x_[static_cast<size_t>(token * x_stride_ + c)];
        sum += scales[i] * dot * b_[which].values[static_cast<size_t>(k * rows_[m] + row)];
      }
    }
    return sum;
  }
  std::vector<int> All() const {
    std::vector<int> all(static_cast<size_t>(tokens_));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  int tokens() const { return tokens_; }
  int stride() const { return stride_; }
  const std::vector<int>& rows() const { return rows_; }

 private:
  struct Values {
    std::vector<float> values;
    std::shared_ptr<OnDevice<uint16_t>> device;
  };
  Values Numbers(int64_t n, LowRankType type) {
    Values out{RandomFloats(n, ++seed_, 0.5f), nullptr};
    std::vector<uint16_t> narrow;
    for (float& v : out.values) {
      const bool bf16 = type == LowRankType::kBf16;
      narrow.push_back(bf16 ? FloatToBf16(v) : FloatToF16(v));
      v = bf16 ? Bf16ToFloat(narrow.back()) : F16ToFloat(narrow.back());
    }
    out.device = std::make_shared<OnDevice<uint16_t>>(narrow);
    return out;
  }
  static int KindOf(int token) { return token * 7 % 5 % 4; }

  int tokens_, cols_, x_stride_;
  std::vector<int> rows_;
  std::array<int, 2> ranks_;
  int stride_;
  uint32_t seed_ = 10;
  std::vector<Values> a_, b_;
  std::vector<DeviceTerm> terms_;
  std::vector<float> x_, product_;
};

std::vector<Beside> Cases() {
  std::vector<Beside> all;
  for (const auto& [tokens, cols] : {std::pair{1, 8}, {9, 72}, {64, 1032}, {37, 4096}, {21, 9000}}) {
    all.emplace_back(tokens, cols, std::vector<int>{96, 36, 1300}, std::array{16, 24});
    all.emplace_back(tokens, cols, std::vector<int>{4}, std::array{1, 64});
    all.emplace_back(tokens, cols, std::vector<int>{2052}, std::array{16, 8});
    all.emplace_back(tokens, cols, std::vector<int>{128, 64}, std::array{48, 16});
  }
  all.emplace_back(700, 40, std::vector<int>{64, 32, 32}, std::array{16, 16});
  return all;
}

TEST(LowRankBesideCuda, MatchesDouble) {
  NEEDS_CLUSTERS();
  for (const Beside& one : Cases()) {
    SCOPED_TRACE(std::to_string(one.tokens()) + " tokens, " + std::to_string(one.stride()) + " rows");
    const std::vector<float> got = one.Run(one.All());
    double worst = 0, greatest = 0;
    for (int t = 0; t < one.tokens(); ++t) {
      int at = 0;
      for (size_t m = 0; m < one.rows().size(); at += one.rows()[m], ++m)
        for (int r = 0; r < one.rows()[m]; ++r) {
          const double expected = one.Expected(t, m, r, at);
          const double apart = std::abs(got[static_cast<size_t>(t * one.stride() + at + r)] - expected);
          greatest = std::max(greatest, std::abs(expected));
          worst = std::isnan(apart) ? INFINITY : std::max(worst, apart);
        }
    }
    EXPECT_LT(worst, 1e-5 * greatest);
  }
}

TEST(LowRankBesideCuda, ATokenDoesNotDependOnTheOthers) {
  NEEDS_CLUSTERS();
  for (const Beside& one : Cases()) {
    const std::vector<int> all = one.All(), turned(all.rbegin(), all.rend());
    const std::vector<float> together = one.Run(all), other = one.Run(turned);
    const auto width = static_cast<size_t>(one.stride());
    for (const int token : {0, one.tokens() / 2, one.tokens() - 1}) {
      const std::vector<float> alone = one.Run({token});
      const auto at = static_cast<size_t>(token) * width,
                 back = static_cast<size_t>(one.tokens() - 1 - token) * width;
      for (size_t i = 0; i < width; ++i) {
        ASSERT_EQ(alone[i], together[at + i]) << "token " << token << " row " << i;
        ASSERT_EQ(alone[i], other[back + i]) << "token " << token << " row " << i;
      }
    }
  }
}

TEST(LowRankBesideCuda, ActivatesUpAndGate) {
  NEEDS_CLUSTERS();
  for (const auto& [tokens, rows, rank] :
       {std::tuple{1, 4, 16}, {21, 516, 8}, {70, 1100, 64}, {300, 64, 16}}) {
    const Beside one(tokens, 264, {rows, rows}, {16, rank});
    for (const float limit : {0.0f, 1.5f}) {
      const std::vector<float> got = one.Run(one.All(), /*activated=*/true, limit);
      for (int t = 0; t < tokens; ++t)
        for (int r = 0; r < rows; ++r) {
          const double up = one.Expected(t, 0, r, 0), gate = one.Expected(t, 1, r, rows);
          const double g = limit > 0 ? std::min<double>(gate, limit) : gate,
                       u = limit > 0 ? std::clamp<double>(up, -limit, limit) + 1 : up;
          const double expected = g / (1 + std::exp(-(limit > 0 ? 1.702 : 1) * g)) * u;
          ASSERT_NEAR(got[static_cast<size_t>(t * rows + r)], expected, 0.005 * (1 + std::abs(expected)))
              << t << " " << r;
        }
    }
  }
}

}  // namespace
}  // namespace celer::cuda
