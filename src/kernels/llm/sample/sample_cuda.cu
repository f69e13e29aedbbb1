// Sampling of a token from a row of logits; how places are found in it is picker_cuda.cuh's.
#include "kernels/llm/sample/greedy_cuda.h"
#include "kernels/llm/sample/picker_cuda.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda {
namespace {

using namespace sample;

__device__ int TokenOf(uint64_t key) {
  return static_cast<int>(key & ((1u << kTokenBits) - 1));
}

template <class Picker>
__device__ int Choose(Picker& picker, float largest, int most_likely, const SampleRow& row, int position) {
  picker.Count(largest, row.reach);
  const uint64_t bits = HashDraw(row.seed ^ static_cast<uint64_t>(position - row.first));
  const double uniform = static_cast<double>(bits >> 11) * 0x1p-53;
  const uint32_t count = row.top_k > 0 && static_cast<uint32_t>(row.top_k) < picker.kept()
                             ? static_cast<uint32_t>(row.top_k)
                             : 0;
  uint64_t mass = picker.mass();
  const auto share = [&] {
    const uint64_t part = __double2ull_ru(static_cast<double>(row.top_p) * static_cast<double>(mass));
    return part < 1 ? 1 : part > mass ? mass : part;
  };
  if (count > 0 || row.top_p < 1) {
    if (picker.FewUpTo(count > 0, count > 0 ? count : share()))
      return TokenOf(picker.DrawFromFew(count, row.top_p, uniform));
  }
  if (count > 0) mass = picker.AtCount(count).mass;
  if (row.top_p < 1) mass = picker.AtMass(share()).mass;
  uint64_t target = __double2ull_rd(uniform * static_cast<double>(mass)) + 1;
  if (target > mass) target = mass;
  // Below what the most likely token has for itself nothing needs to be looked for.
  if (target <= uint64_t{kOne} * kOne) return most_likely;
  return TokenOf(picker.AtMass(target).key);
}

// A row's own logits.
struct AsTheyAre {
  __device__ float operator()(float logit, int) const { return logit; }
};

template <class Picker>
__device__ void Report(Picker& picker, const typename Picker::Memory& s, const float* logits, int token,
                       int wanted, int vocab, SampleLogprobs* out) {
  const uint64_t best = picker.Load(logits, AsTheyAre());
  const float largest = FromOrderBits(static_cast<uint32_t>(best >> 32));
  picker.Count(largest, kDropped - 1);
  const double total = largest + log(static_cast<double>(picker.mass()) * 0x1p-44);
  const uint32_t count = static_cast<uint32_t>(min(min(wanted, kMaxLogprobs), vocab));
  if (count > 0) picker.Gather(count, picker.AtCount(count).key);
  if (picker.rank() != 0) return;
  if (threadIdx.x == 0) {
    out->chosen = static_cast<float>(__ldcg(logits + token) - total);
    out->count = static_cast<int32_t>(count);
  }
  if (threadIdx.x < count) {
    const int other = TokenOf(s.sorted[threadIdx.x]);
    out->tokens[threadIdx.x] = other;
    out->values[threadIdx.x] = static_cast<float>(__ldcg(logits + other) - total);
  }
}

// By the blocks of a row, each of which has its part of it in shared memory, or by one that has none of it there.
template <int kRanks>
__device__ __forceinline__ void SampleRowOf(const SampleArgs& a, unsigned char* memory) {
  auto& s = *reinterpret_cast<Shared<kRanks>*>(memory);
  LetNextStart();
  WaitForPrevious();
  const int index = blockIdx.y;
  const SampleRow row = a.sampling[index];
  const int at = a.token_of ? a.token_of[index] : index;
  const int position = a.positions[at], input = a.tokens[at];
  const float* logits = a.logits + static_cast<int64_t>(index) * a.vocab;
  // The step's input is counted by the step itself; a step that is run again must not count it again.
  const bool fresh = row.counts && position >= *row.counted;
  const auto adjusted = [&](float logit, int token) {
    if (row.bias) logit += row.bias[token];
    if (row.counts) {
      const uint32_t count = row.counts[token] + (fresh && token == input ? 1 : 0);
      const uint32_t written = count & ~kInPrompt;
      if (count != 0) logit = logit > 0 ? logit / row.repetition : logit * row.repetition;
      if (written != 0)
        logit =
            __fsub_rn(logit, __fadd_rn(row.presence, __fmul_rn(row.frequency, static_cast<float>(written))));
    }
    return row.temperature > 0 ? logit / row.temperature : logit;
  };
  const auto keys = [&](const auto& adjust) {
    if constexpr (kRanks == 1)
      return MadeKeys(logits, a.vocab, adjust);
    else
      return HeldKeys(reinterpret_cast<uint32_t*>(memory + sizeof(s)));
  };
  using Keys = decltype(keys(adjusted));
  Picker<kRanks, Keys> picker(s, keys(adjusted), a.vocab);
  const uint64_t best = picker.Load(logits, adjusted);
  const float largest = FromOrderBits(static_cast<uint32_t>(best >> 32));
  int token = static_cast<int>(0xffffffffu - static_cast<uint32_t>(best));
  // -infinity may also be what a tiny temperature made of a number.
  const bool chosen =
      best != Picker<kRanks, Keys>::kNotFinite && (largest > -INFINITY || __ldcg(logits + token) > -INFINITY);
  if (!chosen)
    token = kNoToken;
  else if (row.temperature > 0)
    token = Choose(picker, largest, token, row, position);
  const int slot = position % a.host_slots * a.host_stride + index;
  if (row.logprobs >= 0 && chosen) {
    if constexpr (kRanks == 1) {
      const AsTheyAre plain;
      __syncthreads();  // the sampler's counters have been read
      Picker<1, MadeKeys<AsTheyAre>> reporter(s, keys(plain), a.vocab);
      Report(reporter, s, logits, token, row.logprobs, a.vocab, a.host_logprobs + slot);
    } else {
      Report(picker, s, logits, token, row.logprobs, a.vocab, a.host_logprobs + slot);
    }
  }
  if (picker.rank() != 0 || threadIdx.x != 0) return;
  if (fresh) {
    row.counts[input] += 1;
    *row.counted = position + 1;
  }
  if (a.advance) {
    a.tokens[at] = max(token, 0);
    a.positions[at] = position + 1;
  }
  a.host_tokens[slot] = token;
}

// Grid: one cluster of kRanks blocks per row. Of code of 9.0.
#if CELER_HOPPER
#define CELER_CLUSTER __cluster_dims__(kRanks, 1, 1)
#else
#define CELER_CLUSTER
#endif
template <int kRanks>
__global__ void CELER_CLUSTER __launch_bounds__(kThreads) SampleKernel(const __grid_constant__ SampleArgs a) {
#if CELER_HOPPER
  extern __shared__ __align__(16) unsigned char memory[];
  SampleRowOf<kRanks>(a, memory);
#endif
}
#undef CELER_CLUSTER

// Grid: (1, rows). Of generic code.
__global__ void __launch_bounds__(kThreads) SampleAloneKernel(const __grid_constant__ SampleArgs a) {
#if !CELER_HOPPER
  extern __shared__ __align__(16) unsigned char memory[];
  SampleRowOf<1>(a, memory);
#endif
}

__global__ void CountTokensKernel(const int32_t* tokens, int prompt, int count, uint32_t* counts) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  if (i < prompt)
    atomicOr(counts + tokens[i], kInPrompt);
  else
    atomicAdd(counts + tokens[i], 1u);
}

}  // namespace

