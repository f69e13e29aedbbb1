// The kernel behind decode_batch_cuda.h, one instance per weight format, shape of heads and N, the number of
// tokens that it has room for: 8 or 16.
//
// Grid: one block per multiprocessor, all resident at once, warp-specialized. Sixteen warps multiply and
// attend; one fills the ring buffer of weights, one fetches activations, one does the epilogue of tiles; of
// 16 tokens it adds up norms, and those that multiply do the epilogue. Tiles, batches of them and the ring
// are those of matvec_cuda.cuh, but 16 tokens take larger batches.
//
// Activations: bf16, 32 columns of N tokens after the other (PairOf), in chunks of 4096 / N columns (8 KB).
// Each chunk has a counter of the tiles (or heads) that went into it; counters are monotonic, the number of
// steps and the layer say what a complete one shows. Before a value of a layer is overwritten, all blocks
// have read that of the layer before: each step from product to product needs all of the last one.
//
// Several tokens may be of one sequence: then those behind see the keys and values of those before them.
//
// A norm: the producer of x writes x times the next norm's weights, and the sums of squares of x by tile; the
// product that reads it divides by the root in its epilogue.
#pragma once

#include "kernels/llm/decode_step/decode_batch_attend.cuh"
#include "kernels/llm/decode_step/decode_batch_finish.cuh"
#include "kernels/llm/decode_step/decode_batch_group.cuh"
#include "kernels/llm/decode_step/decode_batch_product.cuh"
#include "kernels/llm/matmul/cuda/matvec/matvec_cuda.cuh"
#include "kernels/shared/cuda/launch.cuh"

namespace celer::cuda::batch {

// The ring. By one warp: lane 2i + h copies half h of tile i.
template <Format F, int N, class R>
__device__ __forceinline__ void Fill(const BatchParams& b, const Layer& layer, int i, const R& run,
                                     Memory<F, N>& memory, int lane, Filling& filling,
                                     [[maybe_unused]] uint64_t policy) {
  const uint32_t ring = SharedAddress(memory.ring), full = SharedAddress(memory.full),
                 empty = SharedAddress(memory.empty);
  const int row_bytes = b.op[i].row_bytes, groups = F == Format::kInt4 ? b.op[i].padded / 128 : 1;
  constexpr int kGroupBytes = 8 * ScaleBytesOf(F);  // scales of eight rows
  for (int batch = 0; batch < run.batches(); ++batch) {
    const Sharing<N> share(run.Tiles(batch));
    const std::byte *data = nullptr, *scales = nullptr;
    if (lane / 2 < share.tiles) {
      const Where where = Find(b, i, run.Begin(batch) + lane / 2);
      const Matrix matrix = where.matrix[lane % 2];
      const int row = where.row[lane % 2];
      data = layer.data[matrix] + static_cast<int64_t>(row) * row_bytes;
      if (IsInteger(F)) scales = layer.scales[matrix] + static_cast<int64_t>(row / 8) * groups * kGroupBytes;
    }
    const int chunk_bytes = share.chunk_bytes(), chunks = share.chunks(row_bytes);
    const int chunk_groups = F == Format::kInt4 ? share.split * kSpans : 1;
    const int apart = share.tile_bytes() / 2, scales_apart = chunk_groups * kGroupBytes;
#if CELER_HOPPER
    const uint32_t to = lane * apart, scales_to = kStageBytes + lane * scales_apart;
#else
    const Runs<2 * kMostTiles<N>> runs(data, scales, share.tiles, lane);
#endif
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int bytes = 8 * min(chunk_bytes, row_bytes - chunk * chunk_bytes);
      const int scale_bytes = max(0, min(chunk_groups, groups - chunk * chunk_groups)) * kGroupBytes;
      RingPlace& next = filling.next;
      if (filling.under_way == kUnderWay<N>) {
        BarrierWait(full + filling.oldest.stage * 8, filling.oldest.parity);
        filling.oldest.Advance(kStages<N>);
      } else {
        ++filling.under_way;
      }
      const uint32_t bar = full + next.stage * 8, base = ring + next.stage * kFullStage<F, N>;
      BarrierWait(empty + next.stage * 8, next.parity);
#if CELER_HOPPER
      if (lane == 0) BarrierExpect(bar, static_cast<uint32_t>((bytes + scale_bytes) * 2 * share.tiles));
      __syncwarp();
      if (data) {
        BulkCopy(base + to, data + static_cast<int64_t>(chunk) * chunk_bytes * 8, bytes, bar, policy);
        if (scale_bytes > 0)
          BulkCopy(base + scales_to, scales + static_cast<int64_t>(chunk) * chunk_groups * kGroupBytes,
                   scale_bytes, bar, policy);
      }
#else
      runs.Copy(base, apart, static_cast<int64_t>(chunk) * chunk_bytes * 8, bytes, lane);
      if (IsInteger(F))
        runs.CopyScales(base + kStageBytes, scales_apart, static_cast<int64_t>(chunk) * scales_apart,
                        scale_bytes);
      ArriveAfterCopies(bar);
#endif
      next.Advance(kStages<N>);
    }
  }
}

