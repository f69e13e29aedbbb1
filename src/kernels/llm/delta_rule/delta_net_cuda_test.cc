#include "kernels/llm/delta_rule/delta_net_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/device.h"
#include "kernels/llm/causal_conv/causal_conv.h"
#include "kernels/llm/delta_rule/delta_rule.h"
#include "kernels/llm/output_gate/output_gate_cuda.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::AllNear;
using celer::testing::RandomFloats;
using testing::OnDevice;

constexpr float kEps = 0.05f;
constexpr DeltaNetShape kShapes[] = {{1, 7, 2, 10, 4},           {2, 6, 4, 5, 4, true}, {1, 33, 3, 47, 1},
                                     {2, 128, 4, 128, 4},        {1, 65, 2, 20, 2},     {2, 200, 2, 33, 3},
                                     {1, 16, 1, 150, 16, false}, {3, 1, 3, 1, 4}};

#define NEEDS_GPU() \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here"

struct Weights {
  explicit Weights(const DeltaNetShape& s)
      : conv(RandomFloats(int64_t{s.channels()} * s.conv_kernel, 1)),
        rate(RandomFloats(s.value_heads, 2, 2.0f)),
        dt_bias(RandomFloats(s.value_heads, 3)),
        norm(RandomFloats(s.value_dim, 4)) {
    for (float& r : rate) r = std::exp(r);
  }
  std::vector<float> conv, rate, dt_bias, norm;
};

// Some tokens of each of some sequences.
struct Batch {
  std::vector<int32_t> positions, sequence, seq_start{0}, slots;
  // `count` tokens from `position` on of the sequence in this slot.
  void Add(int32_t slot, int32_t position, int32_t count) {
    for (int32_t t = 0; t < count; ++t) {
      positions.push_back(position + t);
      sequence.push_back(static_cast<int32_t>(slots.size()));
    }
    seq_start.push_back(static_cast<int32_t>(positions.size()));
    slots.push_back(slot);
  }
};

// A token's inputs are those of its slot and position, wherever it stands in a batch.
std::vector<float> InputsOf(const DeltaNetShape& s, const Batch& batch) {
  std::vector<float> in;
  for (size_t i = 0; i < batch.positions.size(); ++i) {
    const int32_t slot = batch.slots[static_cast<size_t>(batch.sequence[i])];
    const auto row =
        RandomFloats(s.InputFloats(), static_cast<uint32_t>(100 + 1000 * slot + batch.positions[i]), 2.0f);
    in.insert(in.end(), row.begin(), row.end());
  }
  return in;
}

class OnGpu {
 public:
  OnGpu(const DeltaNetShape& s, const Weights& w, int64_t slots)
      : shape_(s),
        conv_(w.conv),
        rate_(w.rate),
        dt_bias_(w.dt_bias),
        norm_(w.norm),
        states_(slots * s.StateFloats()) {}

  std::vector<float> Run(const Batch& batch, bool step) {
    const OnDevice<int32_t> positions(batch.positions), sequence(batch.sequence), seq_start(batch.seq_start),
        slots(batch.slots);
    const OnDevice<float> in(InputsOf(shape_, batch));
    const auto tokens = std::ssize(batch.positions);
    OnDevice<float> prepared(tokens * shape_.PreparedFloats()), out(tokens * shape_.values());
    const DeltaNetArgs args{.shape = shape_,
                            .positions = positions.get(),
                            .sequence = sequence.get(),
                            .seq_start = seq_start.get(),
                            .slots = slots.get(),
                            .tokens = static_cast<int>(tokens),
                            .sequences = static_cast<int>(std::ssize(batch.slots)),
                            .in = in.get(),
                            .in_stride = shape_.InputFloats(),
                            .conv = conv_.get(),
                            .rate = rate_.get(),
                            .dt_bias = dt_bias_.get(),
                            .norm = norm_.get(),
                            .eps = kEps,
                            .states = states_.get(),
                            .slot_stride = shape_.StateFloats(),
                            .prepared = prepared.get(),
                            .out = out.get()};
    EXPECT_EQ(cudaSuccess, step ? LaunchDeltaNetStep(args, nullptr) : LaunchDeltaNet(args, nullptr));
    return out.Read();
  }
  // Its bits: padding holds NaN.
  std::vector<uint32_t> State(int64_t slot) const {
    const auto all = states_.Read();
    std::vector<uint32_t> out(static_cast<size_t>(shape_.StateFloats()));
    std::memcpy(out.data(), all.data() + slot * shape_.StateFloats(), 4 * out.size());
    return out;
  }

 private:
  DeltaNetShape shape_;
  OnDevice<float> conv_, rate_, dt_bias_, norm_, states_;
};

// Columns [first, first + count) of each row.
std::vector<float> Columns(const std::vector<float>& rows, int64_t width, int64_t first, int64_t count) {
  std::vector<float> out;
  for (auto at = rows.begin(); at < rows.end(); at += width)
    out.insert(out.end(), at + first, at + first + count);
  return out;
}

