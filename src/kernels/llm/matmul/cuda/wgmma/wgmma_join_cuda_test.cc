// Products that are joined: each does what lies between it and the next one.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/device.h"
#include "formats/bfloat16.h"
#include "formats/decode.h"
#include "formats/float16.h"
#include "kernels/llm/attention/cuda/attention_cuda.h"
#include "kernels/llm/matmul/cuda/wgmma/wgmma_cuda.h"
#include "kernels/llm/qkv/qkv_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::AllNear;
using celer::testing::RandomFloats;
using testing::OnDevice;

// A matrix of bf16, and its values.
struct Matrix {
  Matrix(int rows, int cols, uint64_t seed) : values(RandomFloats(int64_t{rows} * cols, seed)) {
    m.rows = rows, m.cols = cols;
    m.padded = (cols + kColumnPad - 1) / kColumnPad * kColumnPad;
    m.row_bytes = PaddedRowBytes(Format::kBf16, cols);
    std::vector<std::byte> bytes(static_cast<size_t>(m.data_bytes()));
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < cols; ++c) {
        float& v = values[static_cast<size_t>(r * cols + c)];
        const uint16_t rounded = FloatToBf16(v);
        v = Bf16ToFloat(rounded);
        std::memcpy(bytes.data() + m.Offset(r, 2 * c), &rounded, 2);
      }
    memory.emplace(bytes);
    m.data = memory->get();
  }
  double at(int r, int c) const { return values[static_cast<size_t>(r * m.cols + c)]; }

  DeviceMatrix m;
  std::vector<float> values;
  std::optional<OnDevice<std::byte>> memory;
};

WgmmaActivations Activations(const OnDevice<std::byte>& memory, int tokens, int padded) {
  if (tokens <= kMaxMatvecTokens) return {memory.get(), 16, padded, 2};
  return {memory.get(), WgmmaTile(0, tokens), padded, 1};
}

struct Scratch {
  OnDevice<float> partial{WgmmaPartialFloats(), 0};
  OnDevice<int32_t> tickets{WgmmaTickets(), 0};
};

