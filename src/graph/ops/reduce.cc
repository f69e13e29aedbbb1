// Reductions over axes, cumulative sums, and the softmax family.
#include <cmath>
#include <limits>
#include <memory>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"
#include "graph/ops/reduce.h"
#include "graph/ops/strided.h"

namespace celer::graph {
namespace {

// nullopt while the axes are not known. An empty list means all, or none with noop_with_empty_axes.
Result<std::optional<std::vector<int>>> ReducedAxes(const OpInputs& c) {
  const int rank = c.shape(0).rank();
  std::vector<int64_t> given = c.node.Ints("axes");
  if (c.has(1)) {
    const auto known = c.ints(1);
    if (!known) return std::optional<std::vector<int>>();
    given = *known;
  }
  if (given.empty()) {
    std::vector<int> all;
    if (c.node.Int("noop_with_empty_axes", 0) == 0)
      for (int i = 0; i < rank; ++i) all.push_back(i);
    return std::optional(all);
  }
  CELER_ASSIGN(std::vector<int> axes, CheckAxes(given, rank));
  std::sort(axes.begin(), axes.end());
  return std::optional(std::move(axes));
}
bool Contains(const std::vector<int>& axes, int axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

Status InferReduce(InferContext& c) {
  CELER_ASSIGN(const auto axes, ReducedAxes(c));
  if (!axes) return {};
  const bool keep = c.node.Int("keepdims", 1) != 0;
  std::vector<int64_t> dims;
  for (int i = 0; i < c.shape(0).rank(); ++i) {
    if (!Contains(*axes, i))
      dims.push_back(c.shape(0)[i]);
    else if (keep)
      dims.push_back(1);
  }
  return c.Set(0, c.dtype(0), dims);
}

// Calls row(pointer to n elements) for each output, with the elements that it is made of side by side.
template <class T, class Row>
Status EachRow(KernelContext& c, const Row& row) {
  CELER_ASSIGN(const auto axes, ReducedAxes(c));
  const Shape& in = c.shape(0);
  std::vector<int64_t> dims, stride(static_cast<size_t>(in.rank())), from;
  int64_t step = 1, n = 1;
  for (int i = in.rank() - 1; i >= 0; --i) {
    stride[i] = step;
    step *= in[i];
  }
  for (const bool reduced : {false, true})
    for (int i = 0; i < in.rank(); ++i)
      if (Contains(*axes, i) == reduced) {
        dims.push_back(in[i]);
        from.push_back(stride[i]);
        if (reduced) n *= in[i];
      }
  const bool trailing = std::is_sorted(from.rbegin(), from.rend());
  std::unique_ptr<T[]> moved;
  const T* data = c.in(0).as<T>();
  if (!trailing && c.elements(0) > 0) {
    moved = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(c.elements(0)));
    std::vector<int64_t> to(dims.size());
    int64_t at = 1;
    for (size_t i = dims.size(); i-- > 0;) {
      to[i] = at;
      at *= dims[i];
    }
    CopyStrided(c.pool, c.dtype(0), dims, c.in(0).data, from, reinterpret_cast<std::byte*>(moved.get()), to);
    data = moved.get();
  }
  T* const out = c.out(0).as<T>();
  Parallel(c.pool, c.out_elements(0), n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = row(data + i * n, n);
  });
  return {};
}

template <class T>
using Sum = std::conditional_t<kIsFloat<T>, double, int64_t>;

// start, then step(total, element) for each, then finish(total, count).
template <class Types, class Start, class Step, class Finish>
Status Reduce(KernelContext& c, Types types, const Start& start, const Step& step, const Finish& finish) {
  Status status;
  DispatchOr(c.dtype(0), types, [&]<class T>() {
    using S = Sum<T>;
    status = EachRow<T>(c, [&](const T* x, int64_t n) {
      S total = static_cast<S>(start);
      for (int64_t i = 0; i < n; ++i) total = step(total, static_cast<S>(Wide(x[i])));
      return static_cast<T>(ConvertTo<Compute<T>>(finish(total, n)));
    });
  });
  return status;
}

constexpr auto kTotal = [](auto total, int64_t) { return total; };
constexpr auto kPlus = [](auto total, auto x) { return WrapAdd(total, x); };
constexpr auto kSquares = [](auto total, auto x) { return WrapAdd(total, WrapMul(x, x)); };
constexpr auto kMagnitudes = [](auto total, auto x) {
  using S = decltype(x);
  return WrapAdd(total, x < 0 ? WrapMul(x, static_cast<S>(-1)) : x);
};

Status ReduceSum(KernelContext& c) {
  return Reduce(c, NumberTypes{}, 0, kPlus, kTotal);
}
Status ReduceMean(KernelContext& c) {
  return Reduce(c, NumberTypes{}, 0, kPlus, [](auto total, int64_t n) {
    using S = decltype(total);
    if constexpr (std::is_integral_v<S>)
      return n == 0 ? S{0} : total / static_cast<S>(n);
    else
      return total / static_cast<S>(n);
  });
}
Status ReduceProd(KernelContext& c) {
  return Reduce(
      c, NumberTypes{}, 1, [](auto total, auto x) { return WrapMul(total, x); }, kTotal);
}
Status ReduceL1(KernelContext& c) {
  return Reduce(c, NumberTypes{}, 0, kMagnitudes, kTotal);
}
Status ReduceL2(KernelContext& c) {
  return Reduce(c, NumberTypes{}, 0, kSquares,
                [](auto total, int64_t) { return std::sqrt(static_cast<double>(total)); });
}
Status ReduceSumSquare(KernelContext& c) {
  return Reduce(c, NumberTypes{}, 0, kSquares, kTotal);
}
Status ReduceLogSum(KernelContext& c) {
  return Reduce(c, NumberTypes{}, 0, kPlus,
                [](auto total, int64_t) { return std::log(static_cast<double>(total)); });
}
Status ReduceLogSumExp(KernelContext& c) {
  Status status;
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    status = EachRow<T>(c, [](const T* x, int64_t n) {
      double most = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t i = 0; i < n; ++i) most = std::max(most, static_cast<double>(Wide(x[i])));
      const double shift = std::isfinite(most) ? most : 0;
      for (int64_t i = 0; i < n; ++i) total += std::exp(static_cast<double>(Wide(x[i])) - shift);
      return static_cast<T>(ConvertTo<Compute<T>>(std::log(total) + shift));
    });
  });
  return status;
}
template <bool kLargest>
Status ReduceExtreme(KernelContext& c) {
  Status status;
  DispatchOr(c.dtype(0), PlainTypes{}, [&]<class T>() {
    status = EachRow<T>(c, [](const T* x, int64_t n) {
      using W = Compute<T>;
      W best = kLargest ? std::numeric_limits<W>::lowest() : std::numeric_limits<W>::max();
      if constexpr (kIsFloat<T>)
        best = kLargest ? -std::numeric_limits<W>::infinity() : std::numeric_limits<W>::infinity();
      for (int64_t i = 0; i < n; ++i) {
        const W v = Wide(x[i]);
        if (v != v) return static_cast<T>(v);
        best = (kLargest ? v > best : v < best) ? v : best;
      }
      return static_cast<T>(best);
    });
  });
  return status;
}

