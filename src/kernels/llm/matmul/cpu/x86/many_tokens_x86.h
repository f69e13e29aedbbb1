// Many tokens of integer formats by vector instructions, included by tile_integer_x86.h's files. Cache
// blocking: a panel of two vectors of rows is unpacked once, some columns at a time, with scales as floats;
// it stays in the L1 cache while the tokens are streamed, a few at a time, whose accumulators stay in
// registers. Between runs of columns partial sums wait in `out`. The order of additions of a row and a token
// is that of the kernels for few tokens.
#pragma once

#include "kernels/llm/matmul/cpu/x86/tile_integer_x86.h"

namespace celer::x86 {
namespace {

// Two vectors of rows: two row groups with AVX-512, else the two parts of one. So many tokens at a time that
// dot products and sums stay in registers.
constexpr int kManyVecs = 2, kManyGroups = kManyVecs / kParts;
constexpr int kTogether = kParts == 1 ? 4 : 3;
constexpr int kManyCols = 512 * kParts;  // unpacked at a time: 16 kB
constexpr int kManyBlocks = kManyCols / kBlockCols;
constexpr int kVecBytes = sizeof(VecI);

// Whether steps are signed bytes, as for AVX2 those are that need all eight bits.
template <class Values>
constexpr bool kSigned = requires(const uint8_t* p) {
  Values::template Load<0>(p).v;
};

using PanelValues = uint8_t[kManyBlocks][8 * kVecBytes];  // of one vector of rows

template <class Values>
CELER_X86_INLINE void UnpackBlock(const uint8_t* p, uint8_t* to) {
  For<8>(CELER_EACH(s) {
    if constexpr (kSigned<Values>)
      StoreI(to + s * kVecBytes, Values::template Load<decltype(s)::value>(p).v);
    else
      StoreI(to + s * kVecBytes, Values::template Load<decltype(s)::value>(p));
  });
}

// dot[r][t] += steps [kFirst, kFirst + kCount) of block `block` times the columns that x points to.
template <class Values, int kFirst, int kCount, int kR, int kT>
CELER_X86_INLINE void DotPanel(const PanelValues* panel, int64_t block, const int8_t* x,
                               VecI (&dot)[kR][kT]) {
  const auto load = [&](auto r, int step) __attribute__((always_inline)) {
    return LoadI(panel[r][block] + (kFirst + step) * kVecBytes);
  };
#if defined(CELER_X86_HAS_DPBUSD)
  For<kCount>(CELER_EACH(s) {
    VecI w[kR];
    For<kR>(CELER_EACH(r) { w[r] = load(r, s); });
    For<kT>(CELER_EACH(t) {
      const VecI four = SetFour(x + 64 * t + 4 * s);
      For<kR>(CELER_EACH(r) { dot[r][t] = DotFour(dot[r][t], w[r], four); });
    });
  });
#else
  constexpr int kRun = Values::kRun < kCount ? Values::kRun : kCount;
  For<kCount / kRun>(CELER_EACH(run) {
    VecI pairs[kR][kT];
    For<kRun>(CELER_EACH(i) {
      constexpr int kStep = decltype(run)::value * kRun + decltype(i)::value;
      For<kR>(CELER_EACH(r) {
        const VecI w = load(r, kStep);
        For<kT>(CELER_EACH(t) {
          const VecI four = SetFour(x + 64 * t + 4 * kStep);
          VecI more;
          if constexpr (kSigned<Values>)
            more = Pairs(SignedStep{w}, four);
          else
            more = Pairs(w, four);
          pairs[r][t] = i == 0 ? more : _mm256_add_epi16(pairs[r][t], more);
        });
      });
    });
    For<kR>(CELER_EACH(r) { For<kT>(CELER_EACH(t) { dot[r][t] = AddPairs(dot[r][t], pairs[r][t]); }); });
  });
#endif
}

// What the sums of sixteen tokens begin with, for each block or sub-block of a run of columns.
template <int kExcess>
CELER_X86_INLINE VecI MinusExcessTimes(VecI v) {
  constexpr int kShift = __builtin_ctz(kExcess);
  static_assert(1 << kShift == kExcess);
  return SubI(ZeroI(), ShiftLeft32<kShift>(v));
}
template <class Values, int kCount>
struct Starts {
  alignas(64) int32_t at[Values::kExcess == 0 ? 1 : kCount][kXTokens];