// x += o . a; y = b . norm(x).
TEST(CudaWgmmaJoin, TheNextProductGetsItsNorm) {
  if (CudaDeviceCount() == 0 || !WgmmaRuns()) GTEST_SKIP() << "no warpgroup products on this device";
  constexpr float kEps = 1e-5f;
  Scratch scratch;
  for (const auto& [in, hidden, rows] : {std::array{384, 200, 300}, {1000, 1152, 70}, {64, 4096, 4096}}) {
    const Matrix o(hidden, in, 1), b(rows, hidden, 2);
    const auto norm = RandomFloats(hidden, 3);
    const OnDevice<float> dnorm(norm);
    std::vector<float> of_eight;
    for (const int tokens : {8, 5, 9, 20, 33, 64}) {
      SCOPED_TRACE(std::to_string(hidden) + " columns, tokens " + std::to_string(tokens));
      const auto a = RandomFloats(int64_t{64} * in, 4, 2.0f), x = RandomFloats(int64_t{64} * hidden, 5, 3.0f);
      const OnDevice<float> da(a);
      const OnDevice<std::byte> a_memory(WgmmaActivationBytes(tokens, o.m.padded), 0),
          next_memory(WgmmaActivationBytes(tokens, b.m.padded), 0);
      const OnDevice<float> squares(WgmmaSquaresFloats(hidden), 0), y(int64_t{tokens} * rows, 0);
      cudaMemset(next_memory.get(), 0xff, static_cast<size_t>(WgmmaActivationBytes(tokens, b.m.padded)));
      std::vector<float> first;
      for (int run = 0; run < 2; ++run) {
        const OnDevice<float> dx(x);
        WgmmaArgs args;
        args.w[0] = o.m;
        args.x = Activations(a_memory, tokens, o.m.padded);
        args.tokens = tokens;
        args.epilogue = WgmmaEpilogue::kAdd;
        args.out = dx.get();
        args.out_stride = hidden;
        args.partial = scratch.partial.get();
        args.tickets = scratch.tickets.get();
        args.next = Activations(next_memory, tokens, b.m.padded);
        args.next_norm = dnorm.get();
        args.next_squares = squares.get();
        ASSERT_EQ(cudaSuccess,
                  LaunchWgmmaActivations(da.get(), nullptr, tokens, in, nullptr, 0, args.x, nullptr));
        WgmmaArgs second;
        second.w[0] = b.m;
        second.x = args.next;
        second.tokens = tokens;
        second.out = y.get();
        second.out_stride = rows;
        second.partial = args.partial;
        second.tickets = args.tickets;
        second.squares = squares.get();
        second.squares_of = hidden;
        second.eps = kEps;
        ASSERT_EQ(cudaSuccess, LaunchWgmma(args, nullptr));
        ASSERT_EQ(cudaSuccess, LaunchWgmma(second, nullptr));
        ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
        const auto got = y.Read();
        if (run > 0) {
          ASSERT_EQ(0, std::memcmp(first.data(), got.data(), got.size() * 4)) << "another run, other bits";
          continue;
        }
        first = got;
        if (tokens == 8) of_eight = got;
        if (tokens == 5) {
          ASSERT_EQ(0, std::memcmp(first.data(), of_eight.data(), first.size() * 4)) << "depends on company";
        }
        const auto sums = dx.Read();
        for (int t = 0; t<tokens; t += tokens> 9 ? 7 : 1) {
          double total = 0;
          for (int h = 0; h < hidden; ++h) {
            const double v = sums[static_cast<size_t>(t * hidden + h)];
            total += v * v;
            if (h % 37 != t % 37) continue;
            double expected = x[static_cast<size_t>(t * hidden + h)], squared = 0;
            for (int i = 0; i < in; ++i) {
              const double term = o.at(h, i) * a[static_cast<size_t>(t * in + i)];
              expected += term;
              squared += term * term;
            }
            ASSERT_NEAR(expected, v, std::sqrt(squared) * (tokens <= 8 ? 1e-4 : 3.0 / 256) + 1e-5)
                << "token " << t << " row " << h;
          }
          const double scale = 1 / std::sqrt(total / hidden + double{kEps});
          for (int r = t % 7; r<rows; r += rows> 500 ? 61 : 7) {
            double expected = 0, squared = 0;
            for (int h = 0; h < hidden; ++h) {
              const double term = b.at(r, h) * sums[static_cast<size_t>(t * hidden + h)] *
                                  norm[static_cast<size_t>(h)] * scale;
              expected += term;
              squared += term * term;
            }
            ASSERT_NEAR(expected, got[static_cast<size_t>(t * rows + r)],
                        std::sqrt(squared) * (tokens <= 8 ? 1e-4 : 3.0 / 256) + 1e-5)
                << "token " << t << " row " << r;
          }
        }
      }
    }
  }
  for (const int32_t ticket : scratch.tickets.Read()) ASSERT_EQ(0, ticket);
}

std::vector<float> Decoded(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> out(bytes.size() / 2);
  DecodeRow(dtype, bytes.data(), static_cast<int64_t>(out.size()), out.data());
  return out;
}

