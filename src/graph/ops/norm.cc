// Normalizations.
#include <cmath>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"

namespace celer::graph {
namespace {

double At(const TensorView& view, int64_t i) {
  double out = 0;
  DispatchOr(view.dtype, FloatTypes{}, [&]<class T>() { out = static_cast<double>(Wide(view.as<T>()[i])); });
  return out;
}

// x, scale, bias, mean, variance
Status InferBatchNorm(InferContext& c) {
  if (c.node.Int("training_mode", 0) != 0) {
    CELER_RETURN_IF_ERROR(c.Set(1, c.dtype(3), c.shape(3)));
    CELER_RETURN_IF_ERROR(c.Set(2, c.dtype(4), c.shape(4)));
  }
  const int64_t channels = c.shape(0).rank() > 1 ? c.shape(0)[1] : 1;
  for (size_t i = 1; i < 5; ++i)
    if (c.elements(i) != channels || !kFloats.Has(c.dtype(i)))
      return Error::Invalid("its input ", i, " is ", c.shape(i).ToString(), " for ", channels, " channels");
  return InferSame(c);
}
Status BatchNorm(KernelContext& c) {
  const Shape& in = c.shape(0);
  const double eps = c.node.Float("epsilon", 1e-5f), momentum = c.node.Float("momentum", 0.9f);
  const int64_t channels = in.rank() > 1 ? in[1] : 1, batch = in.rank() > 0 ? in[0] : 1,
                size = in.rank() > 2 ? Product(in, 2, in.rank()) : 1;
  const bool training = c.node.Int("training_mode", 0) != 0;
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    using W = Compute<T>;
    for (int64_t ch = 0; ch < channels; ++ch) {
      double mean = At(c.in(3), ch), variance = At(c.in(4), ch);
      if (training) {
        double sum = 0, squares = 0;
        const auto count = static_cast<double>(batch * size);
        for (int64_t n = 0; n < batch; ++n)
          for (int64_t i = 0; i < size; ++i) sum += Wide(c.in(0).as<T>()[(n * channels + ch) * size + i]);
        const double now = sum / count;
        for (int64_t n = 0; n < batch; ++n)
          for (int64_t i = 0; i < size; ++i) {
            const double d = Wide(c.in(0).as<T>()[(n * channels + ch) * size + i]) - now;
            squares += d * d;
          }
        const double spread = squares / count;
        const auto put = [&](size_t output, double value) {
          if (c.wants(output))
            DispatchOr(c.out(output).dtype, FloatTypes{}, [&]<class U>() {
              c.out(output).as<U>()[ch] = static_cast<U>(static_cast<float>(value));
            });
        };
        put(1, mean * momentum + now * (1 - momentum));
        put(2, variance * momentum + spread * (1 - momentum));
        mean = now;
        variance = spread;
      }
      const double scale = At(c.in(1), ch) / std::sqrt(variance + eps);
      const W factor = static_cast<W>(scale), shift = static_cast<W>(At(c.in(2), ch) - mean * scale);
      for (int64_t n = 0; n < batch; ++n) {
        const T* const x = c.in(0).as<T>() + (n * channels + ch) * size;
        T* const y = c.out(0).as<T>() + (n * channels + ch) * size;
        for (int64_t i = 0; i < size; ++i) y[i] = static_cast<T>(Wide(x[i]) * factor + shift);
      }
    }
  });
  return {};
}

// The mean of a row (unless only the square counts), and 1 / its spread.
struct Moments {
  double mean, inverse;
};
template <class T>
Moments RowMoments(const T* x, int64_t n, double eps, bool centred) {
  double mean = 0, squares = 0;
  if (centred) {
    for (int64_t i = 0; i < n; ++i) mean += Wide(x[i]);
    mean /= static_cast<double>(n);
  }
  for (int64_t i = 0; i < n; ++i) {
    const double d = Wide(x[i]) - mean;
    squares += d * d;
  }
  return {mean, 1 / std::sqrt(squares / static_cast<double>(n) + eps)};
}

