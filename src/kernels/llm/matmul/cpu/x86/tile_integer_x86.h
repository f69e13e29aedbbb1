// Integer tile kernels for vector instructions, included by one file per instruction set and built with its
// flags: all in an unnamed namespace, so that each file keeps its own copy.
//
// A step is four columns of sixteen rows: 64 bytes, one lane per row. vpdpbusd, and AVX2's maddubs, multiply
// unsigned with signed bytes, so weights are made unsigned on the fly ("excess"), and the accumulator starts
// at -excess * sum(x). Integers add exactly in any order, and the floats of one row and token are added in
// one chain in every kernel, so a token's result does not depend on which of them computed it.
#pragma once

#include "kernels/llm/matmul/cpu/packed.h"
#include "kernels/llm/matmul/cpu/x86/activation_tile.h"
#include "kernels/llm/matmul/cpu/x86/vec_x86.h"

namespace celer::x86 {
namespace {

constexpr int kStepBytes = 64;

// Values of 32 columns: eight steps, loaded for the kLanes rows that p points to. kRun is how many products
// of two 16-bit lanes can be added before they overflow, for AVX2.
struct UnsignedBytes {  // 0..31
  static constexpr int kBytes = 32 * kRows, kExcess = 0, kRun = 4;
  template <int kS>
  static CELER_X86_INLINE VecI Load(const uint8_t* p) {
    return LoadI(p + kS * kStepBytes);
  }
};
// The nibbles of a step, as bytes.
template <int kS>
CELER_X86_INLINE VecI NibbleStep(const uint8_t* p) {
  const VecI two = LoadI(p + kS / 2 * kStepBytes);
  return And(kS % 2 == 0 ? two : ShiftRight16<4>(two), SetByte(15));
}
struct UnsignedNibbles {
  static constexpr int kBytes = 16 * kRows, kExcess = 0, kRun = 8;
  template <int kS>
  static CELER_X86_INLINE VecI Load(const uint8_t* p) {
    return NibbleStep<kS>(p);
  }
};
struct Nibbles {
  static constexpr int kBytes = 16 * kRows, kExcess = 8, kRun = 8;
  template <int kS>
  static CELER_X86_INLINE VecI Load(const uint8_t* p) {
    const VecI two = Xor(LoadI(p + kS / 2 * kStepBytes), SetByte(0x88));
    return And(kS % 2 == 0 ? two : ShiftRight16<4>(two), SetByte(15));
  }
};
// Codes of fp4 E2M1 as the levels that BlockMxfp4 has.
struct LevelsFp4 {
  static constexpr int kBytes = 16 * kRows, kExcess = 16, kRun = 4;
  template <int kS>
  static CELER_X86_INLINE VecI Load(const uint8_t* p) {
    // 0 1 2 3 4 6 8 12 0 -1 -2 -3 -4 -6 -8 -12
    return LookUp(_mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4),
                  NibbleStep<kS>(p));
  }
};
struct Sixes {
  static constexpr int kBytes = 24 * kRows, kExcess = 32, kRun = 2;
  template <int kS>
  static CELER_X86_INLINE VecI Load(const uint8_t* p) {
    const uint8_t* planes = p + kS / 4 * 3 * kStepBytes;
    if constexpr (kS % 4 < 3) {
      const VecI upper = ShiftRight16<2>(LoadI(planes + kS % 4 * kStepBytes));
      return Xor(And(upper, SetByte(63)), SetByte(32));
    } else {
      const VecI low = SetByte(3);
      const VecI a = And(LoadI(planes), low), b = And(LoadI(planes + kStepBytes), low),
                 c = And(LoadI(planes + 2 * kStepBytes), low);
      return Xor(Or(Or(ShiftLeft32<4>(a), ShiftLeft32<2>(b)), c), SetByte(32));
    }
  }
};

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define CELER_X86_HAS_DPBUSD

struct Bytes {
  static constexpr int kBytes = 32 * kRows, kExcess = 128, kRun = 0;
  template <int kS>
  static CELER_X86_INLINE VecI Load(const uint8_t* p) {
    return Xor(LoadI(p + kS * kStepBytes), SetByte(0x80));
  }
};
struct LevelsIq4 {  // codes of IQ4_NL and IQ4_XS
  static constexpr int kBytes = 16 * kRows, kExcess = 128, kRun = 0;
  template <int kS>
  static CELER_X86_INLINE VecI Load(const uint8_t* p) {
    // -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113
    return LookUp(_mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, -127, -115, -103, -90, -75, -59, -39, -15),
                  NibbleStep<kS>(p));
  }
};

