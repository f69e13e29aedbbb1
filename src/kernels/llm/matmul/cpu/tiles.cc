// Divides a product into jobs for the tile kernels: activations prepared once (normed, quantized), then tiles
// of rows and tokens scheduled dynamically, one fork-join in all for a decode step.
#include "kernels/llm/matmul/cpu/tiles.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "base/check.h"
#include "device/aligned_vector.h"
#include "kernels/llm/matmul/cpu/activations.h"
#include "kernels/llm/matmul/cpu/pack.h"
#include "kernels/llm/matmul/cpu/tile_products.h"

namespace celer {
namespace {

// Up to this many elements every thread prepares all activations for itself: cheaper than waiting for a join.
constexpr int64_t kPrepareAlone = 6144;

// Load balancing: how fast the threads of a small pool read weights, learnt from one decode step to the next.
// Of two cores of a virtual machine one is often some percent slower for as long as it lasts, and the other
// would wait for it.
class LoadBalance {
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

// One call of TileMatmul, as its threads see it.
struct Call {
  const TileIsa& isa;
  const MatmulArgs& args;
  std::span<const Part> parts;  // at least one
  const Activations& activations;
  const Products& products;
  const uint8_t* shared_x = nullptr;  // activations for all threads; none: each prepares them for itself

  // With `finish`, a job takes the same rows of every output, and of a plain one they are there already.
  bool zipped() const { return args.finish != nullptr; }
  int64_t zipped_rows() const { return args.outputs[0].w.rows; }

  static AlignedVector<uint8_t>& Memory() {  // for the activations, of the thread that asks
    static thread_local AlignedVector<uint8_t> own;
    return own;
  }
  void ShareX() {
    uint8_t* const base = Room(Memory(), activations.bytes());
    args.pool->ParallelForDynamic(activations.portions(), std::max(1, 8 / isa.x_tokens),
                                  [&](int64_t begin, int64_t end) { activations.Prepare(begin, end, base); });
    shared_x = base;
  }
  const uint8_t* PreparedX() const {
    if (shared_x) return shared_x;
    uint8_t* const base = Room(Memory(), activations.bytes());
    activations.Prepare(0, activations.portions(), base);
    return base;
  }
};

// Few tokens (memory-bound). Most of the rows are divided among the threads statically, in long streams; the
// rest is scheduled dynamically, tile by tile, because a core that others slow down would keep all waiting.
class FewTokens {
 public:
  FewTokens(const Call& call, LoadBalance& pace)
      : call_(call),
        args_(call.args),
        parts_(call.parts),
        threads_(call.args.pool->size()),
        group_rows_(call.isa.geometry.rows),
        paced_(call.args.tokens == 1 && threads_ > 1 && threads_ <= LoadBalance::kThreads),
        // The sums of a lone token stay with their thread until they are finished.
        keeps_(call.zipped() && call.args.tokens == 1 &&
               std::ranges::all_of(call.parts,
                                   [&](const Part& part) { return call.isa[part.shape.format].rounds > 1; })),
        pace_(pace) {
    for (int t = 0; paced_ && t < threads_; ++t) before_[t] = pace_.Before(t, threads_);
  }

  void Run() {
    args_.pool->Run([&](int thread) {
      const uint8_t* const x = Begin(thread);
      OwnRows(thread, x);
      RemainingRows(x);
    });
    if (paced_) pace_.Learn(speeds_, threads_);
  }

 private:
  // Row groups of a part that are divided beforehand, and where those of a thread begin.
  int64_t Fixed(const Part& part) const {
    const int64_t eighths = threads_ > 4 ? 7 : 8;
    return part.shape.groups * eighths / 8 / threads_ * threads_;
  }
  int64_t Border(const Part& part, int thread) const {
    if (!paced_ || thread == threads_) return Fixed(part) * thread / threads_;
    const double at = static_cast<double>(Fixed(part)) * before_[thread];
    const int64_t streams = call_.isa.streams;
    return std::min(static_cast<int64_t>(at / static_cast<double>(streams) + 0.5) * streams, Fixed(part));
  }

  void PrefetchHeads(int thread, size_t i) const {
    if (args_.tokens == 1 && i < parts_.size())
      call_.products.PrefetchHeads(parts_[i], Border(parts_[i], thread), Border(parts_[i], thread + 1));
  }

