// Pools: the largest, the mean or a norm of each window.
#include <cmath>
#include <limits>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"
#include "graph/ops/window.h"

namespace celer::graph {
namespace {

Result<Window> PoolWindow(const OpInputs& c) {
  return SlidingWindow(c.node, c.shape(0), c.node.Ints("kernel_shape"));
}
std::vector<int64_t> PooledDims(const OpInputs& c, const Window& w) {
  std::vector<int64_t> dims = {c.shape(0)[0], c.shape(0)[1]};
  dims.insert(dims.end(), w.out_dims().begin(), w.out_dims().end());
  return dims;
}
Status InferPool(InferContext& c) {
  CELER_ASSIGN(const Window w, PoolWindow(c));
  CELER_RETURN_IF_ERROR(c.Set(0, c.dtype(0), PooledDims(c, w)));
  return c.Set(1, DType::kI64, PooledDims(c, w));
}

// Calls fn(index of the output, first element of the plane, od, oh, ow) for every output.
template <class T, class Fn>
void EachWindow(KernelContext& c, const Window& w, const Fn& fn) {
  const int64_t planes = c.shape(0)[0] * c.shape(0)[1];
  Parallel(c.pool, planes * w.out[0] * w.out[1], w.out[2] * w.kernel_size(), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t oh = r % w.out[1], od = r / w.out[1] % w.out[0], plane = r / (w.out[1] * w.out[0]);
      const T* const x = c.in(0).as<T>() + plane * w.in_size();
      for (int64_t ow = 0; ow < w.out[2]; ++ow) fn(r * w.out[2] + ow, plane, x, od, oh, ow);
    }
  });
}
// Along one dimension: the position under tap 0 of a window, and the taps [first, last) that lie in [0,
// size). Taps over the padding are skipped: a file may ask for any number of them.
struct TapRange {
  int64_t start, first, last;
};
TapRange TapsInside(const Window& w, size_t dim, int64_t at, int64_t size) {
  const int64_t start = at * w.stride[dim] - w.before[dim], step = w.dilation[dim];
  const int64_t first = start < 0 ? (-start + step - 1) / step : 0;
  const int64_t last = start < size ? std::min(w.kernel[dim], (size - 1 - start) / step + 1) : 0;
  return {start, first, last};
}
// Calls fn(offset in the plane) for every element of the input under a window.
template <class Fn>
void EachTap(const Window& w, int64_t od, int64_t oh, int64_t ow, const Fn& fn) {
  const TapRange d = TapsInside(w, 0, od, w.in[0]), h = TapsInside(w, 1, oh, w.in[1]),
                 x = TapsInside(w, 2, ow, w.in[2]);
  for (int64_t kd = d.first; kd < d.last; ++kd) {
    const int64_t id = d.start + kd * w.dilation[0];
    for (int64_t kh = h.first; kh < h.last; ++kh) {
      const int64_t line = (id * w.in[1] + h.start + kh * w.dilation[1]) * w.in[2];
      for (int64_t kw = x.first; kw < x.last; ++kw) fn(line + x.start + kw * w.dilation[2]);
    }
  }
}

using PoolTypes = TypeList<float, double, Half, Brain, int8_t, uint8_t>;
Status MaxPool(KernelContext& c) {
  CELER_ASSIGN(const Window w, PoolWindow(c));
  const bool by_column = c.node.Int("storage_order", 0) != 0;
  DispatchOr(c.dtype(0), PoolTypes{}, [&]<class T>() {
    EachWindow<T>(c, w, [&](int64_t o, int64_t plane, const T* x, int64_t od, int64_t oh, int64_t ow) {
      using W = Compute<T>;
      W best = std::numeric_limits<W>::lowest();
      if constexpr (kIsFloat<T>) best = -std::numeric_limits<W>::infinity();
      int64_t where = -1;
      EachTap(w, od, oh, ow, [&](int64_t at) {
        const W v = Wide(x[at]);
        if (v > best || where < 0) {
          best = v;
          where = at;
        }
      });
      c.out(0).as<T>()[o] = static_cast<T>(best);
      if (!c.wants(1)) return;
      if (by_column && where >= 0) {
        const int64_t ww = where % w.in[2], h = where / w.in[2] % w.in[1], d = where / (w.in[2] * w.in[1]);
        where = w.rank == 3 ? (ww * w.in[1] + h) * w.in[0] + d : ww * w.in[1] + h;
      }
      c.out(1).as<int64_t>()[o] = plane * w.in_size() + std::max<int64_t>(where, 0);
    });
  });
  return {};
}

