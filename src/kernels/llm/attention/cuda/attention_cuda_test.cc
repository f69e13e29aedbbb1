#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "formats/decode.h"
#include "formats/float16.h"
#include "kernels/llm/attention/cuda/flash_attention_cuda.h"
#include "kernels/llm/kv_row.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using testing::RandomFloats;

struct Case {
  int heads, kv_heads, dim, window;
  DType dtype;
  std::vector<std::pair<int, int>> sequences;  // tokens already there, tokens in this batch
  float softcap = 0;
  bool sinks = false;
  bool steady = false;
};

template <class T>
T* Upload(const std::vector<T>& values) {
  void* data = nullptr;
  EXPECT_EQ(cudaSuccess, cudaMalloc(&data, values.size() * sizeof(T) + 16));
  cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
  return static_cast<T*>(data);
}

// What attention reads and writes.
enum class Form { kF32, kRows, kWgmma };  // the latter two with queries in 16 bits

void ExpectMatchesDouble(const Case& c, bool flash, Form form = Form::kF32) {
  const int padded = DeviceKv::PaddedDim(c.dtype, c.dim), group = c.heads / c.kv_heads;
  std::vector<int32_t> positions, owner, starts = {0}, table;
  int blocks = 1, width = 0;
  for (const auto& [past, now] : c.sequences) width = std::max(width, (past + now + 15) / 16);
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    const auto& [past, now] = c.sequences[s];
    for (int i = 0; i < now; ++i) positions.push_back(past + i), owner.push_back(static_cast<int32_t>(s));
    starts.push_back(static_cast<int32_t>(positions.size()));
    for (int b = 0; b < width; ++b) table.push_back(b < (past + now + 15) / 16 ? blocks++ : -1);
  }
  const auto count = static_cast<int>(positions.size());
  // Rows as the cache holds them, and their values.
  DeviceKv kv = {nullptr, nullptr, c.dtype, c.kv_heads, c.dim, padded};
  const int64_t rows = static_cast<int64_t>(blocks) * c.kv_heads * 16;
  auto k = RandomFloats(rows * c.dim, 1, 2.0f), v = RandomFloats(rows * c.dim, 2);
  const auto bytes = static_cast<size_t>(blocks * kv.block_bytes());
  std::vector<std::byte> k_bytes(bytes), v_bytes(bytes);
  const KvLayerView host{k_bytes.data(), v_bytes.data(), c.dtype, blocks, c.kv_heads, 16, padded};
  std::vector<float> wide(static_cast<size_t>(padded));
  for (int64_t row = 0; row < rows; ++row)
    for (const bool values : {false, true}) {
      float* narrow = (values ? v : k).data() + row * c.dim;
      std::byte* part = values ? host.v : host.k;
      std::copy(narrow, narrow + c.dim, wide.begin());
      const int64_t block = row / 16 / c.kv_heads, head = row / 16 % c.kv_heads;
      StoreKvRow(host, part, block, head, row % 16, wide.data());
      LoadKvRow(host, part, block, head, row % 16, wide.data());
      std::copy(wide.begin(), wide.begin() + c.dim, narrow);
      std::fill(wide.begin(), wide.end(), 0.0f);
    }
  const auto q = RandomFloats(static_cast<int64_t>(count) * c.heads * c.dim, 3, 2.0f);
  std::vector<float> out(q.size(), NAN);

  DeviceAttentionArgs a;
  a.batch = {nullptr, Upload(positions), Upload(owner), Upload(table), width, count};
  kv.k = Upload(k_bytes), kv.v = Upload(v_bytes);
  a.kv = kv;
  a.q = Upload(q);
  a.heads = c.heads;
  a.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  a.window = c.window;
  a.decode = std::ranges::all_of(c.sequences, [](const auto& s) { return s.second <= 1; });
  a.out = Upload(out);
  a.splits = AttentionSplits(c.heads, c.kv_heads);
  a.steady = c.steady;
  const auto sinks = RandomFloats(c.heads, 4, 3.0f);
  const AttentionScores of_scores{.softcap = c.softcap, .sinks = c.sinks ? Upload(sinks) : nullptr};
  a.partial = Upload(
      std::vector<float>(static_cast<size_t>(AttentionPartialFloats(count, c.heads, c.kv_heads, padded))));
  a.tickets = Upload(std::vector<int32_t>(static_cast<size_t>(count * c.heads)));
  const int width_out = c.heads * c.dim, tile = 32;  // the last tile is partly empty
  std::vector<uint16_t> narrow(
      static_cast<size_t>((count + tile - 1) / tile * tile) * static_cast<size_t>(width_out), 0x7fff);
  void *q_bits = nullptr, *narrow_out = nullptr;
  if (form != Form::kF32) {
    std::vector<uint16_t> bits;
    for (const float value : q)
      bits.push_back(c.dtype == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value));
    q_bits = Upload(bits), narrow_out = Upload(narrow);
    a.narrow_q = q_bits;
    if (form == Form::kRows)
      a.rows = narrow_out, a.rows_width = width_out;
    else
      a.wgmma = {narrow_out, tile, width_out};
  }
  for (int repeat = 0; repeat < 2; ++repeat) {  // the tickets must be as they were
    if (flash) {
      FlashAttentionArgs f;
      f.base = a;
      f.seq_start = Upload(starts);
      f.sequences = static_cast<int>(c.sequences.size());
      for (const auto& [past, now] : c.sequences) f.longest = std::max(f.longest, now);
      f.scores = of_scores;
      ASSERT_EQ(cudaSuccess, LaunchFlashAttention(f, nullptr));
      cudaDeviceSynchronize();
      cudaFree(const_cast<int32_t*>(f.seq_start));
      continue;
    }
    ASSERT_EQ(cudaSuccess, LaunchAttention(a, of_scores, nullptr));
  }
  ASSERT_EQ(cudaSuccess, cudaMemcpy(out.data(), a.out, out.size() * 4, cudaMemcpyDeviceToHost));
  if (form != Form::kF32) {
    ASSERT_EQ(cudaSuccess, cudaMemcpy(narrow.data(), narrow_out, narrow.size() * 2, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t row = static_cast<size_t>(width_out), token = i / row, column = i % row;
      size_t at = i;
      if (form == Form::kWgmma)
        at = ((token / tile * (row / 8) + column / 32 * 4 + column % 8 / 2) * tile + token % tile) * 8 +
             column % 32 / 8 * 2 + column % 2;
      out[i] = Bf16ToFloat(narrow[at]);
    }
    cudaFree(q_bits);
    cudaFree(narrow_out);
  }
  // Flash attention rounds queries and weights to 16 bits. The mean of many values is small, and so are its
  // errors. Results in bf16 are half a unit in the last place away at most, 1/256 of the value.
  const double tolerance = !flash ? (form == Form::kF32 ? 2e-5 : 2.1e-5) : positions[0] >= 2000 ? 2e-3 : 2e-2;
  const double rounding = !flash && form != Form::kF32 ? 1.0 / 256 : 0;
  for (int t = 0; t<count; t += count> 200 ? 17 : 1)
    for (int h = 0; h < c.heads; ++h) {
      const int last = positions[static_cast<size_t>(t)],
                first = c.window > 0 ? std::max(0, last - c.window + 1) : 0;
      const auto at = [&](int key) {
        const int block = table[static_cast<size_t>(owner[static_cast<size_t>(t)] * width + key / 16)];
        return ((static_cast<int64_t>(block) * c.kv_heads + h / group) * 16 + key % 16) * c.dim;
      };
      const float* query = q.data() + (static_cast<int64_t>(t) * c.heads + h) * c.dim;
      std::vector<double> scores;
      double top = -1e300, total = 0;
      for (int key = first; key <= last; ++key) {
        double dot = 0;
        for (int i = 0; i < c.dim; ++i) dot += double{query[i]} * k[static_cast<size_t>(at(key) + i)];
        dot *= a.scale;
        scores.push_back(c.softcap != 0 ? c.softcap * std::tanh(dot / c.softcap) : dot);
        top = std::max(top, scores.back());
      }
      for (double& s : scores) total += s = std::exp(s - top);
      if (c.sinks) total += std::exp(sinks[static_cast<size_t>(h)] - top);
      for (int i = 0; i < c.dim; ++i) {
        double sum = 0;
        for (int key = first; key <= last; ++key)
          sum += scores[static_cast<size_t>(key - first)] * v[static_cast<size_t>(at(key) + i)];
        ASSERT_NEAR(sum / total,
                    out[(static_cast<size_t>(t) * static_cast<size_t>(c.heads) + static_cast<size_t>(h)) *
                            static_cast<size_t>(c.dim) +
                        static_cast<size_t>(i)],
                    tolerance + rounding * std::abs(sum / total))
            << "token " << t << " head " << h << " dim " << i;
      }
    }
  for (const void* p :
       {static_cast<const void*>(a.batch.positions), static_cast<const void*>(a.batch.sequence),
        static_cast<const void*>(a.batch.block_table), static_cast<const void*>(a.kv.k),
        static_cast<const void*>(a.kv.v), static_cast<const void*>(a.q), static_cast<const void*>(a.out),
        static_cast<const void*>(a.partial), static_cast<const void*>(a.tickets),
        static_cast<const void*>(of_scores.sinks)})
    cudaFree(const_cast<void*>(p));
}