  void SetBlocks(const int32_t* isum, int64_t count) {
    if constexpr (Values::kExcess != 0)
      for (int64_t i = 0; i < count * kXTokens; i += kLanes)
        StoreI(at[0] + i, MinusExcessTimes<Values::kExcess>(LoadI(isum + i)));
  }
  // From pairs of 16-bit sums.
  void SetSubs(const int16_t* sums, int64_t count) {
    if constexpr (Values::kExcess != 0)
      for (int64_t pair = 0; pair < count / 2; ++pair)
        for (int t = 0; t < kXTokens; t += kLanes) {
          const VecI two = LoadI(sums + (pair * kXTokens + t) * 2);
          StoreI(at[2 * pair] + t,
                 MinusExcessTimes<Values::kExcess>(ShiftRightSigned32<16>(ShiftLeft32<16>(two))));
          StoreI(at[2 * pair + 1] + t, MinusExcessTimes<Values::kExcess>(ShiftRightSigned32<16>(two)));
        }
  }
  template <int kR, int kT>
  CELER_X86_INLINE void Begin(int64_t i, int first, VecI (&dot)[kR][kT]) const {
    For<kT>(CELER_EACH(t) {
      const VecI start = Values::kExcess == 0 ? ZeroI() : SetI(at[i][first + t]);
      For<kR>(CELER_EACH(r) { dot[r][t] = start; });
    });
  }
};

// Where the sums of a vector of rows stand for a token.
struct Sums {
  float* out;
  int64_t stride;
  CELER_X86_INLINE float* At(int r, int t) const { return out + t * stride + r * kLanes; }
};

template <class Format>
class ManyBlocks {
 public:
  using Values = typename Format::Values;

  void Start(const TileJob& job, int group, int groups) {
    for (int g = 0; g < groups; ++g) header_[g] = w_[g] = job.w + (group + g) * job.group_bytes;
  }
  void Unpack(const TileJob& job, int groups, int64_t c, int64_t cols) {
    for (int g = 0; g < groups; ++g)
      for (int64_t k = 0; k < cols; k += kBlockCols, w_[g] += Values::kBytes) {
        if ((c + k) % job.span == 0) {
          header_[g] = w_[g];
          w_[g] += Format::kHeader;
        }
        Prefetch<Values::kBytes + Format::kHeader, 1>(w_[g], 0);
        const int64_t block = k / kBlockCols;
        For<kParts>(CELER_EACH(part) {
          const int r = g * kParts + part;
          UnpackBlock<Values>(w_[g] + part * kLanes * 4, values_[r][block]);
          StoreF(scales_[r][block], Format::Scales(header_[g], part));
          if constexpr (Format::kHasMin) StoreF(mins_[r][block], Format::Mins(header_[g], part));
        });
      }
  }
  void SetUnit(const TileJob& job, const uint8_t* unit, int64_t c, int64_t cols) {
    const XBlocks x = XBlocksOf(unit, job.cols);
    const int64_t at = c / kBlockCols * kXTokens;
    q_ = x.q + XAt(c), x_scale_ = x.scale + at, x_sum_ = x.sum + at;
    starts_.SetBlocks(x.isum + at, cols / kBlockCols);
  }
  // Tokens [first, first + kT) of the unit.
  template <int kR, int kT>
  void Run(int first, int64_t c, int64_t cols, Sums sums) const {
    VecF sum[kR][kT];
    For<kR>(
        CELER_EACH(r) { For<kT>(CELER_EACH(t) { sum[r][t] = c == 0 ? ZeroF() : LoadF(sums.At(r, t)); }); });
    const int8_t* const q = q_ + first * 64;
    for (int64_t block = 0; block < cols / kBlockCols; ++block) {
      VecI dot[kR][kT];
      starts_.Begin(block, first, dot);
      DotPanel<Values, 0, 8>(values_, block, q + XAt(block * kBlockCols), dot);
      const float* const x_scale = x_scale_ + block * kXTokens + first;
      For<kR>(CELER_EACH(r) {
        const VecF scale = LoadF(scales_[r][block]);
        For<kT>(
            CELER_EACH(t) { sum[r][t] = Fma(ToFloat(dot[r][t]), Mul(scale, SetF(x_scale[t])), sum[r][t]); });
        if constexpr (Format::kHasMin) {
          const VecF min = LoadF(mins_[r][block]);
          const float* const x_sum = x_sum_ + block * kXTokens + first;
          For<kT>(CELER_EACH(t) { sum[r][t] = Fma(min, SetF(x_sum[t]), sum[r][t]); });
        }
      });
    }
    For<kR>(CELER_EACH(r) { For<kT>(CELER_EACH(t) { StoreF(sums.At(r, t), sum[r][t]); }); });
  }

