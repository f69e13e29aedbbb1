// Many tokens (GEMM): row pairs by threes times units of eight tokens. Part of tile_integer_arm_i8mm.cc.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "kernels/llm/matmul/cpu/arm/block_formats_i8mm.h"
#include "kernels/llm/matmul/cpu/arm/integer_tile_neon.h"
#include "kernels/llm/matmul/cpu/arm/row_triples_i8mm.h"
#include "kernels/llm/matmul/cpu/packed.h"

namespace celer::arm {
namespace {

constexpr int kWideTokens = 7;  // of the last unit: with fewer, pairs of rows for these alone take less
constexpr int kMaxGroups = 4, kMaxUnits = 16, kMaxTriples = (kMaxGroups * kPairs + 2) / 3;

// A job of one format, with cache blocking: columns are taken in chunks whose weights (of a job's row groups)
// and activations (of 8 tokens) stay in the L1 cache together. Their factors become floats once for all
// tokens. Where there are many units, values are unpacked to bytes behind the factors, so that all that a
// loop reads lies together; for few units nibbles are read as they are packed. The last three row pairs are
// filled up with whatever is there.
template <class Format>
class WideTile {
 public:
  using Values = typename Format::Values;

  explicit WideTile(const TileJob& job)
      : job_(job),
        units_((job.tokens + kXUnitTokens - kWideTokens) / kXUnitTokens),
        pairs_(job.groups * kPairs),
        triples_((pairs_ + 2) / 3),
        blocks_(job.cols / kBlockCols) {}

  bool Fits() const {
    // Bytes that meet few units are better streamed (StreamBytes).
    constexpr int kLeast = Values::kUnsigned ? 1 : kManyUnits;
    return units_ >= kLeast && units_ <= kMaxUnits && job_.groups <= kMaxGroups && job_.span == kBlockCols;
  }
  // How many tokens are done: a few may be left over.
  int Run() const {
    if constexpr (Values::kUnsigned)
      if (units_ < kManyUnits) return RunAs<true>();
    return RunAs<false>();
  }

 private:
  static constexpr int kManyUnits = 6;
  static constexpr int kChunk = Format::kHasMin ? 24 : 32;  // blocks
  static constexpr int kPacked = Format::kHeader + Values::kBytes;
  // Of a block of three row pairs.
  static constexpr int kFactorBytes = Format::kHasMin ? 96 : 48, kValueBytes = 4 * 48;
  template <bool kAsPacked>
  static constexpr int kBlockBytes = kFactorBytes + (kAsPacked ? 0 : kValueBytes);

  struct Scratch {
    alignas(64) uint8_t blocks[kMaxTriples * kChunk * kBlockBytes<false>];
    float32x4_t sums[kMaxUnits][kMaxTriples][3][4];
  };
  static Scratch& Room() {
    static thread_local Scratch scratch;
    return scratch;
  }
  // Where the blocks of a triple begin.
  template <bool kAsPacked>
  uint8_t* BlocksOf(int triple) const {
    return scratch_.blocks + triple * kChunk * kBlockBytes<kAsPacked>;
  }

  template <bool kAsPacked>
  int RunAs() const {
    for (int64_t first = 0; first < blocks_; first += kChunk) {
      const int64_t count = blocks_ - first < kChunk ? blocks_ - first : kChunk;
      for (int g = 0; g < job_.groups; ++g)
        WriteBlocks<kAsPacked>(g, job_.w + g * job_.group_bytes + first * kPacked, count);
      for (int u = 0; u < units_; ++u) {
        PrefetchShare(u, first + count, count);
        for (int i = 0; i < triples_; ++i) Multiply<kAsPacked>(u, i, first, count);
      }
    }
    return job_.tokens < units_ * kXUnitTokens ? job_.tokens : units_ * kXUnitTokens;
  }

