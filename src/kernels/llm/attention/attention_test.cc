#include "kernels/llm/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "formats/decode.h"
#include "kernels/llm/kv_row.h"
#include "kernels/shared/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

constexpr DType kKvTypes[] = {DType::kF32, DType::kF16, DType::kBf16, DType::kI8};

struct Shape {
  int64_t heads, kv_heads, dim, window;
  DType dtype;
  bool channel_keys = false;
  float softcap = 0;
  bool sinks = false;
  bool chunked = false;
  bool alibi = false, rounded = false;
};
struct Tokens {
  int64_t past, now;  // tokens already there, tokens in this batch
};

// What a sequence computes with: q [length, heads, dim]; k and v [length, kv_heads, dim].
struct Data {
  std::vector<float> q, k, v;
};
using Alter = std::function<void(Data&)>;

// The tests below run some ten thousand times; threads are made once.
ThreadPool& PoolOf(int threads) {
  static std::map<int, ThreadPool> pools;
  return pools.try_emplace(threads, ThreadPool::Options{.threads = threads}).first->second;
}

// Sequences whose KV blocks lie scattered in a pool; what no token has written is NaN.
class Fixture {
 public:
  Fixture(const Shape& shape, std::vector<int64_t> lengths, const Alter& alter = nullptr)
      : shape_(shape), lengths_(std::move(lengths)) {
    if (shape.sinks) sinks_ = RandomFloats(shape.heads, 99, 6.0f);
    for (int64_t h = 0; shape.alibi && h < shape.heads; ++h)
      slopes_.push_back(static_cast<float>(std::exp2(-0.75 * static_cast<double>(h + 1))));
    const int64_t size = 16;
    int64_t blocks = 0;
    for (const int64_t length : lengths_) {
      max_blocks_ = std::max(max_blocks_, (length + size - 1) / size);
      blocks += (length + size - 1) / size;
    }
    kv_ = {.dtype = shape.dtype,
           .blocks = blocks,
           .kv_heads = shape.kv_heads,
           .block_size = size,
           .head_dim = shape.dim,
           .run = shape.dim % 3 == 0 ? 1 : 4,
           .channel_keys = shape.channel_keys};
    for (auto* bytes : {&k_, &v_})
      bytes->resize(static_cast<size_t>(kv_.Blocks() * kv_.BlockBytes()),
                    std::byte{0xff});  // NaN in each float type
    kv_.k = k_.data();
    kv_.v = v_.data();
    int32_t next = static_cast<int32_t>(blocks);
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int64_t b = 0; b < max_blocks_; ++b) table_.push_back(b * size < lengths_[s] ? --next : -1);
      const auto seed = static_cast<uint32_t>(10 * s);
      Data data = {RandomFloats(lengths_[s] * shape.heads * shape.dim, seed + 3, 2.0f),
                   RandomFloats(lengths_[s] * shape.kv_heads * shape.dim, seed + 1, 2.0f),
                   RandomFloats(lengths_[s] * shape.kv_heads * shape.dim, seed + 2)};
      if (alter) alter(data);
      q_.push_back(std::move(data.q));
      for (int64_t p = 0; p < lengths_[s]; ++p)
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
          const int64_t block = table_[s * static_cast<size_t>(max_blocks_) + static_cast<size_t>(p / size)];
          const int64_t row = (p * shape.kv_heads + h) * shape.dim;
          StoreKvRow(kv_, kv_.k, block, h, p % size, data.k.data() + row);
          StoreKvRow(kv_, kv_.v, block, h, p % size, data.v.data() + row);
        }
    }
  }

  // The outputs of chunk s of sequence s, one sequence after the other: [tokens, heads, dim].
  std::vector<float> Run(AttentionFn run, const std::vector<Tokens>& chunks, int threads = 3) const {
    std::vector<int32_t> tokens, positions, starts = {0}, table;
    std::vector<float> q;
    for (size_t s = 0; s < chunks.size(); ++s) {
      const int64_t row = shape_.heads * shape_.dim;
      for (int64_t i = 0; i < chunks[s].now; ++i) {
        tokens.push_back(0);
        positions.push_back(static_cast<int32_t>(chunks[s].past + i));
      }
      const auto begin = q_[s].begin() + chunks[s].past * row;
      q.insert(q.end(), begin, begin + chunks[s].now * row);
      starts.push_back(static_cast<int32_t>(tokens.size()));
      for (int64_t b = 0; b < max_blocks_; ++b) {
        // Blocks behind the last token are not there yet, those before every window may be gone.
        const int64_t first = shape_.window > 0 ? chunks[s].past - shape_.window + 1 : 0;
        const bool there = b * 16 < chunks[s].past + chunks[s].now && (b + 1) * 16 > first;
        table.push_back(there ? table_[s * static_cast<size_t>(max_blocks_) + static_cast<size_t>(b)]
                              : std::numeric_limits<int32_t>::min());
      }
    }
    std::vector<float> out(q.size(), 12345.0f);
    ThreadPool& pool = PoolOf(threads);
    run({.batch = {tokens, positions, starts, table, max_blocks_, {}},
         .kv = kv_,
         .q = q.data(),
         .heads = shape_.heads,
         .scale = 1.0f / std::sqrt(static_cast<float>(shape_.dim)),
         .window = shape_.window,
         .chunked = shape_.chunked,
         .softcap = shape_.softcap,
         .sinks = shape_.sinks ? sinks_.data() : nullptr,
         .slopes = shape_.alibi ? slopes_.data() : nullptr,
         .rounded_slopes = shape_.rounded,
         .out = out.data(),
         .pool = &pool});
    return out;
  }

  // In double, and how far off a result may be: of token `position` of sequence 0, [heads, dim] each.
  struct Expected {
    std::vector<double> out, tolerance;
  };
  Expected InDouble(int64_t position, bool half) const {
    const int64_t dim = shape_.dim, keys = position + 1, group = shape_.heads / shape_.kv_heads;
    const double scale = double{1.0f / std::sqrt(static_cast<float>(dim))};
    // A sink is one more key, whose score is known, and whose value is zero.
    const auto n = static_cast<size_t>(keys) + (shape_.sinks ? 1 : 0);
    Expected result;
    std::vector<std::vector<float>> k(n, std::vector<float>(static_cast<size_t>(dim))), v = k;
    for (int64_t h = 0; h < shape_.heads; ++h) {
      for (int64_t p = 0; p < keys; ++p) {
        const int64_t block = table_[p / kv_.block_size], slot = p % kv_.block_size;
        LoadKvRow(kv_, kv_.k, block, h / group, slot, k[p].data());
        LoadKvRow(kv_, kv_.v, block, h / group, slot, v[p].data());
      }
      const float* q = q_[0].data() + (position * shape_.heads + h) * dim;
      std::vector<double> weight(n);
      if (shape_.sinks) weight.back() = sinks_[h];
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      for (size_t p = 0; p < n; ++p) {
        for (int64_t d = 0; d < dim; ++d) weight[p] += scale * q[d] * k[p][d];
        if (shape_.softcap != 0) weight[p] = shape_.softcap * std::tanh(weight[p] / shape_.softcap);
        if (shape_.alibi) weight[p] += Bias(h, static_cast<int64_t>(p), position);
        top = std::max(top, weight[p]);
      }
      const std::vector<double> score = weight;
      for (double& w : weight) sum += w = std::exp(w - top);
      for (double& w : weight) w /= sum;

      // A score is off by the rounding of f32 sums, and, where queries are f16, by their rounding. What that
      // does to all scores alike, as with keys that have a part in common, changes nothing.
      std::vector<double> off(n), mean_key(static_cast<size_t>(dim));
      for (size_t d = 0; d < mean_key.size() && !shape_.sinks; ++d)
        for (size_t p = 0; p < n; ++p) mean_key[d] += weight[p] * k[p][d];
      double shift = 0;
      for (size_t p = 0; p < n; ++p) {
        for (size_t d = 0; d < mean_key.size(); ++d) {
          const double factor = scale * std::abs(double{q[d]});
          off[p] += factor * std::abs(double{k[p][d]}) * static_cast<double>(dim + 8) * 0x1p-24;
          if (half) off[p] += factor * std::abs(k[p][d] - mean_key[d]) * 0x1p-11;
        }
        // The maximum that a sink is compared with is a rounded product.
        if (shape_.sinks) off[p] += std::abs(score[p]) * 0x1p-22;
        // A softcap brings scores together, never apart, and is itself rounded.
        // ALiBi's is a rounded product, and so is its sum with the score.
        if (shape_.alibi)
          off[p] += (std::abs(score[p]) + 2 * std::abs(Bias(h, static_cast<int64_t>(p), position))) * 0x1p-22;
        off[p] = std::min(off[p] + 1e-6, 300.0) + 8 * double{shape_.softcap} * 0x1p-24;
        shift += weight[p] * std::exp(off[p]);
      }
      // Weights are off by that, by their rounding to f16, and sums by that of f32.
      for (size_t d = 0; d < mean_key.size(); ++d) {
        double out = 0, magnitude = 0, tolerance = 0;
        for (size_t p = 0; p < n; ++p) {
          out += weight[p] * v[p][d];
          magnitude += weight[p] * std::abs(double{v[p][d]});
        }
        for (size_t p = 0; p < n; ++p) {
          const double change = std::min(weight[p] * (std::exp(off[p]) * shift - 1), 1.0);
          tolerance += (change + (half ? 0x1p-11 * weight[p] + 0x1p-39 : 1e-30)) * std::abs(v[p][d] - out);
        }
        result.out.push_back(out);
        // int8: a rounded weight has its value's scale in it, the sum of weights does not.
        const double rounding = half && shape_.dtype == DType::kI8 ? 0x1p-11 : 0;
        tolerance += (static_cast<double>(keys + 16) * 0x1p-24 + rounding) * magnitude + 1e-37;
        result.tolerance.push_back(tolerance);
      }
    }
    return result;
  }

 private:
  Shape shape_;
  std::vector<int64_t> lengths_;
  int64_t max_blocks_ = 0;
  KvLayerView kv_;
  std::vector<std::byte> k_, v_;
  std::vector<int32_t> table_;
  std::vector<std::vector<float>> q_;
  // What ALiBi adds to the score of a key.
  double Bias(int64_t head, int64_t key, int64_t position) const {
    const auto bf16 = [](double x) {
      std::byte rounded[2];
      auto value = static_cast<float>(x);
      EncodeRow(DType::kBf16, &value, 1, rounded);
      DecodeRow(DType::kBf16, rounded, 1, &value);
      return double{value};
    };
    const double slope = slopes_[static_cast<size_t>(head)];
    if (!shape_.rounded) return slope * static_cast<double>(key - position);
    const auto at = [&](int64_t p) { return bf16(bf16(slope) * bf16(static_cast<double>(p))); };
    return (at(key) - at(position)) * double{1.0f / std::sqrt(static_cast<float>(shape_.dim))};
  }

  std::vector<float> sinks_, slopes_;
};

