// Plain loops with double accumulators. Panels are one row or one column wide.
#include <algorithm>
#include <cmath>

#include "kernels/shared/gemm/gemm_kernels.h"
#include "kernels/shared/gemm/pointwise_reference.h"

namespace celer {
namespace {

template <class T>
void Block(const BasicGemmBlock<T>& g) {
  const BasicEpilogue<T>& e = g.epilogue;
  for (int64_t i = 0; i < g.m; ++i)
    for (int64_t j = 0; j < g.n; ++j) {
      T& out = g.out[i * g.out_stride + j];
      double sum = g.accumulate ? reference::Get(out) : 0.0;
      for (int64_t k = 0; k < g.k; ++k)
        sum += reference::Get(g.a[i * g.a_panel + k]) * reference::Get(g.b[j * g.b_panel + k]);
      if (g.finish) {
        if (e.row_bias) sum += e.row_bias[i];
        if (e.col_bias) sum += e.col_bias[j];
        const double add = e.add ? reference::Get(e.add[i * e.add_stride + j]) : 0.0;
        sum = e.add_last ? reference::Apply(e.f, sum) + add : reference::Apply(e.f, sum + add);
      }
      reference::Put(out, sum);
    }
}

template <class T>
void Pack(const BasicPackSource<T>& from, int64_t lanes, int64_t k, T* out, int64_t panel) {
  for (int64_t l = 0; l < lanes; ++l)
    for (int64_t i = 0; i < k; ++i) out[l * panel + i] = from.data[l * from.lane_stride + i * from.k_stride];
}

template <class T>
void PackGathered(const Im2col& g, const T* in, const T*, int64_t k_begin, int64_t k_end, int64_t n_begin,
                  int64_t n_end, T* out, int64_t panel) {
  for (int64_t n = n_begin; n < n_end; ++n)
    for (int64_t k = k_begin; k < k_end; ++k) {
      const int64_t kx = k % g.kernel_w, ky = k / g.kernel_w % g.kernel_h, c = k / g.kernel_w / g.kernel_h;
      const int64_t y = n / g.out_w * g.stride_h - g.pad_top + ky * g.dilation_h;
      const int64_t x = n % g.out_w * g.stride_w - g.pad_left + kx * g.dilation_w;
      const bool inside = y >= 0 && y < g.in_h && x >= 0 && x < g.in_w;
      out[(n - n_begin) * panel + k - k_begin] = inside ? in[(c * g.in_h + y) * g.in_w + x] : T{};
    }
}

template <class T>
constexpr BasicGemmKernels<T> kReference = {.name = "reference",
                                            .mr = 1,
                                            .nr = 1,
                                            .k_block = INT64_MAX,
                                            .block = Block<T>,
                                            .pack_a = Pack<T>,
                                            .pack_b = Pack<T>,
                                            .pack_im2col = PackGathered<T>};

}  // namespace

double reference::Apply(const Pointwise& f, double x) {
  using Kind = Pointwise::Kind;
  const double a = f.a, b = f.b;
  switch (f.kind) {
    case Kind::kNone:
      return x;
    case Kind::kClip:
      return std::min(std::max(x, a), b);
    case Kind::kLeakyRelu:
      return x < 0 ? a * x : x;
    case Kind::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case Kind::kSilu:
      return x / (1 + std::exp(-x));
    case Kind::kTanh:
      return std::tanh(x);
    case Kind::kHardSigmoid:
      return std::min(std::max(a * x + b, 0.0), 1.0);
    case Kind::kHardSwish:
      return x * std::min(std::max(x / 6 + 0.5, 0.0), 1.0);
    case Kind::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case Kind::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Kind::kErf:
      return std::erf(x);
    case Kind::kExp:
      return std::exp(x);
  }
  return x;
}

const GemmKernels kGemmReference = kReference<float>;
const BasicGemmKernels<F16> kGemmReferenceF16 = kReference<F16>;

}  // namespace celer
