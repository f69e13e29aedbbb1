// Integer tile kernels for AMX: tiles of 16 tokens times 16 rows, summed over one block's columns in a tile
// register, stored, and scaled by vector instructions, while the next tiles are under way. Few tokens take
// the vector kernels; the floats are added in the same chain in both.
#include "kernels/matmul/amx_x86.h"
#include "kernels/matmul/tile_integer_x86.h"
#include "kernels/matmul/tile_x86.h"

namespace celer::x86 {
namespace {

// Up to so many tokens the vector kernels are faster: with a scale to each block, and with one to a row.
constexpr int kVectorTokens = 8, kVectorTokensWide = 4;
constexpr int kTileBytes = 16 * 64;
constexpr int kBatch = 4;  // tiles that are under way while as many are scaled
// Columns of a group that are unpacked at a time: they stay in the L1 cache while the tokens go by. With few
// tokens, less, so that memory is not idle for long.
constexpr int kMaxChunk = 1024, kSmallChunk = 256;

// Eight steps of 64 bytes, as signed bytes.
template <class Values>
CELER_X86_INLINE void Unpack(const uint8_t* p, uint8_t* out) {
  For<8>(CELER_EACH(s) {
    const VecI v = Values::template Load<decltype(s)::value>(p);
    StoreI(out + s * kStepBytes, Values::kExcess == 0     ? v
                                 : Values::kExcess == 128 ? LoadI(p + s * kStepBytes)
                                                          : SubBytes(v, SetByte(Values::kExcess)));
  });
}

// Tile c (0..3) = 16 tokens from q on times the steps from w on; stored to `to`.
#define CELER_AMX_PRODUCT(c, a, b, q, w, to) \
  _tile_zero(c);                             \
  _tile_loadd(a, q, 64);                     \
  _tile_loadd(b, w, 64);                     \
  _tile_dpbssd(c, a, b);                     \
  _tile_stored(c, to, 64);

// Products [first, first + count) of kCols columns each, count <= kBatch.
template <int kCols>
CELER_X86_INLINE void IssueBatch(const int8_t* q, const uint8_t* w, int first, int count, uint8_t* to) {
  q += XAt(first * kCols);
  w += first * kCols * kRows;
  constexpr int kBytes = kCols * kRows;
  CELER_AMX_PRODUCT(0, 4, 6, q, w, to)
  if (count > 1) {
    CELER_AMX_PRODUCT(1, 5, 7, q + XAt(kCols), w + kBytes, to + kTileBytes)
  }
  if (count > 2) {
    CELER_AMX_PRODUCT(2, 4, 6, q + XAt(2 * kCols), w + 2 * kBytes, to + 2 * kTileBytes)
  }
  if (count > 3) {
    CELER_AMX_PRODUCT(3, 5, 7, q + XAt(3 * kCols), w + 3 * kBytes, to + 3 * kTileBytes)
  }
}
#undef CELER_AMX_PRODUCT

// issue(first, count, buffer) and scale(first, count, buffer) over n products, one batch ahead.
template <class Issue, class Scale>
CELER_X86_INLINE void Pipeline(int n, const Issue& issue, const Scale& scale) {
  alignas(64) uint8_t sums[2][kBatch * kTileBytes];
  const auto count = [n](int first) { return n - first < kBatch ? n - first : kBatch; };
  issue(0, count(0), sums[0]);
  int side = 0;
  for (int first = 0; first < n; first += kBatch, side ^= 1) {
    if (first + kBatch < n) issue(first + kBatch, count(first + kBatch), sums[side ^ 1]);
    scale(first, count(first), sums[side]);
  }
}

CELER_X86_INLINE VecF SumOf(const uint8_t* tile, int token) {
  return ToFloat(LoadI(tile + token * 64));
}

// Sixteen sums, one per token, from and to out. Rows of tokens that do not exist are not touched.
CELER_X86_INLINE void LoadSums(const float* out, int64_t stride, int tokens, bool start, VecF (&sum)[16]) {
  For<16>(CELER_EACH(t) { sum[t] = start || t >= tokens ? ZeroF() : LoadF(out + t * stride); });
}
CELER_X86_INLINE void StoreSums(float* out, int64_t stride, int tokens, const VecF (&sum)[16]) {
  For<16>(CELER_EACH(t) {
    if (t < tokens) StoreF(out + t * stride, sum[t]);
  });
}

template <class Format, class X>
inline void MatrixBlocks(const TileJob& job) {
  using Values = typename Format::Values;
  constexpr int kBlocks = kMaxChunk / kBlockCols;
  alignas(64) uint8_t values[kMaxChunk * kRows];
  alignas(64) float scales[kBlocks][kRows], mins[Format::kHasMin ? kBlocks : 1][kRows];
  const int64_t chunk = job.tokens <= kXTokens ? kSmallChunk : kMaxChunk;
  TileShape shape;
  for (int g = 0; g < job.groups; ++g) {
    const uint8_t* w = job.w + g * job.group_bytes;
    const uint8_t* header = w;
    for (int64_t c = 0; c < job.cols; c += chunk) {
      const int n = static_cast<int>((job.cols - c < chunk ? job.cols - c : chunk) / kBlockCols);
      for (int b = 0; b < n; ++b) {
        if ((c + b * kBlockCols) % job.span == 0) {
          header = w;
          w += Format::kHeader;
        }
        StoreF(scales[b], Format::Scales(header, 0));
        if constexpr (Format::kHasMin) StoreF(mins[b], Format::Mins(header, 0));
        Unpack<Values>(w, values + b * kBlockCols * kRows);
        w += Values::kBytes;
      }
      StoresDone();
      for (int t = 0; t < job.tokens; t += kXTokens) {
        const int tokens = job.tokens - t < kXTokens ? job.tokens - t : kXTokens;
        shape.Use(tokens, 0, kBlockCols);
        const X x(job.x + t / kXTokens * job.x_bytes, job.cols);
        const int8_t* const q = x.x.q + XAt(c);
        const int64_t block = c / kBlockCols;
        float* const out = job.out + t * job.out_stride + g * kRows;
        VecF sum[kXTokens];
        LoadSums(out, job.out_stride, tokens, c == 0, sum);
        Pipeline(
            n,
            [&](int first, int count, uint8_t* to)
                __attribute__((always_inline)) { IssueBatch<kBlockCols>(q, values, first, count, to); },
            [&](int first, int count, const uint8_t* from) __attribute__((always_inline)) {
              for (int b = first; b < first + count; ++b, from += kTileBytes) {
                const VecF scale = LoadF(scales[b]);
                const float* const x_scale = x.Scale(block + b);
                For<kXTokens>(
                    CELER_EACH(i) { sum[i] = Fma(SumOf(from, i), Mul(scale, SetF(x_scale[i])), sum[i]); });
                if constexpr (Format::kHasMin) {
                  const VecF min = LoadF(mins[b]);
                  const float* const x_sum = x.Sum(block + b);
                  For<kXTokens>(CELER_EACH(i) { sum[i] = Fma(min, SetF(x_sum[i]), sum[i]); });
                }
              }
            });
        StoreSums(out, job.out_stride, tokens, sum);
      }
    }
  }
}

template <class Format>
inline void MatrixSupers(const TileJob& job) {
  using Values = typename Format::Values;
  constexpr int kSubs = Format::kSubs, kPairs = kSubs / 2, kMaxSupers = kMaxChunk / kSuperCols;
  alignas(64) uint8_t values[kMaxChunk * kRows];
  alignas(64) float scales[kMaxSupers * kSubs][kRows], d[kMaxSupers][kRows], dmin[kMaxSupers][kRows];
  alignas(64) int32_t mins[kMaxSupers * kPairs][kRows];
  const int64_t chunk = job.tokens <= kXTokens ? kSmallChunk : kMaxChunk;
  TileShape shape;
  for (int g = 0; g < job.groups; ++g) {
    const uint8_t* w = job.w + g * job.group_bytes;
    for (int64_t c = 0; c < job.cols; c += chunk) {
      const int supers = static_cast<int>((job.cols - c < chunk ? job.cols - c : chunk) / kSuperCols);
      for (int s = 0; s < supers; ++s, w += Format::kBytes) {
        StoreF(d[s], LoadHalves(w));
        for (int i = 0; i < kSubs; ++i) StoreF(scales[s * kSubs + i], Format::SubScale(w, i, 0));
        if constexpr (Format::kHasMin) {
          StoreF(dmin[s], LoadHalves(w + 2 * kRows));
          for (int i = 0; i < kPairs; ++i) StoreI(mins[s * kPairs + i], Format::MinPair(w, i, 0));
        }
        for (int b = 0; b < 8; ++b)
          Unpack<Values>(w + Format::kHeader + b * Values::kBytes,
                         values + (s * kSuperCols + b * kBlockCols) * kRows);
      }
      StoresDone();
      for (int t = 0; t < job.tokens; t += kXTokens) {
        const int tokens = job.tokens - t < kXTokens ? job.tokens - t : kXTokens;
        shape.Use(tokens, 0, Format::kSubCols);
        const XSupers x = XSupersOf(job.x + t / kXTokens * job.x_bytes, job.cols);
        const int8_t* const q = x.q + XAt(c);
        float* const out = job.out + t * job.out_stride + g * kRows;
        VecF scaled[kXTokens];
        const auto finish = [&](int s) __attribute__((always_inline)) {
          const int64_t super = c / kSuperCols + s;
          const float* const x_scale = x.scale + super * kXTokens;
          const VecF scale = LoadF(d[s]);
          const int16_t* const sums = (kSubs == 8 ? x.sum32 : x.sum16) + super * kPairs * kXTokens * 2;
          const bool start = super == 0;
          For<kXTokens>(CELER_EACH(i) {
            if (i < tokens) {
              float* const to = out + i * job.out_stride;
              StoreF(to, Fma(scaled[i], Mul(scale, SetF(x_scale[i])), start ? ZeroF() : LoadF(to)));
            }
          });
          if constexpr (Format::kHasMin) {
            VecI min[kXTokens];
            For<kXTokens>(CELER_EACH(i) { min[i] = ZeroI(); });
            for (int pair = 0; pair < kPairs; ++pair) {
              const VecI two = LoadI(mins[s * kPairs + pair]);
              const int16_t* const x_two = sums + pair * kXTokens * 2;
              For<kXTokens>(CELER_EACH(i) { min[i] = DotPairs(min[i], two, SetFour(x_two + 2 * i)); });
            }
            const VecF min_scale = LoadF(dmin[s]);
            For<kXTokens>(CELER_EACH(i) {
              if (i < tokens)
                StoreF(out + i * job.out_stride, Fnma(ToFloat(min[i]), Mul(min_scale, SetF(x_scale[i])),
                                                      LoadF(out + i * job.out_stride)));
            });
          }
        };
        Pipeline(
            supers * kSubs,
            [&](int first, int count, uint8_t* to)
                __attribute__((always_inline)) { IssueBatch<Format::kSubCols>(q, values, first, count, to); },
            [&](int first, int, const uint8_t* from) __attribute__((always_inline)) {
              static_assert(kSubs % kBatch == 0);
              if (first % kSubs == 0) For<kXTokens>(CELER_EACH(i) { scaled[i] = ZeroF(); });
              for (int b = first; b < first + kBatch; ++b, from += kTileBytes) {
                const VecF scale = LoadF(scales[b]);
                For<kXTokens>(CELER_EACH(i) { scaled[i] = Fma(SumOf(from, i), scale, scaled[i]); });
              }
              if ((first + kBatch) % kSubs == 0) finish(first / kSubs);
            });
      }
    }
  }
}

// One scale to a row: whole tiles straight from the weights, one activation scale for each; the row's scale
// comes last.
inline void MatrixWide(const TileJob& job) {
  alignas(64) uint8_t padded[kMaxChunk * kRows];  // the last columns where they do not fill a tile
  const int64_t chunk = job.tokens <= kXTokens ? kSmallChunk : kMaxChunk;
  TileShape shape;
  for (int g = 0; g < job.groups; ++g) {
    const uint8_t* const w = job.w + g * job.group_bytes;
    const VecF row_scale = ByteWide::Scales(w, 0);
    for (int64_t c = 0; c < job.cols; c += chunk) {
      const int64_t cols = job.cols - c < chunk ? job.cols - c : chunk;
      const int n = static_cast<int>((cols + kWideCols - 1) / kWideCols);
      const uint8_t* values = w + ByteWide::kHeader + c * kRows;
      if (cols % kWideCols != 0) {
        for (int64_t i = 0; i < n * kTileBytes; i += 64)
          StoreI(padded + i, i < cols * kRows ? LoadI(values + i) : ZeroI());
        values = padded;
        StoresDone();
      }
      const bool last = c + chunk >= job.cols;
      for (int t = 0; t < job.tokens; t += kXTokens) {
        const int tokens = job.tokens - t < kXTokens ? job.tokens - t : kXTokens;
        shape.Use(tokens, 0, kWideCols);
        const XWide x = XWideOf(job.x + t / kXTokens * job.x_bytes, job.cols);
        const int8_t* const q = x.q + XAt(c);
        const float* const scales = x.scale + c / kWideCols * kXTokens;
        float* const out = job.out + t * job.out_stride + g * kRows;
        VecF sum[kXTokens];
        LoadSums(out, job.out_stride, tokens, c == 0, sum);
        Pipeline(
            n,
            [&](int first, int count, uint8_t* to)
                __attribute__((always_inline)) { IssueBatch<kWideCols>(q, values, first, count, to); },
            [&](int first, int count, const uint8_t* from) __attribute__((always_inline)) {
              for (int b = first; b < first + count; ++b, from += kTileBytes) {
                const float* const x_scale = scales + b * kXTokens;
                For<kXTokens>(CELER_EACH(i) { sum[i] = Fma(SumOf(from, i), SetF(x_scale[i]), sum[i]); });
              }
            });
        if (last) For<kXTokens>(CELER_EACH(i) { sum[i] = Mul(sum[i], row_scale); });
        StoreSums(out, job.out_stride, tokens, sum);
      }
    }
  }
}

template <class Format, class X>
inline void MatrixTile(const TileJob& job) {
  if (job.tokens <= (__is_same(Format, Wide) ? kVectorTokensWide : kVectorTokens))
    return VectorTile<Format, X>(job);
  if constexpr (__is_same(Format, Wide))
    MatrixWide(job);
  else if constexpr (requires { Format::kSubs; })
    MatrixSupers<Format>(job);
  else
    MatrixBlocks<Format, X>(job);
}

}  // namespace

CELER_X86_DEFINE_TILES(Amx, MatrixTile)

}  // namespace celer::x86
