// Divides a product into jobs for the tile kernels: activations prepared once (normed, quantized), then tiles
// of rows and tokens handed out as threads get free, one fork-join in all for a decode step.
#include "kernels/matmul/tiles.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "core/check.h"
#include "kernels/matmul/pack.h"
#include "kernels/rms_norm/rms_norm.h"

namespace celer {
namespace {

// Up to so many elements every thread prepares all activations for itself: cheaper than waiting for a join.
constexpr int64_t kPrepareAlone = 6144;
// Tokens of one job: their activations stay in the L2 cache while the rows go by.
constexpr int64_t kJobTokens = 128;
constexpr int kMaxTileRows = 64;
// Up to so many tokens, memory is what a product waits for: every thread reads a contiguous part of it.
constexpr int64_t kStreamTokens = 16;

// The activations in every form that some output needs.
class Activations {
 public:
  Activations(const TileIsa& isa, const MatmulArgs& args, const bool (&needed)[kXKinds])
      : isa_(isa), args_(args), cols_(args.outputs[0].w.cols) {
    const int64_t units = (args.tokens + isa.x_tokens - 1) / isa.x_tokens;
    for (int k = 0; k < kXKinds; ++k) {
      begin_[k] = total_;
      if (!needed[k]) continue;
      unit_bytes_[k] = isa.x_bytes(static_cast<XKind>(k), cols_);
      total_ += unit_bytes_[k] * units;
    }
  }

  int64_t units() const { return (args_.tokens + isa_.x_tokens - 1) / isa_.x_tokens; }
  int64_t bytes() const { return total_; }
  int64_t unit_bytes(XKind kind) const { return unit_bytes_[static_cast<int>(kind)]; }
  const uint8_t* At(const uint8_t* base, XKind kind, int64_t token) const {
    return base + begin_[static_cast<int>(kind)] + token / isa_.x_tokens * unit_bytes(kind);
  }

  void Prepare(int64_t begin, int64_t end, uint8_t* base) const {
    static thread_local std::vector<float> normed;
    constexpr int kMaxTokens = 16;
    CELER_CHECK_LE(isa_.x_tokens, kMaxTokens);
    if (args_.norm) normed.resize(static_cast<size_t>(isa_.x_tokens * cols_));
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = u * isa_.x_tokens;
      const auto tokens = static_cast<int>(std::min<int64_t>(isa_.x_tokens, args_.tokens - first));
      const float* rows[kMaxTokens];
      for (int t = 0; t < tokens; ++t) {
        rows[t] = args_.x + (args_.x_rows ? args_.x_rows[first + t] : first + t) * cols_;
        if (!args_.norm) continue;
        float* out = normed.data() + t * cols_;
        RmsNorm({.x = rows[t], .weight = args_.norm, .eps = args_.eps, .rows = 1, .cols = cols_, .out = out});
        rows[t] = out;
      }
      for (int k = 0; k < kXKinds; ++k)
        if (unit_bytes_[k] > 0)
          isa_.prepare(static_cast<XKind>(k), rows, tokens, cols_, base + begin_[k] + u * unit_bytes_[k]);
    }
  }

 private:
  const TileIsa& isa_;
  const MatmulArgs& args_;
  int64_t cols_;
  int64_t begin_[kXKinds] = {}, unit_bytes_[kXKinds] = {};
  int64_t total_ = 0;
};

// Room in a thread's own buffer, from the start of a cache line on.
uint8_t* Room(std::vector<uint8_t>& buffer, int64_t bytes) {
  const size_t needed = static_cast<size_t>(bytes) + 63;
  if (buffer.size() < needed) buffer.resize(needed);  // shrinking would mean to clear it again and again
  return buffer.data() + (-reinterpret_cast<uintptr_t>(buffer.data()) & 63);
}

struct Part {
  const MatmulOutput* to;
  PackedShape shape;
  int64_t first_tile = 0;  // where its row tiles begin among those of all parts
};

// Products of one call, by whichever thread.
class Products {
 public:
  Products(const TileIsa& isa, const Activations& activations) : isa_(isa), activations_(activations) {}