// The prologue of activations, by one warp: a lane to a chunk, or without bulk copies all lanes. `at` counts chunks; they use the slots in
// turn.
template <int N>
__device__ __forceinline__ void Fetch(const BatchParams& b, int i, uint32_t turn, int passes, uint32_t slots,
                                      uint32_t full, uint32_t empty, int lane, int& at) {
  const Op& op = b.op[i];
  for (int pass = 0; pass < passes; ++pass)
    for (int chunk = 0; chunk < op.chunks;) {
      const int mine = chunk + lane;
      const bool here = lane < kSlots && mine < op.chunks &&
                        (pass > 0 || Reached(op.ready + mine, WritersOf<N>(b, i, mine) * turn));
      const int ready = __ffs(static_cast<int>(~__ballot_sync(0xffffffffu, here))) - 1;
#if CELER_HOPPER
      if (pass == 0 && lane < ready) asm volatile("fence.proxy.async;" ::: "memory");
      const auto copy = [&](uint32_t slot) {
        const auto bytes = static_cast<uint32_t>(min(kSlotBytes, op.padded * N * 2 - mine * kSlotBytes));
        BarrierExpect(full + slot * 8, bytes);
        BulkCopyKeep(slots + slot * kSlotBytes, op.x + static_cast<int64_t>(mine) * kSlotBytes, bytes,
                     full + slot * 8);
      };
      if constexpr (N == 8) {
        if (lane < ready) {
          const uint32_t slot = static_cast<uint32_t>(at + lane) % kSlots;
          BarrierWait(empty + slot * 8, (static_cast<uint32_t>(at + lane) / kSlots & 1) ^ 1);
          copy(slot);
        }
      } else {
        // One by one: lanes that wait together go on together, when the last slot is empty.
        for (int n = 0; n < ready; ++n) {
          const uint32_t slot = static_cast<uint32_t>(at + n) % kSlots;
          BarrierWait(empty + slot * 8, (static_cast<uint32_t>(at + n) / kSlots & 1) ^ 1);
          if (lane == n) copy(slot);
        }
      }
#else
      __syncwarp();  // what one lane saw to be ready, all copy
      for (int n = 0; n < ready; ++n) {
        const uint32_t slot = static_cast<uint32_t>(at + n) % kSlots;
        const int from = (chunk + n) * kSlotBytes;
        BarrierWait(empty + slot * 8, (static_cast<uint32_t>(at + n) / kSlots & 1) ^ 1);
        CopyRun(slots + slot * kSlotBytes, op.x + from, min(kSlotBytes, op.padded * N * 2 - from), lane);
        ArriveAfterCopies(full + slot * 8);
      }
#endif
      __syncwarp();
      at += ready, chunk += ready;
    }
}