// DotFour: sum += four products of unsigned bytes with signed ones; DotPairs: pairs of 16-bit products
#if defined(__AVX512VNNI__)
CELER_X86_INLINE VecI DotFour(VecI sum, VecI w, VecI x) {
  return _mm512_dpbusd_epi32(sum, w, x);
}
CELER_X86_INLINE VecI DotPairs(VecI sum, VecI a, VecI b) {
  return _mm512_dpwssd_epi32(sum, a, b);
}
#else
CELER_X86_INLINE VecI DotFour(VecI sum, VecI w, VecI x) {
  return _mm256_dpbusd_avx_epi32(sum, w, x);
}
CELER_X86_INLINE VecI DotPairs(VecI sum, VecI a, VecI b) {
  return _mm256_dpwssd_avx_epi32(sum, a, b);
}
#endif

// dot[t] += steps kFirst .. kFirst + kCount of the values at p, times the columns that x points to.
template <class Values, int kFirst, int kCount, int kT>
CELER_X86_INLINE void DotSteps(const uint8_t* p, const int8_t* x, VecI (&dot)[kT]) {
  For<kCount>(CELER_EACH(s) {
    const VecI w = Values::template Load<kFirst + s.value>(p);
    For<kT>(CELER_EACH(t) { dot[t] = DotFour(dot[t], w, SetFour(x + 64 * t + 4 * s)); });
  });
}

#else

// |w| times x with w's sign: sums of two products stay within 2 * 128 * 127 < 2^15, because activations never
// are -128.
struct SignedStep {
  VecI v;
};
struct Bytes {
  static constexpr int kBytes = 32 * kRows, kExcess = 0, kRun = 1;
  template <int kS>
  static CELER_X86_INLINE SignedStep Load(const uint8_t* p) {
    return {LoadI(p + kS * kStepBytes)};
  }
};
struct LevelsIq4 {  // codes of IQ4_NL and IQ4_XS
  static constexpr int kBytes = 16 * kRows, kExcess = 0, kRun = 1;
  template <int kS>
  static CELER_X86_INLINE SignedStep Load(const uint8_t* p) {
    return {LookUp(_mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
                   NibbleStep<kS>(p))};
  }
};