// Sequences that begin in this batch.
std::vector<float> OnCpu(const DeltaNetShape& s, const Weights& w, const Batch& batch) {
  ThreadPool pool({.threads = 1});
  const auto rows = InputsOf(s, batch);
  auto qkv = Columns(rows, s.InputFloats(), 0, s.channels());
  const auto z = Columns(rows, s.InputFloats(), s.channels(), s.values());
  auto b = Columns(rows, s.InputFloats(), s.channels() + s.values(), s.value_heads);
  auto a = Columns(rows, s.InputFloats(), s.channels() + s.values() + s.value_heads, s.value_heads);
  std::vector<int32_t> slots, tokens(batch.positions.size());
  for (size_t i = 0; i < batch.slots.size(); ++i) slots.push_back(static_cast<int32_t>(i));
  const RaggedBatch ragged{.tokens = tokens,
                           .positions = batch.positions,
                           .seq_start = batch.seq_start,
                           .block_table = {},
                           .logit_rows = {}};
  const int64_t window = int64_t{s.conv_kernel - 1} * s.channels(),
                matrices = DeltaStateFloats(s.key_dim, s.value_heads, s.value_dim);
  std::vector<float> windows(slots.size() * static_cast<size_t>(window)),
      states(slots.size() * static_cast<size_t>(matrices)), out(z.size());
  CausalConv({.batch = ragged,
              .w = w.conv.data(),
              .channels = s.channels(),
              .kernel = s.conv_kernel,
              .x = qkv.data(),
              .states = {.data = windows.data(), .stride = window, .slots = slots},
              .pool = &pool});
  DeltaRule({.batch = ragged,
             .key_heads = s.key_heads,
             .key_dim = s.key_dim,
             .value_heads = s.value_heads,
             .value_dim = s.value_dim,
             .tiled_values = s.tiled_values,
             .qkv = qkv.data(),
             .z = z.data(),
             .a = a.data(),
             .b = b.data(),
             .rate = w.rate.data(),
             .dt_bias = w.dt_bias.data(),
             .norm = w.norm.data(),
             .eps = kEps,
             .states = {.data = states.data(), .stride = matrices, .slots = slots},
             .out = out.data(),
             .pool = &pool});
  return out;
}

TEST(DeltaNetCuda, AgreesWithTheCpu) {
  NEEDS_GPU();
  for (const DeltaNetShape& s : kShapes) {
    SCOPED_TRACE(std::to_string(s.key_dim) + "x" + std::to_string(s.value_dim));
    const Weights w(s);
    for (const int32_t tokens : {1, 3, 37}) {
      Batch batch;
      batch.Add(2, 0, tokens), batch.Add(0, 0, 1), batch.Add(1, 0, 5);
      const auto got = OnGpu(s, w, 3).Run(batch, false), expected = OnCpu(s, w, batch);
      // As in delta_rule_test.cc: what sums of key_dim products are off by, once for each token, through a norm that
      // divides by at least sqrt(kEps). Values are up to 2 * conv_kernel, on both sides.
      const double tolerance = 2.0 * s.conv_kernel *
                               celer::testing::SumTolerance(s.key_dim + s.conv_kernel + 8, 2) * (tokens + 5) *
                               3 / std::sqrt(kEps);
      EXPECT_TRUE(AllNear(got, expected, {.absolute = tolerance})) << tokens << " tokens";
    }
  }
}

// Bit for bit: pieces of any size, steps, and other sequences beside it.
TEST(DeltaNetCuda, ATokenDependsOnItsSequenceAlone) {
  NEEDS_GPU();
  for (const DeltaNetShape& s : kShapes) {
    SCOPED_TRACE(std::to_string(s.key_dim) + "x" + std::to_string(s.value_dim));
    const Weights w(s);
    Batch all;
    all.Add(1, 0, 43);
    OnGpu whole(s, w, 2), cut(s, w, 2), stepped(s, w, 3);
    const auto expected = whole.Run(all, false);
    EXPECT_TRUE(celer::testing::AllFinite(expected));
    std::vector<float> pieces, steps;
    int32_t at = 0;
    for (const int32_t count : {1, 2, 17, 1, 16, 6}) {
      Batch piece;
      piece.Add(0, 5 * at, 3 * (at == 0)), piece.Add(1, at, count);
      const auto out = cut.Run(piece, false);
      pieces.insert(pieces.end(), out.end() - int64_t{count} * s.values(), out.end());
      at += count;
    }
    EXPECT_EQ(pieces, expected);
    EXPECT_EQ(cut.State(1), whole.State(1));
    for (int32_t t = 0; t < 43; ++t) {
      Batch step;
      if (t % 3 == 0) step.Add(0, t / 3, 1);
      step.Add(1, t, 1);
      const auto out = stepped.Run(step, true);
      steps.insert(steps.end(), out.end() - s.values(), out.end());
    }
    EXPECT_EQ(steps, expected);
    EXPECT_EQ(stepped.State(1), whole.State(1));
  }
}

TEST(OutputGateCuda, MatchesDouble) {
  NEEDS_GPU();
  for (const auto& [tokens, heads, dim] : {std::tuple{1, 1, 1}, {3, 5, 7}, {2, 16, 256}}) {
    const int64_t width = int64_t{heads} * dim, stride = 3 * width;
    const auto x = RandomFloats(tokens * width, 1), rows = RandomFloats(tokens * stride, 2, 20.0f);
    const OnDevice<float> on_device(x), gates(rows);
    ASSERT_EQ(cudaSuccess, LaunchOutputGate({.x = on_device.get(),
                                             .gate = gates.get() + dim,
                                             .token_stride = stride,
                                             .head_stride = 2 * dim,
                                             .tokens = tokens,
                                             .heads = heads,
                                             .head_dim = dim},
                                            nullptr));
    std::vector<double> expected;
    for (int64_t i = 0; i < tokens * width; ++i)
      expected.push_back(
          x[i] /
          (1 + std::exp(-double{rows[i / width * stride + i % width / dim * 2 * dim + dim + i % dim]})));
    EXPECT_TRUE(AllNear(on_device.Read(), expected, {.absolute = 1e-12, .relative = 1e-6})) << dim;
  }
}

}  // namespace
}  // namespace celer::cuda