Around AroundAxis(const Shape& shape, int axis) {
  return {Product(shape, 0, axis), shape[axis], Product(shape, axis + 1, shape.rank())};
}

Status InferArg(InferContext& c) {
  const Shape& in = c.shape(0);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), in.rank()));
  if (in[axis] == 0 && c.elements(0) == 0 && Product(in, 0, axis) * Product(in, axis + 1, in.rank()) != 0)
    return Error::Invalid("axis ", axis, " of ", in.ToString(), " has no elements to choose among");
  std::vector<int64_t> dims = Dims(in);
  if (c.node.Int("keepdims", 1) != 0)
    dims[axis] = 1;
  else
    dims.erase(dims.begin() + axis);
  return c.Set(0, DType::kI64, dims);
}
template <bool kLargest>
Status Arg(KernelContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), c.shape(0).rank()));
  const Around a = AroundAxis(c.shape(0), axis);
  const bool last = c.node.Int("select_last_index", 0) != 0;
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    for (int64_t o = 0; o < a.outer; ++o)
      for (int64_t j = 0; j < a.inner; ++j) {
        const T* const x = c.in(0).as<T>() + o * a.n * a.inner + j;
        int64_t best = 0;
        for (int64_t i = 1; i < a.n; ++i) {
          const auto v = Wide(x[i * a.inner]), b = Wide(x[best * a.inner]);
          if ((kLargest ? v > b : v < b) || (last && v == b)) best = i;
        }
        c.out(0).as<int64_t>()[o * a.inner + j] = best;
      }
  });
  return {};
}