uint32_t Reach(float min_p) {
  if (min_p <= 0) return kDropped - 1;
  // A little more than the logarithm: a float at the edge itself belongs to what is kept.
  const double distance = -std::log(static_cast<double>(min_p)) * kUnit;
  return distance >= kFar ? kFar - 1 : static_cast<uint32_t>(std::floor(distance + 2));
}

template <int kRanks>
static cudaError_t LaunchOn(const SampleArgs& args, cudaStream_t stream) {
  constexpr auto kKernel = SampleKernel<kRanks>;
  constexpr auto kSharedOf = [](int vocab) {
    return static_cast<int>(sizeof(Shared<kRanks>)) + Held(vocab, kRanks) * 4;
  };
  constexpr int kMost = kSharedOf(kMaxSampleVocab);
  static_assert(kMost <= kMaxSharedBytes);
  if constexpr (kRanks > 8) {  // more blocks than a cluster may have on every GPU of the architecture
    static PerDevice<cudaError_t> allowed;
    const cudaError_t code = allowed.Get(
        [] { return cudaFuncSetAttribute(kKernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1); });
    if (code != cudaSuccess) return code;
  }
  return LaunchLarge<kKernel, kMost>(dim3(kRanks, static_cast<unsigned>(args.rows)), dim3(kThreads),
                                     kSharedOf(args.vocab), stream, args);
}

cudaError_t LaunchSample(const SampleArgs& args, cudaStream_t stream) {
  if (args.vocab > kMaxSampleVocab) return cudaErrorInvalidValue;
  if (!HopperCode())
    return LaunchLarge<SampleAloneKernel, sizeof(Shared<1>)>(dim3(1, static_cast<unsigned>(args.rows)),
                                                             dim3(kThreads), sizeof(Shared<1>), stream, args);
  // A few rows spread over many blocks; of many rows there are blocks enough.
  const bool spread = args.rows <= 8 && args.vocab > kFewRanks * kThreads;
  return spread ? LaunchOn<kMostRanks>(args, stream) : LaunchOn<kFewRanks>(args, stream);
}

cudaError_t LaunchCountTokens(const int32_t* tokens, int prompt, int count, uint32_t* counts,
                              cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  CountTokensKernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(tokens, prompt, count,
                                                                                    counts);
  return cudaGetLastError();
}

}  // namespace celer::cuda
