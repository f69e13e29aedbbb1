// Matrix products: the reference forms that faster kernels are compared with.
#include <cmath>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"

namespace celer::graph {
namespace {

// Shapes of a product with numpy's rules: vectors become matrices, and leading dimensions broadcast.
struct Product2 {
  Shape a, b;                // with at least two dimensions
  Shape batch;               // the leading dimensions together
  int64_t m, k, n;           //
  std::vector<int64_t> out;  // the shape of the result
};
Result<Product2> ProductOf(Shape a, Shape b) {
  if (a.rank() == 0 || b.rank() == 0) return Error::Invalid("a product of scalars");
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) {
    CELER_ASSIGN(a, MakeShape({1, a[0]}));
  }
  if (column) {
    CELER_ASSIGN(b, MakeShape({b[0], 1}));
  }
  Product2 p{a, b, {}, a[a.rank() - 2], a[a.rank() - 1], b[b.rank() - 1], {}};
  if (b[b.rank() - 2] != p.k)
    return Error::Invalid("the shapes ", a.ToString(), " and ", b.ToString(), " do not multiply: ", p.k,
                          " against ", b[b.rank() - 2]);
  CELER_ASSIGN(p.batch,
               Broadcast(std::vector<Shape>{PartOf(a, 0, a.rank() - 2), PartOf(b, 0, b.rank() - 2)}));
  p.out = Dims(p.batch);
  if (!row) p.out.push_back(p.m);
  if (!column) p.out.push_back(p.n);
  return p;
}

// out[m, n] (+)= a[m, k] · b[k, n]; the innermost loop runs along rows of b and of the output.
template <class A, class B, class Out, class Load>
void MultiplyInto(ThreadPool& pool, const A* a, const B* b, Out* out, int64_t m, int64_t k, int64_t n,
                  const Load& load) {
  Parallel(pool, m, k * n, [&](int64_t begin, int64_t end) {
    std::vector<Compute<Out>> row(static_cast<size_t>(n));
    for (int64_t i = begin; i < end; ++i) {
      std::fill(row.begin(), row.end(), Compute<Out>{0});
      for (int64_t j = 0; j < k; ++j) {
        const auto x = load.a(a[i * k + j], i);
        const B* const y = b + j * n;
        for (int64_t l = 0; l < n; ++l) {
          Compute<Out>& sum = row[l];
          sum = WrapAdd<Compute<Out>>(sum, WrapMul(x, load.b(y[l], l)));
        }
      }
      for (int64_t l = 0; l < n; ++l) out[i * n + l] = static_cast<Out>(row[l]);
    }
  });
}
template <class T>
struct PlainLoad {
  Compute<T> a(T x, int64_t) const { return Wide(x); }
  Compute<T> b(T x, int64_t) const { return Wide(x); }
};

// Calls fn(index into a's matrices, into b's, into the output's) for each product of the batch.
template <class Fn>
void EachProduct(ThreadPool& pool, const Product2& p, const Fn& fn) {
  const auto lead = [](const Shape& s) { return PartOf(s, 0, s.rank() - 2); };
  const int64_t count = *p.batch.elements();
  std::vector<std::array<int64_t, 2>> at(static_cast<size_t>(count));
  const auto walk = MakeWalk<2>(p.batch, {lead(p.a), lead(p.b)});
  if (count > 0)
    ForRows<2>(
        pool, walk,
        [&](int64_t o, const std::array<int64_t, 2>& from, int64_t n, const std::array<int64_t, 2>& step) {
          for (int64_t i = 0; i < n; ++i) at[o + i] = {from[0] + i * step[0], from[1] + i * step[1]};
        });
  for (int64_t i = 0; i < count; ++i) fn(at[i][0], at[i][1], i);
}

Status InferMatMul(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckSameType(c, 1));
  CELER_ASSIGN(const Product2 p, ProductOf(c.shape(0), c.shape(1)));
  return c.Set(0, c.dtype(0), p.out);
}
Status MatMul(KernelContext& c) {
  CELER_ASSIGN(const Product2 p, ProductOf(c.shape(0), c.shape(1)));
  DispatchOr(c.dtype(0), TypeList<float, double, Half, Brain, int32_t, int64_t, uint32_t, uint64_t>{},
             [&]<class T>() {
               EachProduct(c.pool, p, [&](int64_t a, int64_t b, int64_t o) {
                 MultiplyInto(c.pool, c.in(0).as<T>() + a * p.m * p.k, c.in(1).as<T>() + b * p.k * p.n,
                              c.out(0).as<T>() + o * p.m * p.n, p.m, p.k, p.n, PlainLoad<T>{});
               });
             });
  return {};
}
double MatMulFlops(const InferContext& c) {
  return 2.0 * static_cast<double>(*c.output(0).shape.elements()) *
         static_cast<double>(c.shape(0)[c.shape(0).rank() - 1]);
}

