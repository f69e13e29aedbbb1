// wgmma: four warps (a warpgroup) multiply 64 rows that they hold in registers with columns in shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace celer::cuda::gemm {

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all but the newest `N` groups are done.
template <int N>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Descriptors of operands in shared memory. kCores: no swizzle, core matrices of 8 rows x 16 bytes, each 128
// bytes in one run. kSwizzled: 128-byte swizzle, rows of 128 bytes, of which row r has its 16-byte vectors in
// the order p ^ (r % 8); the matrix begins at a multiple of 1024. `near` and `far` are the bytes to the next
// 8 along k (or, transposed, to the next 64 columns) and to the next 8 columns (transposed: the next 8 of k).
enum class WgmmaLayout : uint64_t { kCores = 0, kSwizzled = 1 };
__device__ __forceinline__ uint64_t WgmmaColumns(uint32_t shared, int near, int far,
                                                 WgmmaLayout layout = WgmmaLayout::kCores) {
  return static_cast<uint64_t>(shared >> 4 & 0x3fff) | static_cast<uint64_t>(near >> 4) << 16 |
         static_cast<uint64_t>(far >> 4) << 32 | static_cast<uint64_t>(layout) << 62;
}

// The same, `sixteens` of bytes further on. Nothing is carried beyond the address.
__device__ __forceinline__ uint64_t WgmmaMoved(uint64_t columns, int sixteens) {
  return (columns & 0xffffffff00000000u) | (static_cast<uint32_t>(columns) + static_cast<uint32_t>(sixteens));
}

#define CELER_D8(i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define CELER_D16(i) CELER_D8(i), CELER_D8(i + 8)
#define CELER_D32(i) CELER_D16(i), CELER_D16(i + 16)
#define CELER_D64(i) CELER_D32(i), CELER_D32(i + 32)
#define CELER_D128(i) CELER_D64(i), CELER_D64(i + 64)
#define CELER_NAMES8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define CELER_NAMES16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define CELER_NAMES32                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define CELER_NAMES64                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define CELER_NAMES128                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
  "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, " \
  "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, " \
  "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, " \
  "%70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, " \
  "%87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, "   \
  "%103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "  \
  "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define CELER_WGMMA(n, r, type, a0, a1, a2, a3, b, add, trans)                                         \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" add                                            \
               ", 0;\n"                                                                                \
               "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" CELER_NAMES##r      \
               "}, {%" a0 ", %" a1 ", %" a2 ", %" a3 "}, %" b ", add, 1, 1, %" trans ";\n}"            \
               : CELER_D##r(0)                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(static_cast<int>(sum)), \
                 "n"(kTransposed ? 1 : 0))
#define CELER_WGMMA_TYPES(n, r, ...)       \
  if constexpr (std::is_same_v<T, __half>) \
    CELER_WGMMA(n, r, "f16", __VA_ARGS__); \
  else                                     \
    CELER_WGMMA(n, r, "bf16", __VA_ARGS__)

// d[64, N] = a[64, 16] . b[16, N], or += if `sum`; f32 accumulators. T is bf16 or f16. A thread has d[4 j + i]
// at row 16 warp + g + 8 (i / 2), column 8 j + 2 t + i % 2, with lane = 4 g + t.
template <class T, int N, bool kTransposed = false>
__device__ __forceinline__ void Wgmma(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t columns, bool sum) {
  if constexpr (N == 16) {
    CELER_WGMMA_TYPES("16", 8, "8", "9", "10", "11", "12", "13", "14");
  } else if constexpr (N == 32) {
    CELER_WGMMA_TYPES("32", 16, "16", "17", "18", "19", "20", "21", "22");
  } else if constexpr (N == 64) {
    CELER_WGMMA_TYPES("64", 32, "32", "33", "34", "35", "36", "37", "38");
  } else if constexpr (N == 128) {
    CELER_WGMMA_TYPES("128", 64, "64", "65", "66", "67", "68", "69", "70");
  } else if constexpr (N == 256) {
    CELER_WGMMA_TYPES("256", 128, "128", "129", "130", "131", "132", "133", "134");
  }
}

#undef CELER_WGMMA_TYPES
#undef CELER_WGMMA
#undef CELER_NAMES8
#undef CELER_D8
#undef CELER_NAMES16
#undef CELER_D16
#undef CELER_NAMES32
#undef CELER_D32
#undef CELER_NAMES64
#undef CELER_D64
#undef CELER_NAMES128
#undef CELER_D128

}  // namespace celer::cuda::gemm
