// The kernel behind decode_step_cuda.h, one instance per weight format and shape of heads. F is the layers'
// format, H the head's.
//
// Grid: persistent, one block per multiprocessor, all resident at once, warp-specialized. The roles are those
// of matvec_cuda.cuh: a producer warp that fills the ring buffer, sixteen that multiply, one that does the
// epilogue of tiles. Instead of grid barriers, every operator's output lies in memory whose values carry the
// tag of their round (handover.cuh); a block that needs them polls. Two regions of such memory serve the
// layers in turn (double buffering), so both stay in L2. The embedding is handed over like that, too; the
// head is one more operator behind the last layer.
//
// Attention: a block takes one head (or a split of its keys) with all its warps. Keys and values of earlier
// tokens are prefetched before the query is there. The token's own value comes last of all and is added last.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/llm/decode_step/decode_step_choice.cuh"
#include "kernels/llm/decode_step/decode_step_cuda.h"
#include "kernels/llm/decode_step/key_sums.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/shared/cuda/element.cuh"

namespace celer::cuda::step {

using matvec::Params;

constexpr int kParts = 4;        // of a layer: qkv, o, gate and up, down; attention stands before the second
constexpr int kSlots = 8;        // Params in shared memory for the warps that multiply
constexpr int kAhead = 3;        // operators whose Params are there or on their way
constexpr int kSplitKeys = 256;  // of a sequence that a block takes at least
constexpr int kPartialSets = 4;  // for partial attention, by layer

struct LayerKv {
  std::byte *k, *v;
  int window;
};

struct StepParams {
  // [2, layers x kParts and the head]: the first layer in region 0, or in region 1
  const Params* parts;
  const LayerKv* kv;  // [layers]
  float* x;           // [tokens, hidden], the first layer's input
  float* values;      // [2 regions, tokens, token_floats]: q, k, v, then the other outputs of a layer
  float4* partial;    // [kPartialSets, tokens, heads, splits, head_dim]: {o, m, l, 0}
  uint32_t* steps;    // [blocks], each its own: of this number of tokens, this one included
  uint64_t* best;     // [tokens, blocks], of each block's logits
  DeviceBatch batch;
  DeviceMatrix embedding;
  GreedyTarget choice;
  bool head;  // is part of this
  int token_floats, attention_offset;
  int layers;
  int heads, kv_heads, head_dim, padded_dim;
  float scale;
  int splits;  // of a sequence's keys at most
  int stages, barrier_offset, room_offset, slot_offset, seen_offset, place_offset;
};

// ---- parameters of the operators, on their way from global to shared memory

struct Fetched {
  static constexpr int kVectors = (sizeof(Params) / 16 + 31) / 32;
  uint4 vector[kVectors];

  __device__ __forceinline__ void Load(const Params* from, int lane) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (lane + i * 32 < static_cast<int>(sizeof(Params) / 16))
        vector[i] = __ldg(reinterpret_cast<const uint4*>(from) + lane + i * 32);
  }
  __device__ __forceinline__ void Store(char* to, int lane) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i)
      if (lane + i * 32 < static_cast<int>(sizeof(Params) / 16))
        reinterpret_cast<uint4*>(to)[lane + i * 32] = vector[i];
  }
};
static_assert(sizeof(Params) % 16 == 0);

__device__ __forceinline__ void CopyParams(uint32_t to, const Params* from, int lane) {
  for (int i = lane; i < static_cast<int>(sizeof(Params) / 16); i += 32)
    matvec::CopyAsync16(to + i * 16, reinterpret_cast<const uint4*>(from) + i);
}