// Whether queries and weights are rounded to f16. All else is in f32.
bool RoundsToHalf(const Variant<AttentionFn>& variant, DType dtype) {
  return variant.isa == Isa::kArmFhm && (dtype == DType::kF16 || dtype == DType::kI8);
}
// Values are within [-1, 1]. In f32, scores of up to ~8 make relative errors of ~8 epsilon in each weight.
// Queries in f16 make a score be off by up to ~8 * 2^-12 if all roundings go the same way, which they do not.
double ToleranceOf(const Variant<AttentionFn>& variant, DType dtype) {
  return RoundsToHalf(variant, dtype) ? 5e-4 : 2e-5;
}

void ExpectMatchesReference(const Shape& shape, const std::vector<Tokens>& chunks) {
  std::vector<int64_t> lengths;
  for (const Tokens& chunk : chunks) lengths.push_back(chunk.past + chunk.now);
  const Fixture fixture(shape, lengths);
  const auto expected = fixture.Run(reference::Attention, chunks);
  for (const auto& variant : AttentionVariants()) {
    if (!variant.RunsHere()) {
      GTEST_LOG_(INFO) << variant.name << " does not run here: " << WhyNotHere(variant.isa);
      continue;
    }
    const auto out = fixture.Run(variant.run, chunks);
    EXPECT_TRUE(testing::AllNear(out, expected, {.absolute = ToleranceOf(variant, shape.dtype)}))
        << variant.name << " " << Name(shape.dtype) << " dim " << shape.dim;
  }
}

