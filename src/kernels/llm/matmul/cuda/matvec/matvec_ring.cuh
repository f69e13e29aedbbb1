// The ring buffer of weights in shared memory, and its producer warp.
#pragma once

#include "kernels/llm/matmul/cuda/matvec/matvec_tiles.cuh"

namespace celer::cuda::matvec {

// The position of a role in the ring. The parity is the phase that it waits for: 0 for consumers, 1 for the
// producer.
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  bool there = false;  // what it waits for, as far as it knows

  __device__ __forceinline__ void Advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The producer: what comes next, and the oldest stage that is still in flight.
struct Filling {
  RingPlace next = {0, 1}, oldest;
  int under_way = 0;
};

// What a warp copies into a stage where there are no bulk copies: up to kRuns runs of bytes, one behind the other.
template <int kRuns>
class Runs {
 public:
  // `data` and `scales`: where this lane's run begins, if it has one, and where its scales do.
  __device__ __forceinline__ Runs(const std::byte* data, const std::byte* scales, int tiles, int lane)
      : there_(__ballot_sync(0xffffffffu, data != nullptr)) {
    const auto of_lane = [](const std::byte* p, int of) {
      return reinterpret_cast<const std::byte*>(
          __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(p), of));
    };
#pragma unroll
    for (int i = 0; i < kRuns; ++i) data_[i] = of_lane(data, i);
    const int lanes = tiles == 1 ? 16 : tiles == 2 ? 8 : tiles <= 4 ? 4 : 2;  // to a run's scales
    scale_run_ = lane / lanes, scale_at_ = lane % lanes * 16, scale_step_ = lanes * 16;
    scales_ = of_lane(scales, scale_run_);
  }
  // Of each run `bytes`, a multiple of 16, from `from` on; run i goes to `to + i * apart`. A whole stage is `apart` bytes
  // of each run.
  __device__ __forceinline__ void Copy(uint32_t to, int apart, int64_t from, int bytes, int lane) const {
    if (bytes == apart) {
      if (apart == 2048) return CopyWhole<2048>(to, from, lane);
      if (apart == 4096) return CopyWhole<4096>(to, from, lane);
      if (apart == 8192) return CopyWhole<8192>(to, from, lane);
      if constexpr (kRuns == 16) return CopyWhole<1024>(to, from, lane);
    }
#pragma unroll
    for (int i = 0; i < kRuns; ++i)
      if ((there_ >> i & 1) != 0) CopyRun(to + i * apart, data_[i] + from, bytes, lane);
  }
  // The same of their scales, multiples of 16 bytes.
  __device__ __forceinline__ void CopyScales(uint32_t to, int apart, int64_t from, int bytes) const {
    if ((there_ >> scale_run_ & 1) == 0) return;
    for (int at = scale_at_; at < bytes; at += scale_step_)
      CopyAsync16(to + scale_run_ * apart + at, scales_ + from + at);
  }

 private:
  // Addresses that differ by constants: with loops over them one warp takes 1 us for a stage, longer than the memory.
  template <int kBytes>
  __device__ __forceinline__ void CopyWhole(uint32_t to, int64_t from, int lane) const {
    from += lane * 16, to += lane * 16;
#pragma unroll
    for (int i = 0; i < StageBytesOf(/*hopper=*/false) / kBytes; ++i) {
      if ((there_ >> i & 1) == 0) continue;
      const std::byte* run = data_[i] + from;
#pragma unroll
      for (int at = 0; at < kBytes; at += 512) CopyAsync16(to + i * kBytes + at, run + at);
    }
  }

  uint32_t there_;  // the runs that exist
  const std::byte* data_[kRuns];
  const std::byte* scales_;
  int scale_run_, scale_at_, scale_step_;
};