// Prefetches what the next step reads first into L2: it has been evicted since this one began. `table` is the
// next step's. By one warp of a block, each its own part.
__device__ __forceinline__ void PrefetchStart(const StepParams& s, const Params* table, const int* seen,
                                              int lane) {
  const auto lines = [&](const void* from, int bytes) {
    for (int at = lane * 128; at < bytes + 127; at += 32 * 128)
      matvec::PrefetchLine(static_cast<const char*>(from) + min(at, bytes - 1));
  };
  const MatvecArgs& a = table->a;
  switch (const int part = static_cast<int>(blockIdx.x) - 1; part) {
    case 0:
    case 1:
    case 2:
    case 3:
      lines(table + part, sizeof(Params));
      return lines(s.parts + part, sizeof(Params));
    case 4:
      return lines(s.kv, s.layers * static_cast<int>(sizeof(LayerKv)));
    case 5:
      return lines(a.norm, a.a.cols * 4);
    case 6:
      for (int t = 0; t < s.batch.count; ++t) {
        const int position = min(seen[2 * t] + 1, s.batch.max_blocks * kKvBlock - 1);
        const int64_t at = static_cast<int64_t>(position) * (a.rope_dim / 2);
        lines(a.rope_cos + at, a.rope_dim * 2);
        lines(a.rope_sin + at, a.rope_dim * 2);
      }
      return;
    case 7:
      for (int t = 0; t < s.batch.count; ++t)
        lines(s.batch.block_table + static_cast<int64_t>(seen[2 * t + 1]) * s.batch.max_blocks,
              (seen[2 * t] / kKvBlock + 1) * 4);
      return lines(s.batch.sequence, s.batch.count * 4);
    default:
      return;
  }
}

// ---- attention

// As the KV cache rounds.
template <class T>
__device__ __forceinline__ float Rounded(float v) {
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(__float2half_rn(v));
  else
    return __bfloat162float(__float2bfloat16(v));
}
// The keys of one part of a sequence.
struct Keys {
  int begin, end, active;  // active: parts of this sequence

  __device__ __forceinline__ Keys(int position, int window, int splits, int split) {
    const int first = window > 0 ? max(0, position - window + 1) : 0, count = position + 1 - first;
    const int each = max(kSplitKeys, ((count + splits - 1) / splits + 15) / 16 * 16);
    active = (count + each - 1) / each;
    begin = first + split * each;
    end = min(begin + each, position + 1);
  }
};

// What the warps of a block leave for each other.
template <int L>
struct Room {
  float m[matvec::kWarps], l[matvec::kWarps], own;  // own: the score of the token itself
  float o[matvec::kWarps][L * 8];
};

struct Head {
  int token, head, kv_head, position;
  const int32_t* table;  // of the sequence's blocks
};

__device__ __forceinline__ int64_t KvAt(const StepParams& s, const Head& h, int key) {
  const int64_t block = __ldcg(h.table + key / kKvBlock);
  return ((block * s.kv_heads + h.kv_head) * kKvBlock + key % kKvBlock) * s.padded_dim;
}

// Keys and values of earlier tokens, from the memory into L2; by one warp.
__device__ __forceinline__ void PrefetchKv(const StepParams& s, const LayerKv& kv, const Head& h,
                                           const Keys& keys, int lane) {
  const int bytes = kKvBlock * s.padded_dim * 2;
  for (int key = keys.begin / kKvBlock * kKvBlock + lane * kKvBlock; key < min(keys.end, h.position);
       key += 32 * kKvBlock) {
    const int64_t at = KvAt(s, h, key) * 2;
    matvec::PrefetchBulk(kv.k + at, bytes);
    matvec::PrefetchBulk(kv.v + at, bytes);
  }
}

// Of one dimension: the block with the first split of a sequence's keys adds the other splits' results to its
// own, in their order, and resets their slots for the next use.
__device__ __forceinline__ void JoinParts(float4* partial, int active, int head_dim, int at, float& top,
                                          float& total, float& sum) {
  using namespace matvec;
  constexpr int kAtOnce = 4;
  for (int n = 1; n < active; n += kAtOnce) {
    float4 part[kAtOnce];
    bool missing;
    do {
      missing = false;
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (n + j < active)
          part[j] = LoadRelaxed(reinterpret_cast<float*>(partial + ((n + j) * head_dim + at)));
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j)
        if (n + j < active)
          missing = missing || Unwritten(part[j].x) || Unwritten(part[j].y) || Unwritten(part[j].z);
    } while (missing);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (n + j >= active) continue;
      const float most = fmaxf(top, part[j].y), a = Exp2(top - most), b = Exp2(part[j].y - most);
      top = most;
      sum = sum * a + part[j].x * b;
      total = total * a + part[j].z * b;
      const float none = __uint_as_float(kUnwritten);
      __stcg(partial + ((n + j) * head_dim + at), make_float4(none, none, none, none));
    }
  }
}

