#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/kv_row.h"
#include "kernels/test_util.h"

namespace celer {
namespace {

using testing::RandomFloats;

constexpr DType kKvTypes[] = {DType::kF32, DType::kF16, DType::kBf16, DType::kI8};

struct Shape {
  int64_t heads, kv_heads, dim, window;
  DType dtype;
};
struct Tokens {
  int64_t past, now;  // tokens already there, tokens in this batch
};

// Sequences whose KV blocks lie scattered in a pool; what no token has written is NaN.
class Fixture {
 public:
  Fixture(const Shape& shape, std::vector<int64_t> lengths) : shape_(shape), lengths_(std::move(lengths)) {
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
           .run = shape.dim % 3 == 0 ? 1 : 4};
    for (auto* bytes : {&k_, &v_})
      bytes->resize(static_cast<size_t>(kv_.Blocks() * kv_.BlockBytes()),
                    std::byte{0xff});  // NaN in each float type
    kv_.k = k_.data();
    kv_.v = v_.data();
    int32_t next = static_cast<int32_t>(blocks);
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int64_t b = 0; b < max_blocks_; ++b) table_.push_back(b * size < lengths_[s] ? --next : -1);
      const auto seed = static_cast<uint32_t>(10 * s);
      const auto k = RandomFloats(lengths_[s] * shape.kv_heads * shape.dim, seed + 1, 2.0f);
      const auto v = RandomFloats(lengths_[s] * shape.kv_heads * shape.dim, seed + 2);
      q_.push_back(RandomFloats(lengths_[s] * shape.heads * shape.dim, seed + 3, 2.0f));
      for (int64_t p = 0; p < lengths_[s]; ++p)
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
          const int64_t block = table_[s * static_cast<size_t>(max_blocks_) + static_cast<size_t>(p / size)];
          const int64_t row = (p * shape.kv_heads + h) * shape.dim;
          StoreKvRow(kv_, kv_.k, block, h, p % size, k.data() + row);
          StoreKvRow(kv_, kv_.v, block, h, p % size, v.data() + row);
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
    ThreadPool pool({.threads = threads});
    run({.batch = {tokens, positions, starts, table, max_blocks_, {}},
         .kv = kv_,
         .q = q.data(),
         .heads = shape_.heads,
         .scale = 1.0f / std::sqrt(static_cast<float>(shape_.dim)),
         .window = shape_.window,
         .out = out.data(),
         .pool = &pool});
    return out;
  }

 private:
  Shape shape_;
  std::vector<int64_t> lengths_;
  int64_t max_blocks_ = 0;
  KvLayerView kv_;
  std::vector<std::byte> k_, v_;
  std::vector<int32_t> table_;
  std::vector<std::vector<float>> q_;
};

// Values are within [-1, 1]. In f32, scores of up to ~8 make relative errors of ~8 epsilon in each weight. In
// f16 arithmetic a score is off by up to ~8 * 2^-12 and a sum of weighted values by some 2^-11.
double ToleranceOf(const Variant<AttentionFn>& variant, DType dtype) {
  const bool half = (variant.isa == Isa::kArmFp16 || variant.isa == Isa::kAvx512Fp16) &&
                    (dtype == DType::kF16 || dtype == DType::kI8);
  return half ? 2e-3 : 2e-5;
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
    for (size_t i = 0; i < out.size(); ++i)
      ASSERT_NEAR(out[i], expected[i], ToleranceOf(variant, shape.dtype))
          << variant.name << " " << Name(shape.dtype) << " dim " << shape.dim << " at " << i;
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

// A token alone, in any chunk, in any company, with any number of threads: the same bits.
void ExpectSameBits(const Shape& shape, int64_t length, const std::vector<int64_t>& positions) {
  const Fixture fixture(shape, {length, 40});
  const int64_t row = shape.heads * shape.dim;
  for (const auto& variant : AttentionVariants()) {
    if (!variant.RunsHere() || std::string_view(variant.name) == "reference") continue;
    const auto all = fixture.Run(variant.run, {{0, length}});
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

TEST(Attention, SameBitsAroundPieceBoundaries) {
  const std::vector<int64_t> positions = {250, 254, 255, 256, 257, 271, 300, 511, 512, 513, 700};
  for (const DType dtype : kKvTypes) {
    ExpectSameBits({8, 2, 64, 0, dtype}, 701, positions);
    ExpectSameBits({3, 3, 20, 0, dtype}, 701, positions);
    ExpectSameBits({8, 1, 64, 300, dtype}, 701, positions);
    ExpectSameBits({2, 2, 48, 33, dtype}, 701, positions);
    ExpectSameBits({4, 1, 64, 33, dtype}, 701, positions);
    ExpectSameBits({3, 1, 128, 301, dtype}, 701, positions);
  }
}

TEST(Attention, LargeScoresDoNotOverflow) {
  // Scores in the thousands: only the largest counts, and nothing is NaN.
  const int64_t dim = 64, keys = 40;
  for (const DType dtype : kKvTypes) {
    KvLayerView kv{.dtype = dtype, .blocks = 3, .kv_heads = 1, .block_size = 16, .head_dim = dim};
    std::vector<std::byte> k(static_cast<size_t>(3 * kv.BlockBytes())), v(k.size());
    kv.k = k.data(), kv.v = v.data();
    for (int64_t p = 0; p < keys; ++p) {
      const std::vector<float> row(static_cast<size_t>(dim), p == 17 ? 200.0f : -200.0f);
      StoreKvRow(kv, kv.k, p / 16, 0, p % 16, row.data());
      const std::vector<float> value(static_cast<size_t>(dim), static_cast<float>(p));
      StoreKvRow(kv, kv.v, p / 16, 0, p % 16, value.data());
    }
    const std::vector<int32_t> tokens = {0}, positions = {keys - 1}, starts = {0, 1}, table = {0, 1, 2};
    const std::vector<float> q(static_cast<size_t>(dim), 150.0f);
    std::vector<float> out(static_cast<size_t>(dim));
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