 private:
  alignas(64) PanelValues values_[kManyVecs];
  alignas(64) float scales_[kManyVecs][kManyBlocks][kLanes];
  alignas(64) float mins_[kManyVecs][Format::kHasMin ? kManyBlocks : 1][kLanes];
  Starts<Values, kManyBlocks> starts_;
  const uint8_t *w_[kManyGroups], *header_[kManyGroups];
  const int8_t* q_;
  const float *x_scale_, *x_sum_;
};

template <class Format>
class ManySupers {
 public:
  using Values = typename Format::Values;

  void Start(const TileJob& job, int group, int groups) {
    for (int g = 0; g < groups; ++g) w_[g] = job.w + (group + g) * job.group_bytes;
  }
  void Unpack(const TileJob&, int groups, int64_t, int64_t cols) {
    for (int g = 0; g < groups; ++g)
      for (int64_t super = 0; super < cols / kSuperCols; ++super, w_[g] += Format::kBytes)
        For<kParts>(CELER_EACH(part) { UnpackSuper(w_[g], g * kParts + part, part, super); });
  }
  void SetUnit(const TileJob& job, const uint8_t* unit, int64_t c, int64_t cols) {
    const XSupers x = XSupersOf(unit, job.cols);
    const int64_t super = c / kSuperCols;
    q_ = x.q + XAt(c), x_scale_ = x.scale + super * kXTokens;
    sums_ = (kSubs == 8 ? x.sum32 : x.sum16) + super * kSubs * kXTokens;
    starts_.SetSubs(sums_, cols / kSuperCols * kSubs);
  }
  template <int kR, int kT>
  void Run(int first, int64_t c, int64_t cols, Sums sums) const {
    for (int64_t super = 0; super < cols / kSuperCols; ++super) {
      VecF scaled[kR][kT];
      For<kR>(CELER_EACH(r) { For<kT>(CELER_EACH(t) { scaled[r][t] = ZeroF(); }); });
      for (int64_t b = 0; b < 8; ++b) {
        const int64_t block = super * 8 + b;
        const int8_t* const q = q_ + XAt(block * kBlockCols) + first * 64;
        constexpr int kSubSteps = Format::kSubCols / 4;
        For<kSubs / 8>(CELER_EACH(half) {
          const int64_t sub = block * (kSubs / 8) + half;
          VecI dot[kR][kT];
          starts_.Begin(sub, first, dot);
          DotPanel<Values, decltype(half)::value * kSubSteps, kSubSteps>(values_, block,
                                                                         q + half * Format::kSubCols, dot);
          For<kR>(CELER_EACH(r) {
            const VecF scale = LoadF(scales_[r][sub]);
            For<kT>(CELER_EACH(t) { scaled[r][t] = Fma(ToFloat(dot[r][t]), scale, scaled[r][t]); });
          });
        });
      }
      const float* const x_scale = x_scale_ + super * kXTokens + first;
      For<kR>(CELER_EACH(r) {
        const VecF d = LoadF(d_[r][super]);
        For<kT>(CELER_EACH(t) {
          float* const to = sums.At(r, t);
          const VecF before = c == 0 && super == 0 ? ZeroF() : LoadF(to);
          StoreF(to, Fma(scaled[r][t], Mul(d, SetF(x_scale[t])), before));
        });
      });
      if constexpr (Format::kHasMin) SubtractMins<kR, kT>(super, first, x_scale, sums);
    }
  }