Status InferRunning(InferContext& c) {
  if (c.elements(1) != 1) return Error::Invalid("its axis must be a scalar");
  return InferSame(c);
}
template <bool kProduct>
Status Running(KernelContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis((*c.ints(1))[0], c.shape(0).rank()));
  const Around a = AroundAxis(c.shape(0), axis);
  const bool exclusive = c.node.Int("exclusive", 0) != 0, reverse = c.node.Int("reverse", 0) != 0;
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    for (int64_t o = 0; o < a.outer; ++o)
      for (int64_t j = 0; j < a.inner; ++j) {
        const T* const x = c.in(0).as<T>() + o * a.n * a.inner + j;
        T* const y = c.out(0).as<T>() + o * a.n * a.inner + j;
        Compute<T> total = kProduct ? 1 : 0;
        for (int64_t k = 0; k < a.n; ++k) {
          const int64_t i = (reverse ? a.n - 1 - k : k) * a.inner;
          const auto v = Wide(x[i]);
          if (exclusive) y[i] = static_cast<T>(total);
          total = kProduct ? WrapMul<Compute<T>>(total, v) : WrapAdd<Compute<T>>(total, v);
          if (!exclusive) y[i] = static_cast<T>(total);
        }
      }
  });
  return {};
}

Status InferSoftmax(InferContext& c) {
  CELER_ASSIGN([[maybe_unused]] const Around a, SoftmaxAround(c));
  return InferSame(c);
}
// fn(x, y, n, step): one row, whose elements are `step` apart.
template <class Fn>
Status SoftmaxRows(KernelContext& c, const Fn& fn) {
  CELER_ASSIGN(const Around a, SoftmaxAround(c));
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, a.outer * a.inner, a.n * 8, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row / a.inner * a.n * a.inner + row % a.inner;
        fn(c.in(0).as<T>() + at, c.out(0).as<T>() + at, a.n, a.inner);
      }
    });
  });
  return {};
}
template <class T>
Compute<T> RowMax(const T* x, int64_t n, int64_t step) {
  Compute<T> most = -std::numeric_limits<Compute<T>>::infinity();
  for (int64_t i = 0; i < n; ++i) most = std::max(most, Wide(x[i * step]));
  return most;
}
Status Softmax(KernelContext& c) {
  return SoftmaxRows(c, []<class T>(const T* x, T* y, int64_t n, int64_t step) {
    const auto most = RowMax(x, n, step);
    double total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto e = std::exp(Wide(x[i * step]) - most);
      total += static_cast<double>(e);
      y[i * step] = static_cast<T>(e);
    }
    const auto scale = static_cast<Compute<T>>(1 / total);
    for (int64_t i = 0; i < n; ++i) y[i * step] = static_cast<T>(Wide(y[i * step]) * scale);
  });
}
Status LogSoftmax(KernelContext& c) {
  return SoftmaxRows(c, []<class T>(const T* x, T* y, int64_t n, int64_t step) {
    const auto most = RowMax(x, n, step);
    double total = 0;
    for (int64_t i = 0; i < n; ++i) total += std::exp(static_cast<double>(Wide(x[i * step]) - most));
    const auto shift = static_cast<Compute<T>>(std::log(total)) + most;
    for (int64_t i = 0; i < n; ++i) y[i * step] = static_cast<T>(Wide(x[i * step]) - shift);
  });
}
Status Hardmax(KernelContext& c) {
  return SoftmaxRows(c, []<class T>(const T* x, T* y, int64_t n, int64_t step) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; ++i)
      if (Wide(x[i * step]) > Wide(x[best * step])) best = i;
    for (int64_t i = 0; i < n; ++i) y[i * step] = static_cast<T>(i == best);
  });
}