TEST(CudaAttention, MatchesDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  std::vector<std::pair<int, int>> ragged;  // 64 sequences of every length
  for (int i = 0; i < 64; ++i) ragged.emplace_back(i * i % 777, 1);
  std::vector<std::pair<int, int>> many;  // of one to twelve KV blocks
  for (int i = 0; i < 200; ++i) many.emplace_back(i * i * 7 % 190, 1);
  std::vector<std::pair<int, int>> some_long;  // some in splits, between others that are not
  for (int i = 0; i < 64; ++i) some_long.emplace_back(i % 20 == 7 ? 1200 + 40 * i : i * 5 % 120, 1);
  std::vector<std::pair<int, int>> sixteen;  // one of them much longer
  for (int i = 0; i < 16; ++i) sixteen.emplace_back(i == 5 ? 3000 : i == 9 ? 3 : 100 + 17 * i, 1);
  const Case cases[] = {
      {1, 1, 64, 0, DType::kF16, {{0, 1}}},
      {9, 3, 64, 0, DType::kF16, {{30, 1}, {0, 0}, {0, 5}, {700, 1}}},
      {4, 4, 6, 0, DType::kF16, sixteen},
      {16, 8, 128, 0, DType::kF16, sixteen},
      {16, 2, 128, 1000, DType::kF16, sixteen},
      {4, 1, 256, 0, DType::kF16, sixteen},
      {4, 4, 6, 0, DType::kF16, {{3, 2}, {100, 1}}},
      {8, 8, 48, 0, DType::kF16, {{15, 2}, {16, 1}}},
      {6, 2, 80, 24, DType::kF16, {{200, 3}}},
      {32, 32, 128, 0, DType::kF16, {{135, 1}}},
      {28, 4, 128, 0, DType::kF16, {{1000, 1}, {4, 3}}},
      {32, 8, 128, 300, DType::kF16, {{2047, 1}, {0, 1}}},
      {8, 4, 256, 0, DType::kF16, {{513, 1}, {31, 2}}},
      {8, 1, 256, 0, DType::kF16, {{300, 1}}},
      {24, 2, 128, 0, DType::kF16, {{5000, 1}}},
      {2, 1, 128, 0, DType::kF16, {{32767, 1}}},
      {9, 3, 64, 0, DType::kF16, ragged},
      {6, 6, 128, 100, DType::kF16, ragged},
      // More units of work than run at once.
      {16, 8, 64, 0, DType::kF16, many},
      {28, 4, 128, 0, DType::kF16, many},
      {6, 6, 128, 40, DType::kF16, many},
      {16, 4, 256, 0, DType::kF16, many},
      {24, 4, 256, 50, DType::kF16, many},
      {12, 12, 64, 0, DType::kF16, some_long},
      {12, 12, 64, 1500, DType::kF16, some_long},
      {4, 2, 64, 0, DType::kF16, {{40, 90}}},  // more tokens than one launch takes
  };
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kI8, DType::kFp8E4M3})
    for (Case c : cases) {
      c.dtype = dtype;
      SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " of " +
                   std::to_string(c.dim) + " " + std::string(Name(dtype)));
      ExpectMatchesDouble(c, false);
      if (dtype == DType::kF16 && c.dim % 32 == 0) ExpectMatchesDouble(c, false, Form::kWgmma);
    }
}

