#include "kernels/llm/qkv/qkv_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "formats/float16.h"
#include "kernels/llm/kv_row.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

struct Case {
  int heads, kv_heads, dim, rope_dim;
  bool norm, bias;
};

// Bias, norm, rotation of pairs (i, i + rope_dim / 2).
std::vector<double> Finished(const Case& c, const float* row, const float* bias, const float* norm,
                             const float* cos, const float* sin, bool rotate) {
  std::vector<double> v(static_cast<size_t>(c.dim)), out;
  double squares = 0;
  for (int i = 0; i < c.dim; ++i) {
    v[static_cast<size_t>(i)] = double{row[i]} + (bias ? bias[i] : 0);
    squares += v[static_cast<size_t>(i)] * v[static_cast<size_t>(i)];
  }
  if (norm)
    for (int i = 0; i < c.dim; ++i) v[static_cast<size_t>(i)] *= norm[i] / std::sqrt(squares / c.dim + 1e-5);
  out = v;
  const int half = c.rope_dim / 2;
  for (int i = 0; rotate && i < half; ++i) {
    const double a = v[static_cast<size_t>(i)], b = v[static_cast<size_t>(i + half)];
    out[static_cast<size_t>(i)] = a * cos[i] - b * sin[i];
    out[static_cast<size_t>(i + half)] = b * cos[i] + a * sin[i];
  }
  return out;
}