// x, scale, bias: over all dimensions from `axis` on. Scale and bias broadcast to them.
Status InferLayerNorm(InferContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), c.shape(0).rank()));
  for (size_t i = 1; i < c.inputs(); ++i) {
    if (!c.has(i)) continue;
    if (!kFloats.Has(c.dtype(i))) return Error::Invalid("its input ", i, " is ", Name(c.dtype(i)));
    CELER_ASSIGN(const Shape together, Broadcast(std::vector<Shape>{c.shape(i), c.shape(0)}));
    if (!(together == c.shape(0)))
      return Error::Invalid("its input ", i, " of ", c.shape(i).ToString(), " does not broadcast to ",
                            c.shape(0).ToString());
  }
  std::vector<int64_t> dims = Dims(c.shape(0));
  std::fill(dims.begin() + axis, dims.end(), 1);
  CELER_RETURN_IF_ERROR(c.Set(0, c.dtype(0), c.shape(0)));
  CELER_RETURN_IF_ERROR(c.Set(1, DType::kF32, dims));
  return c.Set(2, DType::kF32, dims);
}
// The elements of a small tensor, repeated to the size of a large one.
std::vector<double> Repeated(ThreadPool& pool, const TensorView& small, const Shape& shape) {
  std::vector<double> out(static_cast<size_t>(*shape.elements()));
  if (!out.empty())
    ForRows<1>(
        pool, MakeWalk<1>(shape, {small.shape}),
        [&](int64_t o, const std::array<int64_t, 1>& at, int64_t n, const std::array<int64_t, 1>& step) {
          for (int64_t i = 0; i < n; ++i) out[o + i] = At(small, at[0] + i * step[0]);
        });
  return out;
}
template <bool kCentred>
Status LayerNorm(KernelContext& c) {
  const Shape& in = c.shape(0);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), in.rank()));
  const double eps = c.node.Float("epsilon", 1e-5f);
  const int64_t rows = Product(in, 0, axis), n = Product(in, axis, in.rank());
  // Usually one number per element of a row; where it varies over rows, too, one per element of the tensor.
  const Shape row_shape = PartOf(in, axis, in.rank());
  const auto spread = [&](size_t i) {
    if (!c.has(i)) return std::vector<double>();
    bool within = true;
    for (int d = 0; d < c.shape(i).rank() - row_shape.rank(); ++d) within = within && c.shape(i)[d] == 1;
    if (!within) return Repeated(c.pool, c.in(i), in);
    TensorView view = c.in(i);
    const int rank = view.shape.rank();
    view.shape = PartOf(view.shape, rank - std::min(rank, row_shape.rank()), rank);
    return Repeated(c.pool, view, row_shape);
  };
  const std::vector<double> scale = spread(1), bias = spread(2);
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, rows, n * 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* const x = c.in(0).as<T>() + r * n;
        T* const y = c.out(0).as<T>() + r * n;
        const Moments m = RowMoments(x, n, eps, kCentred);
        const auto of = [&](const std::vector<double>& list, int64_t i) {
          return list[static_cast<size_t>(list.size() == static_cast<size_t>(n) ? i : r * n + i)];
        };
        if (kCentred && c.wants(1)) c.out(1).as<float>()[r] = static_cast<float>(m.mean);
        if (kCentred && c.wants(2)) c.out(2).as<float>()[r] = static_cast<float>(m.inverse);
        for (int64_t i = 0; i < n; ++i) {
          double value = (static_cast<double>(Wide(x[i])) - m.mean) * m.inverse;
          if (!scale.empty()) value *= of(scale, i);
          if (!bias.empty()) value += of(bias, i);
          y[i] = static_cast<T>(static_cast<Compute<T>>(value));
        }
      }
    });
  });
  return {};
}