  // Row groups first, first + apart, ... (`count` of them) of a part, times some tokens.
  void Run(const uint8_t* x, const Part& part, int64_t first, int64_t apart, int64_t count, int64_t token,
           int64_t tokens, std::span<const uint8_t> ahead = {}) const {
    alignas(64) float tile[kJobTokens * kMaxTileRows];
    const TileIsa::Kernel& kernel = isa_[part.shape.format];
    const int64_t rows = isa_.geometry.rows, stride = count * rows;
    const auto* w = reinterpret_cast<const uint8_t*>(part.to->w.packed);
    TileTarget to;
    if (tokens >= kernel.direct_tokens) {
      const int64_t row = first * rows, at = token * part.to->out_stride + row;
      to = {.out = part.to->out + at,
            .residual = part.to->residual ? part.to->residual + at : nullptr,
            .bias = part.to->bias ? part.to->bias + row : nullptr,
            .stride = part.to->out_stride,
            .rows = std::min(stride, part.to->w.rows - row)};
    }
    kernel.run({.w = w + first * part.shape.group_bytes,
                .group_bytes = apart * part.shape.group_bytes,
                .groups = static_cast<int>(count),
                .x = activations_.At(x, kernel.x, token),
                .x_bytes = activations_.unit_bytes(kernel.x),
                .tokens = static_cast<int>(tokens),
                .cols = part.to->w.cols,
                .span = part.shape.span,
                .out = tile,
                .out_stride = stride,
                .ahead = ahead.data(),
                .ahead_bytes = static_cast<int64_t>(ahead.size()),
                .to = to});
    if (to.out) return;
    const auto store = [&](int64_t group, int64_t groups, const float* from) {
      const int64_t row = group * rows;
      StoreTile(*part.to, row, std::min(groups * rows, part.to->w.rows - row), token, tokens, from, stride);
    };
    if (apart == 1) return store(first, count, tile);
    for (int64_t i = 0; i < count; ++i) store(first + i * apart, 1, tile + i * rows);
  }

  // Row groups [begin, end) times few tokens, weights straight from memory. With one token as many streams of
  // memory as a tile has groups: each is long, so that the hardware prefetches it, and together they keep
  // more reads in flight than one would.
  void Stream(const uint8_t* x, const Part& part, int64_t begin, int64_t end, int64_t tokens) const {
    const int64_t streams = isa_.streams;
    if (tokens == 1) {
      const int64_t length = (end - begin) / streams;
      for (int64_t i = 0; i < length; ++i) Run(x, part, begin + i, length, streams, 0, tokens);
      begin += length * streams;
    }
    for (; begin < end; begin += streams) Run(x, part, begin, 1, std::min(streams, end - begin), 0, tokens);
  }

 private:
  const TileIsa& isa_;
  const Activations& activations_;
};

}  // namespace

int64_t TilePackedBytes(const TileIsa& isa, const WeightView& w) {
  const PackedShape shape = PackedShapeOf(w, isa.geometry);
  if (shape.format == PackedFormat::kByteRow && w.cols > isa.max_row_cols) return 0;
  return isa[shape.format].run ? shape.bytes() : 0;
}

void TilePack(const TileIsa& isa, const WeightView& w, ThreadPool& pool, std::byte* out) {
  const PackedShape shape = PackedShapeOf(w, isa.geometry);
  pool.ParallelForDynamic(shape.groups, 8, [&](int64_t begin, int64_t end) {
    PackGroups(w, isa.geometry, shape, begin, end, out);
  });
}

void TileDecodeRow(const TileIsa& isa, const WeightView& w, int64_t row, float* out) {
  DecodePackedRow(w, isa.geometry, row, out);
}

