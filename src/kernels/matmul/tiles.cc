// Divides a product into jobs for the tile kernels: activations prepared once (normed, quantized), then tiles
// of rows and tokens handed out as threads get free, one fork-join in all for a decode step.
#include "kernels/matmul/tiles.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "core/aligned_vector.h"
#include "core/check.h"
#include "kernels/matmul/pack.h"
#include "kernels/rms_norm/rms_norm.h"

namespace celer {
namespace {

// Up to so many elements every thread prepares all activations for itself: cheaper than waiting for a join.
constexpr int64_t kPrepareAlone = 6144;
constexpr int kMaxTileRows = 64;
constexpr int kStreamSums = 2048;  // of a job with several rounds
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
    const bool rows_only = total_ == unit_bytes(XKind::kRow) * units;
    piece_ = isa.x_piece > 0 && rows_only ? isa.x_piece : isa.x_tokens;
  }

  // What Prepare() counts.
  int64_t pieces() const { return (args_.tokens + piece_ - 1) / piece_; }
  int64_t bytes() const { return total_; }
  int64_t unit_bytes(XKind kind) const { return unit_bytes_[static_cast<int>(kind)]; }
  const uint8_t* At(const uint8_t* base, XKind kind, int64_t token) const {
    return base + begin_[static_cast<int>(kind)] + token / isa_.x_tokens * unit_bytes(kind);
  }

  void Prepare(int64_t begin, int64_t end, uint8_t* base) const {
    static thread_local AlignedVector<float> normed;
    constexpr int kMaxTokens = 16;
    CELER_CHECK_LE(isa_.x_tokens, kMaxTokens);
    if (args_.norm) normed.resize(static_cast<size_t>(piece_ * cols_));
    for (int64_t p = begin; p < end; ++p) {
      const int64_t unit = p * piece_ / isa_.x_tokens, unit_token = unit * isa_.x_tokens;
      const auto tokens = static_cast<int>(std::min<int64_t>(isa_.x_tokens, args_.tokens - unit_token));
      const auto first = static_cast<int>(p * piece_ - unit_token);
      const float* rows[kMaxTokens] = {};
      for (int t = first; t < std::min<int64_t>(first + piece_, tokens); ++t) {
        const int64_t token = unit_token + t;
        rows[t] = args_.x + (args_.x_rows ? args_.x_rows[token] : token) * cols_;
        if (!args_.norm) continue;
        float* out = normed.data() + (t - first) * cols_;
        if (isa_.norm)
          isa_.norm(rows[t], args_.norm, args_.eps, cols_, out);
        else
          RmsNorm(
              {.x = rows[t], .weight = args_.norm, .eps = args_.eps, .rows = 1, .cols = cols_, .out = out});
        rows[t] = out;
      }
      for (int k = 0; k < kXKinds; ++k)
        if (unit_bytes_[k] > 0)
          isa_.prepare(static_cast<XKind>(k), rows, tokens, cols_, base + begin_[k] + unit * unit_bytes_[k]);
    }
  }

 private:
  const TileIsa& isa_;
  const MatmulArgs& args_;
  int64_t cols_;
  int64_t piece_ = 1;  // tokens
  int64_t begin_[kXKinds] = {}, unit_bytes_[kXKinds] = {};
  int64_t total_ = 0;
};

// Room in a thread's own buffer.
uint8_t* Room(AlignedVector<uint8_t>& buffer, int64_t bytes) {
  const auto needed = static_cast<size_t>(bytes);
  if (buffer.size() < needed) buffer.resize(needed);  // shrinking would mean to clear it again and again
  return buffer.data();
}

// How fast the threads of a small pool read weights, learnt from one decode step to the next: of two cores of
// a virtual machine one is often some percent slower for as long as it lasts, and the other would wait for
// it.
class Pace {
 public:
  static constexpr int kThreads = 4;
  // The share of the work that threads before t get.
  double Before(int t, int threads) {
    if (threads != threads_) {
      threads_ = threads;
      for (double& share : share_) share = 1.0 / threads;
    }
    double sum = 0;
    for (int i = 0; i < t; ++i) sum += share_[i];
    return sum;
  }
  // What each thread did in a nanosecond. A thread that was interrupted tells nothing.
  void Learn(const double (&speeds)[kThreads], int threads) {
    double sum = 0;
    for (int i = 0; i < threads; ++i) sum += speeds[i];
    for (int i = 0; i < threads; ++i)
      if (!(speeds[i] * threads > 0.8 * sum && speeds[i] * threads < 1.25 * sum)) return;
    for (int i = 0; i < threads; ++i) share_[i] += (speeds[i] / sum - share_[i]) / 32;
  }

 private:
  int threads_ = 0;
  double share_[kThreads] = {};
};

