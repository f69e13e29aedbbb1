// The three launches of latent attention against plain loops in double.
#include "kernels/llm/latent/cuda/latent_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "kernels/llm/kv_row.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/cuda/per_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

float Rounded(DType dtype, float value) {
  if (dtype == DType::kF32) return value;
  return dtype == DType::kBf16 ? Bf16ToFloat(FloatToBf16(value)) : F16ToFloat(FloatToF16(value));
}

// A matrix of random values as device_matrix.h stores it.
struct Matrix {
  Matrix(int rows, int cols, DType dtype, uint32_t seed)
      : values(RandomFloats(int64_t{rows} * cols, seed, 0.5f)), bytes(0) {
    m.format = dtype == DType::kF32 ? Format::kF32 : dtype == DType::kF16 ? Format::kF16 : Format::kBf16;
    m.rows = rows, m.cols = cols;
    m.padded = (cols + kColumnPad - 1) / kColumnPad * kColumnPad;
    m.row_bytes = PaddedRowBytes(m.format, cols);
    std::vector<std::byte> host(static_cast<size_t>(m.data_bytes()));
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) {
        float& value = values[static_cast<size_t>(r) * static_cast<size_t>(cols) + static_cast<size_t>(c)];
        value = Rounded(dtype, value);
        const uint16_t bits = dtype == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value);
        std::byte* to = host.data() + m.Offset(r, int64_t{c} * (dtype == DType::kF32 ? 4 : 2));
        if (dtype == DType::kF32)
          std::memcpy(to, &value, 4);
        else
          std::memcpy(to, &bits, 2);
      }
    memory.emplace(host);
    m.data = memory->get();
  }
  double at(int64_t row, int col) const { return values[static_cast<size_t>(row * m.cols + col)]; }

  std::vector<float> values;
  int64_t bytes;
  DeviceMatrix m;
  std::optional<OnDevice<std::byte>> memory;
};

// Sequences of which some tokens are there and others are in this batch.
struct Batch {
  explicit Batch(const std::vector<std::pair<int, int>>& sequences) {
    for (const auto& [past, now] : sequences) width = std::max(width, (past + now + 15) / 16);
    for (size_t s = 0; s < sequences.size(); ++s) {
      const auto& [past, now] = sequences[s];
      for (int i = 0; i < now; ++i) positions.push_back(past + i), owner.push_back(static_cast<int32_t>(s));
      starts.push_back(static_cast<int32_t>(positions.size()));
      decode = decode && now == 1;
      longest = std::max(longest, past + now);
      for (int b = 0; b < width; ++b) table.push_back(b < (past + now + 15) / 16 ? blocks++ : -1);
    }
    d_positions.emplace(positions), d_owner.emplace(owner), d_table.emplace(table), d_starts.emplace(starts);
  }
  DeviceBatch Device() const {
    return {nullptr,        d_positions->get(),
            d_owner->get(), d_table->get(),
            width,          static_cast<int>(positions.size())};
  }
  int64_t RowOf(int token, int key) const {  // of the KV
    const auto at = static_cast<size_t>(owner[static_cast<size_t>(token)] * width + key / 16);
    return int64_t{table[at]} * 16 + key % 16;
  }

  std::vector<int32_t> positions, owner, starts = {0}, table;
  int width = 0, blocks = 1, longest = 0;
  bool decode = true;
  std::optional<OnDevice<int32_t>> d_positions, d_owner, d_table, d_starts;
};

struct Case {
  int heads, rank, rope, nope, value;
  std::vector<std::pair<int, int>> sequences;
  DType weights = DType::kBf16;
};

std::string NameOf(const Case& c, DType kv) {
  return std::to_string(c.heads) + " heads of " + std::to_string(c.rank) + " + " + std::to_string(c.rope) +
         ", " + std::to_string(c.sequences.size()) + " sequences, " + std::string(Name(kv));
}