// L lanes hold one key, 8 dimensions each. A warp takes 32 / L * kKeyLoads keys at once, the warps of a block
// take turns. `values`: the token's q, k and v, with this tag; `partial`: [splits, head_dim].
template <class T, int L>
__device__ __forceinline__ void Attend(const StepParams& s, const LayerKv& kv, const Head& h,
                                       const Keys& keys, int split, const float* values, int tag,
                                       float4* partial, float* out, Room<L>& room, int warp, int lane) {
  using namespace matvec;
  constexpr int kKeys = 32 / L, kStep = kKeys * kKeyLoads;
  const int sub = lane / L, dim = lane % L * 8, head_dim = s.head_dim;
  const bool inside = dim < head_dim;
  const int past = min(keys.end, h.position);  // keys of earlier tokens end here
  const bool own = h.position < keys.end;

  uint4 k[kKeyLoads], v[kKeyLoads];
  const auto load = [&](int base) {
#pragma unroll
    for (int j = 0; j < kKeyLoads; ++j) {
      const int key = base + j * kKeys + sub;
      k[j] = v[j] = make_uint4(0, 0, 0, 0);
      if (key < past && inside) {
        const int64_t at = (KvAt(s, h, key) + dim) * 2;
        k[j] = LoadKv(kv.k + at);
        v[j] = LoadKv(kv.v + at);
      }
    }
  };
  const int first = keys.begin + warp * kStep;
  load(first);

  const auto await = [&](const float* from, float(&to)[8]) {
    float4 a = {}, b = {};
    if (inside) {
      do a = LoadRelaxed(from), b = LoadRelaxed(from + 4);
      while (Missing(a, tag) || Missing(b, tag));
      a = Untagged(a), b = Untagged(b);
    }
    __syncwarp();
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  };
  float q[8];
  await(values + h.head * head_dim + dim, q);
  const float scale = s.scale * 1.4426950408889634f;
#pragma unroll
  for (int e = 0; e < 8; ++e) q[e] *= scale;

  KeySums sums;
  for (int base = first; base < past; base += kWarps * kStep) {
    if (base != first) load(base);
    float score[kKeyLoads];
    ScoreKeys<T>(q, k, score);
    JoinScores<L>(score);
    WeighValues<T, L>(score, base + sub, past, v, sums);
  }
  JoinLanes<L>(sums);
  // Across the warps. The room is that of the activations, which other warps may still be multiplying with.
  ConsumerBarrier();
  if (sub == 0) {
    if (lane == 0) room.m[warp] = sums.m, room.l[warp] = sums.l;
#pragma unroll
    for (int e = 0; e < 8; ++e) room.o[warp][dim + e] = sums.o[e];
  }
  if (warp == kWarps - 1 && own) {  // which has the fewest keys
    float f[8], dot = 0;
    await(values + (s.heads + h.kv_head) * head_dim + dim, f);
#pragma unroll
    for (int e = 0; e < 8; ++e) dot += q[e] * Rounded<T>(f[e]);
#pragma unroll
    for (int apart = 1; apart < L; apart *= 2) dot += __shfl_xor_sync(0xffffffffu, dot, apart);
    if (lane == 0) room.own = dot;
  }
  ConsumerBarrier();
  const int at = static_cast<int>(threadIdx.x);
  if (at < head_dim) {
    const float* own_v = values + (s.heads + s.kv_heads + h.kv_head) * head_dim + at;
    float mine = own ? LoadRelaxed1(own_v) : 0;
    float top = own ? room.own : -INFINITY, total = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, room.m[w]);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float f = Exp2(room.m[w] - top);
      total += room.l[w] * f;
      sum += room.o[w][at] * f;
    }
    if (own) {
      const float f = Exp2(room.own - top);
      while (Missing(mine, tag)) mine = LoadRelaxed1(own_v);
      total += f;
      sum += Rounded<T>(Untagged(mine)) * f;
    }
    if (split > 0) {
      float* to = reinterpret_cast<float*>(partial + (split * head_dim + at));
      Publish(to, sum);
      Publish(to + 1, top);
      Publish(to + 2, total);
    } else {
      JoinParts(partial, keys.active, head_dim, at, top, total, sum);
      Publish(out + h.head * head_dim + at, Tagged(__fdividef(sum, total), tag));
    }
  }
  ConsumerBarrier();
}