constexpr Arity kOne = {1, 1}, kTwo = {1, 2};
constexpr Operator kRows[] = {
    {"ArgMax", 1, kOne, kOne, kNumbers, InferArg, Arg<true>},
    {"ArgMin", 1, kOne, kOne, kNumbers, InferArg, Arg<false>},
    {"CumProd", 26, {2, 2}, kOne, kNumbers, InferRunning, Running<true>},
    {"CumSum", 11, {2, 2}, kOne, kNumbers, InferRunning, Running<false>},
    {"Hardmax", 1, kOne, kOne, kFloats, InferSoftmax, Hardmax},
    {"LogSoftmax", 1, kOne, kOne, kFloats, InferSoftmax, LogSoftmax},
    {"ReduceL1", 1, kTwo, kOne, kNumbers, InferReduce, ReduceL1},
    {"ReduceL2", 1, kTwo, kOne, kNumbers, InferReduce, ReduceL2},
    {"ReduceLogSum", 1, kTwo, kOne, kNumbers, InferReduce, ReduceLogSum},
    {"ReduceLogSumExp", 1, kTwo, kOne, kNumbers, InferReduce, ReduceLogSumExp},
    {"ReduceMax", 1, kTwo, kOne, kNumbers | kBools, InferReduce, ReduceExtreme<true>},
    {"ReduceMean", 1, kTwo, kOne, kNumbers, InferReduce, ReduceMean, Operator::kPlain, nullptr, kFastSum},
    {"ReduceMin", 1, kTwo, kOne, kNumbers | kBools, InferReduce, ReduceExtreme<false>},
    {"ReduceProd", 1, kTwo, kOne, kNumbers, InferReduce, ReduceProd},
    {"ReduceSum", 1, kTwo, kOne, kNumbers, InferReduce, ReduceSum, Operator::kPlain, nullptr, kFastSum},
    {"ReduceSumSquare", 1, kTwo, kOne, kNumbers, InferReduce, ReduceSumSquare},
    {"Softmax", 1, kOne, kOne, kFloats, InferSoftmax, Softmax, Operator::kInPlace, nullptr, kFastSoftmax},
};

}  // namespace

// Until opset 12 everything from the axis on was one row; from 13 on the axis alone is.
Result<Around> SoftmaxAround(const OpInputs& c) {
  const Shape& in = c.shape(0);
  if (c.node.opset < 13) {
    const int64_t axis = c.node.Int("axis", 1);
    if (in.rank() == 0 || axis < -in.rank() || axis > in.rank())
      return Error::Invalid("the axis ", axis, " is outside of ", in.ToString());
    const int at = static_cast<int>(axis < 0 ? axis + in.rank() : axis);
    return Around{Product(in, 0, at), Product(in, at, in.rank()), 1};
  }
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), in.rank()));
  return AroundAxis(in, axis);
}

std::optional<Around> ReducedRange(const OpInputs& c) {
  const auto axes = ReducedAxes(c);
  if (!axes || !*axes || (*axes)->empty()) return std::nullopt;
  const Shape& in = c.shape(0);
  int first = -1, last = -1;
  for (const int axis : **axes) {
    if (in[axis] == 1) continue;
    for (int i = last + 1; last >= 0 && i < axis; ++i)
      if (in[i] != 1) return std::nullopt;
    if (first < 0) first = axis;
    last = axis;
  }
  if (first < 0) return Around{*in.elements(), 1, 1};  // all are of one: each element is its own sum
  return Around{Product(in, 0, first), Product(in, first, last + 1), Product(in, last + 1, in.rank())};
}

std::span<const Operator> ReduceOperators() {
  return kRows;
}

}  // namespace celer::graph