// The pool of a layer with random rows.
struct Pool {
  Pool(const Case& c, DType dtype, int blocks)
      : dim(c.rank + c.rope),
        kv{nullptr, nullptr, dtype, 1, dim, DeviceKv::PaddedDim(dtype, dim)},
        rows(RandomFloats(int64_t{blocks} * 16 * dim, 5)),
        host(static_cast<size_t>(blocks * kv.block_bytes())) {
    for (int64_t r = 0; r < int64_t{blocks} * 16; ++r) {
      std::vector<float> row(static_cast<size_t>(kv.padded_dim));
      std::copy_n(rows.begin() + r * dim, dim, row.begin());
      StoreKvRow(View(), host.data(), r / 16, 0, r % 16, row.data());
      Row(r, rows.data() + r * dim);
    }
    memory.emplace(host);
    kv.k = memory->get();
  }
  KvLayerView View() {
    const auto blocks = static_cast<int64_t>(host.size()) / kv.block_bytes();
    return {host.data(), host.data(), kv.dtype, blocks, 1, 16, kv.padded_dim};
  }
  // A row of `host`.
  void Row(int64_t row, float* to) {
    std::vector<float> wide(static_cast<size_t>(kv.padded_dim));
    LoadKvRow(View(), host.data(), row / 16, 0, row % 16, wide.data());
    std::copy_n(wide.begin(), dim, to);
  }

  int dim;
  DeviceKv kv;
  std::vector<float> rows;
  std::vector<std::byte> host;
  std::optional<OnDevice<std::byte>> memory;
};

// [cos, sin] of a position and pair; any numbers do.
std::vector<float> Angles(int positions, int rope, uint32_t seed) {
  return RandomFloats(int64_t{positions} * (rope / 2), seed);
}

void ExpectQueries(const Case& c, DType dtype, bool interleaved) {
  const Batch batch(c.sequences);
  Pool pool(c, dtype, batch.blocks);
  const auto count = static_cast<int>(batch.positions.size());
  const int head = c.nope + c.rope, dim = c.rank + c.rope, half = c.rope / 2;
  const int q_stride = c.heads * head + 3, row_stride = dim + 5;
  const Matrix k_b(c.heads * c.rank, c.nope, c.weights, 1);
  const auto q = RandomFloats(int64_t{count} * q_stride, 2),
             rows = RandomFloats(int64_t{count} * row_stride, 3);
  const auto norm = RandomFloats(c.rank, 4), bias = RandomFloats(dim, 9);
  const auto cos = Angles(batch.longest, c.rope, 6), sin = Angles(batch.longest, c.rope, 7);
  const OnDevice<float> d_q(q), d_rows(rows), d_norm(norm), d_bias(bias), d_cos(cos), d_sin(sin);
  OnDevice<float> out(int64_t{count} * c.heads * dim);
  ASSERT_EQ(cudaSuccess, LaunchLatentQueries({.batch = batch.Device(),
                                              .kv = pool.kv,
                                              .q = d_q.get(),
                                              .kv_row = d_rows.get(),
                                              .q_stride = q_stride,
                                              .kv_row_stride = row_stride,
                                              .kv_bias = d_bias.get(),
                                              .kv_norm = d_norm.get(),
                                              .eps = 1e-6f,
                                              .k_b = k_b.m,
                                              .heads = c.heads,
                                              .kv_rank = c.rank,
                                              .nope_dim = c.nope,
                                              .rope_dim = c.rope,
                                              .interleaved = interleaved,
                                              .rope_cos = d_cos.get(),
                                              .rope_sin = d_sin.get(),
                                              .decode = batch.decode,
                                              .out = out.get()},
                                             nullptr));
  const std::vector<float> got = out.Read();
  const auto rotated = [&](const auto& at, int position, int i) -> double {
    const int pair = interleaved ? i / 2 : i % half;
    const bool second = interleaved ? i % 2 : i >= half;
    const int other = interleaved ? i ^ 1 : second ? i - half : i + half;
    const double cosine = cos[static_cast<size_t>(position * half + pair)],
                 sine = sin[static_cast<size_t>(position * half + pair)];
    return at(i) * cosine + (second ? 1 : -1) * at(other) * sine;
  };
  pool.host = pool.memory->Read();
  std::vector<float> stored(static_cast<size_t>(dim));
  for (int t = 0; t<count; t += count> 40 ? 7 : 1) {
    const int position = batch.positions[static_cast<size_t>(t)];
    for (int h = 0; h < c.heads; ++h) {
      const float* from = q.data() + int64_t{t} * q_stride + h * head;
      const float* have = got.data() + (int64_t{t} * c.heads + h) * dim;
      for (int i = 0; i < dim; ++i) {
        double expected = 0;
        if (i < c.rank)
          for (int d = 0; d < c.nope; ++d) expected += k_b.at(int64_t{h} * c.rank + i, d) * from[d];
        else
          expected = rotated([&](int d) -> double { return from[c.nope + d]; }, position, i - c.rank);
        ASSERT_NEAR(expected, have[i], 1e-5 * std::max(1.0, std::abs(expected)))
            << "token " << t << " head " << h << " " << i;
      }
    }
    std::vector<double> row;
    double squares = 0;
    for (int i = 0; i < dim; ++i) {
      row.push_back(double{rows[static_cast<size_t>(t * row_stride + i)]} + bias[static_cast<size_t>(i)]);
      if (i < c.rank) squares += row.back() * row.back();
    }
    for (int i = 0; i < c.rank; ++i)
      row[static_cast<size_t>(i)] *= norm[static_cast<size_t>(i)] / std::sqrt(squares / c.rank + 1e-6);
    pool.Row(batch.RowOf(t, position), stored.data());
    double top = 0;
    for (const double value : row) top = std::max(top, 2 * std::abs(value));  // rope may add two
    for (int i = 0; i < dim; ++i) {
      const double expected =
          i < c.rank
              ? row[static_cast<size_t>(i)]
              : rotated([&](int d) { return row[static_cast<size_t>(c.rank + d)]; }, position, i - c.rank);
      const double rounding = dtype == DType::kI8        ? top / 250
                              : dtype == DType::kFp8E4M3 ? std::abs(expected) / 15 + 1e-3
                              : dtype == DType::kBf16    ? std::abs(expected) / 250 + 1e-5
                                                         : std::abs(expected) / 2000 + 1e-5;
      ASSERT_NEAR(expected, stored[static_cast<size_t>(i)], rounding) << "row of token " << t << " " << i;
    }
  }
}

