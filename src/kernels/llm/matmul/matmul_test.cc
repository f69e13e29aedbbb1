#include "kernels/llm/matmul/matmul.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string_view>

#include "base/check.h"
#include "formats/decode.h"
#include "formats/int4.h"
#include "formats/int8.h"
#include "formats/test_rows.h"
#include "kernels/llm/matmul/cpu/outliers.h"
#include "kernels/network/rows/rows.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

struct Weights {
  std::vector<std::byte> data;
  std::vector<float> scales;
  std::vector<Int4Group> params;
  WeightView view;
};

Weights MakeStored(DType dtype, int64_t rows, int64_t cols, uint32_t seed) {
  Weights w;
  const int64_t row_bytes = *BytesFor(dtype, cols);
  w.data.resize(static_cast<size_t>(rows * row_bytes) + 1);
  // One byte off: tensors in files have no alignment.
  std::byte* start = w.data.data() + (dtype == DType::kF32 ? 0 : 1);
  for (int64_t r = 0; r < rows; ++r)
    std::ranges::copy(RandomWeightRow(dtype, cols, seed + 1000 * static_cast<uint32_t>(r)),
                      start + r * row_bytes);
  w.view = {.dtype = dtype, .rows = rows, .cols = cols, .data = start, .row_bytes = row_bytes};
  return w;
}

Weights MakeInt8(int64_t rows, int64_t cols, int64_t group, uint32_t seed) {
  Weights w;
  w.data.resize(rows * cols);
  w.scales.resize(rows * cols / group);
  const auto values = RandomFloats(rows * cols, seed);
  for (int64_t r = 0; r < rows; ++r)
    EncodeInt8Row({rows, cols, group}, values.data() + r * cols,
                  reinterpret_cast<int8_t*>(w.data.data()) + r * cols, w.scales.data() + r * cols / group);
  w.view = {.kind = WeightView::Kind::kInt8,
            .rows = rows,
            .cols = cols,
            .data = w.data.data(),
            .row_bytes = cols,
            .scales = w.scales.data(),
            .group = group};
  return w;
}

Weights MakeInt4(int64_t rows, int64_t cols, int64_t group, uint32_t seed) {
  Weights w;
  w.data.resize(rows * cols / 2);
  w.params.resize(rows * cols / group);
  const auto values = RandomFloats(rows * cols, seed);
  for (int64_t r = 0; r < rows; ++r)
    EncodeInt4Row({rows, cols, group}, values.data() + r * cols,
                  reinterpret_cast<uint8_t*>(w.data.data()) + r * cols / 2,
                  w.params.data() + r * cols / group);
  w.view = {.kind = WeightView::Kind::kInt4,
            .rows = rows,
            .cols = cols,
            .data = w.data.data(),
            .row_bytes = cols / 2,
            .scales = w.params.data(),
            .group = group};
  return w;
}

ThreadPool& Pool() {
  static ThreadPool pool({.threads = 3});
  return pool;
}

// How the steps of int8 activations are chosen.
struct Steps {
  bool powers_of_two = false;
  double larger = 1;  // what is rounded can be so much larger than the activations
};

// How far one dot product may be off when its activations become int8: half a step of each block, times the
// weights. Outliers are not among them, but where a row has one scale (block == cols).
double ActivationTolerance(const float* from, const float* w, int64_t cols, int64_t block,
                           const Steps& steps) {
  double tolerance = 0;
  std::vector<float> x(from, from + cols);
  TokenOutliers outliers;
  if (block == 32 || block == 256) SplitOutliers(from, cols, x.data(), &outliers);
  for (int64_t b = 0; b < cols; b += block) {
    double largest = 0, weights = 0;
    for (int64_t i = b; i < std::min(b + block, cols); ++i) {
      largest = std::max(largest, std::abs(double{x[i]}));
      weights += std::abs(double{w[i]});
    }
    double step = largest * steps.larger / 127;
    if (steps.powers_of_two && step > 0) step = std::exp2(std::ceil(std::log2(step)));
    tolerance += step * 0.5001 * weights;
  }
  return tolerance;
}