// Types that no tile reads are dequantized first. The reference reads row by row.
TEST(Attention, TypesOfFewerBitsMatchTheReference) {
  const std::vector<Shape> shapes = {
      {6, 2, 64, 0, DType::kFp8E4M3},  {8, 1, 7, 21, DType::kFp8E4M3},  {4, 2, 80, 0, DType::kFp8E4M3},
      {6, 2, 64, 0, DType::kQ4_1},     {3, 1, 96, 21, DType::kQ4_1},    {4, 4, 32, 0, DType::kQ4_1},
      {6, 2, 64, 0, DType::kI8, true}, {8, 1, 7, 21, DType::kI8, true}, {4, 2, 80, 33, DType::kI8, true}};
  for (const Shape& shape : shapes)
    for (const std::vector<Tokens>& chunks :
         {std::vector<Tokens>{{0, 37}}, {{100, 1}, {0, 5}, {15, 2}, {16, 1}}, {{200, 40}}}) {
      std::vector<int64_t> lengths;
      for (const Tokens& chunk : chunks) lengths.push_back(chunk.past + chunk.now);
      const Fixture fixture(shape, lengths);
      EXPECT_TRUE(testing::AllNear(fixture.Run(Attention, chunks), fixture.Run(reference::Attention, chunks),
                                   {.absolute = 2e-5}))
          << Name(shape.dtype) << " dim " << shape.dim << " window " << shape.window;
    }
}