  // The thread's activations; while they are prepared, its first weights are on their way.
  const uint8_t* Begin(int thread) const {
    if (args_.norm && args_.tokens == 1)
      for (int64_t i = 0; i < args_.outputs[0].w.cols; i += 16) __builtin_prefetch(args_.norm + i);
    PrefetchHeads(thread, 0);
    return call_.PreparedX();
  }

  void OwnRows(int thread, const uint8_t* x) {
    const auto start = std::chrono::steady_clock::now();
    const int64_t first = Border(parts_[0], thread), last = Border(parts_[0], thread + 1);
    const int64_t own_rows = (last - first) * group_rows_;
    static thread_local AlignedVector<uint8_t> room;
    auto* const kept =
        keeps_ ? reinterpret_cast<float*>(Room(room, own_rows * MatmulTile::kOutputs * 4)) : nullptr;
    int64_t bytes = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      PrefetchHeads(thread, i + 1);
      if (keeps_ && i + 1 == parts_.size())
        Products::PrefetchTarget(args_.outputs[0], first * group_rows_, own_rows);
      const int64_t begin = Border(parts_[i], thread), end = Border(parts_[i], thread + 1);
      call_.products.Stream(x, parts_[i], begin, end, args_.tokens,
                            keeps_ ? kept + static_cast<int64_t>(i) * own_rows : nullptr);
      bytes += (end - begin) * parts_[i].shape.group_bytes;
    }
    if (paced_) {
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
      speeds_[thread] = static_cast<double>(bytes) / took.count();
    }
    if (keeps_ && own_rows > 0)
      FinishKept(first * group_rows_, own_rows, kept);
    else
      Finish(first, last);
  }

  void RemainingRows(const uint8_t* x) {
    const int64_t tile = call_.isa.tile_groups;
    int64_t taken = next_.fetch_add(1, std::memory_order_relaxed), first_tile = 0;
    for (const Part& part : call_.zipped() ? parts_.first(1) : parts_) {
      const int64_t tiles = (part.shape.groups - Fixed(part) + tile - 1) / tile;
      for (; taken < first_tile + tiles; taken = next_.fetch_add(1, std::memory_order_relaxed)) {
        const int64_t begin = Fixed(part) + (taken - first_tile) * tile;
        const int64_t end = std::min(begin + tile, part.shape.groups);
        if (call_.zipped()) {
          for (const Part& each : parts_) call_.products.Stream(x, each, begin, end, args_.tokens);
          Finish(begin, end);
        } else {
          call_.products.Stream(x, part, begin, end, args_.tokens);
        }
      }
      first_tile += tiles;
    }
  }

  // Row groups [begin, end) of every output are stored.
  void Finish(int64_t begin, int64_t end) const {
    if (call_.zipped() && begin < end)
      (*args_.finish)(StoredTile(args_.outputs, 0, args_.tokens, begin * group_rows_,
                                 std::min(end * group_rows_, call_.zipped_rows())));
  }
  // Rows from `row` on are in `kept`, those of one part after those of the other.
  void FinishKept(int64_t row, int64_t rows, const float* kept) const {
    MatmulTile done = StoredTile(args_.outputs, 0, 1, row, std::min(row + rows, call_.zipped_rows()));
    for (size_t i = 0; i < parts_.size(); ++i)
      done.sums[parts_[i].to - args_.outputs.data()] = kept + static_cast<int64_t>(i) * rows;
    (*args_.finish)(done);
  }

  const Call& call_;
  const MatmulArgs& args_;
  const std::span<const Part> parts_;
  const int threads_;
  const int64_t group_rows_;
  const bool paced_, keeps_;
  LoadBalance& pace_;
  double before_[LoadBalance::kThreads + 1] = {}, speeds_[LoadBalance::kThreads] = {};
  alignas(64) std::atomic<int64_t> next_{0};
};

// Many tokens (compute-bound). Cache blocking: they are divided into walks, whose activations stay in a
// core's L2 cache. A thread takes a row tile over the whole walk, so that its weights stay there too. Threads
// begin with different walks: each then reads few rows of both factors from afar. Those of one walk take its
// tiles in turns, so that each knows what comes next and can prefetch it; a thread that is done steals what
// is left.
class ManyTokens {
 public:
  struct Tiling {
    int64_t groups, tokens;  // of a tile
    int64_t tiles;           // of rows
  };