Status InferGemm(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckSameType(c, 1));
  CELER_RETURN_IF_ERROR(CheckSameType(c, 2));
  if (c.shape(0).rank() != 2 || c.shape(1).rank() != 2)
    return Error::Invalid(c.shape(0).ToString(), " and ", c.shape(1).ToString(), " are not two matrices");
  const bool ta = c.node.Int("transA", 0), tb = c.node.Int("transB", 0);
  const int64_t m = c.shape(0)[ta ? 1 : 0], k = c.shape(0)[ta ? 0 : 1], k2 = c.shape(1)[tb ? 1 : 0],
                n = c.shape(1)[tb ? 0 : 1];
  if (k != k2) return Error::Invalid("rows of ", k, " against columns of ", k2);
  if (c.has(2)) {
    CELER_ASSIGN(const Shape product, MakeShape({m, n}));
    CELER_ASSIGN(const Shape together, Broadcast(std::vector<Shape>{c.shape(2), product}));
    if (!(together == product))
      return Error::Invalid("its third input ", c.shape(2).ToString(), " does not broadcast to ",
                            product.ToString());
  }
  return c.Set(0, c.dtype(0), {m, n});
}
// Integers are scaled exactly where the factor is 1.
template <class W>
W Scaled(float factor, W x) {
  if constexpr (std::is_integral_v<W>)
    return factor == 1 ? x : ConvertTo<W>(static_cast<double>(factor) * static_cast<double>(x));
  else
    return static_cast<W>(factor * x);
}
Status Gemm(KernelContext& c) {
  const bool ta = c.node.Int("transA", 0), tb = c.node.Int("transB", 0);
  const float alpha = c.node.Float("alpha", 1), beta = c.node.Float("beta", 1);
  const int64_t m = c.out(0).shape[0], n = c.out(0).shape[1], k = c.shape(0)[ta ? 0 : 1];
  DispatchOr(c.dtype(0), TypeList<float, double, Half, Brain, int32_t, int64_t, uint32_t, uint64_t>{},
             [&]<class T>() {
               using W = Compute<T>;
               const T *const a = c.in(0).as<T>(), *const b = c.in(1).as<T>();
               const auto bias = c.has(2) ? MakeWalk<1>(c.out(0).shape, {c.shape(2)}) : Walk<1>{};
               std::vector<W> start(static_cast<size_t>(m * n), W{0});
               if (c.has(2) && m * n > 0)
                 ForRows<1>(c.pool, bias,
                            [&](int64_t o, const std::array<int64_t, 1>& at, int64_t count,
                                const std::array<int64_t, 1>& step) {
                              for (int64_t i = 0; i < count; ++i)
                                start[o + i] = Scaled<W>(beta, Wide(c.in(2).as<T>()[at[0] + i * step[0]]));
                            });
               Parallel(c.pool, m, k * n, [&](int64_t begin, int64_t end) {
                 std::vector<W> row(static_cast<size_t>(n));
                 for (int64_t i = begin; i < end; ++i) {
                   std::fill(row.begin(), row.end(), W{0});
                   if (tb) {
                     for (int64_t l = 0; l < n; ++l) {
                       W total = 0;
                       for (int64_t j = 0; j < k; ++j)
                         total = WrapAdd<W>(
                             total, WrapMul<W>(Wide(a[ta ? j * m + i : i * k + j]), Wide(b[l * k + j])));
                       row[l] = total;
                     }
                   } else {
                     for (int64_t j = 0; j < k; ++j) {
                       const W x = Wide(a[ta ? j * m + i : i * k + j]);
                       for (int64_t l = 0; l < n; ++l)
                         row[l] = WrapAdd<W>(row[l], WrapMul<W>(x, Wide(b[j * n + l])));
                     }
                   }
                   for (int64_t l = 0; l < n; ++l)
                     c.out(0).as<T>()[i * n + l] =
                         static_cast<T>(WrapAdd<W>(Scaled<W>(alpha, row[l]), start[i * n + l]));
                 }
               });
             });
  return {};
}
double GemmFlops(const InferContext& c) {
  return 2.0 * static_cast<double>(*c.output(0).shape.elements()) *
         static_cast<double>(c.shape(0)[c.node.Int("transA", 0) ? 0 : 1]);
}