  template <bool kAsPacked>
  void WriteBlocks(int group, const uint8_t* from, int64_t count) const {
    uint8_t* to[kPairs];
    CELER_UNROLL for (int p = 0; p < kPairs; ++p) {
      const int at = group * kPairs + p;
      to[p] = BlocksOf<kAsPacked>(at / 3) + at % 3 * 16;
    }
    const auto put = [&](const F32x8& v, int at) {
      float32x4_t each[kPairs];
      TwiceEach<kPairs>(v, 0, each);
      CELER_UNROLL for (int p = 0; p < kPairs; ++p) vst1q_f32(reinterpret_cast<float*>(to[p] + at), each[p]);
    };
    for (int64_t b = 0; b < count; ++b, from += kPacked) {
      put(Format::Scales(from), 0);
      if constexpr (Format::kHasMin) put(Format::Mins(from), 48);
      if constexpr (kAsPacked) {
        for (int i = 0; i < kPacked; i += 64) __builtin_prefetch(from + i);  // its values
      } else {
        CELER_UNROLL for (int part = 0; part < Values::kParts; ++part)
            CELER_UNROLL for (int p = 0; p < kPairs; ++p) {
          int8x16_t values[Values::kSteps];
          Values::Load(from + Format::kHeader, part, p, values);
          CELER_UNROLL for (int s = 0; s < Values::kSteps; ++s) vst1q_u8(
              to[p] + kFactorBytes + (part * Values::kSteps + s) * 48, vreinterpretq_u8_s8(values[s]));
        }
      }
      CELER_UNROLL for (int p = 0; p < kPairs; ++p) to[p] += kBlockBytes<kAsPacked>;
    }
  }

  // What comes next of these groups, from block `next` on, or of the next job's, is fetched while these meet
  // their tokens, a share with each unit. Inlined by force: g++ takes a function that only prefetches for one
  // without effect, and drops the call.
  [[gnu::always_inline]] inline void PrefetchShare(int unit, int64_t next, int64_t count) const {
    const uint8_t* const soon = next < blocks_ ? job_.w + next * kPacked
                                : job_.ahead   ? job_.ahead
                                               : job_.w + job_.groups * job_.group_bytes;
    for (int g = 0; g < job_.groups; ++g)
      for (int64_t at = count * kPacked * unit / units_; at < count * kPacked * (unit + 1) / units_; at += 64)
        __builtin_prefetch(soon + g * job_.group_bytes + at, 0, 2);
  }

  template <bool kAsPacked>
  void Multiply(int unit, int triple, int64_t first, int64_t count) const {
    const auto activations = [&](int u) {
      return reinterpret_cast<const XPairBlock*>(job_.x + u * job_.x_bytes) + first * 4;
    };
    float32x4_t(&sum)[3][4] = scratch_.sums[unit][triple];
    if (first == 0)
      CELER_UNROLL for (int p = 0; p < 3; ++p) CELER_UNROLL for (int t = 0; t < 4; ++t) sum[p][t] =
          vdupq_n_f32(0);
    const XPairBlock* const soon = activations(unit + 1 < units_ ? unit + 1 : unit) + triple % 4;
    const uint8_t* const blocks = BlocksOf<kAsPacked>(triple);
    if constexpr (kAsPacked) {
      RowTriple w{.values = {}, .factors = blocks};
      CELER_UNROLL for (int p = 0; p < 3; ++p) {
        const int pair = 3 * triple + p < pairs_ ? 3 * triple + p : 0;
        w.values[p] = job_.w + pair / kPairs * job_.group_bytes + first * kPacked + Format::kHeader +
                      pair % kPairs * 16;
      }
      NibblesTimes<Format::kExtra>(w, activations(unit), count, soon, sum);
    } else {
      BytesTimes<Values::kUnsigned, Format::kExtra>(blocks, activations(unit), count, soon, sum);
    }
    if (first + count == blocks_) Store(sum, unit, triple);
  }

  void Store(const float32x4_t (&sum)[3][4], int unit, int triple) const {
    const int tokens = job_.tokens - unit * kXUnitTokens, rows = (pairs_ - 3 * triple) * 2;
    float* out = job_.out + unit * kXUnitTokens * job_.out_stride + 6 * triple;
    const auto store = [&](float32x4_t a, float32x4_t b, float32x4_t c) {
      if (rows == 2)
        vst1_f32(out, vget_low_f32(a));
      else
        vst1q_f32(out, vcombine_f32(vget_low_f32(a), vget_low_f32(b)));
      if (rows > 4) vst1_f32(out + 4, vget_low_f32(c));
      out += job_.out_stride;
    };
    CELER_UNROLL for (int t = 0; t < 4; ++t) {
      float32x4_t v[3];
      CELER_UNROLL for (int p = 0; p < 3; ++p) v[p] = vmulq_n_f32(sum[p][t], Values::kUnit);
      if (2 * t < tokens) store(vuzp1q_f32(v[0], v[0]), vuzp1q_f32(v[1], v[1]), vuzp1q_f32(v[2], v[2]));
      if (2 * t + 1 < tokens) store(vuzp2q_f32(v[0], v[0]), vuzp2q_f32(v[1], v[1]), vuzp2q_f32(v[2], v[2]));
    }
  }

  const TileJob& job_;
  const int units_, pairs_, triples_;
  const int64_t blocks_;
  Scratch& scratch_ = Room();
};

}  // namespace
}  // namespace celer::arm
