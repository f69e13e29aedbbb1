// f32, f16 and bf16 weights in f32 arithmetic: sixteen rows per column, a token's column broadcast to every
// lane. One dependency chain per row and token, whatever the number of tokens.
#pragma once

#include "kernels/llm/matmul/cpu/packed.h"
#include "kernels/llm/matmul/cpu/x86/activation_tile.h"
#include "kernels/llm/matmul/cpu/x86/vec_x86.h"

namespace celer::x86 {
namespace {

struct Single {
  static constexpr int kBytes = 4;
  static CELER_X86_INLINE VecF Load(const uint8_t* p) { return LoadF(reinterpret_cast<const float*>(p)); }
};
struct Half {
  static constexpr int kBytes = 2;
  static CELER_X86_INLINE VecF Load(const uint8_t* p) { return LoadHalves(p); }
};
struct Brain {
  static constexpr int kBytes = 2;
  static CELER_X86_INLINE VecF Load(const uint8_t* p) { return LoadBrains(p); }
};

// kG row groups times kT tokens, kP parts of each group from `part` on.
template <class Format, int kG, int kP, int kT>
inline void FloatBlock(const TileJob& job, const uint8_t* w, int part, const float* x, int64_t x_stride,
                       float* out) {
  VecF sum[kG][kP][kT];
  For<kG>(CELER_EACH(g) { For<kP>(CELER_EACH(p) { For<kT>(CELER_EACH(t) { sum[g][p][t] = ZeroF(); }); }); });
  w += part * kLanes * Format::kBytes;
  for (int64_t c = 0; c < job.cols; ++c, w += kRows * Format::kBytes) {
    VecF value[kG][kP];
    For<kG>(CELER_EACH(g) {
      For<kP>(CELER_EACH(p) {
        value[g][p] = Format::Load(w + g * job.group_bytes + p * kLanes * Format::kBytes);
      });
    });
    For<kT>(CELER_EACH(t) {
      const VecF xt = SetF(x[t * x_stride + c]);
      For<kG>(
          CELER_EACH(g) { For<kP>(CELER_EACH(p) { sum[g][p][t] = Fma(value[g][p], xt, sum[g][p][t]); }); });
    });
  }
  For<kG>(CELER_EACH(g) {
    For<kP>(CELER_EACH(p) {
      For<kT>(CELER_EACH(t) {
        StoreF(out + t * job.out_stride + g * kRows + (part + p) * kLanes, sum[g][p][t]);
      });
    });
  });
}

template <class Format>
inline void FloatTile(const TileJob& job) {
  const int64_t stride = XFloatStride(job.cols);
  const auto row = [&](int t) {
    return reinterpret_cast<const float*>(job.x + t / kXTokens * job.x_bytes) + t % kXTokens * stride;
  };
  int g = 0;
  const auto groups = [&](auto count) {
    constexpr int kG = decltype(count)::value;
    for (; g + kG <= job.groups; g += kG) {
      const uint8_t* const w = job.w + g * job.group_bytes;
      if (job.tokens == 1) {
        FloatBlock<Format, kG, kParts, 1>(job, w, 0, row(0), stride, job.out + g * kRows);
        continue;
      }
      for (int part = 0; part < kParts; ++part) {
        int t = 0;
        const auto tokens = [&](auto n) {
          constexpr int kT = decltype(n)::value;
          for (; t + kT <= job.tokens; t += kT)
            FloatBlock<Format, kG, 1, kT>(job, w, part, row(t), stride,
                                          job.out + t * job.out_stride + g * kRows);
        };
        if constexpr (kG <= 2) {
          if constexpr (kLanes == 16) tokens(Const<8>{});
          tokens(Const<4>{});
        }
        tokens(Const<1>{});
      }
    }
  };
  if (job.tokens == 1) groups(Const<4>{});
  groups(Const<2>{});
  groups(Const<1>{});
}

}  // namespace
}  // namespace celer::x86