// ---- the kernel, and what its roles share

// All layers of all steps with this number of tokens take turns in the two regions, and in the two tags.
struct Turns {
  uint32_t step, first;  // first: of the first layer

  __device__ __forceinline__ Turns(const StepParams& s)
      : step(__ldcg(s.steps + blockIdx.x)), first(step * static_cast<uint32_t>(s.layers)) {}
  __device__ __forceinline__ int Tag(int layer) const { return static_cast<int>((first + layer) >> 1 & 1); }
  __device__ __forceinline__ int InputTag(int layer) const {
    return layer == 0 ? static_cast<int>(step & 1) : Tag(layer - 1);
  }
};

// What attention needs to know of the sequences, for all layers; in shared memory.
struct Sequences {
  const StepParams& s;
  int* seen;         // [kMaxStepTokens]: position, row of the table
  LayerKv* kvs;      // [layers]
  int items, group;  // heads of all tokens, in parts; query heads to a kv head

  __device__ __forceinline__ Sequences(const StepParams& params, char* memory)
      : s(params),
        seen(reinterpret_cast<int*>(memory + params.seen_offset)),
        kvs(reinterpret_cast<LayerKv*>(seen + 2 * kMaxStepTokens)),
        items(params.batch.count * params.heads * params.splits),
        group(params.heads / params.kv_heads) {}
  __device__ __forceinline__ Head HeadOf(int item) const {
    Head h;
    h.head = item % s.heads, h.kv_head = h.head / group;
    h.token = item / (s.heads * s.splits);
    h.position = seen[2 * h.token];
    h.table = s.batch.block_table + static_cast<int64_t>(seen[2 * h.token + 1]) * s.batch.max_blocks;
    return h;
  }
};

// A load that misses L2 waits in line with the weights, and all warps of the block with it: what is read once
// per step is prefetched one or two layers ahead, by one block for all.
__device__ __forceinline__ void PrefetchOperator(const StepParams& s, const Params* table, int i, int all,
                                                 const Params& p, int lane) {
  using namespace matvec;
  if (static_cast<int>(blockIdx.x) != i % static_cast<int>(gridDim.x)) return;
  constexpr int kLines = sizeof(Params) / 128 + 2;
  if (i + 8 < all && lane < kLines) {
    PrefetchLine(reinterpret_cast<const char*>(table + i + 8) + lane * 128);
    PrefetchLine(reinterpret_cast<const char*>(s.parts + i + 8) + lane * 128);
  }
  const float* later = i % 2 == 0 && i + 4 < all ? table[i + 4].a.norm : nullptr;
  for (int at = lane * 32; later && at < p.a.a.cols; at += 1024) PrefetchLine(later + at);
}

// The end of a step with a head, by the finishing warp: the block's best tokens, and in one block the choice.
__device__ __forceinline__ void Choose(const StepParams& s, const Turns& turns, const int* seen, int parts,
                                       const Best<kMaxStepTokens>& best, int lane) {
  using namespace matvec;
  const int tokens = s.batch.count;
#pragma unroll
  for (int t = 0; t < kMaxStepTokens; ++t) {
    if (t >= tokens) break;
    const uint64_t mine = WarpBest(best.key[t]);
    if (lane == 0) PublishKey(s.best + t * gridDim.x + blockIdx.x, mine, turns.step & 1);
  }
  PrefetchStart(s, s.parts + ((turns.first + s.layers) & 1) * (parts + 1), seen, lane);
  if (blockIdx.x != 0 || !s.choice.tokens) return;
  for (int t = 0; t < tokens; ++t) {
    const uint64_t winner =
        AwaitBest(s.best + t * gridDim.x, static_cast<int>(gridDim.x), turns.step & 1, lane);
    if (lane == 0) TakeGreedy(s.choice, t, seen[2 * t], winner);
    // The next step begins with this row.
    const DeviceMatrix& m = s.embedding;
    const int row = max(GreedyToken(winner), 0);
    for (int at = lane * 64; at < m.row_bytes; at += 2048) PrefetchLine(m.data + m.Offset(row, at));
  }
}

