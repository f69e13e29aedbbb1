#include "kernels/shared/gemm/gemm.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "base/check.h"

namespace celer {
namespace {

constexpr GemmVariant kGemm[] = {
// best first; the first that can run here wins
#if defined(__aarch64__)
    {"arm_neon", Isa::kNeon, &kGemmArmNeon},
#elif defined(__x86_64__)
    {"x86_avx512", Isa::kAvx512, &kGemmX86Avx512},
    {"x86_avx2", Isa::kAvx2, &kGemmX86Avx2},
#endif
    {"portable", Isa::kBaseline, &kGemmPortable},
    {"reference", Isa::kBaseline, &kGemmReference},
};
constexpr BasicGemmVariant<F16> kGemmF16[] = {
#if defined(__aarch64__)
    {"arm_fp16", Isa::kArmFp16, &kGemmArmFp16},
#endif
    {"reference", Isa::kBaseline, &kGemmReferenceF16},
};

// Of the operand that stays in the L2 cache while the other one is streamed: a good third of 1 MiB, which
// leaves room for the output and for the stream.
template <class T>
constexpr int64_t kStayFloats = (384 << 10) / sizeof(T);
template <class T>
constexpr int64_t kNearFloats = (24 << 10) / sizeof(T);  // and in an L1 cache of 32 to 64 KiB
template <class T>
constexpr int64_t kLine = 64 / sizeof(T);
// Below this many multiplications waking the other threads costs more than they save.
constexpr int64_t kSerialWork = 200'000;

int64_t RoundUp(int64_t n, int64_t unit) {
  return (n + unit - 1) / unit * unit;
}
int64_t DivideUp(int64_t n, int64_t by) {
  return (n + by - 1) / by;
}

// The blocking of a product: blocks of the output, which threads take one by one, and along k within each.
struct Blocking {
  int64_t m_block = 0, n_block = 0, k_block = 0;
  bool a_stays = false;
  int64_t tasks = 0;
  bool serial = false;                 // all of them by the caller
  int64_t a_floats = 0, b_floats = 0;  // of the workspace of one thread; 0 for an operand that is packed
};

// Cuts the output so that threads end together: wide tiles make few blocks of columns, and seventeen of them
// keep four threads busy as long as twenty. Of a few sizes of blocks of columns, and of cuts of the rows,
// takes the one with the shortest critical path. The unit of cost is one tile.
template <class T>
void Balance(const BasicGemmArgs<T>& args, int threads, const BasicGemmKernels<T>& kernels,
             Blocking* blocking) {
  const int64_t rows = DivideUp(args.m, kernels.mr), cols = DivideUp(args.n, kernels.nr);
  const int64_t most = blocking->n_block / kernels.nr;  // of these columns, as much as the cache holds
  // Packing a panel of columns, which is done again for each cut of the rows; and taking a block.
  const double pack = args.b.packed ? 0 : args.b.gather ? 2 : 0.7, taking = 0.5;
  // The last panel has fewer columns.
  const double missing = 1 - static_cast<double>(args.n - (cols - 1) * kernels.nr) / kernels.nr;
  const auto longest = [&](int64_t wide, int64_t high) {
    const int64_t n_blocks = DivideUp(cols, wide), m_blocks = DivideUp(rows, high) * args.batch;
    const double line = static_cast<double>(high) + pack;
    const double block = static_cast<double>(wide) * line + taking;
    const double last = (static_cast<double>(cols - (n_blocks - 1) * wide) - missing) * line + taking;
    // All but the last blocks of columns, then those, which begin where threads are free.
    const int64_t full = (n_blocks - 1) * m_blocks, rounds = full / threads, over = full % threads;
    const double even = static_cast<double>(rounds) * block;
    const double end = even + static_cast<double>(DivideUp(m_blocks, threads - over)) * last;
    const double mean = (static_cast<double>(full) * block + static_cast<double>(m_blocks) * last) / threads;
    return over == 0 ? end : std::max(even + block, std::min(end, mean + last));
  };
  double best = 0;
  int64_t best_wide = most, best_high = rows;
  const int64_t rounds = DivideUp(cols, most * threads);
  for (const int64_t wide :
       {DivideUp(cols, rounds * threads), DivideUp(cols, (rounds + 1) * threads),
        DivideUp(cols, (rounds + 2) * threads), std::min<int64_t>(most, 2), int64_t{1}, most})
    for (const int64_t cuts : {1, 2, threads, 2 * threads, 4 * threads}) {
      const int64_t high = DivideUp(rows, cuts);
      const double cost = longest(wide, high);
      if (best == 0 || cost < best) best = cost, best_wide = wide, best_high = high;
    }
  blocking->n_block = best_wide * kernels.nr;
  blocking->m_block = best_high * kernels.mr;
}

template <class T>
Blocking ChooseBlocking(const BasicGemmArgs<T>& args, int threads, const BasicGemmKernels<T>& kernels) {
  Blocking blocking;
  int64_t k_block = kernels.k_block;
  // The first part of k would overwrite what is added at the end.
  if (args.epilogue.add == args.out && args.epilogue.add && args.epilogue.add_last &&
      args.epilogue.f.kind != Pointwise::Kind::kNone)
    k_block = INT64_MAX;
  const int64_t k = std::max<int64_t>(args.k, 1);
  const int64_t parts = k_block >= k ? 1 : DivideUp(k, k_block);
  blocking.k_block = RoundUp(DivideUp(k, parts), parts > 1 ? 8 : 1);
  blocking.a_stays = args.b.packed && !args.a.packed;

  // The operand that is packed during the product stays in cache, the other one is streamed. If both are
  // packed during the product, blocks of both have to be small. Where the streamed operand is small enough to
  // stay in the L1 cache, the other one should fit it as well.
  const int64_t by = blocking.a_stays ? args.n : args.m;
  const int64_t stay_floats = by * blocking.k_block <= kNearFloats<T> ? kNearFloats<T> : kStayFloats<T>;
  const int64_t stay = std::max<int64_t>(stay_floats / blocking.k_block, 1);
  const int64_t m_all = RoundUp(std::max<int64_t>(args.m, 1), kernels.mr);
  const int64_t n_all = RoundUp(std::max<int64_t>(args.n, 1), kernels.nr);
  const auto limit = [&](int64_t all, int64_t most, int64_t unit) {
    const int64_t block = std::min(all, std::max(most / unit * unit, unit));
    return std::min(RoundUp(DivideUp(all, DivideUp(all, block)), unit), all);  // of about equal size
  };
  blocking.n_block = blocking.a_stays ? n_all : limit(n_all, stay, kernels.nr);
  blocking.m_block = args.a.packed ? m_all : limit(m_all, stay, kernels.mr);

  const auto tasks = [&] {
    return DivideUp(m_all, blocking.m_block) * DivideUp(n_all, blocking.n_block) * args.batch;
  };
  blocking.serial = threads == 1 || static_cast<double>(args.m) * args.n * args.k * args.batch < kSerialWork;
  if (!blocking.serial && args.a.packed) {
    Balance(args, threads, kernels, &blocking);
  } else if (!blocking.serial) {
    // Cut further what is streamed, then what stays: the first repeats the packing of what stays, the second
    // reads the stream more often. Neither below a few tiles.
    const auto split = [&](int64_t& block, int64_t all, int64_t unit, int64_t least) {
      for (int64_t pieces = DivideUp(all, block) + 1; tasks() < threads * 3 && block > least * unit; ++pieces)
        block = std::max(RoundUp(DivideUp(all, pieces), unit), least * unit);
    };
    if (blocking.a_stays) {
      split(blocking.m_block, m_all, kernels.mr, 4);
      split(blocking.n_block, n_all, kernels.nr, 2);
    } else {
      split(blocking.n_block, n_all, kernels.nr, 4);
      split(blocking.m_block, m_all, kernels.mr, 2);
    }
  }
  blocking.tasks = tasks();
  if (!args.a.packed) blocking.a_floats = RoundUp(blocking.m_block * blocking.k_block + kPackSlack, kLine<T>);
  if (!args.b.packed) blocking.b_floats = RoundUp(blocking.n_block * blocking.k_block + kPackSlack, kLine<T>);
  return blocking;
}

// If neither operand is packed and both are large, blocks of one would be packed again for each block of the
// other: then all of `a` is packed first.
template <class T>
bool PacksAFirst(const BasicGemmArgs<T>& args) {
  return !args.a.packed && !args.b.packed && args.batch == 1 && args.m * args.k > kStayFloats<T> &&
         args.n * args.k > kStayFloats<T>;
}

// If threads share a block of columns, each would pack it for its own rows: then all of `b` is packed first,
// by all of them.
constexpr int64_t kPackTogether = 8192;  // numbers that are worth the meeting of threads in between
template <class T>
bool PacksBFirst(const BasicGemmArgs<T>& args, const Blocking& blocking) {
  return args.a.packed && args.b.gather && args.batch == 1 && !blocking.serial && blocking.m_block < args.m &&
         args.n * args.k >= kPackTogether;
}

template <class T>
void PackB(const BasicGemmOperand<T>& b, int64_t k, int64_t steps, int64_t n, int64_t cols, T* out,
           int64_t panel, const BasicGemmKernels<T>& kernels, int64_t batch = 0) {
  const T* data = b.data + batch * b.batch_stride;
  if (b.gather) {
    const Im2col& g = *b.gather;
    kernels.pack_im2col(g, data, data + g.channels * g.in_h * g.in_w, k, k + steps, n, n + cols, out, panel);
  } else {
    kernels.pack_b({.data = data + k * b.row_stride + n * b.col_stride,
                    .lane_stride = b.col_stride,
                    .k_stride = b.row_stride},
                   cols, steps, out, panel);
  }
}

template <class T>
struct Job {
  const BasicGemmArgs<T>& args;
  const BasicGemmKernels<T>& kernels;
  const Blocking& blocking;