// Columns whose activations share an int8 scale at the most; 0: they stay floats. bf16 weights may round them
// to bf16.
int64_t ActivationBlock(const MatmulVariant& variant, const WeightView& w) {
  if (!variant.run->packed_bytes || variant.run->packed_bytes(w) == 0) return 0;
  if (w.kind == WeightView::Kind::kInt8)
    return std::string_view(variant.name).starts_with("x86") && w.group == w.cols ? w.cols : 32;
  if (w.kind == WeightView::Kind::kInt4) return 32;
  switch (w.dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBf16:
      return 0;
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return 256;
    default:
      return 32;
  }
}

Steps ActivationSteps(const MatmulVariant& variant, const WeightView& w) {
  const std::string_view name = variant.name;
  if (!name.starts_with("arm") || ActivationBlock(variant, w) != 32) return {};
  const bool nibbles =
      w.kind == WeightView::Kind::kInt4 ||
      (w.kind == WeightView::Kind::kStored && (w.dtype == DType::kQ4_0 || w.dtype == DType::kQ4_1));
  return {true, nibbles && name == "arm_i8mm" ? 17.0 / 16 : 1};
}

// Packed for the variant; celer's own kinds without what they were packed from.
struct Packed {
  std::vector<std::byte> bytes;
  WeightView view;
};
Packed PackFor(const MatmulVariant& variant, const WeightView& w) {
  Packed packed{{}, w};
  if (!variant.run->packed_bytes) return packed;
  packed.bytes.resize(variant.run->packed_bytes(w));
  if (packed.bytes.empty()) return packed;
  variant.run->pack(w, Pool(), packed.bytes.data());
  packed.view = PackedView(w, *variant.run, packed.bytes.data());
  if (w.kind != WeightView::Kind::kStored) packed.view.data = nullptr;
  return packed;
}

void ExpectMatchesDouble(const MatmulVariant& variant, const WeightView& w, int64_t tokens, bool extras) {
  const Packed packed = PackFor(variant, w);
  const auto x = RandomFloats(tokens * w.cols, 7);
  const auto bias = RandomFloats(w.rows, 8);
  const auto residual = RandomFloats(tokens * (w.rows + 3), 9);
  std::vector<float> out(tokens * (w.rows + 3), -77.0f);
  const MatmulOutput to{.w = packed.view,
                        .bias = extras ? bias.data() : nullptr,
                        .residual = extras ? residual.data() : nullptr,
                        .out = out.data(),
                        .out_stride = w.rows + 3};
  variant.run->run({.x = x.data(), .tokens = tokens, .outputs = {&to, 1}, .pool = &Pool()});
  std::vector<float> row(w.cols);
  for (int64_t r = 0; r < w.rows; ++r) {
    DecodeWeightRow(w, r, row.data());
    for (int64_t t = 0; t < tokens; ++t) {
      const auto at = static_cast<size_t>(t * (w.rows + 3) + r);
      double sum = extras ? double{bias[r]} + residual[at] : 0, magnitude = std::abs(sum);
      for (int64_t c = 0; c < w.cols; ++c) {
        const double product = double{x[t * w.cols + c]} * row[c];
        sum += product;
        magnitude += std::abs(product);
      }
      double tolerance = testing::SumTolerance(w.cols, magnitude);
      if (const int64_t block = ActivationBlock(variant, w); block > 0)
        tolerance += ActivationTolerance(x.data() + t * w.cols, row.data(), w.cols, block,
                                         ActivationSteps(variant, w));
      else if (w.dtype == DType::kBf16 && w.kind == WeightView::Kind::kStored && variant.run->packed_bytes)
        tolerance += magnitude / 256;  // activations rounded to 8 bits, sums of products once more
      ASSERT_NEAR(out[at], sum, tolerance) << "row " << r << " token " << t;
    }
  }
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t r = w.rows; r < w.rows + 3; ++r)
      ASSERT_EQ(out[t * (w.rows + 3) + r], -77.0f) << "wrote beyond its rows";
}