// One long function: with the roles as functions of their own the int4 kernel spills more.
template <Format F, int S, Format H, int HS, class T, int L>
__global__ void __launch_bounds__(matvec::kThreads, 1) StepKernel(const __grid_constant__ StepParams s) {
  using namespace matvec;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = SharedAddress(memory);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  constexpr bool kSameFormat = F == H && S == HS;
  const int parts = s.layers * kParts, all = parts + (s.head ? 1 : 0);
  InitBarriers(s.stages, shared + s.barrier_offset);
  LetNextStart();
  int parity = 0, done = 0;
  char* slots = memory + s.slot_offset;  // the filling warp's, the finishing warp's, then kSlots
  const auto slot = [&](int i) { return slots + i * static_cast<int>(sizeof(Params)); };

  if (warp == kProducer) {  // needs nothing of the step before
    Filling filling;
    Fetched next;
    next.Load(s.parts, lane);
    for (int i = 0; i < all; ++i) {
      next.Store(slot(0), lane);
      __syncwarp();
      if (i + 1 < all) next.Load(s.parts + i + 1, lane);
      const Params& p = *reinterpret_cast<const Params*>(slot(0));
      if (kSameFormat || i < parts)
        Produce<F>(p, shared, lane, filling);
      else
        Produce<H>(p, shared, lane, filling);
      __syncwarp();
    }
    return;
  }
  WaitForPrevious();
  const Turns turns(s);
  const Params* table = s.parts + (turns.first & 1) * (parts + 1);
  const int tokens = s.batch.count;
  const Sequences sequences(s, memory);
  int* const seen = sequences.seen;
  LayerKv* const kvs = sequences.kvs;
  const int items = sequences.items;
  if (warp == kFinisher) {
    if (lane < tokens) {
      seen[2 * lane] = __ldcg(s.batch.positions + lane);
      seen[2 * lane + 1] = __ldcg(s.batch.sequence + lane);
    }
    for (int i = lane; i < s.layers; i += 32) kvs[i] = s.kv[i];
    __syncwarp();
    asm volatile("bar.arrive 6, 544;" ::: "memory");
    const auto prefetch_kv = [&](int layer) {
      for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const Head h = sequences.HeadOf(item);
        const Keys keys(h.position, kvs[layer].window, s.splits, item / s.heads % s.splits);
        if (item / s.heads % s.splits < keys.active) PrefetchKv(s, kvs[layer], h, keys, lane);
      }
    };
    prefetch_kv(0);
    Fetched next;
    next.Load(table, lane);
    auto* places = reinterpret_cast<TokenPlace*>(memory + s.place_offset);
    const auto begin = [&](int i) -> const Params& {
      next.Store(slot(1), lane);
      __syncwarp();
      if (i + 1 < all) next.Load(table + i + 1, lane);
      return *reinterpret_cast<const Params*>(slot(1));
    };
    for (int i = 0; i < parts; ++i) {
      const Params& p = begin(i);
      if (i == 0 && lane < p.a.tokens) places[lane] = PlaceOf(p.a, lane);
      __syncwarp();
      PrefetchOperator(s, table, i, all, p, lane);
      if (i % kParts == 2 && i / kParts + 1 < s.layers) prefetch_kv(i / kParts + 1);
      const int layer = i / kParts;
      FinishTiles<1>(p, memory, lane, places, parity,
                     {i % kParts == 1 ? turns.InputTag(layer) : turns.Tag(layer), turns.Tag(layer)});
      __syncwarp();
    }
    Best<kMaxStepTokens> best;
    if (s.head)
      FinishTiles<1>(begin(parts), memory, lane, places, parity, {},
                     [&](int token, int row, float logit) { best.Add(token, row, logit); });
    // The other warps have read what belongs to the batch and to this step; from here on it may change.
    asm volatile("bar.sync 7, 544;" ::: "memory");
    if (lane == 0) s.steps[blockIdx.x] = turns.step + 1;
    if (s.head) Choose(s, turns, seen, parts, best, lane);
    return;
  }

  const uint32_t slots_at = shared + s.slot_offset;
  const auto copy_params = [&](int part) {
    CopyParams(slots_at + (2 + part % kSlots) * static_cast<int>(sizeof(Params)), table + part, lane);
  };
  if (warp < kAhead) copy_params(warp);
  EndCopies();
  {
    const int cols = s.embedding.cols, grid = static_cast<int>(gridDim.x);
    for (int at = (warp * grid + static_cast<int>(blockIdx.x)) * 32 + lane; at < tokens * cols;
         at += kConsumers * grid) {
      const int token = at / cols;
      const float value = Element(s.embedding, __ldcg(s.batch.tokens + token), at - token * cols);
      Publish(s.x + at, Tagged(value, turns.InputTag(0)));
    }
  }
  AwaitCopies<0>();
  asm volatile("bar.sync 6, 544;" ::: "memory");
  asm volatile("bar.arrive 7, 544;" ::: "memory");
  auto& room = *reinterpret_cast<Room<L>*>(memory + s.room_offset);
  RingPlace ring;
  const auto product = [&]<Format W, int WS>(int i) {
    const Params& p = *reinterpret_cast<const Params*>(slot(2 + i % kSlots));
    const auto copy_ahead = [&] {
      if (warp == 0 && i + kAhead < all) copy_params(i + kAhead);
      EndCopies();
    };
    if (TilesOf(p).batches() > 0) {
      const int layer = i / kParts;
      Feed<W, WS> feed(p, memory, warp, lane, i % kParts == 0 ? turns.InputTag(layer) : turns.Tag(layer));
      feed.Start([] {});
      copy_ahead();
      MultiplyTiles<W, 1, WS>(p, memory, shared, warp, lane, feed, ring, parity, done,
                              [] { AwaitCopies<1>(); });
    } else {
      copy_ahead();
      AwaitCopies<1>();
      ConsumerBarrier();
    }
  };
  for (int i = 0; i < (kSameFormat ? all : parts); ++i) {
    if (i % kParts == 1) {
      const int layer = i / kParts;
      float* values = s.values + ((turns.first + layer) & 1) * static_cast<int64_t>(tokens) * s.token_floats;
      for (int item = blockIdx.x; item < items; item += gridDim.x) {
        const Head h = sequences.HeadOf(item);
        const int split = item / s.heads % s.splits;
        const Keys keys(h.position, kvs[layer].window, s.splits, split);
        if (split >= keys.active) continue;
        float* mine = values + static_cast<int64_t>(h.token) * s.token_floats;
        float4* partial =
            s.partial + static_cast<int64_t>((layer % kPartialSets * tokens + h.token) * s.heads + h.head) *
                            s.splits * s.head_dim;
        Attend<T, L>(s, kvs[layer], h, keys, split, mine, turns.Tag(layer), partial,
                     mine + s.attention_offset, room, warp, lane);
      }
    }
    product.template operator()<F, S>(i);
  }
  if constexpr (!kSameFormat)
    if (s.head) product.template operator()<H, HS>(parts);
}