// By one warp: lane 2i + h copies half h of tile i, without bulk copies all lanes do.
template <Format F, class P>
__device__ __forceinline__ void Produce(const P& p, uint32_t shared, int lane, Filling& filling) {
  [[maybe_unused]] const uint64_t policy = StreamOncePolicy();
  const bool grouped = HasScales(F) && p.a.a.group > 0;
  // One group to a row is what a scale per output channel comes to; it travels with the first chunk.
  const int row_bytes = static_cast<int>(p.a.a.row_bytes),
            groups = grouped ? p.a.a.padded >> p.group_shift : 1;
  const int stages = p.stages, stage_bytes = p.stage_bytes, in_flight = p.in_flight;
  const uint32_t barriers = shared + p.barrier_offset;
  const auto run = TilesOf(p);
  for (int batch = 0; batch < run.batches(); ++batch) {
    const Share share(run.Tiles(batch));
    const int first = run.Begin(batch);
    const int tile = lane / 2, half = lane % 2;
    const std::byte *data = nullptr, *scales = nullptr;
    if (tile < share.tiles) {
      const Half h = Locate(p, first + tile).half[half];
      if (h.valid > 0) {
        const DeviceMatrix& m = *h.matrix;
        data = m.data + h.row * m.row_bytes;
        if (HasScales(F))
          scales = m.scales + static_cast<int64_t>(h.row / 8) * groups * (8 * ScaleBytesOf(F));
      }
    }
    [[maybe_unused]] const int halves = __popc(__ballot_sync(0xffffffffu, data != nullptr));
    const int chunk_bytes = share.chunk_bytes(), chunks = share.chunks(row_bytes);
    const int chunk_groups = grouped ? chunk_bytes * 8 / BitsOf(F) >> p.group_shift : 1;
    const int apart = share.tile_bytes() / 2, scales_apart = chunk_groups * (8 * ScaleBytesOf(F));
#if CELER_HOPPER
    const uint32_t to = lane * apart, scales_to = kStageBytes + lane * scales_apart;
#else
    const Runs<2 * kBatch> runs(data, scales, share.tiles, lane);
#endif
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int bytes = 8 * min(chunk_bytes, row_bytes - chunk * chunk_bytes);
      const int scale_bytes =
          HasScales(F) ? max(0, min(chunk_groups, groups - chunk * chunk_groups)) * 8 * ScaleBytesOf(F) : 0;
      RingPlace& ring = filling.next;
      const uint32_t full = barriers + ring.stage * 16, base = shared + ring.stage * stage_bytes;
      if (filling.under_way == in_flight) {
        BarrierWait(barriers + filling.oldest.stage * 16, filling.oldest.parity);
        filling.oldest.Advance(stages);
      } else {
        ++filling.under_way;
      }
      BarrierWait(full + 8, ring.parity);
#if CELER_HOPPER
      if (lane == 0) BarrierExpect(full, static_cast<uint32_t>((bytes + scale_bytes) * halves));
      __syncwarp();
      if (data) {
        BulkCopy(base + to, data + static_cast<int64_t>(chunk) * chunk_bytes * 8, bytes, full, policy);
        if (scale_bytes > 0)
          BulkCopy(base + scales_to,
                   scales + static_cast<int64_t>(chunk) * chunk_groups * 8 * ScaleBytesOf(F), scale_bytes,
                   full, policy);
      }
#else
      runs.Copy(base, apart, static_cast<int64_t>(chunk) * chunk_bytes * 8, bytes, lane);
      if (HasScales(F))
        runs.CopyScales(base + kStageBytes, scales_apart, static_cast<int64_t>(chunk) * scales_apart,
                        scale_bytes);
      ArriveAfterCopies(full);
#endif
      ring.Advance(stages);
    }
  }
}

// mbarriers, a pair for each stage, full and empty; behind all that can be, one for each buffer of sums:
// read.
__device__ __forceinline__ void InitBarriers(int stages, uint32_t barriers) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) BarrierInit(barriers + kMaxStages * 16 + i * 8, 1);
    for (int i = 0; i < stages; ++i) {
      BarrierInit(barriers + i * 16, kCopyArrivals);
      BarrierInit(barriers + i * 16 + 8, kWarps);
    }
    FenceBarrierInit();
  }
  __syncthreads();
}

}  // namespace celer::cuda::matvec