// kQkv against the product and LaunchFinishQkv().
TEST(CudaWgmmaJoin, QkvIsTheProductAndItsFinish) {
  if (CudaDeviceCount() == 0 || !WgmmaRuns()) GTEST_SKIP() << "no warpgroup products on this device";
  constexpr int kHidden = 320, kContext = 100, kWidth = (kContext + 15) / 16;
  Scratch scratch;
  for (const auto& [heads, kv_heads, dim] : {std::array{3, 1, 64}, {9, 3, 64}, {4, 2, 128}, {2, 2, 128}})
    for (const DType dtype : {DType::kF16, DType::kBf16})
      for (const int tokens : {5, 9, 40}) {
        SCOPED_TRACE(std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
                     std::to_string(dim) + ", tokens " + std::to_string(tokens));
        const Matrix q(heads * dim, kHidden, 1), k(kv_heads * dim, kHidden, 2), v(kv_heads * dim, kHidden, 3);
        const int q_width = heads * dim, width = q_width + 2 * kv_heads * dim;
        std::vector<int32_t> positions, owner, table;
        for (int t = 0; t < tokens; ++t) {
          positions.push_back(t * 37 % kContext), owner.push_back(t);
          for (int b = 0; b < kWidth; ++b) table.push_back(t * kWidth + b);
        }
        const OnDevice<int32_t> dpositions(positions), downer(owner), dtable(table);
        const OnDevice<float> x(RandomFloats(int64_t{tokens} * kHidden, 4, 2.0f)),
            cosine(RandomFloats(int64_t{kContext} * dim / 2, 5)),
            sine(RandomFloats(int64_t{kContext} * dim / 2, 6)), q_bias(RandomFloats(q_width, 7)),
            k_bias(RandomFloats(kv_heads * dim, 8)), rows(int64_t{tokens} * width, 0);
        const OnDevice<std::byte> memory(WgmmaActivationBytes(tokens, q.m.padded), 0);
        DeviceKv shape{nullptr, nullptr, dtype, kv_heads, dim, dim};
        const int64_t bytes = tokens * kWidth * shape.block_bytes();

        WgmmaArgs args;
        args.w = {q.m, k.m, v.m};
        args.matrices = 3;
        args.x = Activations(memory, tokens, q.m.padded);
        args.tokens = tokens;
        args.partial = scratch.partial.get();
        args.tickets = scratch.tickets.get();
        ASSERT_EQ(cudaSuccess,
                  LaunchWgmmaActivations(x.get(), nullptr, tokens, kHidden, nullptr, 0, args.x, nullptr));
        std::vector<float> got_q[2];
        std::vector<std::byte> got_k[2], got_v[2];
        for (const bool joined : {false, true}) {
          const OnDevice<std::byte> dk(bytes, 0), dv(bytes, 0);
          const OnDevice<float> dq(int64_t{tokens} * q_width, 0);
          DeviceKv kv = shape;
          kv.k = dk.get(), kv.v = dv.get();
          const DeviceBatch batch{nullptr, dpositions.get(), downer.get(), dtable.get(), kWidth, tokens};
          ASSERT_TRUE(WgmmaQkvRuns(kv, dim));
          if (joined) {
            args.epilogue = WgmmaEpilogue::kQkv;
            args.out = dq.get(), args.out_stride = q_width;
            args.qkv = {batch, kv, false, {q_bias.get(), k_bias.get(), nullptr}, cosine.get(), sine.get()};
            ASSERT_EQ(cudaSuccess, LaunchWgmma(args, nullptr));
          } else {
            args.epilogue = WgmmaEpilogue::kStore;
            args.out = rows.get(), args.out_stride = width;
            ASSERT_EQ(cudaSuccess, LaunchWgmma(args, nullptr));
            FinishQkvArgs finish;
            finish.batch = batch, finish.kv = kv;
            finish.q = rows.get(), finish.k = rows.get() + q_width;
            finish.v = rows.get() + q_width + kv_heads * dim;
            finish.q_stride = finish.kv_stride = width;
            finish.q_out = dq.get();
            finish.q_bias = q_bias.get(), finish.k_bias = k_bias.get();
            finish.heads = heads, finish.rope_dim = dim;
            finish.rope_cos = cosine.get(), finish.rope_sin = sine.get();
            ASSERT_EQ(cudaSuccess, LaunchFinishQkv(finish, nullptr));
          }
          ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
          got_q[joined] = dq.Read(), got_k[joined] = dk.Read(), got_v[joined] = dv.Read();
        }
        EXPECT_TRUE(AllNear(got_q[1], got_q[0], {.absolute = 1e-4})) << "q";
        // A rounding more or less in f32 may be one in 16 bits.
        const double step = dtype == DType::kF16 ? 1.0 / 512 : 1.0 / 64;
        for (const auto* got : {got_k, got_v}) {
          const std::vector<float> apart = Decoded(got[0], dtype), joined = Decoded(got[1], dtype);
          EXPECT_TRUE(AllNear(joined, apart, {.absolute = 1e-4, .relative = step}))
              << (got == got_k ? "k" : "v");
        }
      }
}