  ManyTokens(const Call& call, const Tiling& tiling)
      : call_(call),
        args_(call.args),
        tile_groups_(tiling.groups),
        tile_rows_(tiling.groups * call.isa.geometry.rows),
        tile_tokens_(tiling.tokens),
        tiles_(tiling.tiles),
        token_tiles_((call.args.tokens + tiling.tokens - 1) / tiling.tokens),
        walk_(std::clamp<int64_t>(call.isa.walk_tokens / tiling.tokens, 1, token_tiles_)),
        walks_((token_tiles_ + walk_ - 1) / walk_),
        taken_(static_cast<size_t>(token_tiles_ * tiles_)) {}

  void Run() {
    args_.pool->Run([&](int thread) {
      const uint8_t* x = nullptr;
      const int64_t threads = args_.pool->size(), own = thread * walks_ / threads;
      const auto first_of = [&](int64_t walk) { return (walk * threads + walks_ - 1) / walks_; };
      const int64_t rank = thread - first_of(own), company = first_of(own + 1) - first_of(own);
      for (int64_t tile = rank; tile < tiles_; tile += company) Take(own, tile, tile + company, &x);
      for (int64_t w = 0; w < walks_; ++w)
        for (int64_t tile = 0; tile < tiles_; ++tile) Take((own + w) % walks_, tile, tiles_, &x);
    });
  }

 private:
  // Weights that this thread will read next; a share of them is fetched during each job of the walk.
  struct Ahead {
    const Part* part = nullptr;
    int64_t group = -1;  // none if negative
    int64_t share = 0, shares = 1;
  };

  const Part& PartOf(int64_t tile) const {
    size_t i = call_.parts.size() - 1;
    while (call_.parts[i].first_tile > tile) --i;
    return call_.parts[i];
  }

  // What nobody has taken yet of a row tile times the tokens of a walk. `next` is the thread's next row tile.
  void Take(int64_t walk, int64_t tile, int64_t next, const uint8_t** x) {
    const int64_t begin = walk * walk_, end = std::min(begin + walk_, token_tiles_);
    for (int64_t t = begin; t < end; ++t) {
      std::atomic<bool>& mine = taken_[t * tiles_ + tile];
      if (mine.load(std::memory_order_relaxed) || mine.exchange(true, std::memory_order_relaxed)) continue;
      if (!*x) *x = call_.PreparedX();
      Ahead ahead{.share = t - begin, .shares = end - begin};
      if (call_.zipped()) {
        if (next < tiles_) ahead.group = next * tile_groups_;
        RunZipped(*x, tile, t, ahead);
      } else {
        const Part& part = PartOf(tile);
        ahead.part = &PartOf(std::min(next, tiles_ - 1));
        if (next < tiles_) ahead.group = (next - ahead.part->first_tile) * tile_groups_;
        RunTile(*x, part, (tile - part.first_tile) * tile_groups_, t, ahead, nullptr);
      }
    }
  }

  // Fusion of gate and up: the same tile of every output. The sums stay in this core's cache, and only the
  // result of the epilogue leaves it.
  void RunZipped(const uint8_t* x, int64_t tile, int64_t t, Ahead ahead) const {
    static thread_local AlignedVector<uint8_t> room;
    const int64_t floats = tile_tokens_ * tile_rows_;
    auto* const kept = reinterpret_cast<float*>(Room(room, floats * MatmulTile::kOutputs * 4));
    const int64_t row = tile * tile_rows_, token = t * tile_tokens_, group = tile * tile_groups_;
    MatmulTile done = StoredTile(args_.outputs, token, std::min(token + tile_tokens_, args_.tokens), row,
                                 std::min(row + tile_rows_, call_.zipped_rows()));
    for (const Part& part : call_.parts) {
      const auto i = static_cast<size_t>(part.to - args_.outputs.data());
      float* const sums = kept + static_cast<int64_t>(i) * floats;
      ahead.part = &part;
      RunTile(x, part, group, t, ahead, sums);
      done.sums[i] = sums;
      done.strides[i] = std::min(tile_groups_, part.shape.groups - group) * call_.isa.geometry.rows;
    }
    (*args_.finish)(done);
  }