// An element less its zero point. A zero point is per tensor, or per row of a (per column of b).
template <class A, class B>
struct IntegerLoad {
  const A* a_zero;
  const B* b_zero;
  bool a_rows, b_columns;
  int32_t a(A x, int64_t row) const { return x - (a_zero ? a_zero[a_rows ? row : 0] : 0); }
  int32_t b(B x, int64_t column) const { return x - (b_zero ? b_zero[b_columns ? column : 0] : 0); }
};
Status CheckZeroPoint(const OpInputs& c, size_t of, size_t zero, int64_t lanes) {
  if (!c.has(zero)) return {};
  if (c.dtype(zero) != c.dtype(of))
    return Error::Invalid("a zero point is ", Name(c.dtype(zero)), " for ", Name(c.dtype(of)));
  if (c.elements(zero) != 1 && c.elements(zero) != lanes)
    return Error::Invalid("a zero point of ", c.shape(zero).ToString(), " for ", lanes, " rows or columns");
  return {};
}
using Bytes = TypeList<uint8_t, int8_t>;
constexpr DTypeSet kBytes = {DType::kU8, DType::kI8};

Status InferMatMulInteger(InferContext& c) {
  if (!kBytes.Has(c.dtype(1))) return Error::Invalid("its second input is ", Name(c.dtype(1)));
  CELER_ASSIGN(const Product2 p, ProductOf(c.shape(0), c.shape(1)));
  CELER_RETURN_IF_ERROR(CheckZeroPoint(c, 0, 2, p.m));
  CELER_RETURN_IF_ERROR(CheckZeroPoint(c, 1, 3, p.n));
  return c.Set(0, DType::kI32, p.out);
}
Status MatMulInteger(KernelContext& c) {
  CELER_ASSIGN(const Product2 p, ProductOf(c.shape(0), c.shape(1)));
  DispatchOr(c.dtype(0), Bytes{}, [&]<class A>() {
    DispatchOr(c.dtype(1), Bytes{}, [&]<class B>() {
      const IntegerLoad<A, B> load{c.has(2) ? c.in(2).as<A>() : nullptr, c.has(3) ? c.in(3).as<B>() : nullptr,
                                   c.has(2) && c.elements(2) > 1, c.has(3) && c.elements(3) > 1};
      EachProduct(c.pool, p, [&](int64_t a, int64_t b, int64_t o) {
        MultiplyInto(c.pool, c.in(0).as<A>() + a * p.m * p.k, c.in(1).as<B>() + b * p.k * p.n,
                     c.out(0).as<int32_t>() + o * p.m * p.n, p.m, p.k, p.n, load);
      });
    });
  });
  return {};
}