CELER_X86_INLINE VecI Pairs(VecI w, VecI x) {
  return _mm256_maddubs_epi16(w, x);
}
CELER_X86_INLINE VecI Pairs(SignedStep w, VecI x) {
  return _mm256_maddubs_epi16(_mm256_abs_epi8(w.v), _mm256_sign_epi8(x, w.v));
}
CELER_X86_INLINE VecI AddPairs(VecI sum, VecI pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

template <class Values, int kFirst, int kCount, int kT>
CELER_X86_INLINE void DotSteps(const uint8_t* p, const int8_t* x, VecI (&dot)[kT]) {
  constexpr int kRun = Values::kRun < kCount ? Values::kRun : kCount;
  For<kCount / kRun>(CELER_EACH(run) {
    VecI pairs[kT];
    For<kRun>(CELER_EACH(i) {
      constexpr int kStep = decltype(run)::value * kRun + decltype(i)::value;
      const auto w = Values::template Load<kFirst + kStep>(p);
      For<kT>(CELER_EACH(t) {
        const VecI more = Pairs(w, SetFour(x + 64 * t + 4 * kStep));
        pairs[t] = i == 0 ? more : _mm256_add_epi16(pairs[t], more);
      });
    });
    For<kT>(CELER_EACH(t) { dot[t] = AddPairs(dot[t], pairs[t]); });
  });
}
CELER_X86_INLINE VecI DotPairs(VecI sum, VecI a, VecI b) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

#endif

// That share a load of weights, as registers allow.
constexpr int kMaxBlockTokens = 8 / kParts, kMaxSuperTokens = 4 / kParts;

template <class V, int kScaleSize, bool kMin>
struct BlockFormat {
  using Values = V;
  static constexpr bool kHasMin = kMin;
  static constexpr int kHeader = (kScaleSize + (kMin ? 2 : 0)) * kRows;
  static CELER_X86_INLINE VecF Scales(const uint8_t* header, int part) {
    if constexpr (kScaleSize == 2) return LoadHalves(header + part * kLanes * 2);
    return LoadF(reinterpret_cast<const float*>(header) + part * kLanes);
  }
  static CELER_X86_INLINE VecF Mins(const uint8_t* header, int part) {
    return LoadHalves(header + kScaleSize * kRows + part * kLanes * 2);
  }
};
using Byte = BlockFormat<Bytes, 2, false>;
using ByteMin = BlockFormat<Bytes, 2, true>;
using ByteWide = BlockFormat<Bytes, 4, false>;
using Nibble = BlockFormat<Nibbles, 2, false>;
using NibbleMin = BlockFormat<UnsignedNibbles, 2, true>;
using NibbleLevels = BlockFormat<LevelsFp4, 4, false>;
using NibbleLevelsIq4 = BlockFormat<LevelsIq4, 4, false>;

// kLargest: the largest magnitude of a value times its sub-block's scale.
template <class V, int kSubCount, bool kMin, int kLargestProduct>
struct SuperFormat {
  using Values = V;
  static constexpr int kLargest = kLargestProduct;
  // Blocks of 32 columns over which sums of such products with bytes stay below 2^24.
  static constexpr int kExactBlocks =
      (1 << 24) / (kLargest * 127 * kBlockCols) < 8 ? (1 << 24) / (kLargest * 127 * kBlockCols) : 8;
  static constexpr bool kHasMin = kMin;
  static constexpr int kSubs = kSubCount;
  static constexpr int kSubCols = kSuperCols / kSubs;
  static constexpr int kScales = 2 * kRows * (kMin ? 2 : 1);
  static constexpr int kMins = kScales + kSubs * kRows;
  static constexpr int kHeader = kMins + (kMin ? kSubs * kRows : 0);
  static constexpr int kBytes = kHeader + 8 * V::kBytes;

  static CELER_X86_INLINE VecF SubScale(const uint8_t* head, int sub, int part) {
    return ToFloat(LoadS8(head + kScales + sub * kRows + part * kLanes));
  }
  // The minima of two sub-blocks in the halves of a lane.
  static CELER_X86_INLINE VecI MinPair(const uint8_t* head, int pair, int part) {
    const uint8_t* p = head + kMins + 2 * pair * kRows + part * kLanes;
    return Or(LoadU8(p), ShiftLeft32<16>(LoadU8(p + kRows)));
  }
};
using SuperQ2 = SuperFormat<UnsignedNibbles, 16, true, 3 * 15>;
using SuperQ3 = SuperFormat<Nibbles, 16, false, 4 * 32>;
using SuperQ4 = SuperFormat<UnsignedNibbles, 8, true, 15 * 63>;
using SuperQ5 = SuperFormat<UnsignedBytes, 8, true, 31 * 63>;
using SuperQ6 = SuperFormat<Sixes, 16, false, 32 * 128>;

// A super-block's sum is rounded as it grows in float; beside AMX, whose tiles hold it as an integer, only
// once at its end.
#if defined(__AMX_INT8__)
constexpr bool kExactSupers = true;
#else
constexpr bool kExactSupers = false;
#endif

struct BlockActivations {
  XBlocks x;
  BlockActivations(const uint8_t* unit, int64_t cols) : x(XBlocksOf(unit, cols)) {}
  CELER_X86_INLINE const float* Scale(int64_t block) const { return x.scale + block * kXTokens; }
  CELER_X86_INLINE const float* Sum(int64_t block) const { return x.sum + block * kXTokens; }
  CELER_X86_INLINE int32_t ISum(int64_t block, int t) const { return x.isum[block * kXTokens + t]; }
};
struct SuperActivations {};  // read by their own kernels
struct RowActivations {};

// The lines of a block's kBytes a little further on, in each of kG groups: the hardware's own prefetching
// leaves the memory idle between two streams. Measured with 16 cores: a sixth more bytes per second.
template <int kBytes, int kG>
CELER_X86_INLINE void Prefetch(const uint8_t* w, int64_t group_bytes) {
  constexpr int kAhead = 1088;
  For<kG>(CELER_EACH(g) {
    For<(kBytes + 63) / 64>(CELER_EACH(line) {
      _mm_prefetch(reinterpret_cast<const char*>(w + g * group_bytes + kAhead + line * 64), _MM_HINT_T0);
    });
  });
}

// kG row groups (from w on), kP parts of them (from `part` on), kT tokens (from `first` on in their unit).
template <class Format, class X, int kG, int kP, int kT>
inline void VectorBlocks(const TileJob& job, const uint8_t* w, int part, const uint8_t* unit, int first,
                         float* out) {
  using Values = typename Format::Values;
  const X x(unit, job.cols);
  VecF sum[kG][kP][kT];
  For<kG>(CELER_EACH(g) { For<kP>(CELER_EACH(p) { For<kT>(CELER_EACH(t) { sum[g][p][t] = ZeroF(); }); }); });
  int64_t block = 0;
  for (int64_t c = 0; c < job.cols; c += job.span) {
    const uint8_t* const header = w;
    w += Format::kHeader;
    for (int64_t k = 0; k < job.span; k += kBlockCols, w += Values::kBytes, ++block) {
      const float* const x_scale = x.Scale(block) + first;
      const int8_t* const q = x.x.q + XAt(block * kBlockCols) + first * 64;
      Prefetch<Values::kBytes + Format::kHeader, kG>(w, job.group_bytes);
      For<kG>(CELER_EACH(g) {
        For<kP>(CELER_EACH(p) {
          VecI dot[kT];
          For<kT>(CELER_EACH(t) {
            dot[t] = Values::kExcess == 0 ? ZeroI() : SetI(-Values::kExcess * x.ISum(block, first + t));
          });
          DotSteps<Values, 0, 8, kT>(w + g * job.group_bytes + (part + p) * kLanes * 4, q, dot);
          const uint8_t* const head = header + g * job.group_bytes;
          const VecF scale = Format::Scales(head, part + p);
          For<kT>(CELER_EACH(t) {
            sum[g][p][t] = Fma(ToFloat(dot[t]), Mul(scale, SetF(x_scale[t])), sum[g][p][t]);
          });
          if constexpr (Format::kHasMin) {
            const VecF min = Format::Mins(head, part + p);
            const float* const x_sum = x.Sum(block) + first;
            For<kT>(CELER_EACH(t) { sum[g][p][t] = Fma(min, SetF(x_sum[t]), sum[g][p][t]); });
          }
        });
      });
    }
  }
  For<kG>(CELER_EACH(g) {
    For<kP>(CELER_EACH(p) {
      For<kT>(CELER_EACH(t) {
        StoreF(out + t * job.out_stride + g * kRows + (part + p) * kLanes, sum[g][p][t]);
      });
    });
  });
}

// Adds a token's outliers to its sums of kN row groups, whose values (of kLanes rows) begin at `values`.
template <int kN>
CELER_X86_INLINE void AddHighs(const XRow& x, int t, int64_t cols, const uint8_t* values, int64_t group_bytes,
                               VecF (&sum)[kN]) {
  const int32_t highs = x.highs[t];
  if (highs == 0) return;
  VecI dot[kN][1];
  For<kN>(
      CELER_EACH(n) { dot[n][0] = Bytes::kExcess == 0 ? ZeroI() : SetI(-Bytes::kExcess * x.high_sum[t]); });
  const XHigh* high = x.high + t * (cols / 4);
  for (int32_t i = 0; i < highs; ++i, ++high)
    For<kN>(CELER_EACH(n) {
      DotSteps<Bytes, 0, 1, 1>(values + n * group_bytes + high->step * kStepBytes, high->q, dot[n]);
    });
  For<kN>(CELER_EACH(n) { sum[n] = Fma(ToFloat(dot[n][0]), SetF(128), sum[n]); });
}

// celer's int8 with one scale to a row, for weights and for activations: integers to the end of the row.
template <int kG, int kP, int kT>
inline void VectorRow(const TileJob& job, const uint8_t* w, int part, const uint8_t* unit, int first,
                      float* out) {
  const XRow x = XRowOf(unit, job.cols);
  const uint8_t* const values = w + ByteWide::kHeader + part * kLanes * 4;
  VecI dot[kG][kP][kT];
  For<kG>(CELER_EACH(g) {
    For<kP>(CELER_EACH(p) {
      For<kT>(CELER_EACH(t) {
        dot[g][p][t] = Bytes::kExcess == 0 ? ZeroI() : SetI(-Bytes::kExcess * x.isum[first + t]);
      });
    });
  });
  for (int64_t c = 0; c < job.cols; c += kBlockCols) {
    const int8_t* const q = x.q + XAt(c) + first * 64;
    Prefetch<Bytes::kBytes, kG>(values + c * kRows, job.group_bytes);
    For<kG>(CELER_EACH(g) {
      For<kP>(CELER_EACH(p) {
        DotSteps<Bytes, 0, 8, kT>(values + g * job.group_bytes + p * kLanes * 4 + c * kRows, q, dot[g][p]);
      });
    });
  }
  For<kP>(CELER_EACH(p) {
    For<kT>(CELER_EACH(t) {
      VecF sum[kG];
      For<kG>(CELER_EACH(g) { sum[g] = ToFloat(dot[g][p][t]); });
      AddHighs(x, first + t, job.cols, values + p * kLanes * 4, job.group_bytes, sum);
      For<kG>(CELER_EACH(g) {
        const VecF scale = ByteWide::Scales(w + g * job.group_bytes, part + p);
        StoreF(out + t * job.out_stride + g * kRows + (part + p) * kLanes,
               Mul(Mul(sum[g], SetF(x.scale[first + t])), scale));
      });
    });
  });
}

template <class Format, int kG, int kP, int kT>
inline void VectorSupers(const TileJob& job, const uint8_t* w, int part, const uint8_t* unit, int first,
                         float* out) {
  using Values = typename Format::Values;
  const XSupers x = XSupersOf(unit, job.cols);
  const int16_t* const sums = Format::kSubs == 8 ? x.sum32 : x.sum16;
  VecF sum[kG][kP][kT];
  For<kG>(CELER_EACH(g) { For<kP>(CELER_EACH(p) { For<kT>(CELER_EACH(t) { sum[g][p][t] = ZeroF(); }); }); });
  int64_t super = 0;
  for (int64_t c = 0; c < job.cols; c += kSuperCols, w += Format::kBytes, ++super) {
    const float* const x_scale = x.scale + super * kXTokens + first;
    For<kG>(CELER_EACH(g) {
      For<kP>(CELER_EACH(p) {
        const uint8_t* const head = w + g * job.group_bytes;
        const uint8_t* values = head + Format::kHeader + (part + p) * kLanes * 4;
        constexpr bool kSplit = kExactSupers && Format::kExactBlocks < 8;
        VecF scaled[kT];
        VecI whole[kT];
        For<kT>(CELER_EACH(t) { scaled[t] = ZeroF(), whole[t] = ZeroI(); });
        for (int b = 0; b < 8; ++b, values += Values::kBytes) {
          const int8_t* const q = x.q + XAt(c + b * kBlockCols) + first * 64;
          Prefetch<Values::kBytes + Format::kHeader / 8, 1>(values, 0);
          constexpr int kSubSteps = Format::kSubCols / 4;
          For<Format::kSubs / 8>(CELER_EACH(half) {
            const int sub = b * (Format::kSubs / 8) + half;
            VecI dot[kT];
            For<kT>(CELER_EACH(t) {
              dot[t] = Values::kExcess == 0
                           ? ZeroI()
                           : SetI(-Values::kExcess * SubSum(sums, super * Format::kSubs + sub, first + t));
            });
            DotSteps<Values, decltype(half)::value * kSubSteps, kSubSteps, kT>(
                values, q + half * Format::kSubCols, dot);
            const VecF scale = Format::SubScale(head, sub, part + p);
            For<kT>(CELER_EACH(t) { scaled[t] = Fma(ToFloat(dot[t]), scale, scaled[t]); });
          });
          if (kSplit && (b + 1) % Format::kExactBlocks == 0)
            For<kT>(CELER_EACH(t) { whole[t] = AddI(whole[t], ToNearest(scaled[t])), scaled[t] = ZeroF(); });
        }
        if constexpr (kSplit) For<kT>(CELER_EACH(t) { scaled[t] = ToFloat(whole[t]); });
        const VecF d = LoadHalves(head + (part + p) * kLanes * 2);
        For<kT>(CELER_EACH(t) { sum[g][p][t] = Fma(scaled[t], Mul(d, SetF(x_scale[t])), sum[g][p][t]); });
        if constexpr (Format::kHasMin) {
          VecI mins[kT];
          For<kT>(CELER_EACH(t) { mins[t] = ZeroI(); });
          for (int pair = 0; pair < Format::kSubs / 2; ++pair) {
            const VecI min = Format::MinPair(head, pair, part + p);
            const int16_t* two = sums + ((super * Format::kSubs / 2 + pair) * kXTokens + first) * 2;
            For<kT>(CELER_EACH(t) { mins[t] = DotPairs(mins[t], min, SetFour(two + 2 * t)); });
          }
          const VecF dmin = LoadHalves(head + 2 * kRows + (part + p) * kLanes * 2);
          For<kT>(CELER_EACH(t) {
            sum[g][p][t] = Fnma(ToFloat(mins[t]), Mul(dmin, SetF(x_scale[t])), sum[g][p][t]);
          });
        }
      });
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

struct Row {};  // bytes with one scale to a row

template <class Format>
constexpr int kMaxTokens = kMaxBlockTokens;
template <class V, int kSubs, bool kMin, int kLargest>
constexpr int kMaxTokens<SuperFormat<V, kSubs, kMin, kLargest>> = kMaxSuperTokens;

template <class Format, class X, int kG, int kP, int kT>
inline void Vector(const TileJob& job, const uint8_t* w, int part, const uint8_t* unit, int first,
                   float* out) {
  if constexpr (__is_same(Format, Row))
    VectorRow<kG, kP, kT>(job, w, part, unit, first, out);
  else if constexpr (requires { Format::kSubs; })
    VectorSupers<Format, kG, kP, kT>(job, w, part, unit, first, out);
  else
    VectorBlocks<Format, X, kG, kP, kT>(job, w, part, unit, first, out);
}

template <class Format, class X>
inline void VectorTile(const TileJob& job) {
  if (job.tokens == 1) {  // as many streams of memory as there are groups
    int g = 0;
    for (; g + 4 <= job.groups; g += 4)
      Vector<Format, X, 4, kParts, 1>(job, job.w + g * job.group_bytes, 0, job.x, 0, job.out + g * kRows);
    for (; g < job.groups; ++g)
      Vector<Format, X, 1, kParts, 1>(job, job.w + g * job.group_bytes, 0, job.x, 0, job.out + g * kRows);
    return;
  }
  constexpr int kMax = kMaxTokens<Format>;
  for (int g = 0; g < job.groups; ++g)
    for (int part = 0; part < kParts; ++part) {
      const uint8_t* const w = job.w + g * job.group_bytes;
      int t = 0;
      const auto run = [&](auto count) {
        for (; t + count <= job.tokens; t += count)
          Vector<Format, X, 1, 1, decltype(count)::value>(job, w, part, job.x + t / kXTokens * job.x_bytes,
                                                          t % kXTokens,
                                                          job.out + t * job.out_stride + g * kRows);
      };
      run(Const<kMax>{});
      if constexpr (kMax > 4) run(Const<4>{});
      if constexpr (kMax > 2) run(Const<2>{});
      run(Const<1>{});
    }
}

}  // namespace
}  // namespace celer::x86

// The kernels of every format, as functions with this suffix. tile<Format, X>(job) runs one.
#define CELER_X86_DEFINE_TILES(suffix, tile)       \
  void TileByte##suffix(const TileJob& job) {      \
    tile<Byte, BlockActivations>(job);             \
  }                                                \
  void TileByteMin##suffix(const TileJob& job) {   \
    tile<ByteMin, BlockActivations>(job);          \
  }                                                \
  void TileByteWide##suffix(const TileJob& job) {  \
    tile<ByteWide, BlockActivations>(job);         \
  }                                                \
  void TileByteRow##suffix(const TileJob& job) {   \
    tile<Row, RowActivations>(job);                \
  }                                                \
  void TileNibble##suffix(const TileJob& job) {    \
    tile<Nibble, BlockActivations>(job);           \
  }                                                \
  void TileNibbleMin##suffix(const TileJob& job) { \
    tile<NibbleMin, BlockActivations>(job);        \
  }                                                \
  void TileLevels##suffix(const TileJob& job) {    \
    tile<NibbleLevels, BlockActivations>(job);     \
  }                                                \
  void TileLevelsIq4##suffix(const TileJob& job) { \
    tile<NibbleLevelsIq4, BlockActivations>(job);  \
  }                                                \
  void TileSuperQ2##suffix(const TileJob& job) {   \
    tile<SuperQ2, SuperActivations>(job);          \
  }                                                \
  void TileSuperQ3##suffix(const TileJob& job) {   \
    tile<SuperQ3, SuperActivations>(job);          \
  }                                                \
  void TileSuperQ4##suffix(const TileJob& job) {   \
    tile<SuperQ4, SuperActivations>(job);          \
  }                                                \
  void TileSuperQ5##suffix(const TileJob& job) {   \
    tile<SuperQ5, SuperActivations>(job);          \
  }                                                \
  void TileSuperQ6##suffix(const TileJob& job) {   \
    tile<SuperQ6, SuperActivations>(job);          \
  }
