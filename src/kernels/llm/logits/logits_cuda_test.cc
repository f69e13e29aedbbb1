// What the general strategy does around products: the ends of logits, activations with biases, embeddings.
#include "kernels/llm/logits/logits_cuda.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/device.h"
#include "kernels/llm/gate_up/gate_up_cuda.h"
#include "kernels/shared/activation/activation.h"
#include "kernels/shared/cuda/on_device.h"
#include "kernels/shared/test_util.h"

namespace celer::cuda {
namespace {

using celer::testing::RandomFloats;
using testing::OnDevice;

TEST(CudaLogits, BiasScaleAndSoftcap) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  for (const int vocab : {5, 1024, 3001})
    for (const float cap : {0.0f, 3.0f}) {
      const auto logits = RandomFloats(int64_t{3} * vocab, 1, 9.0f), bias = RandomFloats(vocab, 2);
      for (const bool biased : {false, true}) {
        const OnDevice<float> out(logits), dbias(bias);
        ASSERT_EQ(cudaSuccess, LaunchFinishLogits({.logits = out.get(),
                                                   .rows = 3,
                                                   .vocab = vocab,
                                                   .bias = biased ? dbias.get() : nullptr,
                                                   .scale = 0.4f,
                                                   .softcap = cap},
                                                  nullptr));
        const auto got = out.Read();
        for (size_t i = 0; i < got.size(); ++i) {
          double e = (double{logits[i]} + (biased ? bias[i % static_cast<size_t>(vocab)] : 0)) * 0.4f;
          if (cap != 0) e = cap * std::tanh(e / cap);
          ASSERT_NEAR(e, got[i], 1e-5) << i;
        }
      }
    }
}

TEST(CudaGateUp, RowsWithBiasesALimitOrWithoutAGate) {
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device here";
  constexpr int kTokens = 3, kCols = 333;
  const auto gate = RandomFloats(kTokens * kCols, 1, 9.0f), up = RandomFloats(kTokens * kCols, 2, 9.0f),
             gate_bias = RandomFloats(kCols, 3), up_bias = RandomFloats(kCols, 4);
  const OnDevice<float> dgate(gate), dup(up), dgate_bias(gate_bias), dup_bias(up_bias), out(kTokens * kCols);
  const std::vector<float> ones(kCols, 1.0f);
  for (const Activation kind :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu, Activation::kRelu2})
    for (const bool gated : {false, true})
      for (const bool biased : {false, true})
        for (const float limit : {0.0f, 2.0f}) {
          if (limit > 0 && !gated) continue;
          ASSERT_EQ(cudaSuccess,
                    LaunchActivateRows({.gate = gated ? dgate.get() : nullptr,
                                        .up = dup.get(),
                                        .gate_bias = gated && biased ? dgate_bias.get() : nullptr,
                                        .up_bias = biased ? dup_bias.get() : nullptr,
                                        .tokens = kTokens,
                                        .cols = kCols,
                                        .activation = static_cast<DeviceActivation>(kind),
                                        .limit = limit,
                                        .out = out.get()},
                                       nullptr));
          const auto got = out.Read();
          for (size_t t = 0; t < kTokens; ++t) {
            std::vector<float> g, u, expected(kCols);
            for (size_t i = 0; i < kCols; ++i) {
              u.push_back(up[t * kCols + i] + (biased ? up_bias[i] : 0));
              g.push_back(gate[t * kCols + i] + (biased ? gate_bias[i] : 0));
            }
            reference::ActivateMul(kind, gated ? g.data() : u.data(), gated ? u.data() : ones.data(),
                                   expected.data(), kCols, limit);
            for (size_t i = 0; i < kCols; ++i)
              ASSERT_NEAR(expected[i], got[t * kCols + i], 1e-4 * (1 + std::abs(expected[i])))
                  << static_cast<int>(kind) << gated << biased << limit << " at " << i;
          }
        }
}

}  // namespace
}  // namespace celer::cuda
