#include "kernels/llm/causal_conv/causal_conv.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/shared/activation/activation.h"
#include "kernels/shared/simd.h"

namespace celer {
namespace {

using S = Simd;
// Channels of one piece of work: with the largest kernel their inputs and weights stay in the first cache.
constexpr int64_t kChannels = 64;
static_assert(kChannels % S::kLanes == 0);

// The last `kernel` inputs of some channels, and their weights, input by input.
class Window {
 public:
  Window(const CausalConvArgs& args, int64_t first, int64_t count)
      : kernel_(args.kernel), first_(first), count_(count) {
    for (int64_t c = 0; c < count; ++c)
      for (int64_t j = 0; j < kernel_; ++j) weights_[j][c] = args.w[(first + c) * kernel_ + j];
    if (args.bias) std::copy_n(args.bias + first, count, bias_);
    std::fill_n(ones_, kChannels, 1.0f);
  }

  // Before the first token of a batch: from the state, zeros at the beginning of a sequence.
  void Load(const float* state, int64_t channels, bool begins) {
    for (int64_t j = 0; j + 1 < kernel_; ++j) {
      if (begins)
        std::fill_n(inputs_[j + 1], count_, 0.0f);
      else
        std::copy_n(state + j * channels + first_, count_, inputs_[j + 1]);
    }
    at_ = 0;
  }

  void Save(float* state, int64_t channels) const {
    for (int64_t j = 0; j + 1 < kernel_; ++j)
      std::copy_n(inputs_[Slot(j + 1)], count_, state + j * channels + first_);
  }

  // x: this token's inputs, and then its outputs.
  void Step(float* x) {
    std::copy_n(x, count_, inputs_[at_]);
    at_ = at_ + 1 == kernel_ ? 0 : at_ + 1;
    float sums[kChannels];
    for (int64_t c = 0; c < kChannels; c += S::kLanes) {
      S::F sum = S::Load(bias_ + c);
      for (int64_t j = 0; j < kernel_; ++j)
        sum = S::Fma(S::Load(weights_[j] + c), S::Load(inputs_[Slot(j)] + c), sum);
      S::Store(sums + c, sum);
    }
    ActivateMul(Activation::kSilu, sums, ones_, x, count_);
  }

 private:
  // Where the j-th oldest input lies: `at_` is the oldest one, which the next token's replaces.
  int64_t Slot(int64_t j) const { return at_ + j < kernel_ ? at_ + j : at_ + j - kernel_; }

  int64_t kernel_, first_, count_, at_ = 0;
  float bias_[kChannels] = {};
  float weights_[CausalConvArgs::kMaxKernel][kChannels] = {};
  float inputs_[CausalConvArgs::kMaxKernel][kChannels] = {};
  float ones_[kChannels];
};

}  // namespace

void CausalConv(const CausalConvArgs& args) {
  CELER_CHECK(args.kernel >= 1 && args.kernel <= CausalConvArgs::kMaxKernel);
  const RaggedBatch& batch = args.batch;
  const int64_t pieces = (args.channels + kChannels - 1) / kChannels;
  constexpr int64_t kGrain = 16;  // with one token about 3 us of work
  const int64_t grain =
      std::max<int64_t>(1, kGrain * batch.seqs() / std::max<int64_t>(batch.token_count(), 1));
  args.pool->ParallelFor(batch.seqs() * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t seq = i / pieces, first = i % pieces * kChannels;
      const int32_t from = batch.seq_start[seq], to = batch.seq_start[seq + 1];
      if (from == to) continue;
      Window window(args, first, std::min(kChannels, args.channels - first));
      float* const state = args.states.Of(seq);
      window.Load(state, args.channels, batch.positions[from] == 0);
      const int64_t drafted = from + args.states.Certain(seq, to - from);
      for (int64_t t = from; t < to; ++t) {
        if (t == drafted) window.Save(state, args.channels);
        window.Step(args.x + t * args.channels + first);
      }
      window.Save(drafted < to ? args.states.DraftOf(seq) : state, args.channels);
    }
  });
}

}  // namespace celer