void ExpectAttention(const Case& c, DType dtype, bool alone, bool steady) {
  const Batch batch(c.sequences);
  const Pool pool(c, dtype, batch.blocks);
  const auto count = static_cast<int>(batch.positions.size());
  const int dim = c.rank + c.rope;
  const float scale = 1.5f / std::sqrt(static_cast<float>(dim));
  const auto q = RandomFloats(int64_t{count} * c.heads * dim, 3, 2.0f);
  const Matrix v_b(c.heads * c.value, c.rank, c.weights, 8);
  const OnDevice<float> d_q(q);
  LatentAttentionArgs a;
  a.batch = batch.Device();
  a.count = count;
  a.kv = pool.kv;
  a.q = d_q.get();
  a.heads = c.heads, a.kv_rank = c.rank;
  a.scale = scale;
  a.alone = alone, a.decode = alone && batch.decode, a.steady = steady;
  a.seq_start = batch.d_starts->get(), a.sequences = static_cast<int>(c.sequences.size());
  a.pieces.splits = LatentSplits(a);
  const int64_t pieces = LatentPieceCount(count, c.heads);
  ASSERT_LE(int64_t{count} * c.heads * a.pieces.splits, pieces);
  OnDevice<float> sums(pieces * c.rank), joined(int64_t{count} * c.heads * c.rank),
      out(int64_t{count} * c.heads * c.value);
  OnDevice<float2> tops(pieces);
  a.pieces.sums = sums.get(), a.pieces.tops = tops.get();
  ASSERT_EQ(cudaSuccess, LaunchLatentAttention(a, nullptr));
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  ASSERT_EQ(cudaSuccess, LaunchLatentValues({.pieces = a.pieces,
                                             .count = count,
                                             .heads = c.heads,
                                             .kv_rank = c.rank,
                                             .v_b = v_b.m,
                                             .joined = joined.get(),
                                             .out = out.get()},
                                            nullptr));
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
  const std::vector<float> got = out.Read();
  // Values are sums of `rank` products with weights of up to 0.5; rounded queries move scores of a few units.
  const bool exact = alone && dtype != DType::kI8;  // whose scale is multiplied in f16
  const double tolerance = (exact ? 2e-5 : dtype == DType::kBf16 ? 4e-3 : 6e-4) * std::sqrt(c.rank);
  for (int t = 0; t<count; t += count> 100 ? 13 : 1)
    for (int h = 0; h<c.heads; h += c.heads> 40 ? 9 : 1) {
      const float* query = q.data() + (int64_t{t} * c.heads + h) * dim;
      std::vector<double> scores, sum(static_cast<size_t>(c.rank));
      double top = -1e300, total = 0;
      const auto key_row = [&](int key) { return pool.rows.data() + batch.RowOf(t, key) * dim; };
      for (int key = 0; key <= batch.positions[static_cast<size_t>(t)]; ++key) {
        double dot = 0;
        for (int i = 0; i < dim; ++i) dot += double{query[i]} * key_row(key)[i];
        scores.push_back(dot * scale);
        top = std::max(top, scores.back());
      }
      for (double& s : scores) total += s = std::exp(s - top);
      for (size_t key = 0; key < scores.size(); ++key)
        for (size_t i = 0; i < sum.size(); ++i)
          sum[i] += scores[key] / total * key_row(static_cast<int>(key))[i];
      for (int v = 0; v < c.value; ++v) {
        double expected = 0;
        for (int i = 0; i < c.rank; ++i)
          expected += sum[static_cast<size_t>(i)] * v_b.at(int64_t{h} * c.value + v, i);
        const float have =
            got[(static_cast<size_t>(t) * static_cast<size_t>(c.heads) + static_cast<size_t>(h)) *
                    static_cast<size_t>(c.value) +
                static_cast<size_t>(v)];
        ASSERT_NEAR(expected, have, tolerance) << "token " << t << " head " << h << " value " << v;
      }
    }
}