// The same sums, rounded.
TEST(CudaWgmmaJoin, RowsInSixteenBits) {
  if (CudaDeviceCount() == 0 || !WgmmaRuns()) GTEST_SKIP() << "no warpgroup products on this device";
  constexpr int kHidden = 320;
  const Matrix first(200, kHidden, 1), second(70, kHidden, 2);
  const int width = first.m.rows + second.m.rows;
  Scratch scratch;
  const int most = WgmmaMostTile();
  if (most <= kWgmmaJoined) GTEST_SKIP() << "only small tiles here";
  for (const auto& [tokens, tile] :
       {std::pair{77, std::min(most, 128)}, {300, most}, {1000, std::min(most, 128)}})
    for (const bool bf16 : {false, true}) {
      SCOPED_TRACE("tokens " + std::to_string(tokens));
      const OnDevice<float> x(RandomFloats(int64_t{tokens} * kHidden, 4, 2.0f)), out(int64_t{tokens} * width);
      const OnDevice<std::byte> memory(WgmmaActivationBytes(tokens, first.m.padded), 0);
      const OnDevice<uint16_t> narrow(int64_t{tokens} * width);
      WgmmaArgs args;
      args.w = {first.m, second.m, {}};
      args.matrices = 2;
      args.x = {memory.get(), tile, first.m.padded, 1};
      args.tokens = tokens;
      args.out = out.get(), args.out_stride = width;
      args.partial = scratch.partial.get();
      args.tickets = scratch.tickets.get();
      ASSERT_EQ(cudaSuccess,
                LaunchWgmmaActivations(x.get(), nullptr, tokens, kHidden, nullptr, 0, args.x, nullptr));
      ASSERT_EQ(cudaSuccess, LaunchWgmma(args, nullptr));
      args.narrow_out = narrow.get(), args.narrow_bf16 = bf16;
      ASSERT_EQ(cudaSuccess, LaunchWgmma(args, nullptr));
      ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
      const auto expected = out.Read();
      const auto got = narrow.Read();
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_EQ(bf16 ? FloatToBf16(expected[i]) : FloatToF16(expected[i]), got[i]) << i;
    }
}

TEST(CudaWgmmaJoin, AttentionWritesActivations) {
  if (CudaDeviceCount() == 0 || !WgmmaRuns()) GTEST_SKIP() << "no warpgroup products on this device";
  constexpr int kHeads = 6, kKvHeads = 2, kDim = 64, kWidth = 60;
  for (const int tokens : {5, 8, 9, 64}) {
    SCOPED_TRACE("tokens " + std::to_string(tokens));
    std::vector<int32_t> positions, owner, table;
    for (int t = 0; t < tokens; ++t) {
      positions.push_back((t * 331 + 7) % (kWidth * 16)), owner.push_back(t);
      for (int b = 0; b < kWidth; ++b) table.push_back((t * kWidth + b) % 300);
    }
    const OnDevice<int32_t> dpositions(positions), downer(owner), dtable(table), tickets(tokens * kHeads, 0);
    DeviceKv kv{nullptr, nullptr, DType::kBf16, kKvHeads, kDim, kDim};
    std::vector<uint16_t> values;
    for (const float f : RandomFloats(300 * kv.block_bytes() / 2, 1)) values.push_back(FloatToBf16(f));
    const OnDevice<uint16_t> cache(values);
    kv.k = kv.v = reinterpret_cast<std::byte*>(cache.get());
    const OnDevice<float> q(RandomFloats(int64_t{tokens} * kHeads * kDim, 2, 2.0f)),
        out(int64_t{tokens} * kHeads * kDim, 0),
        partial(AttentionPartialFloats(tokens, kHeads, kKvHeads, kDim), 0);
    DeviceAttentionArgs a;
    a.batch = {nullptr, dpositions.get(), downer.get(), dtable.get(), kWidth, tokens};
    a.kv = kv;
    a.q = q.get();
    a.heads = kHeads;
    a.scale = 0.125f;
    a.out = out.get();
    a.partial = partial.get();
    a.tickets = tickets.get();
    a.splits = AttentionSplits(kHeads, kKvHeads);
    ASSERT_EQ(cudaSuccess, LaunchAttention(a, nullptr));
    constexpr int kCols = kHeads * kDim;
    const OnDevice<std::byte> expected(WgmmaActivationBytes(tokens, kCols), 0),
        got(WgmmaActivationBytes(tokens, kCols), 0);
    ASSERT_EQ(cudaSuccess, LaunchWgmmaActivations(out.get(), nullptr, tokens, kCols, nullptr, 0,
                                                  Activations(expected, tokens, kCols), nullptr));
    a.wgmma = Activations(got, tokens, kCols);
    a.out = nullptr;
    ASSERT_EQ(cudaSuccess, LaunchAttention(a, nullptr));
    ASSERT_EQ(cudaSuccess, cudaDeviceSynchronize());
    ASSERT_EQ(expected.Read(), got.Read());
  }
}

}  // namespace
}  // namespace celer::cuda