TEST(CudaAttention, FlashMatchesDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const Case cases[] = {
      {1, 1, 64, 0, DType::kF16, {{0, 1}}},
      {9, 3, 64, 0, DType::kF16, {{30, 70}, {0, 0}, {0, 5}, {700, 1}}},
      {4, 4, 128, 0, DType::kF16, {{0, 130}}},
      {8, 2, 128, 0, DType::kF16, {{100, 65}, {0, 64}}},
      {4, 1, 128, 40, DType::kF16, {{77, 129}}},
      {2, 1, 64, 0, DType::kF16, {{0, 1000}}},
      {4, 2, 6, 0, DType::kF16, {{5, 66}}},
      {9, 3, 48, 0, DType::kF16, {{17, 70}}},
      {6, 2, 80, 33, DType::kF16, {{100, 77}}},
      {2, 2, 96, 0, DType::kF16, {{0, 65}}},
      {4, 1, 128, 0, DType::kF16, {{3000, 130}}},  // few queries, many keys: in parts
      {8, 2, 64, 0, DType::kF16, {{5000, 200}, {10, 3}}},
      {2, 1, 128, 1500, DType::kF16, {{4000, 129}}},
      {1, 1, 64, 0, DType::kF16, {{2047, 65}}},
  };
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kI8, DType::kFp8E4M3})
    for (Case c : cases) {
      c.dtype = dtype;
      SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " of " +
                   std::to_string(c.dim) + " " + std::string(Name(dtype)));
      ExpectMatchesDouble(c, true);
      if (c.dim % 32 != 0) continue;
      ExpectMatchesDouble(c, true, Form::kRows);
      ExpectMatchesDouble(c, true, Form::kWgmma);
    }
}

