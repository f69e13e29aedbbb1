// One row of logits in the distributed shared memory of a cluster of blocks, and selection in its sorted
// order. In generic code, which has no clusters, one block has the row and reads it again from L2 for each pass.
//
// Everything that sampling keeps (min-p, top-k, top-p) is a prefix of the vocabulary sorted by logit, and the
// draw is the place where the cumulative probability passes a number. So nothing is sorted: as in a radix
// select, a histogram over the distance from the largest logit finds the bin in which the place lies, and
// only that bin is refined.
#pragma once

#include <cooperative_groups.h>

#include <cmath>

#include <type_traits>

#include "kernels/llm/sample/sample_cuda.h"
#include "kernels/shared/cuda/target.cuh"

namespace celer::cuda::sample {

namespace cg = cooperative_groups;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kMostRanks = 16, kFewRanks = 8;  // blocks of the cluster that shares a row
constexpr int kBins = 2 * kThreads;
constexpr int kList = 256;  // tokens that are put in order by counting

// A token's key: its distance from the largest logit, then its id, so that the tie-break is that of the CPU.
//   distance below 32: in units of 2^-26; from there on the bits of the float, which no probability needs
constexpr int kTokenBits = 20;
constexpr float kUnit = 67108864.0f;  // 2^26
constexpr uint32_t kFar = 0x80000000u;
constexpr uint32_t kDropped = 0xffffffffu;
// The first histogram has bins of 1/32. A token's probability is its bin's times (kOne - deficit) / kOne:
// sums of deficits are integers of 32 bits for as many tokens as one block holds, whatever the order of the
// adding.
constexpr int kFirstShift = 21;
constexpr int kBinsNear = 1024;
constexpr uint32_t kOne = 1u << 22;
static_assert(kMaxSampleVocab / kFewRanks * 129047.0 < 4294967296.0,
              "deficits are less than (1 - exp(-1/32)) * kOne");
static_assert(kMaxSampleVocab <= 1 << kTokenBits);

template <int kRanks>
struct Shared {
  // Of one block that has all tokens, sums do not fit into 32 bits.
  using Deficits = std::conditional_t<kRanks == 1, unsigned long long, uint32_t>;
  // What this block counted; read by the whole cluster.
  uint32_t count[kBins];
  Deficits deficit[kBins];
  // What the cluster counted, the same in every block. Weights: of the first histogram 2^44 for the most
  // likely token, of the later ones kOne for the first of the bin.
  uint32_t total_count[kBins];
  uint64_t total_weight[kBins];
  uint64_t best[2][kMostRanks];  // two in turn, as the lists
  // Double buffering of lists: a block may be one round ahead of another, not two.
  uint64_t list[2][kList];
  uint32_t list_size[2];  // of the whole cluster, in its first block
  uint64_t sorted[kList];
  uint64_t scan[2][kWarps];
  struct Found {
    uint32_t bin, count, count_before;
    uint64_t weight_before, weight;
  } found;
  uint64_t found_key, found_weight;
};

__device__ __forceinline__ uint32_t OrderBits(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrderBits(uint32_t bits) {
  return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}

__device__ __forceinline__ uint32_t Distance(float largest, float logit) {
  if (logit == largest) return 0;
  const float d = largest - logit;
  if (d < 32) return __float2uint_rn(d * kUnit);
  return kFar + (__float_as_uint(isnan(d) ? INFINITY : d) - 0x42000000u);
}

// (1 - exp(-x)) * kOne, x the distance from the begin of the bin.
__device__ __forceinline__ uint32_t Deficit(uint32_t distance) {
  const float x = static_cast<float>(distance & ((1u << kFirstShift) - 1)) * (1 / kUnit);
  return __float2uint_rn(x * (1 - x * (0.5f - x * (1.0f / 6 - x * (1.0f / 24)))) * static_cast<float>(kOne));
}
__device__ __forceinline__ double BinScale(uint32_t bin) {
  return bin < kBinsNear ? static_cast<double>(expf(-static_cast<float>(bin) / 32)) * kOne : 0;
}

template <class T>
__device__ __forceinline__ T WarpInclusive(T value) {
  const int lane = threadIdx.x % 32;
  for (int apart = 1; apart < 32; apart *= 2) {
    const T other = __shfl_up_sync(0xffffffffu, value, apart);
    if (lane >= apart) value += other;
  }
  return value;
}

// Tokens that each of the cluster's blocks holds: whole rounds of its threads.
__host__ __device__ constexpr int Held(int vocab, int ranks) {
  return (vocab + ranks * kThreads - 1) / (ranks * kThreads) * kThreads;
}

// What a picker has of a cluster where the block is alone.
struct Alone {
  __device__ int block_rank() const { return 0; }
  __device__ void barrier_arrive() const {}
  __device__ void barrier_wait() const {}
  __device__ void sync() const { __syncthreads(); }
  template <class T>
  __device__ T* map_shared_rank(T* own, int) const {
    return own;
  }
};
#if CELER_HOPPER && defined(__CUDA_ARCH__)
template <int kRanks>
using Cluster = std::conditional_t<kRanks == 1, Alone, cg::cluster_group>;
template <int kRanks>
__device__ __forceinline__ Cluster<kRanks> ThisCluster() {
  if constexpr (kRanks == 1)
    return Alone();
  else
    return cg::this_cluster();
}
#else
template <int kRanks>
using Cluster = Alone;
template <int kRanks>
__device__ __forceinline__ Alone ThisCluster() {
  return {};
}
#endif

// A token's logit for the sampler: `adjusted`, with one zero only, and no NaN.
__device__ __forceinline__ float Cleaned(float adjusted) {
  float value = adjusted;
  if (isnan(value)) value = -INFINITY;
  if (value == 0) value = 0;
  return value;
}
// The keys of a block's tokens, which are the bits of their logits, and from Count() on their distances from the largest
// one: in shared memory.
class HeldKeys {
 public:
  __device__ explicit HeldKeys(uint32_t* keys) : keys_(keys) {}
  __device__ void Put(int at, uint32_t bits) { keys_[at] = bits; }
  __device__ void Begin(float, uint32_t) {}
  __device__ uint32_t Logit(int at) const { return keys_[at]; }
  __device__ uint32_t Distance(int at) const { return keys_[at]; }

 private:
  uint32_t* keys_;
};
__device__ __forceinline__ uint32_t KeptDistance(uint32_t bits, float largest, uint32_t reach) {
  const uint32_t distance = bits == kDropped ? kDropped : Distance(largest, __uint_as_float(bits));
  return distance > reach ? kDropped : distance;
}
// So, made again from the logits whenever they are asked for.
template <class Adjust>
class MadeKeys {
 public:
  __device__ MadeKeys(const float* logits, int vocab, const Adjust& adjust)
      : logits_(logits), vocab_(vocab), adjust_(adjust) {}
  __device__ void Put(int, uint32_t) {}
  __device__ void Begin(float largest, uint32_t reach) { largest_ = largest, reach_ = reach; }
  __device__ uint32_t Logit(int at) const {
    return at < vocab_ ? __float_as_uint(Cleaned(adjust_(__ldcg(logits_ + at), at))) : kDropped;
  }
  __device__ uint32_t Distance(int at) const { return KeptDistance(Logit(at), largest_, reach_); }

 private:
  const float* logits_;
  int vocab_;
  const Adjust& adjust_;
  float largest_ = 0;
  uint32_t reach_ = 0;
};

// One row and the cluster's view of it.
template <int kRanks, class Keys>
class Picker {
 public:
  using Memory = Shared<kRanks>;

  __device__ Picker(Memory& shared, const Keys& keys, int vocab)
      : s_(shared), keys_(keys), cluster_(ThisCluster<kRanks>()), vocab_(vocab), held_(Held(vocab, kRanks)) {
    rank_ = static_cast<int>(cluster_.block_rank());
    begin_ = rank_ * held_;
    if (threadIdx.x < 2) s_.list_size[threadIdx.x] = 0;
    Clear();
    cluster_.barrier_arrive();  // no block is written into before it has begun
  }

  __device__ int rank() const { return rank_; }
  __device__ uint64_t mass() const { return mass_; }  // of all that is kept, 2^44 for the most likely token
  __device__ uint32_t kept() const { return kept_; }

  // Takes the row in and finds the largest of what `adjust` makes of its logits: its bits, then the
  // complement of its token. kNotFinite if a logit is NaN or +infinity.
  static constexpr uint64_t kNotFinite = ~uint64_t{0};
  template <class Adjust>
  __device__ uint64_t Load(const float* logits, const Adjust& adjust) {
    uint64_t best = 0;
    bool finite = true;
    constexpr int kBatch = 8;  // loads on their way at once
    for (int base = static_cast<int>(threadIdx.x); base < held_; base += kBatch * kThreads) {
      float values[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j)
        values[j] = __ldcg(logits + min(begin_ + base + j * kThreads, vocab_ - 1));
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int at = base + j * kThreads, token = begin_ + at;
        if (at >= held_) break;
        if (token >= vocab_) {
          keys_.Put(at, kDropped);
          continue;
        }
        finite = finite && values[j] < INFINITY;
        const float value = Cleaned(adjust(values[j], token));
        keys_.Put(at, __float_as_uint(value));
        const uint64_t key =
            static_cast<uint64_t>(OrderBits(value)) << 32 | (0xffffffffu - static_cast<uint32_t>(token));
        best = key > best ? key : best;
      }
    }
    if (!finite) best = kNotFinite;
    for (int apart = 16; apart > 0; apart /= 2) {
      const uint64_t other = __shfl_xor_sync(0xffffffffu, best, apart);
      best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) s_.scan[0][threadIdx.x / 32] = best;
    if (loads_ == 0) cluster_.barrier_wait();
    __syncthreads();
    if (threadIdx.x < 32) {
      best = s_.scan[0][threadIdx.x];
      for (int apart = 16; apart > 0; apart /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, best, apart);
        best = other > best ? other : best;
      }
      if (threadIdx.x < kRanks) *cluster_.map_shared_rank(&s_.best[loads_ & 1][rank_], threadIdx.x) = best;
    }
    cluster_.sync();
    for (int r = 0; r < kRanks; ++r) {
      const uint64_t other = s_.best[loads_ & 1][r];
      best = other > best ? other : best;
    }
    ++loads_;
    return best;
  }