// x [n, channels, ...], scale, bias; `groups` of channels are normalized together.
template <class Groups>
Status GroupNorm(KernelContext& c, const Groups& groups, bool per_group) {
  const Shape& in = c.shape(0);
  const double eps = c.node.Float("epsilon", 1e-5f);
  const int64_t channels = in[1], size = Product(in, 2, in.rank()), per = channels / groups;
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, in[0] * groups, per * size * 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* const x = c.in(0).as<T>() + r * per * size;
        T* const y = c.out(0).as<T>() + r * per * size;
        const Moments m = RowMoments(x, per * size, eps, true);
        for (int64_t k = 0; k < per; ++k) {
          const int64_t channel = r % groups * per + k, at = per_group ? r % groups : channel;
          const double scale = At(c.in(1), at) * m.inverse, shift = At(c.in(2), at) - m.mean * scale;
          for (int64_t i = 0; i < size; ++i)
            y[k * size + i] = static_cast<T>(
                static_cast<Compute<T>>(static_cast<double>(Wide(x[k * size + i])) * scale + shift));
        }
      }
    });
  });
  return {};
}
Status InferChannels(InferContext& c) {
  if (c.shape(0).rank() < 3)
    return Error::Invalid("an input of ", c.shape(0).ToString(), " has no channels and places");
  const int64_t groups = c.node.Int("num_groups", c.shape(0)[1]);
  if (groups < 1 || groups > std::max<int64_t>(c.shape(0)[1], 1) || c.shape(0)[1] % groups != 0)
    return Error::Invalid(groups, " groups of ", c.shape(0)[1], " channels");
  for (size_t i = 1; i < 3; ++i)
    if (!kFloats.Has(c.dtype(i)) ||
        (c.elements(i) != c.shape(0)[1] && !(c.node.opset < 21 && c.elements(i) == groups)))
      return Error::Invalid("its input ", i, " is ", c.shape(i).ToString(), " for ", c.shape(0)[1],
                            " channels");
  return InferSame(c);
}
Status GroupNormalization(KernelContext& c) {
  const int64_t groups = c.node.Int("num_groups", 1);
  return GroupNorm(c, groups, c.elements(1) != c.shape(0)[1]);
}
Status InstanceNormalization(KernelContext& c) {
  return GroupNorm(c, c.shape(0)[1], false);
}

Status InferAxes(InferContext& c) {
  const std::vector<int64_t> given =
      c.node.Find("axes") ? c.node.Ints("axes") : std::vector<int64_t>{0, 2, 3};
  CELER_ASSIGN([[maybe_unused]] const std::vector<int> axes, CheckAxes(given, c.shape(0).rank()));
  return InferSame(c);
}
Status MeanVariance(KernelContext& c) {
  const std::vector<int64_t> given =
      c.node.Find("axes") ? c.node.Ints("axes") : std::vector<int64_t>{0, 2, 3};
  CELER_ASSIGN(const std::vector<int> axes, CheckAxes(given, c.shape(0).rank()));
  const Shape& in = c.shape(0);
  std::vector<int64_t> kept = Dims(in);
  int64_t count = 1;
  for (const int axis : axes) {
    count *= in[axis];
    kept[axis] = 1;
  }
  CELER_ASSIGN(const Shape small, MakeShape(kept));
  const auto cells = static_cast<size_t>(*small.elements());
  const auto walk = MakeWalk<1>(in, {small});
  ThreadPool one(ThreadPool::Options{.threads = 1});
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    std::vector<double> sum(cells, 0), squares(cells, 0);
    const auto each = [&](const auto& fn) {
      if (c.elements(0) > 0)
        ForRows<1>(
            one, walk,
            [&](int64_t o, const std::array<int64_t, 1>& at, int64_t n, const std::array<int64_t, 1>& step) {
              for (int64_t i = 0; i < n; ++i) fn(o + i, static_cast<size_t>(at[0] + i * step[0]));
            });
    };
    each([&](int64_t i, size_t cell) { sum[cell] += Wide(c.in(0).as<T>()[i]); });
    for (double& s : sum) s /= static_cast<double>(count);
    each([&](int64_t i, size_t cell) {
      const double d = Wide(c.in(0).as<T>()[i]) - sum[cell];
      squares[cell] += d * d;
    });
    for (double& s : squares) s = std::sqrt(s / static_cast<double>(count)) + 1e-9;
    each([&](int64_t i, size_t cell) {
      c.out(0).as<T>()[i] =
          static_cast<T>(static_cast<Compute<T>>((Wide(c.in(0).as<T>()[i]) - sum[cell]) / squares[cell]));
    });
  });
  return {};
}