// Softcaps and sinks, and wide heads: in one launch or several, whole sequences and splits.
TEST(CudaAttention, ScoresOfOtherFamiliesMatchDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  std::vector<std::pair<int, int>> ragged;
  for (int i = 0; i < 40; ++i) ragged.emplace_back(i * i % 777, 1);
  const Case cases[] = {
      {9, 3, 64, 0, DType::kF16, {{30, 1}, {0, 0}, {0, 5}, {700, 1}}},
      {16, 2, 128, 100, DType::kF16, {{2500, 1}, {3, 1}}},
      {8, 4, 256, 0, DType::kF16, {{513, 1}, {31, 2}}},
      {8, 4, 256, 40, DType::kF16, ragged},
      {6, 6, 64, 0, DType::kF16, ragged},
  };
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kI8})
    for (Case c : cases)
      for (const auto& [softcap, sinks] : {std::pair{0.0f, true}, {2.0f, false}, {5.0f, true}})
        for (const bool steady : {false, true}) {
          c.dtype = dtype, c.softcap = softcap, c.sinks = sinks, c.steady = steady;
          SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " of " +
                       std::to_string(c.dim) + " " + std::string(Name(dtype)) + " cap " +
                       std::to_string(softcap) + (steady ? " steady" : ""));
          ExpectMatchesDouble(c, false);
        }
}

TEST(CudaAttention, FlashScoresOfOtherFamiliesMatchDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  const Case cases[] = {
      {9, 3, 64, 0, DType::kF16, {{30, 70}, {0, 5}, {700, 1}}},
      {4, 1, 128, 40, DType::kF16, {{77, 129}}},
      {4, 1, 128, 0, DType::kF16, {{3000, 130}}},
      {4, 2, 256, 0, DType::kF16, {{0, 130}, {100, 65}}},
      {8, 2, 256, 50, DType::kF16, {{77, 70}}},
      {4, 2, 192, 0, DType::kF16, {{5, 200}}},
      {6, 2, 130, 0, DType::kF16, {{40, 33}}},
  };
  for (const DType dtype : {DType::kF16, DType::kBf16})
    for (Case c : cases)
      for (const auto& [softcap, sinks] : {std::pair{0.0f, false}, {0.0f, true}, {2.0f, false}}) {
        c.dtype = dtype, c.softcap = softcap, c.sinks = sinks;
        SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " of " +
                     std::to_string(c.dim) + " " + std::string(Name(dtype)) + " cap " +
                     std::to_string(softcap) + (sinks ? " sinks" : ""));
        ExpectMatchesDouble(c, true);
        if (c.dim % 32 != 0) continue;
        ExpectMatchesDouble(c, true, Form::kRows);
        ExpectMatchesDouble(c, true, Form::kWgmma);
      }
}

}  // namespace
}  // namespace celer::cuda