// a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero
Status InferQLinearMatMul(InferContext& c) {
  if (!kBytes.Has(c.dtype(3)) || !kBytes.Has(c.dtype(7)))
    return Error::Unsupported("products of ", Name(c.dtype(0)), " and ", Name(c.dtype(3)), " to ",
                              Name(c.dtype(7)));
  CELER_ASSIGN(const Product2 p, ProductOf(c.shape(0), c.shape(3)));
  CELER_RETURN_IF_ERROR(CheckZeroPoint(c, 0, 2, p.m));
  CELER_RETURN_IF_ERROR(CheckZeroPoint(c, 3, 5, p.n));
  for (const size_t scale : {size_t{1}, size_t{4}, size_t{6}})
    if (!kFloats.Has(c.dtype(scale))) return Error::Invalid("a scale is ", Name(c.dtype(scale)));
  if ((c.elements(1) != 1 && c.elements(1) != p.m) || (c.elements(4) != 1 && c.elements(4) != p.n) ||
      c.elements(6) != 1 || c.elements(7) != 1)
    return Error::Invalid("scales do not fit the rows and columns");
  return c.Set(0, c.dtype(7), p.out);
}
Status QLinearMatMul(KernelContext& c) {
  CELER_ASSIGN(const Product2 p, ProductOf(c.shape(0), c.shape(3)));
  const auto scale = [&](size_t i, int64_t at) {
    double out = 0;
    DispatchOr(c.dtype(i), FloatTypes{},
               [&]<class T>() { out = Wide(c.in(i).as<T>()[c.elements(i) > 1 ? at : 0]); });
    return out;
  };
  std::vector<int32_t> sums(static_cast<size_t>(p.m * p.n));
  const double y_scale = scale(6, 0);
  DispatchOr(c.dtype(0), Bytes{}, [&]<class A>() {
    DispatchOr(c.dtype(3), Bytes{}, [&]<class B>() {
      DispatchOr(c.dtype(7), Bytes{}, [&]<class Y>() {
        const IntegerLoad<A, B> load{c.in(2).as<A>(), c.in(5).as<B>(), c.elements(2) > 1, c.elements(5) > 1};
        const int zero = *c.in(7).as<Y>();
        EachProduct(c.pool, p, [&](int64_t a, int64_t b, int64_t o) {
          MultiplyInto(c.pool, c.in(0).as<A>() + a * p.m * p.k, c.in(3).as<B>() + b * p.k * p.n, sums.data(),
                       p.m, p.k, p.n, load);
          Y* const out = c.out(0).as<Y>() + o * p.m * p.n;
          for (int64_t i = 0; i < p.m; ++i)
            for (int64_t j = 0; j < p.n; ++j) {
              const double x = sums[i * p.n + j] * scale(1, i) * scale(4, j) / y_scale;
              out[i * p.n + j] = ConvertTo<Y>(std::nearbyint(x) + zero);
            }
        });
      });
    });
  });
  return {};
}

Status InferDet(InferContext& c) {
  const Shape& in = c.shape(0);
  if (in.rank() < 2 || in[in.rank() - 1] != in[in.rank() - 2])
    return Error::Invalid(in.ToString(), " is not of square matrices");
  return c.Set(0, c.dtype(0), in.dims().first(in.rank() - 2));
}
Status Det(KernelContext& c) {
  const int64_t n = c.shape(0)[c.shape(0).rank() - 1];
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    std::vector<double> m(static_cast<size_t>(n * n));
    for (int64_t i = 0; i < c.out_elements(0); ++i) {
      for (int64_t j = 0; j < n * n; ++j) m[j] = Wide(c.in(0).as<T>()[i * n * n + j]);
      double det = 1;
      for (int64_t col = 0; col < n; ++col) {
        int64_t pivot = col;
        for (int64_t r = col + 1; r < n; ++r)
          if (std::abs(m[r * n + col]) > std::abs(m[pivot * n + col])) pivot = r;
        const double top = m[pivot * n + col];
        if (top == 0) {
          det = 0;
          break;
        }
        if (pivot != col) {
          det = -det;
          for (int64_t k = 0; k < n; ++k) std::swap(m[pivot * n + k], m[col * n + k]);
        }
        det *= top;
        for (int64_t r = col + 1; r < n; ++r) {
          const double factor = m[r * n + col] / top;
          for (int64_t k = col; k < n; ++k) m[r * n + k] -= factor * m[col * n + k];
        }
      }
      c.out(0).as<T>()[i] = static_cast<T>(static_cast<Compute<T>>(det));
    }
  });
  return {};
}

constexpr Arity kOne = {1, 1};
constexpr DTypeSet kMatrices = kFloats | DTypeSet{DType::kI32, DType::kI64, DType::kU32, DType::kU64};
constexpr Operator kRows[] = {
    {"Det", 11, kOne, kOne, kFloats, InferDet, Det},
    {"Gemm", 6, {2, 3}, kOne, kMatrices, InferGemm, Gemm, Operator::kPlain, GemmFlops, kFastGemm},
    {"MatMul", 1, {2, 2}, kOne, kMatrices, InferMatMul, MatMul, Operator::kPlain, MatMulFlops, kFastMatMul},
    {"MatMulInteger", 10, Arity(2, 4), kOne, kBytes, InferMatMulInteger, MatMulInteger, Operator::kPlain,
     MatMulFlops},
    {"QLinearMatMul", 10, Arity(8, 8), kOne, kBytes, InferQLinearMatMul, QLinearMatMul, Operator::kPlain,
     MatMulFlops},
};

}  // namespace

std::span<const Operator> MatmulOperators() {
  return kRows;
}

}  // namespace celer::graph