void TileMatmul(const TileIsa& isa, const MatmulArgs& args) {
  static thread_local std::vector<Part> parts;
  parts.clear();
  bool needed[kXKinds] = {};
  const int64_t tile_rows = isa.tile_groups * isa.geometry.rows;
  CELER_CHECK_LE(tile_rows, kMaxTileRows);
  int64_t tiles = 0;
  bool plain = false;
  for (const MatmulOutput& to : args.outputs) {
    if (!to.w.packed) {
      plain = true;
      continue;
    }
    parts.push_back({&to, PackedShapeOf(to.w, isa.geometry), tiles});
    const TileIsa::Kernel& kernel = isa[parts.back().shape.format];
    CELER_CHECK(kernel.run);
    needed[static_cast<int>(kernel.x)] = true;
    tiles += (to.w.rows + tile_rows - 1) / tile_rows;
  }
  if (plain) {
    std::vector<float> scratch(static_cast<size_t>(args.tokens * args.outputs[0].w.cols));
    const float* x = PlainInput(args, scratch);
    for (const MatmulOutput& to : args.outputs)
      if (!to.w.packed) PortableProduct(to, x, args.tokens, *args.pool);
  }
  // With `finish`, a job takes the same rows of every output, and of a plain one they are there already.
  const bool zipped = args.finish != nullptr;
  const int64_t zipped_rows = args.outputs[0].w.rows;
  if (zipped) tiles = (zipped_rows + tile_rows - 1) / tile_rows;

  if (parts.empty()) {
    if (zipped) (*args.finish)(0, args.tokens, 0, zipped_rows);
    return;
  }
  const Activations activations(isa, args, needed);
  const Products products(isa, activations);
  static thread_local std::vector<uint8_t> own_x;
  const uint8_t* shared_x = nullptr;
  if (args.tokens * args.outputs[0].w.cols > kPrepareAlone) {
    uint8_t* const base = Room(own_x, activations.bytes());
    args.pool->ParallelForDynamic(activations.units(), std::max(1, 8 / isa.x_tokens),
                                  [&](int64_t begin, int64_t end) { activations.Prepare(begin, end, base); });
    shared_x = base;
  }
  const auto prepared_x = [&]() -> const uint8_t* {
    if (shared_x) return shared_x;
    uint8_t* const base = Room(own_x, activations.bytes());
    activations.Prepare(0, activations.units(), base);
    return base;
  };

  const std::span<const Part> all = parts;  // the caller's, seen by every thread
  if (args.tokens <= kStreamTokens) {
    // Most of the rows are divided among the threads beforehand, in long streams; the rest goes piece by
    // piece to whoever is done first, because a core that others slow down would keep all waiting.
    const int threads = args.pool->size();
    const int64_t group_rows = isa.geometry.rows, piece = isa.tile_groups;
    const int64_t eighths = threads > 4 ? 7 : 8;
    const auto fixed = [&](const Part& part) { return part.shape.groups * eighths / 8 / threads * threads; };
    const auto finish = [&](int64_t begin, int64_t end) {  // row groups
      if (zipped && begin < end)
        (*args.finish)(0, args.tokens, begin * group_rows, std::min(end * group_rows, zipped_rows));
    };
    alignas(64) std::atomic<int64_t> next{0};
    args.pool->Run([&](int thread) {
      const uint8_t* const x = prepared_x();
      for (const Part& part : all)
        products.Stream(x, part, fixed(part) * thread / threads, fixed(part) * (thread + 1) / threads,
                        args.tokens);
      if (zipped) finish(fixed(all[0]) * thread / threads, fixed(all[0]) * (thread + 1) / threads);
      int64_t taken = next.fetch_add(1, std::memory_order_relaxed), first_piece = 0;
      const auto pieces = [&](const Part& part) {
        return (part.shape.groups - fixed(part) + piece - 1) / piece;
      };
      for (const Part& part : zipped ? all.first(1) : all) {
        for (; taken < first_piece + pieces(part); taken = next.fetch_add(1, std::memory_order_relaxed)) {
          const int64_t begin = fixed(part) + (taken - first_piece) * piece;
          const int64_t end = std::min(begin + piece, part.shape.groups);
          if (zipped) {
            for (const Part& each : all) products.Stream(x, each, begin, end, args.tokens);
            finish(begin, end);
          } else {
            products.Stream(x, part, begin, end, args.tokens);
          }
        }
        first_piece += pieces(part);
      }
    });
    return;
  }

  // Tokens are divided into walks, whose activations stay in a core's L2 cache. A thread takes a row tile
  // over the whole walk, so that its weights stay there too. Threads begin with different walks: each then
  // reads few rows of both factors from afar. Those of one walk take its tiles in turns, so that each knows
  // what comes next and can fetch it ahead; who is done helps with what is left.
  const int64_t token_tiles = (args.tokens + kJobTokens - 1) / kJobTokens;
  const int64_t walk = std::clamp<int64_t>(isa.walk_tokens / kJobTokens, 1, token_tiles);
  const int64_t walks = (token_tiles + walk - 1) / walk;
  std::vector<std::atomic<bool>> taken(static_cast<size_t>(token_tiles * tiles));
  args.pool->Run([&](int thread) {
    const uint8_t* x = nullptr;
    const auto part_of = [&](int64_t tile) -> const Part& {
      size_t i = all.size() - 1;
      while (all[i].first_tile > tile) --i;
      return all[i];
    };
    // One part's row groups from `group` on times the tokens of token tile t, piece `piece` of `pieces` of
    // the groups from `next` on (none if negative) fetched meanwhile.
    const auto run = [&](const Part& part, int64_t group, int64_t t, const Part& next_part, int64_t next,
                         int64_t piece, int64_t pieces) {
      std::span<const uint8_t> ahead;
      if (next >= 0 && next < next_part.shape.groups) {
        const int64_t bytes =
            std::min<int64_t>(isa.tile_groups, next_part.shape.groups - next) * next_part.shape.group_bytes;
        ahead = {reinterpret_cast<const uint8_t*>(next_part.to->w.packed) +
                     next * next_part.shape.group_bytes + bytes * piece / pieces,
                 static_cast<size_t>(bytes / pieces)};
      }
      products.Run(x, part, group, 1, std::min<int64_t>(isa.tile_groups, part.shape.groups - group),
                   t * kJobTokens, std::min(kJobTokens, args.tokens - t * kJobTokens), ahead);
    };
    const auto take = [&](int64_t which, int64_t tile, int64_t next) {
      const int64_t begin = which * walk, end = std::min(begin + walk, token_tiles);
      for (int64_t t = begin; t < end; ++t) {
        if (taken[static_cast<size_t>(t * tiles + tile)].exchange(true, std::memory_order_relaxed)) continue;
        if (!x) x = prepared_x();
        if (zipped) {
          for (const Part& part : all)
            run(part, tile * isa.tile_groups, t, part, next < tiles ? next * isa.tile_groups : -1, t - begin,
                end - begin);
          const int64_t row = tile * tile_rows, token = t * kJobTokens;
          (*args.finish)(token, std::min(token + kJobTokens, args.tokens), row,
                         std::min(row + tile_rows, zipped_rows));
        } else {
          const Part& part = part_of(tile);
          const Part& next_part = part_of(std::min(next, tiles - 1));
          run(part, (tile - part.first_tile) * isa.tile_groups, t, next_part,
              next < tiles ? (next - next_part.first_tile) * isa.tile_groups : -1, t - begin, end - begin);
        }
      }
    };
    const int64_t threads = args.pool->size(), own = thread * walks / threads;
    const auto first_of = [&](int64_t which) { return (which * threads + walks - 1) / walks; };
    const int64_t rank = thread - first_of(own), company = first_of(own + 1) - first_of(own);
    for (int64_t tile = rank; tile < tiles; tile += company) take(own, tile, tile + company);
    for (int64_t w = 0; w < walks; ++w)
      for (int64_t tile = 0; tile < tiles; ++tile) take((own + w) % walks, tile, tiles);
  });
}

}  // namespace celer