std::vector<Case> Cases() {
  std::vector<std::pair<int, int>> ragged;
  for (int i = 0; i < 40; ++i) ragged.emplace_back(i * i % 277, 1);
  return {
      {1, 12, 4, 6, 5, {{0, 1}}},
      {3, 13, 4, 5, 7, {{20, 3}, {0, 0}, {0, 17}, {63, 1}}, DType::kF32},
      {3, 11, 4, 7, 8, {{62, 1}, {63, 1}, {64, 1}, {127, 1}, {15, 1}}, DType::kF16},
      {16, 512, 64, 128, 128, {{0, 1}}},
      {16, 512, 64, 128, 128, {{700, 1}, {31, 1}, {64, 2}}},
      {16, 512, 64, 128, 128, {{5000, 1}}},
      {20, 512, 64, 192, 256, {{130, 1}, {0, 1}}},
      {40, 256, 32, 64, 64, {{100, 70}, {0, 9}}},
      {40, 256, 64, 64, 64, {{300, 1}}, DType::kF16},
      {64, 64, 16, 32, 48, {{257, 3}}, DType::kF32},
      {128, 512, 64, 128, 128, {{90, 1}}},
      {5, 100, 30, 24, 40, {{77, 130}, {500, 3}}},
      {16, 512, 64, 128, 128, {{0, 200}, {333, 40}, {1000, 1}}},
      {16, 128, 32, 64, 64, ragged},
  };
}

constexpr DType kTypes[] = {DType::kF16, DType::kBf16, DType::kI8, DType::kFp8E4M3};

TEST(CudaLatent, QueriesAndRowsMatchDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const DType dtype : kTypes)
    for (const Case& c : Cases())
      for (const bool interleaved : {false, true}) {
        SCOPED_TRACE(NameOf(c, dtype));
        ExpectQueries(c, dtype, interleaved);
        if (HasFatalFailure()) return;
      }
}

TEST(CudaLatent, AttentionAndValuesMatchDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const DType dtype : kTypes)
    for (const Case& c : Cases())
      for (const bool alone : {true, false}) {
        SCOPED_TRACE(NameOf(c, dtype) + (alone ? ", alone" : ""));
        ExpectAttention(c, dtype, alone, false);
        if (HasFatalFailure()) return;
      }
}

TEST(CudaLatent, SteadyMatchesDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const Case& c : Cases()) {
    int64_t tokens = 0;
    for (const auto& [past, now] : c.sequences) tokens += now;
    if (tokens > kSteadyLatentTokens) continue;
    SCOPED_TRACE(NameOf(c, DType::kF16));
    ExpectAttention(c, DType::kF16, true, true);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaLatent, RefusesOtherShapes) {
  EXPECT_TRUE(LatentRuns({nullptr, nullptr, DType::kF16, 1, 576, 576}, 512) || CudaDeviceCount() == 0);
  EXPECT_FALSE(LatentRuns({nullptr, nullptr, DType::kF16, 1, 640, 640}, 576));
  EXPECT_FALSE(LatentRuns({nullptr, nullptr, DType::kF16, 2, 576, 576}, 512));
}

}  // namespace
}  // namespace celer::cuda
