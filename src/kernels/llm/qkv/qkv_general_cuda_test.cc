#include "kernels/llm/qkv/qkv_general_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/device.h"
#include "kernels/llm/kv_row.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

enum class Span { kNone, kHead, kRow, kOwn };

struct GeneralCase {
  int heads = 1, kv_heads = 1, dim = 64, rope_dim = 64;
  Span span = Span::kNone;
  bool layer = false, norm_bias = false, after = false, bias = false, scale = false, gate = false;
};

// One part of a token: the norm, the rotation of pairs (i, i + rope_dim / 2).
struct Reference {
  const GeneralCase& c;
  std::vector<double> Norm(const std::vector<double>& v, size_t first, size_t count, const float* weight,
                           const float* bias) const {
    double mean = 0, squares = 0;
    for (size_t i = 0; i < count; ++i) mean += c.layer ? v[first + i] / static_cast<double>(count) : 0;
    for (size_t i = 0; i < count; ++i)
      squares += (v[first + i] - mean) * (v[first + i] - mean) / static_cast<double>(count);
    std::vector<double> out;
    for (size_t i = 0; i < count; ++i)
      out.push_back((v[first + i] - mean) / std::sqrt(squares + 1e-5) * weight[i] + (bias ? bias[i] : 0));
    return out;
  }
  void NormHeads(std::vector<double>* v, const float* weight, const float* bias) const {
    const auto dim = static_cast<size_t>(c.dim);
    const size_t run = c.span == Span::kRow ? v->size() : dim;
    for (size_t at = 0; at < v->size(); at += run) {
      const size_t shift = c.span == Span::kHead ? 0 : at;
      const auto normed = Norm(*v, at, run, weight + shift, bias ? bias + shift : nullptr);
      std::copy(normed.begin(), normed.end(), v->begin() + static_cast<int64_t>(at));
    }
  }
  void Rotate(std::vector<double>* v, const float* cos, const float* sin) const {
    const auto dim = static_cast<size_t>(c.dim), half = static_cast<size_t>(c.rope_dim / 2);
    for (size_t at = 0; at < v->size(); at += dim)
      for (size_t i = 0; i < half; ++i) {
        const double a = (*v)[at + i], b = (*v)[at + i + half];
        (*v)[at + i] = a * cos[i] - b * sin[i];
        (*v)[at + i + half] = b * cos[i] + a * sin[i];
      }
  }
};

