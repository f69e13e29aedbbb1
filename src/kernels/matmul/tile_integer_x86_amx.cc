// Integer tile kernels for AMX: tiles of 16 tokens times 16 rows, summed over one block's columns in a tile
// register, stored, and scaled by vector instructions, while the next tiles are under way. Few tokens take
// the vector kernels; the floats are added in the same chain in both. A product of two tiles takes 16 cycles,
// storing one and scaling it some 50 more: so bytes with one scale to a row stay in tile registers, or at
// least integers, to the end of the row.
#include "kernels/matmul/amx_x86.h"
#include "kernels/matmul/tile_integer_x86.h"
#include "kernels/matmul/tile_x86.h"

namespace celer::x86 {
namespace {

// Up to so many tokens the vector kernels are faster: with a scale to each block, and with one to a row.
constexpr int kVectorTokens = 8, kVectorTokensRow = kAmxRowTokens - 1;
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

// Tile c (0 or 1) = 16 tokens from q on times the steps from w on; stored to `to`.
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
  CELER_AMX_PRODUCT(0, 2, 3, q, w, to)
  if (count > 1) {
    CELER_AMX_PRODUCT(1, 2, 3, q + XAt(kCols), w + kBytes, to + kTileBytes)
  }
  if (count > 2) {
    CELER_AMX_PRODUCT(0, 2, 3, q + XAt(2 * kCols), w + 2 * kBytes, to + 2 * kTileBytes)
  }
  if (count > 3) {
    CELER_AMX_PRODUCT(1, 2, 3, q + XAt(3 * kCols), w + 3 * kBytes, to + 3 * kTileBytes)
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
        shape.Use(tokens, kBlockCols);
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
        shape.Use(tokens, Format::kSubCols);
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

// One scale to a row: tiles of sixteen tokens by two row groups, straight from the weights. A few columns of
// the two groups stay in the L1 cache while all tokens go by, whose activations come from the L2 cache; sums
// wait in `out` meanwhile, two tiles after the other, and go where they belong as soon as they are complete.
class RowProduct {
 public:
  explicit RowProduct(const TileJob& job) : job_(job), units_((job.tokens + kXTokens - 1) / kXTokens) {}

  void Run() {
    if (job_.cols % kStepCols != 0)
      for (int g = 0; g < job_.groups; ++g) FillTail(g);
    StoresDone();
    // The last unit's missing tokens are multiplied too, and their sums dropped.
    shape_.Use(job_.tokens < kXTokens ? job_.tokens : kXTokens, kStepCols);
    const int64_t steps = (job_.groups + 1) / 2 * int64_t{units_} * ((job_.cols + kStepCols - 1) / kStepCols);
    ahead_ = job_.ahead;
    ahead_lines_ = job_.ahead ? static_cast<int>((job_.ahead_bytes / 64 + steps - 1) / steps) : 0;
    for (int g = 0; g < job_.groups; g += 2)
      for (int64_t c = 0; c < job_.cols; c += kChunkCols)
        for (int u = 0; u < units_; ++u) {
          next_x_ = u + 1 < units_               ? Unit(u + 1) + XAt(c)
                    : c + kChunkCols < job_.cols ? job_.x + XAt(c + kChunkCols)
                                                 : job_.x;
          g + 1 < job_.groups ? Block<2>(u, g, c) : Block<1>(u, g, c);
        }
  }

 private:
  static constexpr int kStepCols = 64, kChunkCols = 512;
  static constexpr int kXAhead = 2;          // steps that activations are fetched before their turn
  static constexpr int kStreamAhead = 4096;  // bytes of each row group, where memory is the limit

  const uint8_t* Unit(int u) const { return job_.x + u * job_.x_bytes; }
  const uint8_t* Group(int g) const { return job_.w + g * job_.group_bytes; }
  const uint8_t* Values(int g) const { return Group(g) + ByteWide::kHeader; }

  void FillTail(int g) {
    const int64_t whole = job_.cols / kStepCols * kStepCols;
    const uint8_t* const p = Values(g) + whole * kRows;
    for (int i = 0; i < kTileBytes; i += 64)
      StoreI(tail_[g] + i, i < (job_.cols - whole) * kRows ? LoadI(p + i) : ZeroI());
  }

  // One unit times kB row groups, columns from c on.
  template <int kB>
  void Block(int u, int g, int64_t c) {
    const int t = u * kXTokens, tokens = job_.tokens - t < kXTokens ? job_.tokens - t : kXTokens;
    const uint8_t* const x = Unit(u);
    const uint8_t* const w0 = Values(g);
    const uint8_t* const w1 = Values(g + kB - 1);
    uint8_t* const sums = reinterpret_cast<uint8_t*>(job_.out) + u * (2 * kTileBytes);
    if (c == 0) {
      _tile_zero(0);
      if constexpr (kB == 2) _tile_zero(1);
    } else {
      _tile_loadd(0, sums, 64);
      if constexpr (kB == 2) _tile_loadd(1, sums + kTileBytes, 64);
    }
    const int64_t end = c + kChunkCols < job_.cols ? c + kChunkCols : job_.cols;
    const bool stream = units_ == 1;
    for (int64_t k = c; k < end; k += kStepCols) {
      const bool whole = k + kStepCols <= job_.cols;
      const int64_t later = k + kXAhead * kStepCols;
      FetchAhead();
      if (stream)
        Fetch16(w0 + k * kRows + kStreamAhead);
      else
        Fetch16(later < end ? x + XAt(later) : next_x_ + XAt(later - end));
      _tile_loadd(2, x + XAt(k), 64);
      _tile_loadd(3, whole ? w0 + k * kRows : tail_[g], 64);
      _tile_dpbssd(0, 2, 3);
      if constexpr (kB == 2) {
        if (stream) Fetch16(w1 + k * kRows + kStreamAhead);
        _tile_loadd(3, whole ? w1 + k * kRows : tail_[g + 1], 64);
        _tile_dpbssd(1, 2, 3);
      }
    }
    _tile_stored(0, sums, 64);
    if constexpr (kB == 2) _tile_stored(1, sums + kTileBytes, 64);
    if (end < job_.cols) return;
    StoresDone();
    Finish<kB>(t, tokens, g, sums);
  }

  // Sums of kN row groups and up to sixteen tokens to floats, and to where they go.
  template <int kN>
  CELER_X86_INLINE void Finish(int t, int tokens, int g, const uint8_t* sums) {
    VecF scale[kN], bias[kN];
    __mmask16 rows[kN];
    For<kN>(CELER_EACH(n) {
      scale[n] = ByteWide::Scales(Group(g + n), 0);
      const int64_t left = job_.to.rows - (g + n) * kRows;
      rows[n] = static_cast<__mmask16>(left >= kRows ? 0xFFFF : left <= 0 ? 0 : (1 << left) - 1);
      bias[n] = job_.to.bias ? _mm512_maskz_loadu_ps(rows[n], job_.to.bias + (g + n) * kRows) : ZeroF();
    });
    const XRow x = XRowOf(Unit(t / kXTokens), job_.cols);
    for (int i = 0; i < tokens; ++i) {
      VecF sum[kN];
      For<kN>(CELER_EACH(n) { sum[n] = ToFloat(LoadI(sums + n * kTileBytes + i * 64)); });
      AddHighs(x, i, job_.cols, Values(g), job_.group_bytes, sum);
      const int64_t at = (t + i) * job_.to.stride + g * kRows;
      For<kN>(CELER_EACH(n) {
        VecF v = Mul(Mul(sum[n], SetF(x.scale[i])), scale[n]);
        asm("" : "+v"(v));  // no multiply-add with what follows: few tokens have none either
        if (job_.to.bias) v = Add(v, bias[n]);
        if (job_.to.residual) v = Add(v, _mm512_maskz_loadu_ps(rows[n], job_.to.residual + at + n * kRows));
        _mm512_mask_storeu_ps(job_.to.out + at + n * kRows, rows[n], v);
      });
    }
  }

  CELER_X86_INLINE void FetchAhead() {
    for (int i = 0; i < ahead_lines_; ++i)
      _mm_prefetch(reinterpret_cast<const char*>(ahead_ + 64 * i), _MM_HINT_T1);
    ahead_ += 64 * ahead_lines_;
  }
  static CELER_X86_INLINE void Fetch16(const uint8_t* p) {
    For<16>(CELER_EACH(i) { _mm_prefetch(reinterpret_cast<const char*>(p + 64 * i), _MM_HINT_T0); });
  }

  const TileJob& job_;
  const int units_;
  TileShape shape_;
  const uint8_t* next_x_ = nullptr;  // the next block's first unit
  const uint8_t* ahead_ = nullptr;
  int ahead_lines_ = 0;                      // for each step
  alignas(64) uint8_t tail_[4][kTileBytes];  // the last columns where they do not fill a tile
};

template <class Format, class X>
inline void MatrixTile(const TileJob& job) {
  if (job.tokens <= (__is_same(Format, Row) ? kVectorTokensRow : kVectorTokens))
    return VectorTile<Format, X>(job);
  if constexpr (__is_same(Format, Row))
    RowProduct(job).Run();
  else if constexpr (requires { Format::kSubs; })
    MatrixSupers<Format>(job);
  else
    MatrixBlocks<Format, X>(job);
}

}  // namespace

CELER_X86_DEFINE_TILES(Amx, MatrixTile)

}  // namespace celer::x86