TEST(Attention, ReferenceByHand) {
  // Two keys with scores 0 and ln 3, values 1 and 5: weights 1/4 and 3/4.
  float k[16] = {0, std::log(3.0f)}, v[16] = {1, 5};
  const std::vector<int32_t> tokens = {0}, positions = {1}, starts = {0, 1}, table = {0};
  const float q = 1;
  float out = 0;
  ThreadPool pool({.threads = 1});
  for (const auto& variant : AttentionVariants()) {
    if (!variant.RunsHere()) continue;  // named by the tests below
    variant.run(
        {.batch = {tokens, positions, starts, table, 1, {}},
         .kv = {reinterpret_cast<std::byte*>(k), reinterpret_cast<std::byte*>(v), DType::kF32, 1, 1, 16, 1},
         .q = &q,
         .heads = 1,
         .out = &out,
         .pool = &pool});
    EXPECT_NEAR(out, 4.0f, 1e-6) << variant.name;
  }
}

TEST(Attention, MatchesReference) {
  for (const DType dtype : kKvTypes) {
    ExpectMatchesReference({4, 4, 8, 0, dtype}, {{0, 1}});
    ExpectMatchesReference({6, 2, 20, 0, dtype}, {{0, 37}});
    ExpectMatchesReference({9, 3, 64, 0, dtype}, {{100, 1}, {0, 5}, {15, 2}, {16, 1}});
    ExpectMatchesReference({8, 1, 7, 0, dtype}, {{31, 33}, {200, 1}});
    ExpectMatchesReference({16, 2, 80, 0, dtype}, {{255, 3}, {700, 1}});
    ExpectMatchesReference({4, 1, 128, 0, dtype}, {{0, 70}, {511, 2}});
    ExpectMatchesReference({2, 2, 256, 0, dtype}, {{40, 30}});
    ExpectMatchesReference({3, 3, 1, 0, dtype}, {{40, 3}});
  }
}

TEST(Attention, SlidingWindow) {
  for (const DType dtype : kKvTypes) {
    ExpectMatchesReference({4, 2, 8, 1, dtype}, {{0, 20}});
    ExpectMatchesReference({4, 2, 8, 16, dtype}, {{0, 50}, {60, 3}});
    ExpectMatchesReference({3, 1, 12, 21, dtype}, {{100, 40}});
    ExpectMatchesReference({4, 1, 48, 300, dtype}, {{500, 100}, {899, 1}, {0, 10}});
  }
}

TEST(Attention, Chunks) {
  EXPECT_EQ(FirstKeyOf(11, 12, true), 0);
  EXPECT_EQ(FirstKeyOf(12, 12, true), 12);
  EXPECT_EQ(FirstKeyOf(35, 12, true), 24);
  EXPECT_EQ(FirstKeyOf(12, 12, false), 1);
  EXPECT_EQ(FirstKeyOf(12, 0, true), 0);
  const auto chunks_of = [](int64_t window, const Shape& shape) {
    Shape chunked = shape;
    chunked.window = window;
    chunked.chunked = true;
    return chunked;
  };
  for (const DType dtype : kKvTypes) {
    ExpectMatchesReference(chunks_of(1, {4, 2, 8, 0, dtype}), {{0, 20}});
    ExpectMatchesReference(chunks_of(16, {4, 2, 8, 0, dtype}), {{0, 50}, {60, 3}, {63, 2}});
    ExpectMatchesReference(chunks_of(21, {3, 1, 12, 0, dtype}), {{100, 40}});
    ExpectMatchesReference(chunks_of(300, {4, 1, 48, 0, dtype}), {{500, 150}, {899, 3}, {0, 10}});
  }
}