// `narrow`: queries in 16 bits; `narrow_in`: what comes in, too.
void Check(const Case& c, DType dtype, bool narrow, bool narrow_in = false) {
  const std::vector<int32_t> positions = {0, 17, 3, 31}, sequence = {0, 1, 2, 1},
                             table = {1, -1, 2, 3, 4, -1};  // [3, 2]
  const auto count = static_cast<int>(positions.size());
  const int q_width = c.heads * c.dim, kv_width = c.kv_heads * c.dim, width = q_width + 2 * kv_width;
  auto rows = RandomFloats(int64_t{count} * width, 1, 2.0f);
  std::vector<uint16_t> rows_bits;
  for (float& value : rows) {
    rows_bits.push_back(dtype == DType::kBf16 ? FloatToBf16(value) : FloatToF16(value));
    if (narrow_in)
      value = dtype == DType::kBf16 ? Bf16ToFloat(rows_bits.back()) : F16ToFloat(rows_bits.back());
  }
  const auto bias = RandomFloats(width, 2), norm = RandomFloats(2 * c.dim, 3),
             angle = RandomFloats(32 * c.rope_dim / 2, 4, 3.0f);
  std::vector<float> cos, sin;
  for (const float a : angle) cos.push_back(std::cos(a)), sin.push_back(std::sin(a));
  DeviceKv kv{nullptr, nullptr, dtype, c.kv_heads, c.dim, DeviceKv::PaddedDim(dtype, c.dim)};
  const std::vector<std::byte> empty(static_cast<size_t>(5 * kv.block_bytes()));
  OnDevice<std::byte> k(empty), v(empty);
  OnDevice<float> dx(rows), dbias(bias), dnorm(norm), dcos(cos), dsin(sin),
      q_out(std::vector<float>(static_cast<size_t>(count * q_width)));
  OnDevice<int32_t> dpositions(positions), dsequence(sequence), dtable(table);
  kv.k = k.get(), kv.v = v.get();
  FinishQkvArgs a;
  a.batch = {nullptr, dpositions.get(), dsequence.get(), dtable.get(), 2, count};
  a.kv = kv;
  a.q = dx.get(), a.k = dx.get() + q_width, a.v = dx.get() + q_width + kv_width;
  a.q_stride = a.kv_stride = width;
  const OnDevice<uint16_t> dbits(rows_bits);
  if (narrow_in) {
    a.q = dbits.get(), a.k = dbits.get() + q_width, a.v = dbits.get() + q_width + kv_width;
    a.narrow_in = true;
  }
  if (narrow)
    a.narrow_q_out = q_out.get();
  else
    a.q_out = q_out.get();
  if (c.bias)
    a.q_bias = dbias.get(), a.k_bias = dbias.get() + q_width, a.v_bias = dbias.get() + q_width + kv_width;
  if (c.norm) a.q_norm = dnorm.get(), a.k_norm = dnorm.get() + c.dim;
  a.heads = c.heads;
  a.rope_dim = c.rope_dim;
  a.rope_cos = dcos.get(), a.rope_sin = dsin.get();
  ASSERT_EQ(cudaSuccess, LaunchFinishQkv(a, nullptr));
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());

  auto k_bytes = k.Read(), v_bytes = v.Read();
  auto q = q_out.Read();
  if (narrow) {
    std::vector<uint16_t> bits(q.size());
    std::memcpy(bits.data(), q.data(), bits.size() * 2);
    for (size_t i = 0; i < q.size(); ++i)
      q[i] = dtype == DType::kBf16 ? Bf16ToFloat(bits[i]) : F16ToFloat(bits[i]);
  }
  const KvLayerView host{k_bytes.data(), v_bytes.data(), dtype, 5, c.kv_heads, 16, kv.padded_dim};
  const double step = dtype == DType::kI8        ? 0.5 / 127
                      : dtype == DType::kFp8E4M3 ? 1.0 / 16
                      : dtype == DType::kBf16    ? 1.0 / 256
                                                 : 1.0 / 2048;
  std::vector<float> row(static_cast<size_t>(kv.padded_dim));
  for (int t = 0; t < count; ++t)
    for (int h = 0; h < c.heads + 2 * c.kv_heads; ++h) {
      const bool is_q = h < c.heads, is_v = h >= c.heads + c.kv_heads;
      const size_t at = static_cast<size_t>(h * c.dim);
      const auto place = static_cast<size_t>(positions[static_cast<size_t>(t)] * (c.rope_dim / 2));
      const auto expected =
          Finished(c, rows.data() + static_cast<size_t>(t * width) + at, c.bias ? bias.data() + at : nullptr,
                   c.norm && !is_v ? norm.data() + (is_q ? 0 : c.dim) : nullptr, cos.data() + place,
                   sin.data() + place, !is_v);
      double top = 0;
      for (const double e : expected) top = std::max(top, std::abs(e));
      const float* got = q.data() + static_cast<size_t>(t * q_width) + at;
      if (!is_q) {
        const int block = table[static_cast<size_t>(sequence[static_cast<size_t>(t)] * 2 +
                                                    positions[static_cast<size_t>(t)] / 16)];
        LoadKvRow(host, is_v ? host.v : host.k, block, (h - c.heads) % c.kv_heads,
                  positions[static_cast<size_t>(t)] % 16, row.data());
        got = row.data();
        for (int i = c.dim; i < kv.padded_dim; ++i) ASSERT_EQ(got[i], 0) << "beyond the head";
      }
      for (int i = 0; i < c.dim; ++i) {
        const double e = expected[static_cast<size_t>(i)];
        const double rounding = is_q ? (narrow ? std::abs(e) / (dtype == DType::kBf16 ? 256 : 2048) : 0)
                                : dtype == DType::kI8
                                    ? step * top
                                    : step * std::abs(e) + 1e-3 * (dtype == DType::kFp8E4M3);
        ASSERT_NEAR(e, got[i], rounding + 1e-5 * (1 + std::abs(e)))
            << "token " << t << " head " << h << " dim " << i;
      }
    }
}

TEST(CudaQkv, FinishedRowsReachTheCache) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const DType dtype : {DType::kF16, DType::kBf16, DType::kI8, DType::kFp8E4M3})
    for (const Case& c :
         {Case{9, 3, 64, 64, false, false}, Case{4, 4, 6, 6, true, false}, Case{2, 1, 80, 32, false, true},
          Case{6, 2, 48, 48, true, true}, Case{28, 4, 128, 128, false, true},
          Case{3, 1, 256, 64, true, false}, Case{33, 3, 64, 64, true, true},
          Case{5, 5, 128, 128, true, false}, Case{1, 1, 128, 64, false, false}}) {
      SCOPED_TRACE(std::to_string(c.heads) + "/" + std::to_string(c.kv_heads) + " of " +
                   std::to_string(c.dim) + " " + std::string(Name(dtype)));
      Check(c, dtype, false);
      Check(c, dtype, true);
      if (FinishTakesNarrow({nullptr, nullptr, dtype, c.kv_heads, c.dim, c.dim}, c.rope_dim))
        Check(c, dtype, true, true);
    }
}

}  // namespace
}  // namespace celer::cuda