Status InferLp(InferContext& c) {
  CELER_ASSIGN([[maybe_unused]] const int axis, CheckAxis(c.node.Int("axis", -1), c.shape(0).rank()));
  const int64_t p = c.node.Int("p", 2);
  if (p != 1 && p != 2) return Error::Unsupported("a norm of order ", p);
  return InferSame(c);
}
Status LpNormalization(KernelContext& c) {
  const Shape& in = c.shape(0);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), in.rank()));
  const int64_t n = in[axis], outer = Product(in, 0, axis), inner = Product(in, axis + 1, in.rank());
  const bool square = c.node.Int("p", 2) == 2;
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t j = 0; j < inner; ++j) {
        const int64_t at = o * n * inner + j;
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) {
          const double v = Wide(c.in(0).as<T>()[at + i * inner]);
          sum += square ? v * v : std::abs(v);
        }
        const double norm = square ? std::sqrt(sum) : sum;
        for (int64_t i = 0; i < n; ++i) {
          const double v = Wide(c.in(0).as<T>()[at + i * inner]);
          c.out(0).as<T>()[at + i * inner] =
              static_cast<T>(static_cast<Compute<T>>(norm == 0 ? 0 : v / norm));
        }
      }
  });
  return {};
}

Status InferLrn(InferContext& c) {
  if (c.shape(0).rank() < 2 || c.node.Int("size", 0) < 1)
    return Error::Invalid("a size of ", c.node.Int("size", 0), " on ", c.shape(0).ToString());
  return InferSame(c);
}
Status Lrn(KernelContext& c) {
  const Shape& in = c.shape(0);
  const int64_t channels = in[1], inner = Product(in, 2, in.rank()), size = c.node.Int("size", 1);
  const double alpha = c.node.Float("alpha", 1e-4f), beta = c.node.Float("beta", 0.75f),
               bias = c.node.Float("bias", 1);
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, in[0] * channels, inner * std::min(size, channels) * 4, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(static_cast<size_t>(inner));
      for (int64_t r = begin; r < end; ++r) {
        const int64_t n = r / channels, ch = r % channels;
        std::fill(sums.begin(), sums.end(), 0.0);
        const int64_t behind = (size - 1) / 2, ahead = std::min(size - 1 - behind, channels);
        const int64_t first = std::max<int64_t>(0, ch - behind), last = std::min(channels - 1, ch + ahead);
        for (int64_t k = first; k <= last; ++k)
          for (int64_t i = 0; i < inner; ++i) {
            const double v = Wide(c.in(0).as<T>()[(n * channels + k) * inner + i]);
            sums[i] += v * v;
          }
        for (int64_t i = 0; i < inner; ++i) {
          const double v = Wide(c.in(0).as<T>()[r * inner + i]);
          c.out(0).as<T>()[r * inner + i] = static_cast<T>(static_cast<Compute<T>>(
              v / std::pow(bias + alpha / static_cast<double>(size) * sums[i], beta)));
        }
      }
    });
  });
  return {};
}

constexpr Arity kOne = {1, 1};
constexpr Operator kRows[] = {
    {"BatchNormalization", 6, Arity(5, 5), Arity(1, 5), kFloats, InferBatchNorm, BatchNorm,
     Operator::kInPlace, nullptr, kFastBatchNorm},
    {"GroupNormalization", 18, Arity(3, 3), kOne, kFloats, InferChannels, GroupNormalization,
     Operator::kPlain, nullptr, kFastGroupNorm},
    {"InstanceNormalization", 6, Arity(3, 3), kOne, kFloats, InferChannels, InstanceNormalization,
     Operator::kPlain, nullptr, kFastGroupNorm},
    {"LRN", 1, kOne, kOne, kFloats, InferLrn, Lrn},
    {"LayerNormalization", 17, Arity(2, 3), Arity(1, 3), kFloats, InferLayerNorm, LayerNorm<true>,
     Operator::kPlain, nullptr, kFastLayerNorm},
    {"LpNormalization", 1, kOne, kOne, kFloats, InferLp, LpNormalization},
    {"MeanVarianceNormalization", 9, kOne, kOne, kFloats, InferAxes, MeanVariance},
    {"RMSNormalization", 23, {2, 2}, kOne, kFloats, InferLayerNorm, LayerNorm<false>},
};

}  // namespace

std::span<const Operator> NormOperators() {
  return kRows;
}

}  // namespace celer::graph