TEST(Attention, Softcap) {
  for (const DType dtype : kKvTypes) {
    ExpectMatchesReference({4, 4, 8, 0, dtype, false, 0.5f}, {{0, 1}});
    ExpectMatchesReference({6, 2, 20, 0, dtype, false, 2.0f}, {{0, 37}});
    ExpectMatchesReference({9, 3, 64, 0, dtype, false, 50.0f}, {{100, 1}, {0, 5}, {15, 2}, {16, 1}});
    ExpectMatchesReference({8, 1, 7, 21, dtype, false, 1.0f}, {{31, 33}, {200, 1}});
    ExpectMatchesReference({16, 2, 80, 300, dtype, false, 3.0f}, {{500, 100}, {700, 1}});
    ExpectMatchesReference({3, 3, 1, 0, dtype, false, 0.1f}, {{40, 3}});
  }
}

// A token alone, in any chunk, in any company, with any number of threads: the same bits.
void ExpectSameBits(const Shape& shape, int64_t length, const std::vector<int64_t>& positions) {
  const Fixture fixture(shape, {length, 40});
  const int64_t row = shape.heads * shape.dim;
  for (const auto& variant : AttentionVariants()) {
    if (!variant.RunsHere() || std::string_view(variant.name) == "reference") continue;
    const auto all = fixture.Run(variant.run, {{0, length}});
    EXPECT_TRUE(testing::AllFinite(all)) << variant.name;
    const auto expect_at = [&](int64_t position, const float* out, const char* how) {
      ASSERT_EQ(std::memcmp(out, all.data() + position * row, static_cast<size_t>(row) * sizeof(float)), 0)
          << variant.name << " " << Name(shape.dtype) << " dim " << shape.dim << " group "
          << shape.heads / shape.kv_heads << " position " << position << " " << how;
    };
    for (const int64_t p : positions) {
      const auto alone = fixture.Run(variant.run, {{p, 1}}, 1 + static_cast<int>(p % 3));
      expect_at(p, alone.data(), "alone");
      const int64_t now = std::min<int64_t>(1 + p % 23, length - p);
      const auto company = fixture.Run(variant.run, {{p, now}, {7, 33}}, 2);
      for (int64_t i = 0; i < now; ++i) expect_at(p + i, company.data() + i * row, "in company");
    }
  }
}

std::vector<int64_t> UpTo(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < n; ++i) out.push_back(i);
  return out;
}

TEST(Attention, DecodeAndPrefillGiveTheSameBits) {
  for (const DType dtype : kKvTypes) {
    for (const int64_t group : {1, 3, 4, 8})
      for (const int64_t dim : {20, 48, 64, 80}) ExpectSameBits({group * 2, 2, dim, 0, dtype}, 70, UpTo(70));
    ExpectSameBits({4, 1, 128, 0, dtype}, 70, UpTo(70));
    ExpectSameBits({3, 1, 256, 0, dtype}, 70, {0, 15, 16, 33, 63, 64, 69});
  }
}

TEST(Attention, SameBitsAroundSplitBoundaries) {
  const std::vector<int64_t> positions = {250, 254, 255, 256, 257, 271, 300, 511, 512, 513, 700};
  for (const DType dtype : kKvTypes) {
    ExpectSameBits({8, 2, 64, 0, dtype}, 701, positions);
    ExpectSameBits({3, 3, 20, 0, dtype}, 701, positions);
    ExpectSameBits({8, 1, 64, 300, dtype}, 701, positions);
    ExpectSameBits({2, 2, 48, 33, dtype}, 701, positions);
    ExpectSameBits({4, 1, 64, 33, dtype}, 701, positions);
    ExpectSameBits({3, 1, 128, 301, dtype}, 701, positions);
    ExpectSameBits({4, 1, 64, 33, dtype, false, 2.0f}, 701, positions);
    ExpectSameBits({2, 2, 20, 0, dtype, false, 2.0f}, 701, positions);
  }
}