TEST(Matmul, EveryVariantMatchesDouble) {
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere()) {
      std::cout << variant.name << " cannot run here\n";
      continue;
    }
    SCOPED_TRACE(variant.name);
    struct Case {
      int64_t rows, cols, tokens;
    };
    for (const Case c : {Case{1, 32, 1}, {5, 96, 2}, {7, 32, 3}, {33, 160, 4}, {64, 256, 5}, {3, 64, 19}}) {
      SCOPED_TRACE(::testing::Message() << c.rows << "x" << c.cols << ", " << c.tokens << " tokens");
      for (const DType dtype : WeightTypes()) {
        if (Info(dtype).block > 32) continue;
        SCOPED_TRACE(Name(dtype));
        ExpectMatchesDouble(variant, MakeStored(dtype, c.rows, c.cols, 1).view, c.tokens, true);
      }
      ExpectMatchesDouble(variant, MakeInt8(c.rows, c.cols, c.cols, 2).view, c.tokens, false);
      ExpectMatchesDouble(variant, MakeInt8(c.rows, c.cols, 32, 2).view, c.tokens, true);
      ExpectMatchesDouble(variant, MakeInt4(c.rows, c.cols, 32, 3).view, c.tokens, true);
    }
    for (const DType dtype : AllBlockTypes())
      for (const int64_t tokens : {1, 2, 5, 8, 11}) {
        if (Info(dtype).block <= 32) continue;
        SCOPED_TRACE(::testing::Message() << Name(dtype) << ", " << tokens << " tokens");
        ExpectMatchesDouble(variant, MakeStored(dtype, 41, 512, 4).view, tokens, false);
      }
    for (const int64_t group : {64, 128}) {
      ExpectMatchesDouble(variant, MakeInt8(37, 384, group, 2).view, 3, true);
      ExpectMatchesDouble(variant, MakeInt4(37, 384, group, 3).view, 1, true);
      ExpectMatchesDouble(variant, MakeInt4(37, 384, group, 3).view, 9, true);
    }
    ExpectMatchesDouble(variant, MakeInt8(5, 45, 45, 2).view, 2, true);  // no whole block
    ExpectMatchesDouble(variant, MakeInt8(150, 1120, 1120, 2).view, 300, true);
    for (const DType dtype : {DType::kQ8_0, DType::kQ4_0, DType::kBf16})
      ExpectMatchesDouble(variant, MakeStored(dtype, 150, 64, 6).view, 300, true);  // several jobs each way
    for (const DType dtype :
         {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_1, DType::kIq4Nl, DType::kMxfp4})
      for (const int64_t tokens : {1, 40}) {  // whole tiles and streams on every thread, several chunks
        SCOPED_TRACE(::testing::Message() << Name(dtype) << ", " << tokens << " tokens");
        ExpectMatchesDouble(variant, MakeStored(dtype, 107, 1120, 6).view, tokens, true);
      }
    for (const int64_t rows : {331, 6349})  // one token: several rounds of a job, several such jobs
      for (const DType dtype : {DType::kF32, DType::kBf16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                                DType::kQ5_1, DType::kMxfp4, DType::kIq4Nl, DType::kQ4_K, DType::kQ6_K}) {
        SCOPED_TRACE(::testing::Message() << Name(dtype) << ", " << rows << " rows");
        const bool super = dtype == DType::kQ4_K || dtype == DType::kQ6_K;
        ExpectMatchesDouble(variant, MakeStored(dtype, rows, super ? 256 : 64, 7).view, 1, !super);
      }
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16})
      for (const int64_t cols : {1, 3, 7, 577})
        for (const int64_t tokens : {1, 3, 6})
          ExpectMatchesDouble(variant, MakeStored(dtype, 38, cols, 5).view, tokens, true);
  }
}

// Bytes that end, but for less than 64, where memory that nobody may read begins.
class GuardedBytes {
 public:
  explicit GuardedBytes(std::span<const std::byte> from) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), room = (from.size() + 63) / 64 * 64;
    const size_t pages = (room + page - 1) / page * page;
    size_ = pages + page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    CELER_CHECK(base_ != MAP_FAILED);
    CELER_CHECK_EQ(mprotect(base_ + pages, page, PROT_NONE), 0);
    begin_ = base_ + pages - room;
    std::ranges::copy(from, begin_);
  }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  ~GuardedBytes() { munmap(base_, size_); }
  const std::byte* data() const { return begin_; }

 private:
  std::byte *base_ = nullptr, *begin_ = nullptr;
  size_t size_ = 0;
};