void CheckGeneral(const GeneralCase& c) {
  const std::vector<int32_t> positions = {0, 17, 3, 31}, sequence = {0, 1, 2, 1},
                             table = {1, -1, 2, 3, 4, -1};  // [3, 2]
  const int count = 4, q_width = c.heads * c.dim, kv_width = c.kv_heads * c.dim, gates = c.gate ? 2 : 1;
  const int width = gates * q_width + 2 * kv_width;
  const auto rows = RandomFloats(int64_t{count} * width, 1, 2.0f), bias = RandomFloats(width, 2),
             norm = RandomFloats(q_width + kv_width, 3), norm_bias = RandomFloats(q_width + kv_width, 5),
             angle = RandomFloats(32 * c.rope_dim / 2 + 1, 4, 3.0f), scale = RandomFloats(32, 6);
  std::vector<float> cos, sin;
  for (const float a : angle) cos.push_back(std::cos(a)), sin.push_back(std::sin(a));
  DeviceKv kv{nullptr, nullptr, DType::kF16, c.kv_heads, c.dim, DeviceKv::PaddedDim(DType::kF16, c.dim)};
  const std::vector<std::byte> empty(static_cast<size_t>(5 * kv.block_bytes()));
  OnDevice<std::byte> k(empty), v(empty);
  const OnDevice<float> dx(rows), dbias(bias), dnorm(norm), dnorm_bias(norm_bias), dcos(cos), dsin(sin),
      dscale(scale), q_out(int64_t{count} * q_width);
  const OnDevice<int32_t> dpositions(positions), dsequence(sequence), dtable(table);
  kv.k = k.get(), kv.v = v.get();
  FinishQkvGeneralArgs g;
  FinishQkvArgs& a = g.base;
  a.batch = {nullptr, dpositions.get(), dsequence.get(), dtable.get(), 2, count};
  a.kv = kv;
  const int k_at = gates * q_width, v_at = k_at + kv_width;
  a.q = dx.get(), a.k = dx.get() + k_at, a.v = dx.get() + v_at;
  a.q_stride = a.kv_stride = width;
  a.q_out = q_out.get();
  if (c.bias) a.q_bias = dbias.get(), a.k_bias = dbias.get() + k_at, a.v_bias = dbias.get() + v_at;
  const int k_norm = c.span == Span::kHead ? c.dim : q_width;
  if (c.span != Span::kNone) a.q_norm = dnorm.get(), a.k_norm = dnorm.get() + k_norm;
  if (c.norm_bias) g.q_norm_bias = dnorm_bias.get(), g.k_norm_bias = dnorm_bias.get() + k_norm;
  g.row_norm = c.span == Span::kRow, g.own_norms = c.span == Span::kOwn;
  g.layer_norm = c.layer, g.norm_after_rope = c.after;
  if (c.scale) g.q_scale = dscale.get();
  if (c.gate) g.q_head_stride = 2 * c.dim;
  a.heads = c.heads;
  a.rope_dim = c.rope_dim;
  a.rope_cos = dcos.get(), a.rope_sin = dsin.get();
  ASSERT_EQ(cudaSuccess, LaunchFinishQkvGeneral(g, nullptr));
  ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());

  auto k_bytes = k.Read(), v_bytes = v.Read();
  const auto q = q_out.Read();
  const KvLayerView host{k_bytes.data(), v_bytes.data(), DType::kF16, 5, c.kv_heads, 16, kv.padded_dim};
  const Reference reference{c};
  std::vector<float> row(static_cast<size_t>(kv.padded_dim));
  for (int t = 0; t < count; ++t) {
    const int position = positions[static_cast<size_t>(t)];
    const auto angles = static_cast<size_t>(position * (c.rope_dim / 2));
    for (int part = 0; part < 3; ++part) {
      const int heads = part == 0 ? c.heads : c.kv_heads;
      std::vector<double> expected;
      for (int h = 0; h < heads; ++h)
        for (int i = 0; i < c.dim; ++i) {
          const int at = part == 0 ? h * gates * c.dim + i : (part == 1 ? k_at : v_at) + h * c.dim + i;
          expected.push_back(double{rows[static_cast<size_t>(t * width + at)]} +
                             (c.bias ? bias[static_cast<size_t>(at)] : 0));
        }
      const float* const weight = norm.data() + (part == 0 ? 0 : k_norm);
      const float* const shift = c.norm_bias ? norm_bias.data() + (part == 0 ? 0 : k_norm) : nullptr;
      const bool normed = part < 2 && c.span != Span::kNone;
      if (normed && !c.after) reference.NormHeads(&expected, weight, shift);
      if (part < 2) reference.Rotate(&expected, cos.data() + angles, sin.data() + angles);
      if (normed && c.after) reference.NormHeads(&expected, weight, shift);
      if (part == 0 && c.scale)
        for (double& e : expected) e *= scale[static_cast<size_t>(position)];
      for (int h = 0; h < heads; ++h) {
        const float* got = q.data() + t * q_width + h * c.dim;
        if (part > 0) {
          const int block = table[static_cast<size_t>(sequence[static_cast<size_t>(t)] * 2 + position / 16)];
          LoadKvRow(host, part == 1 ? host.k : host.v, block, h, position % 16, row.data());
          got = row.data();
        }
        for (int i = 0; i < c.dim; ++i) {
          const double e = expected[static_cast<size_t>(h * c.dim + i)];
          ASSERT_NEAR(e, got[i], (part > 0 ? std::abs(e) / 2048 : 0) + 2e-5 * (1 + std::abs(e)))
              << "token " << t << " part " << part << " head " << h << " dim " << i;
        }
      }
    }
  }
}

TEST(CudaQkvGeneral, MatchesDouble) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  int number = 0;
  const GeneralCase cases[] = {
      {.heads = 9, .kv_heads = 3, .dim = 64, .rope_dim = 64},
      {.heads = 3, .kv_heads = 1, .dim = 256, .rope_dim = 64, .span = Span::kHead},
      {.heads = 5, .kv_heads = 5, .dim = 6, .rope_dim = 0, .scale = true},
      {.heads = 8, .kv_heads = 2, .dim = 48, .rope_dim = 48, .span = Span::kRow, .bias = true},
      {.heads = 32, .kv_heads = 8, .dim = 128, .rope_dim = 128, .span = Span::kRow},
      {.heads = 6,
       .kv_heads = 2,
       .dim = 80,
       .rope_dim = 32,
       .span = Span::kRow,
       .layer = true,
       .norm_bias = true},
      {.heads = 6, .kv_heads = 2, .dim = 80, .rope_dim = 32, .span = Span::kOwn, .layer = true},
      {.heads = 4,
       .kv_heads = 2,
       .dim = 20,
       .rope_dim = 10,
       .span = Span::kHead,
       .layer = true,
       .norm_bias = true,
       .bias = true},
      {.heads = 7,
       .kv_heads = 1,
       .dim = 128,
       .rope_dim = 128,
       .span = Span::kHead,
       .after = true,
       .scale = true},
      {.heads = 4, .kv_heads = 4, .dim = 96, .rope_dim = 96, .span = Span::kOwn, .after = true},
      {.heads = 4,
       .kv_heads = 2,
       .dim = 256,
       .rope_dim = 64,
       .span = Span::kHead,
       .bias = true,
       .gate = true},
  };
  for (const GeneralCase& c : cases) {
    SCOPED_TRACE(number++);
    CheckGeneral(c);
  }
}

}  // namespace
}  // namespace celer::cuda
