// What the families of operators share: axes, broadcasting, and loops over elements.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/ir/operator.h"
#include "graph/ops/elements.h"

namespace celer::graph {

// 0 <= axis < rank, from an axis that may count from the end. `rank` may be one more than the tensor's, where
// a new axis is meant.
Result<int> CheckAxis(int64_t axis, int rank);
// Each checked, none twice.
Result<std::vector<int>> CheckAxes(std::span<const int64_t> axes, int rank);

Result<Shape> Broadcast(std::span<const Shape> shapes);

// Inference that several operators share.
Status InferSame(InferContext& c);       // the first output is like the first input
Status InferBroadcast(InferContext& c);  // of all inputs; the type is the first one's
Status InferBoolBroadcast(InferContext& c);

// Products of dimensions [begin, end).
int64_t Product(std::span<const int64_t> dims, size_t begin, size_t end);
inline int64_t Product(const Shape& shape, int begin, int end) {
  return Product(shape.dims(), static_cast<size_t>(begin), static_cast<size_t>(end));
}
std::vector<int64_t> Dims(const Shape& shape);

// An error unless the dtype of input i is the same as input 0's.
Status CheckSameType(const OpInputs& c, size_t i);

// Work for the pool: pieces large enough to be worth a thread.
template <class Fn>
void Parallel(ThreadPool& pool, int64_t n, int64_t cost, const Fn& fn) {
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, cost));
  pool.ParallelFor(n, grain, fn);
}

// Broadcast strides for walking over tensors together in the order of `shape`, with 0 where one is repeated.
// Neighbouring dimensions that all tensors walk alike are coalesced.
template <size_t N>
struct Walk {
  int rank = 0;
  std::array<int64_t, Shape::kMaxRank> dims{};
  std::array<std::array<int64_t, Shape::kMaxRank>, N> stride{};
};

template <size_t N>
Walk<N> MakeWalk(const Shape& shape, const std::array<Shape, N>& shapes) {
  Walk<N> walk;
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == 1) continue;
    std::array<int64_t, N> stride{};
    for (size_t t = 0; t < N; ++t) {
      const int at = i - (shape.rank() - shapes[t].rank());
      if (at < 0 || shapes[t][at] == 1) continue;
      int64_t step = 1;
      for (int j = at + 1; j < shapes[t].rank(); ++j) step *= shapes[t][j];
      stride[t] = step;
    }
    bool merges = walk.rank > 0;
    for (size_t t = 0; t < N && merges; ++t) merges = walk.stride[t][walk.rank - 1] == stride[t] * shape[i];
    if (!merges) ++walk.rank;
    const auto last = static_cast<size_t>(walk.rank - 1);
    walk.dims[last] = merges ? walk.dims[last] * shape[i] : shape[i];
    for (size_t t = 0; t < N; ++t) walk.stride[t][last] = stride[t];
  }
  return walk;
}

// Calls fn(offset into the output, offsets into the tensors, length, inner strides) for each innermost row.
template <size_t N, class Fn>
void ForRows(ThreadPool& pool, const Walk<N>& walk, const Fn& fn) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < walk.rank; ++i) rows *= walk.dims[i];
  const int64_t length = walk.rank > 0 ? walk.dims[walk.rank - 1] : 1;
  std::array<int64_t, N> inner{};
  for (size_t t = 0; t < N && walk.rank > 0; ++t) inner[t] = walk.stride[t][walk.rank - 1];
  if (rows * length == 0) return;
  const auto some = [&](int64_t begin, int64_t end) {
    std::array<int64_t, Shape::kMaxRank> index{};
    int64_t rest = begin;
    for (int i = walk.rank - 2; i >= 0; --i) {
      index[i] = rest % walk.dims[i];
      rest /= walk.dims[i];
    }
    std::array<int64_t, N> at{};
    for (size_t t = 0; t < N; ++t)
      for (int i = 0; i + 1 < walk.rank; ++i) at[t] += index[i] * walk.stride[t][i];
    for (int64_t row = begin; row < end; ++row) {
      fn(row * length, at, length, inner);
      for (int i = walk.rank - 2; i >= 0; --i) {
        const auto d = static_cast<size_t>(i);
        for (size_t t = 0; t < N; ++t) at[t] += walk.stride[t][d];
        if (++index[d] < walk.dims[d]) break;
        for (size_t t = 0; t < N; ++t) at[t] -= walk.stride[t][d] * walk.dims[d];
        index[d] = 0;
      }
    }
  };
  if (rows == 1 && length > 65536) {
    // One long row: its pieces are the work.
    pool.ParallelFor(length, 16384, [&](int64_t begin, int64_t end) {
      std::array<int64_t, N> at{};
      for (size_t t = 0; t < N; ++t) at[t] = inner[t] * begin;
      fn(begin, at, end - begin, inner);
    });
    return;
  }
  Parallel(pool, rows, length, some);
}

// Elementwise map: out[i] = fn(in[i]) for n elements.
template <class In, class Out, class Fn>
void MapElements(ThreadPool& pool, const In* in, Out* out, int64_t n, const Fn& fn) {
  pool.ParallelFor(n, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = fn(in[i]);
  });
}

// One row of an elementwise operator: out[i] = fn(a[i · step_a], b[i · step_b]). The walk over rows is
// compiled once for all of them.
using RowFn = void (*)(const void* a, int64_t step_a, const void* b, int64_t step_b, void* out, int64_t n);

template <class A, class B, class Out, auto kFn>
void PairRow(const void* a, int64_t step_a, const void* b, int64_t step_b, void* out, int64_t n) {
  const A* const x = static_cast<const A*>(a);
  const B* const y = static_cast<const B*>(b);
  Out* const z = static_cast<Out*>(out);
  if (step_a == 1 && step_b == 1) {
    for (int64_t i = 0; i < n; ++i) z[i] = static_cast<Out>(kFn(Wide(x[i]), Wide(y[i])));
  } else {
    for (int64_t i = 0; i < n; ++i) z[i] = static_cast<Out>(kFn(Wide(x[i * step_a]), Wide(y[i * step_b])));
  }
}

// out = in, with broadcasting; both are f32.
void Repeat(ThreadPool& pool, const TensorView& in, const TensorView& out);

// out = row by row of a and b with broadcasting; the output's shape is already theirs together.
void MapPairs(ThreadPool& pool, const TensorView& a, const TensorView& b, const TensorView& out, RowFn row);

}  // namespace celer::graph