 private:
  static constexpr int kSubs = Format::kSubs, kPairs = kSubs / 2, kSupers = kManyCols / kSuperCols;

  void UnpackSuper(const uint8_t* w, int r, int part, int64_t super) {
    StoreF(d_[r][super], LoadHalves(w + part * kLanes * 2));
    for (int i = 0; i < kSubs; ++i) StoreF(scales_[r][super * kSubs + i], Format::SubScale(w, i, part));
    if constexpr (Format::kHasMin) {
      StoreF(dmin_[r][super], LoadHalves(w + 2 * kRows + part * kLanes * 2));
      for (int i = 0; i < kPairs; ++i) StoreI(mins_[r][super * kPairs + i], Format::MinPair(w, i, part));
    }
    const uint8_t* values = w + Format::kHeader + part * kLanes * 4;
    for (int b = 0; b < 8; ++b, values += Values::kBytes) {
      Prefetch<Values::kBytes + Format::kHeader / 8, 1>(values, 0);
      UnpackBlock<Values>(values, values_[r][super * 8 + b]);
    }
  }
  template <int kR, int kT>
  CELER_X86_INLINE void SubtractMins(int64_t super, int first, const float* x_scale, Sums sums) const {
    VecI mins[kR][kT];
    For<kR>(CELER_EACH(r) { For<kT>(CELER_EACH(t) { mins[r][t] = ZeroI(); }); });
    for (int64_t pair = super * kPairs; pair < (super + 1) * kPairs; ++pair) {
      const int16_t* const two = sums_ + (pair * kXTokens + first) * 2;
      For<kR>(CELER_EACH(r) {
        const VecI min = LoadI(mins_[r][pair]);
        For<kT>(CELER_EACH(t) { mins[r][t] = DotPairs(mins[r][t], min, SetFour(two + 2 * t)); });
      });
    }
    For<kR>(CELER_EACH(r) {
      const VecF dmin = LoadF(dmin_[r][super]);
      For<kT>(CELER_EACH(t) {
        float* const to = sums.At(r, t);
        StoreF(to, Fnma(ToFloat(mins[r][t]), Mul(dmin, SetF(x_scale[t])), LoadF(to)));
      });
    });
  }

  alignas(64) PanelValues values_[kManyVecs];
  alignas(64) float scales_[kManyVecs][kSupers * kSubs][kLanes];
  alignas(64) float d_[kManyVecs][kSupers][kLanes], dmin_[kManyVecs][kSupers][kLanes];
  alignas(64) int32_t mins_[kManyVecs][kSupers * kPairs][kLanes];
  Starts<Values, kSupers * kSubs> starts_;
  const uint8_t* w_[kManyGroups];
  const int8_t* q_;
  const float* x_scale_;
  const int16_t* sums_;
};

// Bytes with one scale to a row: integers to the end of the row, kept in the place of the floats.
class ManyRows {
 public:
  void Start(const TileJob& job, int group, int groups) {
    for (int g = 0; g < groups; ++g) w_[g] = job.w + (group + g) * job.group_bytes;
    group_bytes_ = job.group_bytes;
    cols_ = job.cols;
  }
  void Unpack(const TileJob&, int groups, int64_t c, int64_t cols) {
    for (int g = 0; g < groups; ++g)
      for (int64_t k = 0; k < cols; k += kBlockCols) {
        const uint8_t* const values = w_[g] + ByteWide::kHeader + (c + k) * kRows;
        Prefetch<Bytes::kBytes, 1>(values, 0);
        For<kParts>(CELER_EACH(part) {
          UnpackBlock<Bytes>(values + part * kLanes * 4, values_[g * kParts + part][k / kBlockCols]);
        });
      }
  }
  void SetUnit(const TileJob& job, const uint8_t* unit, int64_t c, int64_t) {
    x_ = XRowOf(unit, job.cols);
    q_ = x_.q + XAt(c);
    starts_.SetBlocks(x_.isum, 1);
  }
  template <int kR, int kT>
  void Run(int first, int64_t c, int64_t cols, Sums sums) const {
    VecI dot[kR][kT];
    if (c == 0)
      starts_.Begin(0, first, dot);
    else
      For<kR>(CELER_EACH(r) { For<kT>(CELER_EACH(t) { dot[r][t] = LoadI(sums.At(r, t)); }); });
    for (int64_t block = 0; block < cols / kBlockCols; ++block)
      DotPanel<Bytes, 0, 8>(values_, block, q_ + XAt(block * kBlockCols) + first * 64, dot);
    if (c + cols < cols_) {
      For<kR>(CELER_EACH(r) { For<kT>(CELER_EACH(t) { StoreI(sums.At(r, t), dot[r][t]); }); });
      return;
    }
    For<kR>(CELER_EACH(r) {
      const int g = r / kParts, part = r % kParts;
      const VecF scale = ByteWide::Scales(w_[g], part);
      For<kT>(CELER_EACH(t) {
        VecF sum[1] = {ToFloat(dot[r][t])};
        AddHighs(x_, first + t, cols_, w_[g] + ByteWide::kHeader + part * kLanes * 4, group_bytes_, sum);
        StoreF(sums.At(r, t), Mul(Mul(sum[0], SetF(x_.scale[first + t])), scale));
      });
    });
  }