// What down leaves for qkv, of the embeddings. Grid: hidden / 16; a block has 16 columns of N tokens.
template <Format F, int N>
__global__ void BeginKernel(const __grid_constant__ BatchParams b, const float* norm) {
  const int token = threadIdx.x / 16, col = blockIdx.x * 16 + threadIdx.x % 16;
  const float weight = __ldg(norm + col);
  WaitForPrevious();
  LetNextStart();
  const float v = token < b.batch.count ? __ldcg(b.x + static_cast<int64_t>(token) * b.hidden + col) : 0;
  reinterpret_cast<__nv_bfloat16*>(b.in_rows)[PlaceOf<F, N>(token, col)] = __float2bfloat16(v * weight);
  float squares = v * v;
  for (int apart = 1; apart < 16; apart *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
  if (threadIdx.x % 16 == 0) b.in_squares[blockIdx.x * N + token] = squares;
  __syncthreads();
  if (threadIdx.x < kEights<N>) Signal(b.in_done + col / kChunk<N>);  // as many as finish a tile
}

// What all warps need of the batch: by one warp.
template <Format F, int N>
__device__ __forceinline__ void LoadBatch(const BatchParams& b, Memory<F, N>& memory, int lane) {
  if (lane >= N) return;
  constexpr uint32_t kTokenLanes = (1u << N) - 1;
  const bool here = lane < b.batch.count;
  const int position = here ? __ldcg(b.batch.positions + lane) : 0;
  const int row = here ? __ldcg(b.batch.sequence + lane) : 0;
  const int block =
      __ldcg(b.batch.block_table + static_cast<int64_t>(row) * b.batch.max_blocks + position / kKvBlock);
  // Tokens of one sequence stand behind each other; the first of them says what is old.
  int old = position;
#pragma unroll
  for (int other = 0; other < N; ++other) {
    const int its_row = __shfl_sync(kTokenLanes, row, other);
    const int its_position = __shfl_sync(kTokenLanes, position, other);
    if (here && other < b.batch.count && its_row == row) old = min(old, its_position);
  }
  memory.position[lane] = position;
  memory.old[lane] = old;
  memory.kv_row[lane] =
      (static_cast<int64_t>(block) * b.kv_heads * kKvBlock + position % kKvBlock) * b.head_dim;
}
// The block tables: by the warps that multiply.
template <Format F, int N>
__device__ __forceinline__ void LoadTables(const BatchParams& b, Memory<F, N>& memory, int warp, int lane) {
  const int token = warp % N;
  if (token >= b.batch.count) return;
  const int blocks = __ldcg(b.batch.positions + token) / kKvBlock + 1;
  const int32_t* from =
      b.batch.block_table + static_cast<int64_t>(__ldcg(b.batch.sequence + token)) * b.batch.max_blocks;
  for (int i = warp / N * 32 + lane; i < blocks; i += kWarps / N * 32)
    memory.table[token][i] = __ldcg(from + i);
}

template <Format F, int N>
__device__ __forceinline__ void InitBarriers(Memory<F, N>& memory) {
  const auto init = [](uint64_t& bar, int count) { BarrierInit(SharedAddress(&bar), count); };
  for (int i = 0; i < kStages<N>; ++i) init(memory.full[i], kCopyArrivals), init(memory.empty[i], kWarps);
  for (int i = 0; i < kSlots; ++i) init(memory.x_full[i], kCopyArrivals), init(memory.x_empty[i], kWarps);
  for (int i = 0; i < 2; ++i) init(memory.read[i], 1);
  init(memory.normed, 1);
  FenceBarrierInit();
}

// The products and the attention of eight tokens: a warp of its own finishes batches while the next one is
// multiplied.
template <Format F, int L>
struct EightTokens {
  static constexpr int N = 8;
  const BatchParams& b;
  Memory<F, N>& memory;
  uint32_t first_turn;
  int warp, lane;
  Multiplier state;

  __device__ __forceinline__ void Attend(int layer) {
    // Until the sums of the last two batches have been read.
    const auto await_room = [&] {
      for (int i = max(state.done - 2, 0); i < state.done; ++i)
        BarrierWait(SharedAddress(&memory.read[i & 1]), i / 2 & 1);
    };
    const int grid = static_cast<int>(gridDim.x), half = warp / kAttendWarps, items = b.batch.count * b.heads;
    for (int item = static_cast<int>(blockIdx.x) + half * grid; item < items; item += 2 * grid)
      AttendItem<F, L, N>(b, memory.layers[layer], memory, item / b.heads, item % b.heads,
                          first_turn + static_cast<uint32_t>(layer), half, warp % kAttendWarps, lane,
                          await_room);
    ConsumerBarrier();  // the rooms are free for sums again
  }
  __device__ __forceinline__ void Multiply(int, int i, const Run& run) {
    MultiplyAll<F, N>(b.op[i], run, memory, warp, lane, state, [&](int, const Values<N>& v) {
      const int turn = state.done & 1;
      if (state.done >= 2) BarrierWait(SharedAddress(&memory.read[turn]), (state.done / 2 - 1) & 1);
      StoreSums<N>(memory.sums[turn], warp, lane, v);
      ArrivePair(2 + turn);
    });
  }
};

// Those of sixteen tokens: the warps that multiplied a batch finish it, one tile of eight tokens each. One
// warp alone took 2.2 us for each of those, one after the other, and for the last batch of an operator
// everyone waits.
template <Format F, int L>
struct SixteenTokens {
  static constexpr int N = 16;
  const BatchParams& b;
  Memory<F, N>& memory;
  uint32_t first_turn;
  int warp, lane;
  Multiplier state;
  int normed = 0;  // operators with a norm

  __device__ __forceinline__ void Attend(int layer) {
    // Until the sums of qkv have been read; keys are on their way before.
    bool waited = false;
    const auto await_room = [&] {
      if (!waited) ConsumerBarrier();
      waited = true;
    };
    const Items<N> items(b);
    const int grid = static_cast<int>(gridDim.x), half = warp / items.warps;
    for (int item = static_cast<int>(blockIdx.x) + half * grid; item < items.count;
         item += kWarps / items.warps * grid)
      AttendGroup<F, L, N>(b, memory.layers[layer], memory, items, item,
                           first_turn + static_cast<uint32_t>(layer), half, warp % items.warps, lane,
                           await_room);
    await_room();
    ConsumerBarrier();  // the rooms are free for sums again
  }
  __device__ __forceinline__ void Multiply(int layer, int i, const WideRun& run) {
    MultiplyAll<F, N>(b.op[i], run, memory, warp, lane, state, [&](int batch, const Values<N>& v) {
      FinishMine<F>(b, memory.layers[layer], layer, i, run, batch, first_turn + static_cast<uint32_t>(layer),
                    memory, warp, lane, state.done & 1, normed, v);
    });
    if (i % 2 == 0 && run.batches() > 0) ++normed;
  }
};

template <Format F, int L, int N>
__global__ void __launch_bounds__(kBlockThreads, 1) BatchKernel(const __grid_constant__ BatchParams b) {
  extern __shared__ __align__(128) char raw[];
  auto& memory = *reinterpret_cast<Memory<F, N>*>(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) InitBarriers(memory);
  const int words = b.layer_count * static_cast<int>(sizeof(Layer) / 16);
  for (int i = threadIdx.x; i < words; i += kBlockThreads)
    reinterpret_cast<uint4*>(memory.layers)[i] = __ldg(reinterpret_cast<const uint4*>(b.layers) + i);
  __syncthreads();
  LetNextStart();
  const auto run_of = [&](int layer, int i) {
    return RunOf<N>(b.op[i], (b.op[i].turn + layer * b.turn_step) % static_cast<int>(gridDim.x));
  };
  if (warp == kProducer) {  // needs nothing of what came before
    Filling filling;
    const uint64_t policy = StreamOncePolicy();
    for (int layer = 0; layer < b.layer_count; ++layer)
      for (int i = 0; i < kOps; ++i)
        Fill<F, N>(b, memory.layers[layer], i, run_of(layer, i), memory, lane, filling, policy);
    return;
  }
  WaitForPrevious();
  // Every counter was used once per layer and step.
  const uint32_t first_turn = (__ldcg(b.step) - 1) * static_cast<uint32_t>(b.layer_count) + 1;
  if (warp == kFetcher) {
    int at = 0;
    for (int layer = 0; layer < b.layer_count; ++layer)
      for (int i = 0; i < kOps; ++i) {
        const int batches = run_of(layer, i).batches();
        Fetch<N>(b, i, first_turn + static_cast<uint32_t>(layer),
                 b.op[i].chunks <= kSlots ? min(batches, 1) : batches, SharedAddress(memory.x),
                 SharedAddress(memory.x_full), SharedAddress(memory.x_empty), lane, at);
      }
    return;
  }
  if (warp == kLast) {
    LoadBatch(b, memory, lane);
    __syncwarp();
    ArrivePair(4);
    int done = 0;
    for (int layer = 0; layer < b.layer_count; ++layer)
      for (int i = 0; i < kOps; ++i) {
        const uint32_t turn = first_turn + static_cast<uint32_t>(layer);
        if constexpr (N == 8) {
          FinishAll<F>(b, memory.layers[layer], layer, i, run_of(layer, i), turn, memory, lane, done);
        } else if (i % 2 == 0 && run_of(layer, i).batches() > 0) {
          LoadSquares(b, i, turn, memory, lane);
          if (lane == 0) BarrierArrive(SharedAddress(&memory.normed));
        }
      }
    return;
  }
  LoadTables(b, memory, warp, lane);
  SyncPair(4);
  std::conditional_t<N == 8, EightTokens<F, L>, SixteenTokens<F, L>> work{b, memory, first_turn, warp, lane};
  for (int layer = 0; layer < b.layer_count; ++layer)
    for (int i = 0; i < kOps; ++i) {
      if (i == 1) work.Attend(layer);
      work.Multiply(layer, i, run_of(layer, i));
    }
}

// What comes before the kernel of all layers, and that.
template <Format F, int N>
cudaError_t LaunchBatch(const BatchParams& b, const float* norm, int shared_bytes, cudaStream_t stream) {
  const cudaError_t begun =
      Launch(BeginKernel<F, N>, dim3(static_cast<unsigned>(b.hidden / 16)), dim3(16 * N), 0, stream, b, norm);
  if (begun != cudaSuccess) return begun;
  const dim3 grid(static_cast<unsigned>(Multiprocessors())), block(kBlockThreads);
  return b.head_dim <= 64 ? LaunchLarge<BatchKernel<F, 8, N>>(grid, block, shared_bytes, stream, b)
                          : LaunchLarge<BatchKernel<F, 16, N>>(grid, block, shared_bytes, stream, b);
}

}  // namespace celer::cuda::batch
