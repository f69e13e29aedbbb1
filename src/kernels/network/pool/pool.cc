#include "kernels/network/pool/pool.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "base/check.h"
#include "kernels/network/conv/padded_layout.h"
#include "kernels/shared/gemm/pointwise_reference.h"

namespace celer {
namespace {

constexpr Variant<const PoolKernels*> kPool[] = {
// best first; the first that can run here wins
#if defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, &kPoolX86Avx512},
    {"x86_avx2", Isa::kAvx2, &kPoolX86Avx2},
#endif
    {"portable", Isa::kBaseline, &kPoolPortable},
    {"reference", Isa::kBaseline, &kPoolReference},
};

constexpr Variant<const BasicPoolKernels<F16>*> kPoolF16[] = {
#if defined(__aarch64__)
    {"arm_fp16", Isa::kArmFp16, &kPoolArmFp16},
#endif
    {"reference", Isa::kBaseline, &kPoolReferenceF16},
};

const PoolKernels& Chosen(float) {
  static const PoolKernels& chosen = *Pick<const PoolKernels*>("pool", kPool)->run;
  return chosen;
}
const BasicPoolKernels<F16>& Chosen(F16) {
  static const BasicPoolKernels<F16>& chosen = *Pick<const BasicPoolKernels<F16>*>("pool_f16", kPoolF16)->run;
  return chosen;
}

int64_t RoundUp16(int64_t n) {
  return (n + 15) / 16 * 16;
}

int64_t ScratchFloats(const PoolShape& s) {
  return LayoutOf(s.out_h, s.out_w, s.kernel_h, s.kernel_w, s.stride_h, s.stride_w, s.dilation_h,
                  s.dilation_w)
      .floats;
}

// One over the taps of a window that count, along one axis.
float Share(int64_t at, int64_t stride, int64_t kernel, int64_t dilation, int64_t pad, int64_t size,
            int64_t pad_after, bool count_border) {
  const int64_t begin = count_border ? -pad : 0, end = count_border ? size + pad_after : size;
  int64_t taps = 0;
  for (int64_t k = 0; k < kernel; ++k) {
    const int64_t x = at * stride - pad + k * dilation;
    taps += x >= begin && x < end;
  }
  return 1.0f / static_cast<float>(std::max<int64_t>(taps, 1));
}

template <class T>
void ReferencePlane(const BasicPoolPlane<T>& p) {
  for (int64_t oy = 0; oy < p.out_h; ++oy)
    for (int64_t ox = 0; ox < p.out_w; ++ox) {
      double most = -INFINITY, sum = 0;
      for (int64_t ky = 0; ky < p.kernel_h; ++ky)
        for (int64_t kx = 0; kx < p.kernel_w; ++kx) {
          const int64_t y = oy * p.stride_h - p.pad_top + ky * p.dilation_h;
          const int64_t x = ox * p.stride_w - p.pad_left + kx * p.dilation_w;
          if (y < 0 || y >= p.in_h || x < 0 || x >= p.in_w) continue;
          most = std::max(most, reference::Get(p.in[y * p.in_w + x]));
          sum += reference::Get(p.in[y * p.in_w + x]);
        }
      const double result =
          p.kind == PoolKind::kMax ? most : sum * static_cast<double>(p.row_share[oy]) * p.col_share[ox];
      reference::Put(p.out[oy * p.out_w + ox], result);
    }
}

template <class T>
void RunPool(const PoolShape& s, const BasicPoolArgs<T>& args) {
  CELER_CHECK(s.kernel_h > 0 && s.kernel_w > 0 && s.stride_h > 0 && s.stride_w > 0);
  CELER_CHECK(s.dilation_h > 0 && s.dilation_w > 0 && s.pad_top >= 0 && s.pad_left >= 0);
  if (s.planes == 0 || s.out_h == 0 || s.out_w == 0) return;
  CELER_CHECK(args.in && args.out && args.workspace && args.pool);
  float* const row_share = args.workspace;
  float* const col_share = row_share + RoundUp16(s.out_h);
  T* const scratch = reinterpret_cast<T*>(col_share + RoundUp16(s.out_w));
  for (int64_t y = 0; y < s.out_h; ++y)
    row_share[y] =
        Share(y, s.stride_h, s.kernel_h, s.dilation_h, s.pad_top, s.in_h, s.pad_bottom, s.count_border);
  for (int64_t x = 0; x < s.out_w; ++x)
    col_share[x] =
        Share(x, s.stride_w, s.kernel_w, s.dilation_w, s.pad_left, s.in_w, s.pad_right, s.count_border);
  const int64_t scratch_floats = ScratchFloats(s);
  const auto plane = [&](int64_t i, int thread) {
    Chosen(T{}).plane({.kind = s.kind,
                       .in = args.in + i * s.in_h * s.in_w,
                       .in_h = s.in_h,
                       .in_w = s.in_w,
                       .kernel_h = s.kernel_h,
                       .kernel_w = s.kernel_w,
                       .stride_h = s.stride_h,
                       .stride_w = s.stride_w,
                       .dilation_h = s.dilation_h,
                       .dilation_w = s.dilation_w,
                       .pad_top = s.pad_top,
                       .pad_left = s.pad_left,
                       .row_share = row_share,
                       .col_share = col_share,
                       .out = args.out + i * s.out_h * s.out_w,
                       .out_h = s.out_h,
                       .out_w = s.out_w,
                       .scratch = scratch + thread * scratch_floats});
  };
  if (args.pool->size() == 1 || s.planes * s.in_h * s.in_w < 16 << 10) {
    for (int64_t i = 0; i < s.planes; ++i) plane(i, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  args.pool->Run([&](int thread) {
    for (int64_t i = next++; i < s.planes; i = next++) plane(i, thread);
  });
}

}  // namespace

const PoolKernels kPoolReference = {.plane = ReferencePlane<float>};
const BasicPoolKernels<F16> kPoolReferenceF16 = {.plane = ReferencePlane<F16>};

std::span<const Variant<const PoolKernels*>> PoolVariants() {
  return kPool;
}
std::span<const Variant<const BasicPoolKernels<F16>*>> PoolF16Variants() {
  return kPoolF16;
}

int64_t PoolWorkspaceFloats(const PoolShape& s, int threads) {
  return RoundUp16(s.out_h) + RoundUp16(s.out_w) + ScratchFloats(s) * threads;
}

void Pool(const PoolShape& shape, const BasicPoolArgs<float>& args) {
  RunPool(shape, args);
}
void Pool(const PoolShape& shape, const BasicPoolArgs<F16>& args) {
  RunPool(shape, args);
}

}  // namespace celer