// The head's format for layers of a format; with scales, those of both are for 128 columns or a whole row.
constexpr Format HeadFormat(Format layers) {
  return matvec::IsInteger(layers) ? Format::kInt8 : layers;
}
template <Format F>
constexpr int kGroupShift = matvec::IsInteger(F) ? 7 : 0;

template <Format F>
cudaError_t LaunchStep(const StepParams& s, int shared_bytes, cudaStream_t stream) {
  constexpr Format kHead = HeadFormat(F);
  constexpr int kShift = kGroupShift<F>, kHeadShift = kGroupShift<kHead>;
  const dim3 grid(static_cast<unsigned>(Multiprocessors())), block(matvec::kThreads);
  if (s.padded_dim <= 64)
    return LaunchLarge<StepKernel<F, kShift, kHead, kHeadShift, __half, 8>>(grid, block, shared_bytes, stream,
                                                                            s);
  return LaunchLarge<StepKernel<F, kShift, kHead, kHeadShift, __half, 16>>(grid, block, shared_bytes, stream,
                                                                           s);
}
// LaunchStep(), compiled in one file per format with HasDecodeStep(): decode_step_format_cuda.cu.in.
template <Format F>
cudaError_t LaunchFormat(const StepParams& s, int shared_bytes, cudaStream_t stream);

}  // namespace celer::cuda::step