// The places of a window, pads included where they count, but not what lies beyond them.
double PaddedCount(const Window& w, const std::array<int64_t, 3>& at) {
  double count = 1;
  for (size_t i = 0; i < 3; ++i)
    count *= static_cast<double>(TapsInside(w, i, at[i], w.in[i] + w.after[i]).last);
  return count;
}
Status AveragePool(KernelContext& c) {
  CELER_ASSIGN(const Window w, PoolWindow(c));
  const bool with_pads = c.node.Int("count_include_pad", 0) != 0;
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    EachWindow<T>(c, w, [&](int64_t o, int64_t, const T* x, int64_t od, int64_t oh, int64_t ow) {
      Compute<T> sum = 0;
      double count = 0;
      EachTap(w, od, oh, ow, [&](int64_t at) {
        sum += Wide(x[at]);
        ++count;
      });
      if (with_pads) count = PaddedCount(w, {od, oh, ow});
      c.out(0).as<T>()[o] = static_cast<T>(count > 0 ? sum / static_cast<Compute<T>>(count) : 0);
    });
  });
  return {};
}
Status LpPool(KernelContext& c) {
  CELER_ASSIGN(const Window w, PoolWindow(c));
  const auto p = static_cast<double>(c.node.Int("p", 2));
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    EachWindow<T>(c, w, [&](int64_t o, int64_t, const T* x, int64_t od, int64_t oh, int64_t ow) {
      double sum = 0;
      EachTap(w, od, oh, ow,
              [&](int64_t at) { sum += std::pow(std::abs(static_cast<double>(Wide(x[at]))), p); });
      c.out(0).as<T>()[o] = static_cast<T>(static_cast<Compute<T>>(std::pow(sum, 1 / p)));
    });
  });
  return {};
}

Status InferGlobal(InferContext& c) {
  if (c.shape(0).rank() < 2) return Error::Invalid("an input of ", c.shape(0).ToString(), " has no channels");
  std::vector<int64_t> dims(static_cast<size_t>(c.shape(0).rank()), 1);
  dims[0] = c.shape(0)[0];
  dims[1] = c.shape(0)[1];
  return c.Set(0, c.dtype(0), dims);
}
template <class Fn>
Status Global(KernelContext& c, const Fn& fn) {
  const int64_t size = Product(c.shape(0), 2, c.shape(0).rank());
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, c.out_elements(0), size, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        c.out(0).as<T>()[i] = static_cast<T>(static_cast<Compute<T>>(fn(c.in(0).as<T>() + i * size, size)));
    });
  });
  return {};
}
Status GlobalAverage(KernelContext& c) {
  return Global(c, [](const auto* x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(Wide(x[i]));
    return sum / static_cast<double>(n);
  });
}
Status GlobalMax(KernelContext& c) {
  return Global(c, [](const auto* x, int64_t n) {
    double best = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < n; ++i) best = Larger(best, static_cast<double>(Wide(x[i])));
    return best;
  });
}
Status GlobalLp(KernelContext& c) {
  const auto p = static_cast<double>(c.node.Int("p", 2));
  return Global(c, [p](const auto* x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::pow(std::abs(static_cast<double>(Wide(x[i]))), p);
    return std::pow(sum, 1 / p);
  });
}