// Statistics that random numbers do not have. Every variant against double, within what its arithmetic may
// be off, in a prompt and in a decode step.
void ExpectAccurate(const char* what, DType dtype, const Alter& alter, bool only_finite = false,
                    float softcap = 0, bool sinks = false, bool alibi = false, bool rounded = false) {
  constexpr int64_t kLength = 70;
  for (Shape shape :
       {Shape{4, 4, 64, 0, dtype}, {6, 2, 64, 0, dtype}, {8, 1, 80, 0, dtype}, {5, 1, 20, 0, dtype}}) {
    shape.softcap = softcap;
    shape.sinks = sinks;
    shape.alibi = alibi;
    shape.rounded = rounded;
    const Fixture fixture(shape, {kLength}, alter);
    const auto row = static_cast<size_t>(shape.heads * shape.dim);
    for (const auto& variant : AttentionVariants()) {
      if (!variant.RunsHere() || std::string_view(variant.name) == "reference") continue;
      const auto prompt = fixture.Run(variant.run, {{0, kLength}}, 1);
      ASSERT_TRUE(testing::AllFinite(prompt)) << what << " " << variant.name << " " << Name(dtype);
      for (const int64_t position : {int64_t{0}, int64_t{1}, int64_t{30}, kLength - 1}) {
        const auto decode = fixture.Run(variant.run, {{position, 1}}, 1);
        const float* const in_prompt = prompt.data() + static_cast<size_t>(position) * row;
        ASSERT_EQ(std::memcmp(decode.data(), in_prompt, row * sizeof(float)), 0)
            << what << " " << variant.name << " " << Name(dtype) << " position " << position;
        if (only_finite) continue;
        const auto expected = fixture.InDouble(position, RoundsToHalf(variant, dtype));
        ASSERT_TRUE(
            testing::AllNear(decode, expected.out, [&](size_t i) { return double{expected.tolerance[i]}; }))
            << what << " " << variant.name << " " << Name(dtype) << " dim " << shape.dim << " position "
            << position;
      }
    }
  }
}

void Multiply(std::vector<float>& x, float by) {
  for (float& value : x) value *= by;
}

TEST(Attention, Alibi) {
  for (const DType dtype : kKvTypes) {
    for (const bool rounded : {false, true}) {
      for (const float size : {1e-3f, 1.0f, 10.0f})
        ExpectAccurate(
            "ALiBi", dtype, [=](Data& data) { Multiply(data.q, size); }, false, 0, false, true, rounded);
      ExpectMatchesReference({4, 4, 8, 0, dtype, false, 0, false, false, true, rounded}, {{0, 1}});
      ExpectMatchesReference({6, 2, 20, 0, dtype, false, 0, false, false, true, rounded},
                             {{0, 50}, {60, 3}, {600, 5}});
      ExpectMatchesReference({9, 3, 64, 0, dtype, false, 2.0f, false, false, true, rounded},
                             {{100, 1}, {0, 5}});
      ExpectMatchesReference({8, 1, 7, 21, dtype, false, 0, true, false, true, rounded},
                             {{31, 33}, {1200, 1}});
      ExpectSameBits({6, 2, 20, 0, dtype, false, 0, false, false, true, rounded}, 70, UpTo(70));
      ExpectSameBits({4, 4, 64, 0, dtype, false, 0, false, false, true, rounded}, 701,
                     {250, 255, 511, 512, 700});
    }
  }
}

// A logit without a value in each softmax, among scores of all sizes.
TEST(Attention, LogitsWithoutValues) {
  for (const DType dtype : kKvTypes) {
    for (const float size : {1e-3f, 1.0f, 4.0f, 30.0f})
      ExpectAccurate(
          "logits without values", dtype, [=](Data& data) { Multiply(data.q, size); }, false, 0, true);
    ExpectMatchesReference({4, 2, 8, 1, dtype, false, 0, true}, {{0, 20}});
    ExpectMatchesReference({6, 2, 20, 33, dtype, false, 0, true}, {{0, 50}, {60, 3}, {600, 5}});
    ExpectMatchesReference({8, 1, 64, 0, dtype, false, 0, true}, {{0, 70}, {1200, 1}});
    ExpectMatchesReference({3, 3, 12, 0, dtype, false, 0, true}, {{0, 70}, {1030, 2}});
    ExpectSameBits({8, 2, 64, 33, dtype, false, 0, true}, 70, UpTo(70));
    ExpectSameBits({3, 1, 20, 0, dtype, false, 0, true}, 701, {0, 15, 255, 511, 512, 700});
  }
}