  // Logits become distances; the first histogram.
  __device__ void Count(float largest, uint32_t reach) {
    keys_.Begin(largest, reach);
#pragma unroll 4
    for (int at = static_cast<int>(threadIdx.x); at < held_; at += kThreads) {
      const uint32_t distance = KeptDistance(keys_.Logit(at), largest, reach);
      keys_.Put(at, distance);
      Add(distance != kDropped, distance >> kFirstShift, distance);
    }
    Share(/*first=*/true);
    // Each thread keeps two bins and what lies before them.
    const int bin = 2 * static_cast<int>(threadIdx.x);
    bin_count_[0] = s_.total_count[bin], bin_count_[1] = s_.total_count[bin + 1];
    bin_weight_[0] = s_.total_weight[bin], bin_weight_[1] = s_.total_weight[bin + 1];
    Scan(bin_count_[0] + bin_count_[1], bin_weight_[0] + bin_weight_[1], &count_before_, &mass_before_,
         &kept_, &mass_);
  }

  struct Place {
    uint64_t key;   // the token at the place
    uint64_t mass;  // of all up to it
  };
  __device__ Place AtCount(uint32_t count) {
    return Find(true, count);
  }
  __device__ Place AtMass(uint64_t mass) {
    return Find(false, mass);
  }