// x, indices, output_shape
Status InferUnpool(InferContext& c) {
  if (!(c.shape(1) == c.shape(0)) || c.dtype(1) != DType::kI64)
    return Error::Invalid("indices of ", c.shape(1).ToString(), " for ", c.shape(0).ToString());
  if (c.has(2)) {
    const auto dims = c.ints(2);
    if (!dims) return {};
    return c.Set(0, c.dtype(0), *dims);
  }
  CELER_ASSIGN(const Window w, TransposedWindow(c.node, c.shape(0), c.node.Ints("kernel_shape")));
  return c.Set(0, c.dtype(0), PooledDims(c, w));
}
Status MaxUnpool(KernelContext& c) {
  // Indices are those of the unpadded output that the pool saw; with output_shape they are laid out anew.
  std::vector<int64_t> inferred = Dims(c.out(0).shape);
  if (c.has(2)) {
    CELER_ASSIGN(const Window w, TransposedWindow(c.node, c.shape(0), c.node.Ints("kernel_shape")));
    inferred = PooledDims(c, w);
  }
  if (inferred.size() != static_cast<size_t>(c.out(0).shape.rank()))
    return Error::Invalid("output_shape has another rank");
  DispatchOr(c.dtype(0), FloatTypes{},
             [&]<class T>() { std::fill_n(c.out(0).as<T>(), c.out_elements(0), static_cast<T>(0.0f)); });
  CELER_RETURN_IF_ERROR(MakeShape(inferred));
  const int64_t total = Product(inferred, 0, inferred.size());
  Status status;
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    for (int64_t i = 0; i < c.elements(0); ++i) {
      const int64_t index = c.in(1).as<int64_t>()[i];
      int64_t rest = index, at = 0, step = 1;
      bool inside = index >= 0 && index < total;
      for (size_t d = inferred.size(); inside && d-- > 0;) {
        const int64_t place = rest % inferred[d];
        rest /= inferred[d];
        inside = place < c.out(0).shape[static_cast<int>(d)];
        at += place * step;
        step *= c.out(0).shape[static_cast<int>(d)];
      }
      if (!inside) {
        status = Error::Invalid("the index ", index, " is outside of ", c.out(0).shape.ToString());
        return;
      }
      c.out(0).as<T>()[at] = c.in(0).as<T>()[i];
    }
  });
  return status;
}

double PoolFlops(const InferContext& c) {
  // A window takes no more than there is.
  double taps = 1;
  const std::vector<int64_t> kernel = c.node.Ints("kernel_shape");
  for (size_t i = 0; i < kernel.size(); ++i)
    taps *= static_cast<double>(std::min(kernel[i], c.shape(0)[static_cast<int>(i) + 2]));
  return static_cast<double>(*c.output(0).shape.elements()) * taps;
}

constexpr Arity kOne = {1, 1};
constexpr DTypeSet kMaxTypes = kFloats | DTypeSet{DType::kI8, DType::kU8};
constexpr Operator kRows[] = {
    {"AveragePool", 1, kOne, kOne, kFloats, InferPool, AveragePool, Operator::kPlain, PoolFlops, kFastPool},
    {"GlobalAveragePool", 1, kOne, kOne, kFloats, InferGlobal, GlobalAverage, Operator::kPlain, nullptr,
     kFastGlobalAverage},
    {"GlobalLpPool", 2, kOne, kOne, kFloats, InferGlobal, GlobalLp},
    {"GlobalMaxPool", 1, kOne, kOne, kFloats, InferGlobal, GlobalMax},
    {"LpPool", 2, kOne, kOne, kFloats, InferPool, LpPool, Operator::kPlain, PoolFlops},
    {"MaxPool", 1, kOne, {1, 2}, kMaxTypes, InferPool, MaxPool, Operator::kPlain, PoolFlops, kFastPool},
    {"MaxUnpool", 9, {2, 3}, kOne, kFloats, InferUnpool, MaxUnpool},
};

}  // namespace

std::span<const Operator> PoolOperators() {
  return kRows;
}

}  // namespace celer::graph