TEST(Matmul, NothingIsReadBeyondPackedWeights) {
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere() || !variant.run->packed_bytes) continue;
    SCOPED_TRACE(variant.name);
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                              DType::kQ5_1, DType::kQ4_K, DType::kQ6_K, DType::kMxfp4, DType::kIq4Xs})
      for (const int64_t cols : {256, 768}) {
        const auto stored = MakeStored(dtype, 288, cols, 5);
        Packed packed = PackFor(variant, stored.view);
        if (packed.bytes.empty()) continue;
        const GuardedBytes guarded(packed.bytes);
        packed.view.packed = guarded.data();
        for (const int64_t tokens : {1, 2, 7, 40}) {
          const auto x = RandomFloats(tokens * cols, 7);
          std::vector<float> out(tokens * stored.view.rows);
          const MatmulOutput to{.w = packed.view, .out = out.data(), .out_stride = stored.view.rows};
          variant.run->run({.x = x.data(), .tokens = tokens, .outputs = {&to, 1}, .pool = &Pool()});
          EXPECT_TRUE(std::ranges::all_of(out, [](float v) { return std::isfinite(v); }));
        }
      }
  }
}

TEST(Matmul, ATokensResultDoesNotDependOnItsCompany) {
  // Rows enough for whole tiles and streams on every thread, columns for more than one chunk of a tile,
  // tokens for every kernel's way with many, some left over and one alone in a unit of eight.
  constexpr int64_t kTokens = 27, kRows = 107, kCols = 1280;
  const auto x = RandomFloats(kTokens * kCols, 12), norm = RandomFloats(kCols, 13),
             bias = RandomFloats(kRows, 14), residual = RandomFloats(kTokens * kRows, 15);
  std::vector<Weights> all;
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1,
                            DType::kQ5_0, DType::kQ5_1, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K,
                            DType::kQ5_K, DType::kQ6_K, DType::kMxfp4, DType::kIq4Nl, DType::kIq4Xs})
    all.push_back(MakeStored(dtype, kRows, kCols, 11));
  all.push_back(MakeInt8(kRows, kCols, kCols, 11));
  all.push_back(MakeInt4(kRows, kCols, 128, 11));
  for (const Weights& w : all)
    for (const auto& variant : MatmulVariants()) {
      if (!variant.RunsHere()) continue;
      const Packed packed = PackFor(variant, w.view);
      const auto run = [&](int64_t first, int64_t tokens) {
        std::vector<float> out(tokens * kRows);
        const MatmulOutput to{.w = packed.view,
                              .bias = bias.data(),
                              .residual = residual.data() + first * kRows,
                              .out = out.data(),
                              .out_stride = kRows};
        variant.run->run({.x = x.data() + first * kCols,
                          .tokens = tokens,
                          .norm = norm.data(),
                          .outputs = {&to, 1},
                          .pool = &Pool()});
        return out;
      };
      const std::vector<float> together = run(0, kTokens);
      EXPECT_TRUE(testing::AllFinite(together)) << variant.name << " " << w.view.FormatName();
      for (const int64_t company : {1, 2, 3, 7, 9, 17, 25})
        for (int64_t t = 0; t + company <= kTokens; ++t)
          EXPECT_EQ(0, std::memcmp(run(t, company).data(), together.data() + t * kRows,
                                   static_cast<size_t>(company * kRows) * sizeof(float)))
              << variant.name << " " << w.view.FormatName() << ": tokens " << t << " + " << company;
    }
}