  // Whether the tokens up to the place, and those that share its bin, are few enough for DrawFromFew().
  __device__ bool FewUpTo(bool by_count, uint64_t target) {
    const Found found = Locate(by_count, target, bin_count_, bin_weight_, count_before_, mass_before_);
    few_ = found.count_before + found.count;
    few_bins_ = found.bin;
    return few_ <= kList;
  }

  // All that top-k and top-p may keep is one short list, which a warp walks through. `count` of the first
  // tokens are kept (0: not top-k), then those that hold `share` of their mass.
  __device__ uint64_t DrawFromFew(uint32_t count, float share, double uniform) {
    Collect([&](uint32_t distance, int) { return distance >> kFirstShift <= few_bins_; });
    Sort(few_);
    if (threadIdx.x < 32) {
      constexpr int kOwn = kList / 32;
      const uint32_t first = threadIdx.x * kOwn, kept = count > 0 && count < few_ ? count : few_;
      uint64_t through[kOwn], sum = 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if (first + i < kept) {
          const auto distance = static_cast<uint32_t>(s_.sorted[first + i] >> kTokenBits);
          sum += Scaled(kOne - Deficit(distance), distance >> kFirstShift);
        }
        through[i] = sum;
      }
      const uint64_t inclusive = WarpInclusive(sum), before = inclusive - sum;
      // Without top-k the share is one of all tokens.
      uint64_t mass = count > 0 ? __shfl_sync(0xffffffffu, inclusive, 31) : mass_;
      // The first place that reaches a target, or the last one.
      const auto reach = [&](uint64_t target, uint64_t* at_mass) {
        uint32_t place = kept - 1;
#pragma unroll
        for (int i = kOwn - 1; i >= 0; --i)
          if (first + i < kept && before + through[i] >= target) place = first + i;
        place = __reduce_min_sync(0xffffffffu, place);
        uint64_t own = 0;
#pragma unroll
        for (int i = 0; i < kOwn; ++i)
          if (first + i == place) own = before + through[i];
        *at_mass = __shfl_sync(0xffffffffu, own, static_cast<int>(place / kOwn));
        return place;
      };
      if (share < 1) reach(__double2ull_ru(static_cast<double>(share) * static_cast<double>(mass)), &mass);
      uint64_t unused = 0;
      const uint32_t place = reach(__double2ull_rd(uniform * static_cast<double>(mass)) + 1, &unused);
      if (threadIdx.x == 0) s_.found_key = s_.sorted[place];
    }
    __syncthreads();
    return s_.found_key;
  }

  // The `count` first tokens, at most kList, in s.sorted; `last` is the key of the last of them.
  __device__ void Gather(uint32_t count, uint64_t last) {
    Collect([&](uint32_t, int at) { return KeyAt(at) <= last; });
    Sort(count);
  }

 private:
  using Found = typename Memory::Found;

  // The counters are empty whenever a count begins.
  __device__ void Clear() {
    for (int i = threadIdx.x; i < kBins; i += kThreads) s_.count[i] = s_.deficit[i] = 0;
  }

  // All lanes of a warp come here together.
  __device__ void Add(bool here, uint32_t bin, uint32_t distance) {
    const uint32_t deficit = Deficit(distance);
    if (!here) bin = kBins;
    if (__all_sync(0xffffffffu, bin == __shfl_sync(0xffffffffu, bin, 0))) {
      // Rows of equal logits would contend for one counter.
      if (!here) return;
      const uint32_t sum = __reduce_add_sync(0xffffffffu, deficit);
      if (threadIdx.x % 32 == 0) atomicAdd(&s_.count[bin], 32u), AddDeficit(bin, sum);
      return;
    }
    if (here) atomicAdd(&s_.count[bin], 1u), AddDeficit(bin, deficit);
  }
  __device__ void AddDeficit(uint32_t bin, uint32_t deficit) {
    atomicAdd(&s_.deficit[bin], static_cast<typename Memory::Deficits>(deficit));
  }

  // A reduction over the cluster: each block some of the bins, for all.
  __device__ void Share(bool first) {
    cluster_.sync();
    if constexpr (kRanks == 1) return ShareAlone(first);
    constexpr int kOwn = kBins / kRanks, kParts = kThreads / kOwn > 0 ? kThreads / kOwn : 1;
    const int part = threadIdx.x % kParts, bin = rank_ * kOwn + static_cast<int>(threadIdx.x) / kParts;
    uint32_t count = 0;
    uint64_t deficit = 0;
#pragma unroll
    for (int r = part; r < kRanks; r += kParts) {
      count += *cluster_.map_shared_rank(&s_.count[bin], r);
      deficit += *cluster_.map_shared_rank(&s_.deficit[bin], r);
    }
    for (int apart = 1; apart < kParts; apart *= 2) {
      count += __shfl_xor_sync(0xffffffffu, count, apart);
      deficit += __shfl_xor_sync(0xffffffffu, deficit, apart);
    }
    uint64_t weight = static_cast<uint64_t>(count) * kOne - deficit;
    if (first && count > 0) weight = Scaled(weight, bin);
#pragma unroll
    for (int r = part; r < kRanks; r += kParts) {
      *cluster_.map_shared_rank(&s_.total_count[bin], r) = count;
      *cluster_.map_shared_rank(&s_.total_weight[bin], r) = weight;
    }
    cluster_.sync();
    Clear();  // all have read them
  }
  __device__ void ShareAlone(bool first) {
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kThreads) {
      const uint32_t count = s_.count[bin];
      uint64_t weight = static_cast<uint64_t>(count) * kOne - s_.deficit[bin];
      if (first && count > 0) weight = Scaled(weight, bin);
      s_.total_count[bin] = count, s_.total_weight[bin] = weight;
      s_.count[bin] = 0, s_.deficit[bin] = 0;
    }
    __syncthreads();
  }

  __device__ static uint64_t Scaled(uint64_t weight, uint32_t bin) {
    return __double2ull_rn(BinScale(bin) * static_cast<double>(weight));
  }

  // Prefix sums over the threads in front of this one, and over all.
  __device__ void Scan(uint32_t count, uint64_t weight, uint32_t* count_before, uint64_t* weight_before,
                       uint32_t* count_all, uint64_t* weight_all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t count_here = WarpInclusive(count);
    const uint64_t weight_here = WarpInclusive(weight);
    __syncthreads();  // the last reader of s.scan is done
    if (lane == 31) s_.scan[0][warp] = count_here, s_.scan[1][warp] = weight_here;
    __syncthreads();
    const uint32_t counts = WarpInclusive(static_cast<uint32_t>(s_.scan[0][lane]));
    const uint64_t weights = WarpInclusive(s_.scan[1][lane]);
    *count_all = __shfl_sync(0xffffffffu, counts, kWarps - 1);
    *weight_all = __shfl_sync(0xffffffffu, weights, kWarps - 1);
    const uint32_t counts_before = __shfl_sync(0xffffffffu, counts, warp > 0 ? warp - 1 : 0);
    const uint64_t weights_before = __shfl_sync(0xffffffffu, weights, warp > 0 ? warp - 1 : 0);
    *count_before = (warp > 0 ? counts_before : 0) + count_here - count;
    *weight_before = (warp > 0 ? weights_before : 0) + weight_here - weight;
  }

  // The bin in which the sum passes the target, of two bins of each thread.
  __device__ Found Locate(bool by_count, uint64_t target, const uint32_t (&count)[2],
                          const uint64_t (&weight)[2], uint32_t count_before, uint64_t weight_before) {
    __syncthreads();  // the last reader of s.found is done
    for (uint32_t i = 0; i < 2; ++i) {
      const uint64_t before = by_count ? count_before : weight_before;
      const uint64_t through = before + (by_count ? count[i] : weight[i]);
      if (before < target && target <= through)
        s_.found = {2 * threadIdx.x + i, count[i], count_before, weight_before, weight[i]};
      count_before += count[i];
      weight_before += weight[i];
    }
    __syncthreads();
    return s_.found;
  }

  __device__ uint64_t KeyAt(int at) const {
    return static_cast<uint64_t>(keys_.Distance(at)) << kTokenBits | static_cast<uint32_t>(begin_ + at);
  }

  // Tokens that `wanted` names, at most kList in the whole row, in every block's list.
  template <class Wanted>
  __device__ void Collect(const Wanted& wanted) {
    const int turn = turn_ & 1;
#pragma unroll 4
    for (int at = static_cast<int>(threadIdx.x); at < held_; at += kThreads) {
      const uint32_t distance = keys_.Distance(at);
      if (distance == kDropped || !wanted(distance, at)) continue;
      const uint32_t slot = atomicAdd(cluster_.map_shared_rank(&s_.list_size[turn], 0), 1u);
      if (slot >= kList) continue;
#pragma unroll
      for (int r = 0; r < kRanks; ++r) *cluster_.map_shared_rank(&s_.list[turn][slot], r) = KeyAt(at);
    }
    cluster_.sync();
  }

  // The list of this round, most likely first. The list is empty for its next round then.
  __device__ void Sort(uint32_t count) {
    const int turn = turn_++ & 1;
    constexpr int kParts = kThreads / kList;
    const uint32_t mine = threadIdx.x / kParts, part = threadIdx.x % kParts;
    uint32_t rank = 0;
    if (mine < count)
      for (uint32_t i = part; i < count; i += kParts) rank += s_.list[turn][i] < s_.list[turn][mine];
    for (int apart = 1; apart < kParts; apart *= 2) rank += __shfl_xor_sync(0xffffffffu, rank, apart);
    if (mine < count && part == 0) s_.sorted[rank] = s_.list[turn][mine];
    if (threadIdx.x == 0) s_.list_size[turn] = 0;
    __syncthreads();
  }

  // Where the number or the mass of the most likely tokens reaches the target.
  __device__ Place Find(bool by_count, uint64_t target) {
    Found found = Locate(by_count, target, bin_count_, bin_weight_, count_before_, mass_before_);
    const uint32_t bin = found.bin;
    const uint64_t mass_before = found.weight_before;
    // From here on in units of the bin.
    if (by_count) {
      target -= found.count_before;
    } else {
      target = __double2ull_ru(static_cast<double>(target - mass_before) / BinScale(bin));
    }
    int shift = kFirstShift + kTokenBits;
    uint64_t prefix = bin, weight_before = 0;
    constexpr int kShifts[] = {30, 20, 10, 0};
    for (int level = 0; found.count > kList; ++level) {
      const int next = kShifts[level];
      const uint32_t mask = (1u << (shift - next)) - 1;
#pragma unroll 2
      for (int at = static_cast<int>(threadIdx.x); at < held_; at += kThreads) {
        const uint64_t key = KeyAt(at);
        const auto distance = static_cast<uint32_t>(key >> kTokenBits);
        const bool here = distance != kDropped && key >> shift == prefix;
        if (!__any_sync(0xffffffffu, here)) continue;
        Add(here, static_cast<uint32_t>(key >> next) & mask, distance);
      }
      Share(/*first=*/false);
      const int own = 2 * static_cast<int>(threadIdx.x);
      const uint32_t count[2] = {s_.total_count[own], s_.total_count[own + 1]};
      const uint64_t weight[2] = {s_.total_weight[own], s_.total_weight[own + 1]};
      uint32_t count_before = 0, count_all = 0;
      uint64_t before = 0, all = 0;
      Scan(count[0] + count[1], weight[0] + weight[1], &count_before, &before, &count_all, &all);
      if (!by_count) target = target < 1 ? 1 : target > all ? all : target;
      found = Locate(by_count, target, count, weight, count_before, before);
      target -= by_count ? found.count_before : found.weight_before;
      weight_before += found.weight_before;
      prefix = prefix << (shift - next) | found.bin;
      shift = next;
    }
    if (shift >= kTokenBits) {
      const int by = shift - kTokenBits;
      Collect([&](uint32_t distance, int) { return distance >> by == static_cast<uint32_t>(prefix); });
    } else {
      Collect([&](uint32_t, int at) { return KeyAt(at) >> shift == prefix; });
    }
    Sort(found.count);
    if (threadIdx.x < 32) Pass(by_count, target, found.count);
    __syncthreads();
    return {s_.found_key, mass_before + Scaled(weight_before + s_.found_weight, bin)};
  }

  // One warp walks through s.sorted until the target is reached.
  __device__ void Pass(bool by_count, uint64_t target, uint32_t count) {
    const uint32_t lane = threadIdx.x;
    uint64_t before = 0;
    for (uint32_t base = 0; base < count; base += 32) {
      const uint32_t at = base + lane;
      const uint64_t key = at < count ? s_.sorted[at] : 0;
      const uint64_t own = at < count ? kOne - Deficit(static_cast<uint32_t>(key >> kTokenBits)) : 0;
      const uint64_t through = before + WarpInclusive(own);
      // The last one stands for a target that rounding put beyond it.
      const bool reached =
          at < count && (at + 1 == count || (by_count ? at + 1 >= target : through >= target));
      const uint32_t lanes = __ballot_sync(0xffffffffu, reached);
      if (lanes != 0) {
        if (lane == static_cast<uint32_t>(__ffs(static_cast<int>(lanes)) - 1))
          s_.found_key = key, s_.found_weight = through;
        return;
      }
      before = __shfl_sync(0xffffffffu, through, 31);
    }
  }

  Memory& s_;
  Keys keys_;  // of `held` tokens
  Cluster<kRanks> cluster_;
  int vocab_, rank_, held_, begin_;
  int loads_ = 0, turn_ = 0;
  uint32_t few_ = 0, few_bins_ = 0;
  uint32_t bin_count_[2], count_before_, kept_;
  uint64_t bin_weight_[2], mass_before_, mass_;
};

}  // namespace celer::cuda::sample