 private:
  alignas(64) PanelValues values_[kManyVecs];
  Starts<Bytes, 1> starts_;
  const uint8_t* w_[kManyGroups];
  int64_t group_bytes_, cols_;
  XRow x_;
  const int8_t* q_;
};

// Tokens [t, t + kT) while there are that many, then fewer.
template <int kR, int kT, class Many>
CELER_X86_INLINE void RunTokens(const Many& many, int& t, int tokens, int64_t c, int64_t cols,
                                const Sums& sums) {
  for (; t + kT <= tokens; t += kT)
    many.template Run<kR, kT>(t, c, cols, {sums.out + t * sums.stride, sums.stride});
  if constexpr (kT > 1) RunTokens<kR, kT / 2>(many, t, tokens, c, cols, sums);
}

template <class Many>
inline void ManyTokens(const TileJob& job) {
  Many many;
  for (int g = 0; g < job.groups; g += kManyGroups) {
    const int groups = job.groups - g < kManyGroups ? job.groups - g : kManyGroups;
    many.Start(job, g, groups);
    for (int64_t c = 0; c < job.cols; c += kManyCols) {
      const int64_t cols = job.cols - c < kManyCols ? job.cols - c : kManyCols;
      many.Unpack(job, groups, c, cols);
      for (int u = 0; u < job.tokens; u += kXTokens) {
        const int tokens = job.tokens - u < kXTokens ? job.tokens - u : kXTokens;
        many.SetUnit(job, job.x + u / kXTokens * job.x_bytes, c, cols);
        const Sums sums{job.out + u * job.out_stride + g * kRows, job.out_stride};
        int t = 0;
        if (groups == kManyGroups)
          RunTokens<kManyVecs, kTogether>(many, t, tokens, c, cols, sums);
        else
          RunTokens<1, kTogether>(many, t, tokens, c, cols, sums);
      }
    }
  }
}

// From this many tokens on unpacking pays.
template <class Format>
constexpr int kManyFrom = 12;
template <class V, int kSubs, bool kMin, int kLargest>
constexpr int kManyFrom<SuperFormat<V, kSubs, kMin, kLargest>> = 8;

template <class Format, class X>
inline void AnyTokens(const TileJob& job) {
  if (job.tokens < kManyFrom<Format>) return VectorTile<Format, X>(job);
  if constexpr (__is_same(Format, Row))
    ManyTokens<ManyRows>(job);
  else if constexpr (requires { Format::kSubs; })
    ManyTokens<ManySupers<Format>>(job);
  else
    ManyTokens<ManyBlocks<Format>>(job);
}

}  // namespace
}  // namespace celer::x86