class AwkwardAttention : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(KvTypes, AwkwardAttention, ::testing::ValuesIn(kKvTypes),
                         [](const auto& of) { return std::string(Name(of.param)); });

TEST_P(AwkwardAttention, Plain) {
  ExpectAccurate("plain", GetParam(), nullptr);
}

TEST_P(AwkwardAttention, QueriesOfAnySize) {
  for (const float size : {1e-30f, 1e-6f, 1e-4f, 1e-2f, 1e2f, 1e4f, 1e8f, 1e30f})
    ExpectAccurate("queries", GetParam(), [=](Data& data) { Multiply(data.q, size); });
  // One token's small ones beside others.
  ExpectAccurate("small queries", GetParam(), [](Data& data) {
    for (size_t i = 0; i < data.q.size(); i += 3) data.q[i / 64 * 64] *= 1e-3f;
    for (size_t i = 0; i < data.q.size() / 2; ++i) data.q[i] *= 1e-6f;
  });
}

TEST_P(AwkwardAttention, Softcap) {
  for (const float cap : {0.1f, 1.0f, 50.0f}) {
    ExpectAccurate("softcap", GetParam(), nullptr, false, cap);
    for (const float size : {1e-30f, 1e-4f, 1e2f, 1e30f})
      ExpectAccurate(
          "softcap of queries", GetParam(), [=](Data& data) { Multiply(data.q, size); }, false, cap);
  }
}

TEST_P(AwkwardAttention, KeysAndValuesOfAnySize) {
  const DType dtype = GetParam();
  std::vector<float> sizes = {1e-6f, 1e-4f, 1e2f, 1e4f, 3e4f, 65504.0f};
  if (dtype != DType::kF16) sizes.insert(sizes.end(), {1e6f, 1e20f, 1e30f});
  for (const float size : sizes) {
    ExpectAccurate("keys", dtype, [=](Data& data) { Multiply(data.k, size / 2); });
    ExpectAccurate("keys and queries", dtype, [=](Data& data) {
      Multiply(data.k, size / 2);
      Multiply(data.q, 1 / size);
    });
    ExpectAccurate("values", dtype, [=](Data& data) { Multiply(data.v, size); });
  }
}

TEST_P(AwkwardAttention, TheEdgeOfFloats) {
  const DType dtype = GetParam();
  constexpr float kMax = std::numeric_limits<float>::max();
  const auto signs = [](std::vector<float>& x, float size) {
    for (float& value : x) value = std::copysign(size, value);
  };
  ExpectAccurate("values", dtype, [=](Data& data) { signs(data.v, kMax); });
  ExpectAccurate("equal values", dtype, [=](Data& data) { std::fill(data.v.begin(), data.v.end(), kMax); });
  // Scores beyond any float: which key wins cannot be told, but the result is finite.
  ExpectAccurate(
      "keys", dtype, [=](Data& data) { signs(data.k, kMax); }, true);
  ExpectAccurate(
      "everything", dtype, [=](Data& data) { signs(data.q, kMax), signs(data.k, kMax), signs(data.v, kMax); },
      true);
}

TEST_P(AwkwardAttention, OutlierChannels) {
  const auto outliers = [](std::vector<float>& x) {
    for (size_t i = 3; i < x.size(); i += 20) x[i] *= 100;
  };
  ExpectAccurate("keys", GetParam(), [=](Data& data) { outliers(data.k); });
  ExpectAccurate("queries", GetParam(), [=](Data& data) { outliers(data.q); });
  ExpectAccurate("values", GetParam(), [=](Data& data) { outliers(data.v); });
  ExpectAccurate("all", GetParam(),
                 [=](Data& data) { outliers(data.q), outliers(data.k), outliers(data.v); });
}

TEST_P(AwkwardAttention, KeyBias) {
  // As Qwen2's: some channels of all keys lie around 250.
  ExpectAccurate("bias", GetParam(), [](Data& data) {
    for (size_t i = 0; i < data.k.size(); i += 5) data.k[i] += i % 2 == 0 ? 250.0f : -250.0f;
  });
}