  // Panels of rows [m, m + rows) for steps [k, k + steps), and how far apart they are.
  const T* A(int64_t batch, int64_t m, int64_t rows, int64_t k, int64_t steps, T* scratch,
             int64_t* panel) const {
    const BasicGemmOperand<T>& a = args.a;
    if (a.packed) {
      *panel = args.k * kernels.mr;
      return a.packed + batch * a.batch_stride + m / kernels.mr * *panel + k * kernels.mr;
    }
    *panel = steps * kernels.mr;
    kernels.pack_a({.data = a.data + batch * a.batch_stride + m * a.row_stride + k * a.col_stride,
                    .lane_stride = a.row_stride,
                    .k_stride = a.col_stride},
                   rows, steps, scratch, *panel);
    return scratch;
  }
  const T* B(int64_t batch, int64_t n, int64_t cols, int64_t k, int64_t steps, T* scratch,
             int64_t* panel) const {
    const BasicGemmOperand<T>& b = args.b;
    if (b.packed) {
      *panel = args.k * kernels.nr;
      return b.packed + batch * b.batch_stride + n / kernels.nr * *panel + k * kernels.nr;
    }
    *panel = steps * kernels.nr;
    PackB(b, k, steps, n, cols, scratch, *panel, kernels, batch);
    return scratch;
  }