  // A part's row groups from `group` on times the tokens of token tile t.
  void RunTile(const uint8_t* x, const Part& part, int64_t group, int64_t t, const Ahead& ahead,
               float* kept) const {
    std::span<const uint8_t> fetch;
    if (ahead.group >= 0 && ahead.group < ahead.part->shape.groups) {
      const PackedShape& shape = ahead.part->shape;
      const int64_t bytes = std::min(tile_groups_, shape.groups - ahead.group) * shape.group_bytes;
      fetch = {reinterpret_cast<const uint8_t*>(ahead.part->to->w.packed) + ahead.group * shape.group_bytes +
                   bytes * ahead.share / ahead.shares,
               static_cast<size_t>(bytes / ahead.shares)};
    }
    call_.products.Run(x, part, group, 1, std::min(tile_groups_, part.shape.groups - group), t * tile_tokens_,
                       std::min(tile_tokens_, args_.tokens - t * tile_tokens_), fetch, kept);
  }

  const Call& call_;
  const MatmulArgs& args_;
  const int64_t tile_groups_, tile_rows_, tile_tokens_, tiles_;
  const int64_t token_tiles_, walk_, walks_;
  std::vector<std::atomic<bool>> taken_;
};

// Outputs whose weights are not packed: dequantized to floats.
void PlainProducts(const MatmulArgs& args) {
  std::vector<float> scratch(args.tokens * args.outputs[0].w.cols);
  const float* x = PlainInput(args, scratch);
  for (const MatmulOutput& to : args.outputs)
    if (!to.w.packed) PortableProduct(to, x, args.tokens, *args.pool);
}

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

PackedGrid TileGrid(const TileIsa& isa, const WeightView& w) {
  const PackedShape shape = w.packed ? ShapeInMemory(w, isa.geometry) : PackedShapeOf(w, isa.geometry);
  return {.rows = isa.geometry.rows,
          .cols = shape.step,
          .group_bytes = shape.group_bytes,
          .step_bytes = shape.step_bytes};
}

void TileDecodeRow(const TileIsa& isa, const WeightView& w, int64_t row, float* out) {
  DecodePackedRow(w, isa.geometry, row, out);
}

void TileMatmul(const TileIsa& isa, const MatmulKernels& self, const MatmulArgs& args) {
  static thread_local std::vector<Part> parts;
  parts.clear();
  bool needed[kXKinds] = {};
  ManyTokens::Tiling tiling{.groups = isa.tile_groups, .tokens = INT64_MAX, .tiles = 0};
  for (const MatmulOutput& to : args.outputs) {
    if (!to.w.packed) continue;
    CELER_CHECK_EQ(to.w.packed_for->name, self.name);
    parts.push_back({&to, ShapeInMemory(to.w, isa.geometry)});
    const TileIsa::Kernel& kernel = isa[parts.back().shape.format];
    CELER_CHECK(kernel.run);
    needed[static_cast<int>(kernel.x)] = true;
    tiling.tokens = std::min(tiling.tokens, kernel.job_tokens);
    tiling.groups = std::min<int64_t>(tiling.groups, kernel.job_groups);
  }
  const int64_t tile_rows = tiling.groups * isa.geometry.rows;
  CELER_CHECK_LE(tile_rows, kMaxTileRows);
  const auto tiles_of = [&](const MatmulOutput& to) { return (to.w.rows + tile_rows - 1) / tile_rows; };
  for (Part& part : parts) {
    part.first_tile = tiling.tiles;
    tiling.tiles += tiles_of(*part.to);
  }
  if (args.finish) tiling.tiles = tiles_of(args.outputs[0]);

  if (parts.size() < args.outputs.size()) PlainProducts(args);
  if (parts.empty()) {
    if (args.finish) (*args.finish)(StoredTile(args.outputs, 0, args.tokens, 0, args.outputs[0].w.rows));
    return;
  }
  const Activations activations(isa, args, needed);
  const Products products(isa, activations);
  Call call{isa, args, parts, activations, products};
  if (args.tokens * args.outputs[0].w.cols > kPrepareAlone) call.ShareX();
  if (args.tokens > isa.stream_tokens) return ManyTokens(call, tiling).Run();
  static thread_local LoadBalance pace;
  FewTokens(call, pace).Run();
}

}  // namespace celer