// Weights with one scale to a row may get activations with one scale to a row: a few large ones must not
// take the others' precision, and must themselves come out right.
TEST(Matmul, OutliersKeepTheOthersPrecision) {
  constexpr int64_t kTokens = 37, kRows = 70, kCols = 1056;
  auto x = RandomFloats(kTokens * kCols, 21);  // -1..1
  for (int64_t t = 0; t < kTokens; ++t)
    for (int64_t i = 0; i < t % 5; ++i) x[t * kCols + (t * 131 + i * 257) % kCols] *= 100;
  const Weights w = MakeInt8(kRows, kCols, kCols, 22);
  std::vector<float> row(kCols);
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere()) continue;
    const Packed packed = PackFor(variant, w.view);
    for (const int64_t tokens : {int64_t{1}, int64_t{3}, int64_t{12}, kTokens}) {
      std::vector<float> out(tokens * kRows);
      const MatmulOutput to{.w = packed.view, .out = out.data(), .out_stride = kRows};
      const float* const from = x.data() + (kTokens - tokens) * kCols;
      variant.run->run({.x = from, .tokens = tokens, .outputs = {&to, 1}, .pool = &Pool()});
      for (int64_t r = 0; r < kRows; ++r) {
        DecodeWeightRow(w.view, r, row.data());
        for (int64_t t = 0; t < tokens; ++t) {
          double sum = 0, magnitude = 0, tolerance = 0;
          for (int64_t c = 0; c < kCols; ++c) {
            const double product = double{from[t * kCols + c]} * row[c];
            sum += product;
            magnitude += std::abs(product);
            tolerance += 2.0 / 127 * 0.5001 * std::abs(row[c]);  // a scale for +-2
          }
          if (ActivationBlock(variant, w.view) < kCols)  // scales of their own for those beside an outlier
            tolerance = ActivationTolerance(from + t * kCols, row.data(), kCols, 32,
                                            ActivationSteps(variant, w.view));
          ASSERT_NEAR(out[t * kRows + r], sum, tolerance + testing::SumTolerance(kCols, magnitude))
              << variant.name << " row " << r << " token " << t << " of " << tokens;
        }
      }
    }
  }
}

TEST(Matmul, SeveralOutputsShareOneNormedInput) {
  constexpr int64_t kTokens = 5, kCols = 256;
  const auto x = RandomFloats(7 * kCols, 1), norm = RandomFloats(kCols, 2);
  const int32_t rows[kTokens] = {6, 0, 3, 3, 1};
  const Weights q = MakeStored(DType::kQ4_K, 40, kCols, 3), k = MakeStored(DType::kQ6_K, 9, kCols, 4),
                v = MakeStored(DType::kQ8_0, 70, kCols, 5), plain = MakeInt8(3, kCols, 8, 6);
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere()) continue;
    std::vector<Packed> packed;
    for (const Weights* w : {&q, &k, &v, &plain}) packed.push_back(PackFor(variant, w->view));
    std::vector<std::vector<float>> out;
    std::vector<MatmulOutput> outputs;
    for (const Packed& p : packed) out.emplace_back(static_cast<size_t>(kTokens * p.view.rows));
    for (size_t i = 0; i < packed.size(); ++i)
      outputs.push_back({.w = packed[i].view, .out = out[i].data(), .out_stride = packed[i].view.rows});
    variant.run->run({.x = x.data(),
                      .x_rows = rows,
                      .tokens = kTokens,
                      .norm = norm.data(),
                      .outputs = outputs,
                      .pool = &Pool()});
    for (size_t i = 0; i < packed.size(); ++i) {
      std::vector<float> alone(out[i].size());
      for (int64_t t = 0; t < kTokens; ++t) {
        const MatmulOutput to{.w = packed[i].view,
                              .out = alone.data() + t * packed[i].view.rows,
                              .out_stride = packed[i].view.rows};
        variant.run->run({.x = x.data() + rows[t] * kCols,
                          .tokens = 1,
                          .norm = norm.data(),
                          .outputs = {&to, 1},
                          .pool = &Pool()});
      }
      EXPECT_EQ(out[i], alone) << variant.name << " output " << i;
    }
  }
}

