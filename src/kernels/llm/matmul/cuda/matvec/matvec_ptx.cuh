// PTX instructions without a C++ intrinsic.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/shared/cuda/target.cuh"

namespace celer::cuda::matvec {

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void BarrierInit(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count));
}
// What was initialized is seen by copies, too; in front of the block's barrier.
__device__ __forceinline__ void FenceBarrierInit() {
#if CELER_HOPPER
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
#if CELER_HOPPER
__device__ __forceinline__ void BarrierExpect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
#endif
__device__ __forceinline__ void BarrierArrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void BarrierWait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred ready;\n"
      "again:\n"
#if CELER_HOPPER
      "mbarrier.try_wait.parity.shared.b64 ready, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 ready, [%0], %1;\n"
#endif
      "@ready bra done;\n"
      "bra again;\n"
      "done:\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ bool BarrierPassed(uint32_t bar, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n.reg .pred ready;\n"
      "mbarrier.test_wait.parity.shared.b64 ready, [%1], %2;\n"
      "selp.u32 %0, 1, 0, ready;\n}"
      : "=r"(passed)
      : "r"(bar), "r"(parity)
      : "memory");
  return passed != 0;
}
// evict_first: weights are read once per step, and must not push activations and the KV out of L2.
__device__ __forceinline__ uint64_t StreamOncePolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
#if CELER_HOPPER
__device__ __forceinline__ void BulkCopy(uint32_t to, const void* from, uint32_t bytes, uint32_t bar,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(policy)
      : "memory");
}
// Of what others will read, too.
__device__ __forceinline__ void BulkCopyKeep(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar)
      : "memory");
}
#endif
__device__ __forceinline__ uint4 Load16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from));
  return v;
}
// Zeros if there is no such place.
__device__ __forceinline__ uint4 Load16If(uint32_t base, uint32_t offset) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (base) v = Load16(base + offset);
  return v;
}
__device__ __forceinline__ void PrefetchLine(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}
__device__ __forceinline__ void PrefetchBulk(const void* at, uint32_t bytes) {
#if CELER_HOPPER
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes));
#else
  for (uint32_t line = 0; line < bytes; line += 128) PrefetchLine(static_cast<const char*>(at) + line);
#endif
}
// 16 bytes into shared memory, past the registers.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// Arrives when all copies that this lane began before are complete.
__device__ __forceinline__ void ArriveAfterCopies(uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
}
// How often the barrier of a stage is arrived at by a warp that fills it: bulk copies count their bytes, of other
// copies each lane says when its own are complete.
constexpr int kCopyArrivals = kHopper ? 1 : 32;
// By a warp, without bulk copies: `bytes`, a multiple of 16. Without a policy of L2: with one, ptxas 13.0 makes copies
// that a GPU refuses as illegal instructions where the offset is the same in all lanes. Four copies have one address, so
// that they need not wait for each other's.
__device__ __forceinline__ void CopyRun(uint32_t to, const void* from, int bytes, int lane) {
  const char* at = static_cast<const char*>(from) + lane * 16;
  to += lane * 16;
#pragma unroll 1
  for (; bytes >= 2048; bytes -= 2048, to += 2048, at += 2048)
#pragma unroll
    for (int i = 0; i < 2048; i += 512) CopyAsync16(to + i, at + i);
#pragma unroll 1
  for (int i = 0; i < bytes - lane * 16; i += 512) CopyAsync16(to + i, at + i);
}
__device__ __forceinline__ void EndCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// All but those of the last `Pending` groups.
template <int Pending>
__device__ __forceinline__ void AwaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
// Named barriers: 1 among the consumer warps; 2 and 3 say that the sums of a batch are written (they are
// double buffered), 4 that the sums of squares are.
__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, 512;" ::: "memory");
}
__device__ __forceinline__ void SyncPair(int id) {
  asm volatile("bar.sync %0, 544;" ::"r"(id) : "memory");
}
__device__ __forceinline__ void ArrivePair(int id) {
  asm volatile("bar.arrive %0, 544;" ::"r"(id) : "memory");
}
__device__ __forceinline__ void MmaBf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The first factor without a sign.
__device__ __forceinline__ void MmaUint8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void MmaInt8(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                        uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const uint32_t&>(pair);
}
__device__ __forceinline__ float2 UnpackBf16(uint32_t pair) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

}  // namespace celer::cuda::matvec
