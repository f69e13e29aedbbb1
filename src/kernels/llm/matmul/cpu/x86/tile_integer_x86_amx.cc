// Integer tile kernels for AMX: tiles of 16 tokens times 16 rows, summed over one block's columns in a tile
// register, stored, and scaled by vector instructions, while the next tiles are under way. Few tokens take
// the vector kernels; the floats are added in the same chain in both. A product of two tiles takes 16 cycles,
// storing one and scaling it about 50 more: so bytes with one scale to a row stay in tile registers, or at
// least integers, to the end of the row, and those of super-blocks to the end of the super-block.
#include "kernels/llm/matmul/cpu/x86/amx_x86.h"
#include "kernels/llm/matmul/cpu/x86/tile_integer_x86.h"
#include "kernels/llm/matmul/cpu/x86/tile_x86.h"

namespace celer::x86 {
namespace {

// Up to this many tokens the vector kernels are faster: with a scale to each block, and with one to a row.
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
    StoreI(out + s * kStepBytes, Values::kExcess == 0       ? v
                                 : __is_same(Values, Bytes) ? LoadI(p + s * kStepBytes)
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

// Products [first, first + count) of a block's columns each, count <= kBatch.
CELER_X86_INLINE void IssueBatch(const int8_t* q, const uint8_t* w, int first, int count, uint8_t* to) {
  q += XAt(first * kBlockCols);
  w += first * kBlockCols * kRows;
  constexpr int kBytes = kBlockCols * kRows;
  CELER_AMX_PRODUCT(0, 2, 3, q, w, to)
  if (count > 1) {
    CELER_AMX_PRODUCT(1, 2, 3, q + XAt(kBlockCols), w + kBytes, to + kTileBytes)
  }
  if (count > 2) {
    CELER_AMX_PRODUCT(0, 2, 3, q + XAt(2 * kBlockCols), w + 2 * kBytes, to + 2 * kTileBytes)
  }
  if (count > 3) {
    CELER_AMX_PRODUCT(1, 2, 3, q + XAt(3 * kBlockCols), w + 3 * kBytes, to + 3 * kTileBytes)
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
                __attribute__((always_inline)) { IssueBatch(q, values, first, count, to); },
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

// A super-block's weights times the scales of their sub-blocks are integers of up to 13 bits: 128 * high +
// low, two bytes. So tiles add up all of its 256 columns, twice, and are stored and scaled once.
template <class Format>
class SuperProduct {
 public:
  explicit SuperProduct(const TileJob& job) : job_(job) {}

  void Run() {
    // The last unit's missing tokens are multiplied too, and their sums dropped.
    shape_.Use(job_.tokens < kXTokens ? job_.tokens : kXTokens, kStepCols);
    for (int g = 0; g < job_.groups; ++g) {
      const uint8_t* w = job_.w + g * job_.group_bytes;
      for (int64_t c = 0; c < job_.cols; c += kChunk) {
        const int64_t left = (job_.cols - c) / kSuperCols;
        const int supers = static_cast<int>(left < kSupers ? left : kSupers);
        for (int s = 0; s < supers; ++s, w += Format::kBytes) Unpack(w, s);
        StoresDone();
        // While the tiles of one super-block are under way those of the one before are scaled.
        const int n = (job_.tokens + kXTokens - 1) / kXTokens * supers;
        for (int i = 0; i < n; ++i) {
          Issue(i / supers, i % supers, c, sums_[i % 2]);
          if (i > 0) Finish((i - 1) / supers, (i - 1) % supers, c, g, sums_[(i - 1) % 2]);
        }
        Finish((n - 1) / supers, (n - 1) % supers, c, g, sums_[(n - 1) % 2]);
      }
    }
  }

 private:
  using Values = typename Format::Values;
  static constexpr int kSubs = Format::kSubs, kPairs = kSubs / 2;
  static constexpr int kPlanes = Format::kLargest < 128 ? 1 : 2;  // one byte may do
  static constexpr int kStepCols = 64, kSteps = kSuperCols / kStepCols;
  static constexpr int kSupers = 2, kChunk = kSupers * kSuperCols;  // unpacked at a time

  void Unpack(const uint8_t* w, int s) {
    StoreF(d_[s], LoadHalves(w));
    if constexpr (Format::kHasMin) {
      StoreF(dmin_[s], LoadHalves(w + 2 * kRows));
      for (int i = 0; i < kPairs; ++i) StoreI(mins_[s][i], Format::MinPair(w, i, 0));
    }
    const uint8_t* values = w + Format::kHeader;
    for (int b = 0; b < 8; ++b, values += Values::kBytes) {
      Prefetch<Values::kBytes + Format::kHeader / 8, 1>(values, 0);
      constexpr int kSubSteps = Format::kSubCols / 4;
      For<kSubs / 8>(CELER_EACH(half) {
        const VecI scale = LoadS8(w + Format::kScales + (b * (kSubs / 8) + half) * kRows);
        const VecI twice = Or(And(scale, SetI(0xFFFF)), ShiftLeft32<16>(scale));
        For<kSubSteps>(CELER_EACH(i) {
          constexpr int kStep = decltype(half)::value * kSubSteps + decltype(i)::value;
          VecI v = Values::template Load<kStep>(values);
          if constexpr (Values::kExcess != 0) v = SubBytes(v, SetByte(Values::kExcess));
          // Bytes 0 and 2 of a lane, then 1 and 3, as 16 bits.
          const VecI even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8), twice);
          const VecI odd = _mm512_mullo_epi16(_mm512_srai_epi16(v, 8), twice);
          const auto bytes = [](VecI low, VecI high) {
            return Or(And(low, _mm512_set1_epi16(0xFF)), _mm512_slli_epi16(high, 8));
          };
          const int at = (b * 8 + kStep) * kStepBytes;
          if constexpr (kPlanes == 1) {
            StoreI(planes_[0][s] + at, bytes(even, odd));
          } else {
            const VecI low = _mm512_set1_epi16(127);
            StoreI(planes_[0][s] + at, bytes(And(even, low), And(odd, low)));
            StoreI(planes_[1][s] + at, bytes(_mm512_srai_epi16(even, 7), _mm512_srai_epi16(odd, 7)));
          }
        });
      });
    }
  }

  CELER_X86_INLINE void Issue(int unit, int s, int64_t c, uint8_t* to) {
    const uint8_t* const q = job_.x + unit * job_.x_bytes + XAt(c + s * kSuperCols);
    _tile_zero(0);
    if constexpr (kPlanes == 2) _tile_zero(1);
    For<kSteps>(CELER_EACH(k) {
      _tile_loadd(2, q + XAt(k * kStepCols), 64);
      _tile_loadd(3, planes_[0][s] + k * kTileBytes, 64);
      _tile_dpbssd(0, 2, 3);
      if constexpr (kPlanes == 2) {
        _tile_loadd(3, planes_[1][s] + k * kTileBytes, 64);
        _tile_dpbssd(1, 2, 3);
      }
    });
    _tile_stored(0, to, 64);
    if constexpr (kPlanes == 2) _tile_stored(1, to + kTileBytes, 64);
  }

  CELER_X86_INLINE void Finish(int unit, int s, int64_t c, int g, const uint8_t* sums) const {
    const int t = unit * kXTokens, tokens = job_.tokens - t < kXTokens ? job_.tokens - t : kXTokens;
    const XSupers x = XSupersOf(job_.x + unit * job_.x_bytes, job_.cols);
    const int64_t super = c / kSuperCols + s;
    const float* const x_scale = x.scale + super * kXTokens;
    const int16_t* const x_sums = (kSubs == 8 ? x.sum32 : x.sum16) + super * kPairs * kXTokens * 2;
    float* const out = job_.out + t * job_.out_stride + g * kRows;
    const VecF d = LoadF(d_[s]);
    for (int i = 0; i < tokens; ++i) {
      VecI whole = LoadI(sums + i * 64);
      if constexpr (kPlanes == 2) whole = AddI(whole, ShiftLeft32<7>(LoadI(sums + kTileBytes + i * 64)));
      float* const to = out + i * job_.out_stride;
      VecF sum = Fma(ToFloat(whole), Mul(d, SetF(x_scale[i])), super == 0 ? ZeroF() : LoadF(to));
      if constexpr (Format::kHasMin) {
        VecI min = ZeroI();
        For<kPairs>(CELER_EACH(pair) {
          min = DotPairs(min, LoadI(mins_[s][pair]), SetFour(x_sums + (pair * kXTokens + i) * 2));
        });
        sum = Fnma(ToFloat(min), Mul(LoadF(dmin_[s]), SetF(x_scale[i])), sum);
      }
      StoreF(to, sum);
    }
  }

  const TileJob& job_;
  TileShape shape_;
  alignas(64) uint8_t planes_[kPlanes][kSupers][kSuperCols * kRows];
  alignas(64) uint8_t sums_[2][kPlanes * kTileBytes];
  alignas(64) float d_[kSupers][kRows], dmin_[kSupers][kRows];
  alignas(64) int32_t mins_[kSupers][kPairs][kRows];
};

// One scale to a row: tiles of sixteen tokens by two row groups, straight from the weights. Cache blocking: a
// few columns of the two groups stay in the L1 cache while all tokens are streamed, whose activations come
// from the L2 cache; partial sums wait in `out` meanwhile, two tiles after the other, and are stored as soon
// as they are complete.
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
      PrefetchAhead();
      if (stream)
        Prefetch16(w0 + k * kRows + kStreamAhead);
      else
        Prefetch16(later < end ? x + XAt(later) : next_x_ + XAt(later - end));
      _tile_loadd(2, x + XAt(k), 64);
      _tile_loadd(3, whole ? w0 + k * kRows : tail_[g], 64);
      _tile_dpbssd(0, 2, 3);
      if constexpr (kB == 2) {
        if (stream) Prefetch16(w1 + k * kRows + kStreamAhead);
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

  CELER_X86_INLINE void PrefetchAhead() {
    for (int i = 0; i < ahead_lines_; ++i)
      _mm_prefetch(reinterpret_cast<const char*>(ahead_ + 64 * i), _MM_HINT_T1);
    ahead_ += 64 * ahead_lines_;
  }
  static CELER_X86_INLINE void Prefetch16(const uint8_t* p) {
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
    SuperProduct<Format>(job).Run();
  else
    MatrixBlocks<Format, X>(job);
}

}  // namespace

CELER_X86_DEFINE_TILES(Amx, MatrixTile)

}  // namespace celer::x86