TEST(Matmul, LayerNormIsAPassBefore) {
  constexpr int64_t kTokens = 11, kRows = 40, kCols = 96;
  const auto x = RandomFloats(kTokens * kCols, 1), norm = RandomFloats(kCols, 2),
             bias = RandomFloats(kCols, 3);
  std::vector<float> normed(x.size());
  LayerNorm({.x = x.data(),
             .scale = norm.data(),
             .shift = bias.data(),
             .out = normed.data(),
             .rows = kTokens,
             .cols = kCols});
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kQ8_0})
    for (const auto& variant : MatmulVariants()) {
      if (!variant.RunsHere()) continue;
      const Weights w = MakeStored(dtype, kRows, kCols, 4);
      const Packed packed = PackFor(variant, w.view);
      std::vector<float> folded(kTokens * kRows), apart(folded.size());
      const MatmulOutput to{.w = packed.view, .out = folded.data(), .out_stride = kRows};
      variant.run->run({.x = x.data(),
                        .tokens = kTokens,
                        .norm = norm.data(),
                        .layer_norm = true,
                        .norm_bias = bias.data(),
                        .outputs = {&to, 1},
                        .pool = &Pool()});
      const MatmulOutput plain{.w = packed.view, .out = apart.data(), .out_stride = kRows};
      variant.run->run({.x = normed.data(), .tokens = kTokens, .outputs = {&plain, 1}, .pool = &Pool()});
      if (variant.name != std::string_view("reference")) {  // which norms in double
        EXPECT_EQ(folded, apart) << variant.name << " " << Name(dtype);
        continue;
      }
      for (size_t i = 0; i < folded.size(); ++i)
        EXPECT_NEAR(folded[i], apart[i], testing::SumTolerance(8, 3.0 * kCols)) << Name(dtype);
    }
}

TEST(Matmul, FinishSeesEveryTileOnce) {
  constexpr int64_t kTokens = 150, kRows = 100, kCols = 64;
  const auto x = RandomFloats(kTokens * kCols, 1);
  const Weights gate = MakeStored(DType::kQ4_0, kRows, kCols, 2),
                up = MakeStored(DType::kQ8_0, kRows, kCols, 3);
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere()) continue;
    const Packed a = PackFor(variant, gate.view), b = PackFor(variant, up.view);
    std::vector<float> fused(kTokens * kRows), first(fused.size()), second(fused.size());
    const auto product = [&](const MatmulTile& tile) {
      for (int64_t t = tile.token_begin; t < tile.token_end; ++t)
        for (int64_t r = tile.row_begin; r < tile.row_end; ++r) {
          const int64_t i = t - tile.token_begin, j = r - tile.row_begin;
          fused[t * kRows + r] +=
              tile.sums[0][i * tile.strides[0] + j] * tile.sums[1][i * tile.strides[1] + j];
        }
    };
    const MatmulArgs::Finish finish = product;
    const MatmulOutput outputs[] = {{.w = a.view, .out = first.data(), .out_stride = kRows},
                                    {.w = b.view, .out = second.data(), .out_stride = kRows}};
    MatmulArgs args{.x = x.data(), .tokens = kTokens, .outputs = outputs, .finish = &finish, .pool = &Pool()};
    variant.run->run(args);
    args.finish = nullptr;
    variant.run->run(args);
    for (size_t i = 0; i < fused.size(); ++i) ASSERT_EQ(fused[i], first[i] * second[i]) << variant.name;
  }
}

TEST(Matmul, PackedRowsDecodeToWhatTheyWerePackedFrom) {
  for (const auto& variant : MatmulVariants()) {
    if (!variant.RunsHere() || !variant.run->packed_bytes) continue;
    for (const Weights& w : {MakeInt8(21, 128, 128, 1), MakeInt8(21, 128, 32, 1), MakeInt4(21, 128, 64, 2)}) {
      const Packed packed = PackFor(variant, w.view);
      ASSERT_FALSE(packed.bytes.empty());
      std::vector<float> expected(128), row(128);
      for (int64_t r = 0; r < 21; ++r) {
        DecodeWeightRow(w.view, r, expected.data());
        variant.run->decode_row(packed.view, r, row.data());
        EXPECT_EQ(expected, row) << variant.name;
      }
    }
  }
}

}  // namespace
}  // namespace celer