TEST_P(AwkwardAttention, Sinks) {
  // The first keys get nearly all of the attention, and their values are next to nothing. (The first 160
  // elements are one to four keys.)
  for (const float size : {0.5f, 2.0f, 20.0f})
    ExpectAccurate("sink", GetParam(), [=](Data& data) {
      for (float& q : data.q) q = q / 4 + 1;
      for (size_t i = 0; i < 160; ++i) data.k[i] = size, data.v[i] *= 1e-3f;
    });
}

TEST_P(AwkwardAttention, Zeros) {
  ExpectAccurate("queries", GetParam(), [](Data& data) { Multiply(data.q, 0); });
  ExpectAccurate("keys", GetParam(), [](Data& data) { Multiply(data.k, 0); });
  ExpectAccurate("values", GetParam(), [](Data& data) { Multiply(data.v, 0); });
  ExpectAccurate("rows", GetParam(), [](Data& data) {
    for (auto* x : {&data.q, &data.k, &data.v})
      for (size_t i = 0; i < x->size(); ++i)
        if (i / 320 % 2 == 0) (*x)[i] = 0;
  });
}

// Whoever looks at the logits must find out.
TEST_P(AwkwardAttention, NanIsNotHidden) {
  const float nan = std::bit_cast<float>(0xffffffffu);
  for (const Shape& shape : {Shape{4, 2, 64, 0, GetParam()}, {8, 1, 64, 0, GetParam()}})
    for (const auto& variant : AttentionVariants()) {
      if (!variant.RunsHere()) continue;
      const auto last = [&](const Alter& alter) {
        return Fixture(shape, {70}, alter).Run(variant.run, {{69, 1}}, 1);
      };
      const auto row = static_cast<size_t>(shape.kv_heads * shape.dim);
      // Head 0 of token 69, and only it.
      const auto q =
          last([&](Data& data) { data.q[static_cast<size_t>(69 * shape.heads * shape.dim) + 5] = nan; });
      for (size_t i = 0; i < q.size(); ++i)
        ASSERT_EQ(std::isnan(q[i]), i < static_cast<size_t>(shape.dim)) << variant.name << " query " << i;
      // The first kv head, whose queries come first.
      const auto group = static_cast<size_t>(shape.heads / shape.kv_heads * shape.dim);
      for (const size_t key : {size_t{0}, size_t{40}, size_t{69}}) {
        const auto k = last([&](Data& data) { data.k[key * row + 5] = nan; });
        for (size_t i = 0; i < k.size(); ++i)
          ASSERT_EQ(std::isnan(k[i]), i < group) << variant.name << " key " << key << " at " << i;
        const auto v = last([&](Data& data) { data.v[key * row + 5] = nan; });
        ASSERT_TRUE(std::isnan(v[5])) << variant.name << " value " << key;
      }
    }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  // Scores in the thousands: only the largest counts, and nothing is NaN.
  const int64_t dim = 64, keys = 40;
  for (const DType dtype : kKvTypes) {
    KvLayerView kv{.dtype = dtype, .blocks = 3, .kv_heads = 1, .block_size = 16, .head_dim = dim};
    std::vector<std::byte> k(3 * kv.BlockBytes()), v(k.size());
    kv.k = k.data(), kv.v = v.data();
    for (int64_t p = 0; p < keys; ++p) {
      const std::vector<float> row(dim, p == 17 ? 200.0f : -200.0f);
      StoreKvRow(kv, kv.k, p / 16, 0, p % 16, row.data());
      const std::vector<float> value(dim, static_cast<float>(p));
      StoreKvRow(kv, kv.v, p / 16, 0, p % 16, value.data());
    }
    const std::vector<int32_t> tokens = {0}, positions = {keys - 1}, starts = {0, 1}, table = {0, 1, 2};
    const std::vector<float> q(dim, 150.0f);
    std::vector<float> out(dim);
    ThreadPool pool({.threads = 1});
    for (const auto& variant : AttentionVariants()) {
      if (!variant.RunsHere()) continue;
      variant.run({.batch = {tokens, positions, starts, table, 3, {}},
                   .kv = kv,
                   .q = q.data(),
                   .heads = 1,
                   .scale = 0.125f,
                   .out = out.data(),
                   .pool = &pool});
      for (const float value : out) ASSERT_NEAR(value, 17.0f, 0.02) << variant.name << " " << Name(dtype);
    }
  }
}

}  // namespace
}  // namespace celer