struct Part {
  const MatmulOutput* to;
  PackedShape shape;
  int64_t first_tile = 0;  // where its row tiles begin among those of all parts
};

// Products of one call, by whichever thread.
class Products {
 public:
  Products(const TileIsa& isa, const Activations& activations) : isa_(isa), activations_(activations) {}

  // Row groups first, first + apart, ... (`count` of them) of a part, times some tokens. To the part's
  // output, or to `kept` [tokens, count * rows of a group].
  void Run(const uint8_t* x, const Part& part, int64_t first, int64_t apart, int64_t count, int64_t token,
           int64_t tokens, std::span<const uint8_t> ahead = {}, float* kept = nullptr) const {
    alignas(64) float own[kJobTokens * kMaxTileRows];
    const TileIsa::Kernel& kernel = isa_[part.shape.format];
    const int64_t rows = isa_.geometry.rows, stride = count * rows;
    float* const tile = kept && tokens < kernel.direct_tokens ? kept : own;
    const auto* w = reinterpret_cast<const uint8_t*>(part.to->w.packed);
    TileTarget to;
    if (tokens >= kernel.direct_tokens) {
      const int64_t row = first * rows, at = token * part.to->out_stride + row;
      to = {.out = part.to->out + at,
            .residual = part.to->residual ? part.to->residual + at : nullptr,
            .bias = part.to->bias ? part.to->bias + row : nullptr,
            .stride = part.to->out_stride,
            .rows = std::min(stride, part.to->w.rows - row)};
      if (kept) to = {.out = kept, .stride = stride, .rows = to.rows};
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
    if (to.out || kept) return;
    const auto store = [&](int64_t group, int64_t groups, const float* from) {
      const int64_t row = group * rows;
      StoreTile(*part.to, row, std::min(groups * rows, part.to->w.rows - row), token, tokens, from, stride);
    };
    if (apart == 1) return store(first, count, tile);
    for (int64_t i = 0; i < count; ++i) store(first + i * apart, 1, tile + i * rows);
  }

  // Row groups [begin, end) times few tokens, weights straight from memory. With one token as many streams of
  // memory as a tile has groups: each is long, so that the hardware prefetches it, and together they keep
  // more reads in flight than one would. To the part's output, or, of one token, to `kept`, row by row from
  // the first group on.
  void Stream(const uint8_t* x, const Part& part, int64_t begin, int64_t end, int64_t tokens,
              float* kept = nullptr) const {
    const int64_t streams = isa_.streams;
    const auto kept_at = [&, first = begin](int64_t group) {
      return kept ? kept + (group - first) * isa_.geometry.rows : nullptr;
    };
    if (tokens == 1) {
      const int64_t length = (end - begin) / streams;
      RunStreams(x, part, begin, length, kept);
      begin += length * streams;
    }
    for (; begin < end; begin += streams)
      Run(x, part, begin, 1, std::min(streams, end - begin), 0, tokens, {}, kept_at(begin));
  }

  // Asks for the beginnings of the streams that one token will read of row groups [begin, end): kernels
  // prefetch from some distance on only.
  void FetchHeads(const Part& part, int64_t begin, int64_t end) const {
    const int64_t length = (end - begin) / isa_.streams * part.shape.group_bytes;
    const auto* w = reinterpret_cast<const uint8_t*>(part.to->w.packed) + begin * part.shape.group_bytes;
    for (int64_t at = 0; at < std::min(isa_.head_bytes, length); at += 64)
      for (int64_t s = 0; s < isa_.streams; ++s) __builtin_prefetch(w + s * length + at, 0, 1);
    asm volatile("");  // else g++ takes this for a function without effect and removes the call
  }

  // Asks for rows of the output that will be written in a while: other cores have read them last, so that
  // they take long to come.
  static void FetchTarget(const MatmulOutput& to, int64_t row, int64_t rows) {
    constexpr int64_t kLine = 16;
    for (const int64_t end = std::min(row + rows, to.w.rows); row < end; row += kLine)
      __builtin_prefetch(to.out + row, 1, 2);
    asm volatile("");  // as in FetchHeads
  }

  // One token; stream s has row groups begin + s * length to begin + (s + 1) * length.
  void RunStreams(const uint8_t* x, const Part& part, int64_t begin, int64_t length, float* kept) const {
    const TileIsa::Kernel& kernel = isa_[part.shape.format];
    const int64_t rows = isa_.geometry.rows, streams = isa_.streams;
    const int64_t most = kept ? length : std::min<int64_t>(kernel.rounds, kStreamSums / (streams * rows));
    alignas(64) float sums[kStreamSums];
    for (int64_t i = 0; i < length;) {
      const int64_t rounds = std::min(most, length - i);
      for (int64_t s = 0; s < streams && !kept; ++s)
        FetchTarget(*part.to, (begin + s * length + i) * rows, rounds * rows);
      kernel.run(
          {.w = reinterpret_cast<const uint8_t*>(part.to->w.packed) + (begin + i) * part.shape.group_bytes,
           .group_bytes = length * part.shape.group_bytes,
           .groups = static_cast<int>(streams),
           .x = activations_.At(x, kernel.x, 0),
           .x_bytes = activations_.unit_bytes(kernel.x),
           .tokens = 1,
           .cols = part.to->w.cols,
           .span = part.shape.span,
           .out = kept ? kept : sums,
           .out_stride = streams * rows,
           .rounds = static_cast<int>(rounds),
           .round_bytes = part.shape.group_bytes});
      for (int64_t s = 0; s < streams && !kept; ++s) {
        const int64_t row = (begin + s * length + i) * rows;
        StoreTile(*part.to, row, std::min(rounds * rows, part.to->w.rows - row), 0, 1,
                  sums + s * rounds * rows, 0);
      }
      i += rounds;
    }
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
  int64_t tile_groups = isa.tile_groups, job_tokens = INT64_MAX;
  bool plain = false;
  for (const MatmulOutput& to : args.outputs) {
    if (!to.w.packed) {
      plain = true;
      continue;
    }
    parts.push_back({&to, PackedShapeOf(to.w, isa.geometry)});
    const TileIsa::Kernel& kernel = isa[parts.back().shape.format];
    CELER_CHECK(kernel.run);
    needed[static_cast<int>(kernel.x)] = true;
    job_tokens = std::min(job_tokens, kernel.job_tokens);
    tile_groups = std::min<int64_t>(tile_groups, kernel.job_groups);
  }
  const int64_t tile_rows = tile_groups * isa.geometry.rows;
  CELER_CHECK_LE(tile_rows, kMaxTileRows);
  int64_t tiles = 0;
  for (Part& part : parts) {
    part.first_tile = tiles;
    tiles += (part.to->w.rows + tile_rows - 1) / tile_rows;
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
    if (zipped) (*args.finish)(StoredTile(args.outputs, 0, args.tokens, 0, zipped_rows));
    return;
  }
  const Activations activations(isa, args, needed);
  const Products products(isa, activations);
  static thread_local AlignedVector<uint8_t> own_x;
  const uint8_t* shared_x = nullptr;
  if (args.tokens * args.outputs[0].w.cols > kPrepareAlone) {
    uint8_t* const base = Room(own_x, activations.bytes());
    args.pool->ParallelForDynamic(activations.pieces(), std::max(1, 8 / isa.x_tokens),
                                  [&](int64_t begin, int64_t end) { activations.Prepare(begin, end, base); });
    shared_x = base;
  }
  const auto prepared_x = [&]() -> const uint8_t* {
    if (shared_x) return shared_x;
    uint8_t* const base = Room(own_x, activations.bytes());
    activations.Prepare(0, activations.pieces(), base);
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
        (*args.finish)(StoredTile(args.outputs, 0, args.tokens, begin * group_rows,
                                  std::min(end * group_rows, zipped_rows)));
    };
    // The sums of a lone token stay with their thread until they are finished.
    const bool keeps = zipped && args.tokens == 1 && std::ranges::all_of(all, [&](const Part& part) {
                         return isa[part.shape.format].rounds > 1;
                       });
    static thread_local Pace callers_pace;
    Pace& pace = callers_pace;
    const bool paced = args.tokens == 1 && threads > 1 && threads <= Pace::kThreads;
    double before[Pace::kThreads + 1] = {}, speeds[Pace::kThreads] = {};
    for (int t = 0; paced && t < threads; ++t) before[t] = pace.Before(t, threads);
    const auto border = [&](const Part& part, int t) {
      if (!paced || t == threads) return fixed(part) * t / threads;
      const double at = static_cast<double>(fixed(part)) * before[t];
      return std::min(static_cast<int64_t>(at / isa.streams + 0.5) * isa.streams, fixed(part));
    };
    alignas(64) std::atomic<int64_t> next{0};
    args.pool->Run([&](int thread) {
      const auto begin_of = [&](const Part& part) { return border(part, thread); };
      const auto end_of = [&](const Part& part) { return border(part, thread + 1); };
      const auto fetch = [&](size_t i) {
        if (args.tokens == 1 && i < all.size()) products.FetchHeads(all[i], begin_of(all[i]), end_of(all[i]));
      };
      if (args.norm && args.tokens == 1)
        for (int64_t i = 0; i < args.outputs[0].w.cols; i += 16) __builtin_prefetch(args.norm + i);
      fetch(0);
      const uint8_t* const x = prepared_x();
      const auto start = std::chrono::steady_clock::now();
      int64_t bytes = 0;
      static thread_local AlignedVector<uint8_t> room;
      const int64_t own_rows = (end_of(all[0]) - begin_of(all[0])) * group_rows;
      auto* const kept =
          keeps ? reinterpret_cast<float*>(Room(room, own_rows * MatmulTile::kOutputs * 4)) : nullptr;
      for (size_t i = 0; i < all.size(); ++i) {
        fetch(i + 1);
        if (keeps && i + 1 == all.size())
          Products::FetchTarget(args.outputs[0], begin_of(all[0]) * group_rows, own_rows);
        products.Stream(x, all[i], begin_of(all[i]), end_of(all[i]), args.tokens,
                        keeps ? kept + static_cast<int64_t>(i) * own_rows : nullptr);
        bytes += (end_of(all[i]) - begin_of(all[i])) * all[i].shape.group_bytes;
      }
      if (paced) {
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        speeds[thread] = static_cast<double>(bytes) / took.count();
      }
      if (keeps && own_rows > 0) {
        const int64_t row = begin_of(all[0]) * group_rows;
        MatmulTile done = StoredTile(args.outputs, 0, 1, row, std::min(row + own_rows, zipped_rows));
        for (size_t i = 0; i < all.size(); ++i)
          done.sums[all[i].to - args.outputs.data()] = kept + static_cast<int64_t>(i) * own_rows;
        (*args.finish)(done);
      } else if (zipped) {
        finish(begin_of(all[0]), end_of(all[0]));
      }
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
    if (paced) pace.Learn(speeds, threads);
    return;
  }

  // Tokens are divided into walks, whose activations stay in a core's L2 cache. A thread takes a row tile
  // over the whole walk, so that its weights stay there too. Threads begin with different walks: each then
  // reads few rows of both factors from afar. Those of one walk take its tiles in turns, so that each knows
  // what comes next and can fetch it ahead; who is done helps with what is left.
  const int64_t token_tiles = (args.tokens + job_tokens - 1) / job_tokens;
  const int64_t walk = std::clamp<int64_t>(isa.walk_tokens / job_tokens, 1, token_tiles);
  const int64_t walks = (token_tiles + walk - 1) / walk;
  std::vector<std::atomic<bool>> taken(static_cast<size_t>(token_tiles * tiles));
  const int64_t kept_floats = job_tokens * tile_rows;
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
                         int64_t piece, int64_t pieces, float* kept = nullptr) {
      std::span<const uint8_t> ahead;
      if (next >= 0 && next < next_part.shape.groups) {
        const int64_t bytes =
            std::min<int64_t>(tile_groups, next_part.shape.groups - next) * next_part.shape.group_bytes;
        ahead = {reinterpret_cast<const uint8_t*>(next_part.to->w.packed) +
                     next * next_part.shape.group_bytes + bytes * piece / pieces,
                 static_cast<size_t>(bytes / pieces)};
      }
      products.Run(x, part, group, 1, std::min<int64_t>(tile_groups, part.shape.groups - group),
                   t * job_tokens, std::min(job_tokens, args.tokens - t * job_tokens), ahead, kept);
    };
    const auto take = [&](int64_t which, int64_t tile, int64_t next) {
      const int64_t begin = which * walk, end = std::min(begin + walk, token_tiles);
      for (int64_t t = begin; t < end; ++t) {
        std::atomic<bool>& mine = taken[static_cast<size_t>(t * tiles + tile)];
        if (mine.load(std::memory_order_relaxed) || mine.exchange(true, std::memory_order_relaxed)) continue;
        if (!x) x = prepared_x();
        if (zipped) {
          // The sums stay in this core's cache, and only what is made of them leaves it.
          static thread_local AlignedVector<uint8_t> room;
          auto* const kept = reinterpret_cast<float*>(Room(room, kept_floats * MatmulTile::kOutputs * 4));
          const int64_t row = tile * tile_rows, token = t * job_tokens, group = tile * tile_groups;
          MatmulTile done = StoredTile(args.outputs, token, std::min(token + job_tokens, args.tokens), row,
                                       std::min(row + tile_rows, zipped_rows));
          for (const Part& part : all) {
            const auto i = static_cast<size_t>(part.to - args.outputs.data());
            float* const sums = kept + static_cast<int64_t>(i) * kept_floats;
            run(part, group, t, part, next < tiles ? next * tile_groups : -1, t - begin, end - begin, sums);
            done.sums[i] = sums;
            done.strides[i] = std::min(tile_groups, part.shape.groups - group) * isa.geometry.rows;
          }
          (*args.finish)(done);
        } else {
          const Part& part = part_of(tile);
          const Part& next_part = part_of(std::min(next, tiles - 1));
          run(part, (tile - part.first_tile) * tile_groups, t, next_part,
              next < tiles ? (next - next_part.first_tile) * tile_groups : -1, t - begin, end - begin);
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