  void Task(int64_t task, T* scratch) const {
    const int64_t m_blocks = DivideUp(args.m, blocking.m_block),
                  n_blocks = DivideUp(args.n, blocking.n_block);
    const int64_t batch = task / (m_blocks * n_blocks);
    // What stays is the same for neighbours.
    const int64_t rest = task % (m_blocks * n_blocks);
    const int64_t m = (blocking.a_stays ? rest / n_blocks : rest % m_blocks) * blocking.m_block;
    const int64_t n = (blocking.a_stays ? rest % n_blocks : rest / m_blocks) * blocking.n_block;
    BasicGemmBlock<T> block{.m = std::min(blocking.m_block, args.m - m),
                            .n = std::min(blocking.n_block, args.n - n),
                            .out = args.out + batch * args.out_batch_stride + m * args.out_stride + n,
                            .out_stride = args.out_stride,
                            .a_stays = blocking.a_stays,
                            .epilogue = args.epilogue};
    BasicEpilogue<T>& e = block.epilogue;
    if (e.row_bias) e.row_bias += batch * args.row_bias_batch_stride + m;
    if (e.col_bias) e.col_bias += batch * args.col_bias_batch_stride + n;
    if (e.add) e.add += batch * args.add_batch_stride + m * e.add_stride + n;
    // With several parts of k the first would overwrite what is to be added: it adds to it instead.
    const bool add_first = e.add == block.out && e.add && blocking.k_block < args.k;
    if (add_first) e.add = nullptr;
    for (int64_t k = 0; k < args.k; k += blocking.k_block) {
      block.k = std::min(blocking.k_block, args.k - k);
      block.a = A(batch, m, block.m, k, block.k, scratch, &block.a_panel);
      block.b = B(batch, n, block.n, k, block.k, scratch + blocking.a_floats, &block.b_panel);
      block.accumulate = k > 0 || add_first;
      block.finish = k + blocking.k_block >= args.k;
      kernels.block(block);
    }
  }
};

template <class T>
const BasicGemmKernels<T>& ReferenceOf() {
  if constexpr (std::is_same_v<T, float>)
    return kGemmReference;
  else
    return kGemmReferenceF16;
}

// k = 0: the epilogue of zeros. Kernels load their first step before they look at k.
template <class T>
void EmptySums(const BasicGemmArgs<T>& args) {
  for (int64_t batch = 0; batch < args.batch; ++batch) {
    BasicEpilogue<T> e = args.epilogue;
    if (e.row_bias) e.row_bias += batch * args.row_bias_batch_stride;
    if (e.col_bias) e.col_bias += batch * args.col_bias_batch_stride;
    if (e.add) e.add += batch * args.add_batch_stride;
    ReferenceOf<T>().block({.m = args.m,
                            .n = args.n,
                            .out = args.out + batch * args.out_batch_stride,
                            .out_stride = args.out_stride,
                            .epilogue = e});
  }
}

}  // namespace

std::span<const GemmVariant> GemmVariants() {
  return kGemm;
}

std::span<const BasicGemmVariant<F16>> GemmF16Variants() {
  return kGemmF16;
}

template <>
const BasicGemmKernels<float>& ChosenGemmOf<float>() {
  static const GemmKernels& chosen = *Pick<const GemmKernels*>("gemm", kGemm)->run;
  return chosen;
}
template <>
const BasicGemmKernels<F16>& ChosenGemmOf<F16>() {
  static const BasicGemmKernels<F16>& chosen = *Pick<const BasicGemmKernels<F16>*>("gemm_f16", kGemmF16)->run;
  return chosen;
}

template <class T>
int64_t GemmPackedAFloats(int64_t m, int64_t k, const BasicGemmKernels<T>& kernels) {
  return RoundUp(RoundUp(m, kernels.mr) * k + kPackSlack, kLine<T>);
}
template <class T>
int64_t GemmPackedBFloats(int64_t k, int64_t n, const BasicGemmKernels<T>& kernels) {
  return RoundUp(RoundUp(n, kernels.nr) * k + kPackSlack, kLine<T>);
}

template <class T>
void GemmPackA(const BasicGemmOperand<T>& a, int64_t m, int64_t k, T* out,
               const BasicGemmKernels<T>& kernels) {
  kernels.pack_a({.data = a.data, .lane_stride = a.row_stride, .k_stride = a.col_stride}, m, k, out,
                 k * kernels.mr);
  std::fill_n(out + RoundUp(m, kernels.mr) * k, kPackSlack, T{});
}
template <class T>
void GemmPackB(const BasicGemmOperand<T>& b, int64_t k, int64_t n, T* out,
               const BasicGemmKernels<T>& kernels) {
  kernels.pack_b({.data = b.data, .lane_stride = b.col_stride, .k_stride = b.row_stride}, n, k, out,
                 k * kernels.nr);
  std::fill_n(out + RoundUp(n, kernels.nr) * k, kPackSlack, T{});
}

template <class T>
int64_t GemmWorkspaceFloats(const BasicGemmArgs<T>& args, int threads, const BasicGemmKernels<T>& kernels) {
  BasicGemmArgs<T> left = args;
  int64_t first = 0;
  if (PacksAFirst(args)) {
    first = GemmPackedAFloats(args.m, args.k, kernels);
    left.a = BasicGemmOperand<T>::Packed(reinterpret_cast<const T*>(&left));  // not read
  }
  Blocking blocking = ChooseBlocking(left, threads, kernels);
  if (PacksBFirst(left, blocking)) {
    first += GemmPackedBFloats(args.k, args.n, kernels);
    left.b = BasicGemmOperand<T>::Packed(reinterpret_cast<const T*>(&left));  // not read
    blocking = ChooseBlocking(left, threads, kernels);
  }
  return first + (blocking.a_floats + blocking.b_floats) * threads;
}

template <class T>
void Gemm(const BasicGemmArgs<T>& args, const BasicGemmKernels<T>& kernels) {
  CELER_CHECK(args.m >= 0 && args.n >= 0 && args.k >= 0 && args.batch >= 0);
  if (args.m == 0 || args.n == 0 || args.batch == 0) return;
  CELER_CHECK(args.pool != nullptr);
  CELER_CHECK(args.out != nullptr);
  CELER_CHECK_GE(args.out_stride, args.n);
  CELER_CHECK(args.k == 0 || args.a.packed || args.a.data);
  CELER_CHECK(args.k == 0 || args.b.packed || args.b.data);
  CELER_CHECK(!args.epilogue.add || args.epilogue.add_stride >= args.n);
  if (args.b.gather) {
    CELER_CHECK_EQ(args.k, args.b.gather->rows());
    CELER_CHECK_EQ(args.n, args.b.gather->cols());
  }
  if (args.k == 0) return EmptySums(args);
  if (PacksAFirst(args)) {
    CELER_CHECK(args.workspace != nullptr);
    args.pool->ParallelFor(args.m, kernels.mr, [&](int64_t begin, int64_t end) {
      kernels.pack_a({.data = args.a.data + begin * args.a.row_stride,
                      .lane_stride = args.a.row_stride,
                      .k_stride = args.a.col_stride},
                     end - begin, args.k, args.workspace + begin * args.k, args.k * kernels.mr);
    });
    BasicGemmArgs<T> left = args;
    left.a = BasicGemmOperand<T>::Packed(args.workspace);
    left.workspace += GemmPackedAFloats(args.m, args.k, kernels);
    return Gemm(left, kernels);
  }
  const Blocking blocking = ChooseBlocking(args, args.pool->size(), kernels);
  if (PacksBFirst(args, blocking)) {
    CELER_CHECK(args.workspace != nullptr);
    // Along k, in pieces that start new lines of the cache.
    const int64_t grain = std::max<int64_t>(RoundUp(args.k / (3 * args.pool->size()), kLine<T>), kLine<T>);
    args.pool->ParallelForDynamic(args.k, grain, [&](int64_t begin, int64_t end) {
      PackB(args.b, begin, end - begin, 0, args.n, args.workspace + begin * kernels.nr, args.k * kernels.nr,
            kernels);
    });
    BasicGemmArgs<T> left = args;
    left.b = BasicGemmOperand<T>::Packed(args.workspace);
    left.workspace += GemmPackedBFloats(args.k, args.n, kernels);
    return Gemm(left, kernels);
  }
  CELER_CHECK(blocking.a_floats + blocking.b_floats == 0 || args.workspace != nullptr);
  const Job<T> job{args, kernels, blocking};
  const int64_t scratch = blocking.a_floats + blocking.b_floats;
  if (blocking.serial || blocking.tasks == 1) {
    for (int64_t task = 0; task < blocking.tasks; ++task) job.Task(task, args.workspace);
    return;
  }
  std::atomic<int64_t> next{0};
  args.pool->Run([&](int thread) {
    for (int64_t task = next++; task < blocking.tasks; task = next++)
      job.Task(task, args.workspace + thread * scratch);
  });
}

#define CELER_INSTANTIATE(T)                                                                             \
  template int64_t GemmPackedAFloats(int64_t, int64_t, const BasicGemmKernels<T>&);                      \
  template int64_t GemmPackedBFloats(int64_t, int64_t, const BasicGemmKernels<T>&);                      \
  template void GemmPackA(const BasicGemmOperand<T>&, int64_t, int64_t, T*, const BasicGemmKernels<T>&); \
  template void GemmPackB(const BasicGemmOperand<T>&, int64_t, int64_t, T*, const BasicGemmKernels<T>&); \
  template int64_t GemmWorkspaceFloats(const BasicGemmArgs<T>&, int, const BasicGemmKernels<T>&);        \
  template void Gemm(const BasicGemmArgs<T>&, const BasicGemmKernels<T>&)
CELER_INSTANTIATE(float);
CELER_INSTANTIATE(F16);
#undef CELER_INSTANTIATE

}  // namespace celer
