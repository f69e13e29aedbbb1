// Signals: Fourier transforms, windows, mel filters.
#include <cmath>
#include <numbers>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fourier.h"

namespace celer::graph {
namespace {

// Signals have a last dimension of 1 (real) or 2 (real and imaginary part).
struct Transform {
  int axis;
  int64_t length;  // of the transform: the signal is cut or filled up with zeros
  int64_t out;     // along the axis
  bool inverse, onesided;
};
Result<std::optional<Transform>> TransformOf(const OpInputs& c) {
  const Shape& x = c.shape(0);
  if (x.rank() < 2 || (x[x.rank() - 1] != 1 && x[x.rank() - 1] != 2))
    return Error::Invalid("a signal of ", x.ToString());
  int64_t axis = c.node.opset < 20 ? c.node.Int("axis", 1) : -2;
  for (size_t i = 1; i < 3; ++i) {
    if (!c.has(i)) continue;
    if (!c.known(i)) return std::optional<Transform>();
    if (c.elements(i) != 1 || !kIntegers.Has(c.dtype(i)))
      return Error::Invalid("its input ", i, " is not one integer");
  }
  if (c.has(2)) axis = (*c.ints(2))[0];
  CELER_ASSIGN(const int checked, CheckAxis(axis, x.rank()));
  if (checked == x.rank() - 1) return Error::Invalid("the axis ", axis, " is that of the parts of a number");
  Transform t{checked, 0, 0, c.node.Int("inverse", 0) != 0, c.node.Int("onesided", 0) != 0};
  // Half a spectrum is that of a real signal of even length, unless the length is given.
  const int64_t usual = t.inverse && t.onesided ? 2 * (x[checked] - 1) : x[checked];
  t.length = c.has(1) ? (*c.ints(1))[0] : usual;
  if (t.length < 1 || t.length > 1 << 24) return Error::Invalid("a transform of length ", t.length);
  t.out = t.onesided && !t.inverse ? t.length / 2 + 1 : t.length;
  return std::optional(t);
}
Status InferDft(InferContext& c) {
  CELER_ASSIGN(const auto t, TransformOf(c));
  if (!t) return {};
  std::vector<int64_t> dims = Dims(c.shape(0));
  dims[static_cast<size_t>(t->axis)] = t->out;
  dims.back() = t->onesided && t->inverse ? 1 : 2;
  if (t->onesided && t->inverse && c.shape(0)[c.shape(0).rank() - 1] != 2)
    return Error::Invalid("half a spectrum must be complex");
  return c.Set(0, c.dtype(0), dims);
}
Status DftOp(KernelContext& c) {
  CELER_ASSIGN(const auto found, TransformOf(c));
  const Transform t = *found;
  const Shape& x = c.shape(0);
  const int64_t parts = x[x.rank() - 1], out_parts = c.out(0).shape[x.rank() - 1], n = x[t.axis],
                outer = Product(x, 0, t.axis), inner = Product(x, t.axis + 1, x.rank() - 1);
  const Fourier fourier(t.length, t.inverse);
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, outer * inner, t.length * 64, [&](int64_t begin, int64_t end) {
      std::vector<double> in(static_cast<size_t>(2 * t.length)), out(static_cast<size_t>(2 * t.length));
      for (int64_t r = begin; r < end; ++r) {
        const int64_t o = r / inner, j = r % inner;
        const auto read = [&](int64_t i, int64_t part) {
          if (i >= n || part >= parts) return 0.0;
          return static_cast<double>(Wide(c.in(0).as<T>()[((o * n + i) * inner + j) * parts + part]));
        };
        for (int64_t i = 0; i < t.length; ++i) {
          // The second half of a real signal's spectrum mirrors the first.
          const bool mirrored = t.onesided && t.inverse && i > t.length / 2;
          const int64_t from = mirrored ? t.length - i : i;
          in[2 * i] = read(from, 0);
          in[2 * i + 1] = mirrored ? -read(from, 1) : read(from, 1);
        }
        fourier.Transform(in, out);
        for (int64_t k = 0; k < t.out; ++k)
          for (int64_t part = 0; part < out_parts; ++part)
            c.out(0).as<T>()[((o * t.out + k) * inner + j) * out_parts + part] =
                static_cast<T>(static_cast<Compute<T>>(out[2 * k + part]));
      }
    });
  });
  return {};
}

// About five additions or multiplications for each of n log n pairs, and three transforms where the length is
// no power of two.
double TransformFlops(int64_t length, double count) {
  const auto n = static_cast<double>(length);
  return count * 15 * n * std::log2(std::max(n, 2.0));
}
double DftFlops(const InferContext& c) {
  const auto t = TransformOf(c);
  if (!t || !*t) return 0;
  const Shape& x = c.shape(0);
  return TransformFlops((*t)->length, static_cast<double>(Product(x, 0, (*t)->axis)) *
                                          static_cast<double>(Product(x, (*t)->axis + 1, x.rank() - 1)));
}

// signal [batch, length, 1 or 2], step, window, frame length
struct Frames {
  int64_t step, length, count, out;
};
Result<std::optional<Frames>> FramesOf(const OpInputs& c) {
  const Shape& x = c.shape(0);
  if (x.rank() != 3 && x.rank() != 2) return Error::Invalid("a signal of ", x.ToString());
  if (x.rank() == 3 && x[2] != 1 && x[2] != 2) return Error::Invalid("a signal of ", x.ToString());
  for (const size_t i : {size_t{1}, size_t{3}}) {
    if (!c.has(i)) continue;
    if (!c.known(i)) return std::optional<Frames>();
    if (c.elements(i) != 1) return Error::Invalid("its input ", i, " is not one number");
  }
  Frames f{};
  f.step = (*c.ints(1))[0];
  f.length = c.has(3) ? (*c.ints(3))[0] : c.has(2) ? c.elements(2) : 0;
  if (f.step < 1 || f.length < 1 || f.length > x[1] || f.length > 1 << 24 ||
      (c.has(2) && c.elements(2) != f.length) || (c.has(2) && c.dtype(2) != c.dtype(0)))
    return Error::Invalid("frames of ", f.length, " in steps of ", f.step, " of ", x.ToString());
  f.count = (x[1] - f.length) / f.step + 1;
  f.out = c.node.Int("onesided", 1) != 0 ? f.length / 2 + 1 : f.length;
  return std::optional(f);
}
Status InferStft(InferContext& c) {
  CELER_ASSIGN(const auto f, FramesOf(c));
  if (!f) return {};
  return c.Set(0, c.dtype(0), {c.shape(0)[0], f->count, f->out, 2});
}
Status Stft(KernelContext& c) {
  CELER_ASSIGN(const auto found, FramesOf(c));
  const Frames f = *found;
  const Shape& x = c.shape(0);
  const int64_t parts = x.rank() == 3 ? x[2] : 1;
  const Fourier fourier(f.length, false);
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, x[0] * f.count, f.length * 64, [&](int64_t begin, int64_t end) {
      std::vector<double> in(static_cast<size_t>(2 * f.length)), out(static_cast<size_t>(2 * f.length));
      for (int64_t r = begin; r < end; ++r) {
        const int64_t b = r / f.count, first = r % f.count * f.step;
        for (int64_t i = 0; i < f.length; ++i)
          for (int64_t part = 0; part < 2; ++part) {
            double v = part < parts
                           ? static_cast<double>(Wide(c.in(0).as<T>()[(b * x[1] + first + i) * parts + part]))
                           : 0;
            if (c.has(2)) v *= static_cast<double>(Wide(c.in(2).as<T>()[i]));
            in[2 * i + part] = v;
          }
        fourier.Transform(in, out);
        for (int64_t k = 0; k < 2 * f.out; ++k)
          c.out(0).as<T>()[r * 2 * f.out + k] = static_cast<T>(static_cast<Compute<T>>(out[k]));
      }
    });
  });
  return {};
}

double StftFlops(const InferContext& c) {
  const auto f = FramesOf(c);
  if (!f || !*f) return 0;
  return TransformFlops((*f)->length, static_cast<double>(c.shape(0)[0]) * static_cast<double>((*f)->count));
}

Status InferWindow(InferContext& c) {
  if (c.elements(0) != 1) return Error::Invalid("its size is not one number");
  if (!c.known(0)) return {};
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "output_datatype", DType::kF32));
  if (!kFloats.Has(dtype)) return Error::Unsupported("a window of ", Name(dtype));
  return c.Set(0, dtype, std::vector<int64_t>{(*c.ints(0))[0]});
}
// a0 - a1 cos(x) + a2 cos(2x)
Status CosineWindow(KernelContext& c, double a0, double a1, double a2) {
  const int64_t n = c.out_elements(0), period = c.node.Int("periodic", 1) != 0 ? n : n - 1;
  DispatchOr(c.out(0).dtype, FloatTypes{}, [&]<class T>() {
    for (int64_t i = 0; i < n; ++i) {
      const double x =
          period > 0 ? 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(period) : 0;
      c.out(0).as<T>()[i] =
          static_cast<T>(static_cast<Compute<T>>(a0 - a1 * std::cos(x) + a2 * std::cos(2 * x)));
    }
  });
  return {};
}
Status Hann(KernelContext& c) {
  return CosineWindow(c, 0.5, 0.5, 0);
}
Status Hamming(KernelContext& c) {
  return CosineWindow(c, 25.0 / 46, 21.0 / 46, 0);
}
Status Blackman(KernelContext& c) {
  return CosineWindow(c, 0.42, 0.5, 0.08);
}

// bins, length of the transform, samples per second, lowest and highest frequency
Status InferMel(InferContext& c) {
  for (size_t i = 0; i < 5; ++i) {
    if (c.elements(i) != 1) return Error::Invalid("its input ", i, " is not one number");
    if (!c.known(i)) return {};
  }
  const double bins = ReadScalar(c.in(0)), length = ReadScalar(c.in(1));
  if (!(bins >= 1 && bins < 1e6 && length >= 1 && length < 1e7))
    return Error::Invalid(bins, " bins of a transform of ", length);
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "output_datatype", DType::kF32));
  if (!kFloats.Has(dtype)) return Error::Unsupported("filters of ", Name(dtype));
  return c.Set(0, dtype, {static_cast<int64_t>(length) / 2 + 1, static_cast<int64_t>(bins)});
}
Status Mel(KernelContext& c) {
  const auto bins = static_cast<int64_t>(ReadScalar(c.in(0))),
             length = static_cast<int64_t>(ReadScalar(c.in(1)));
  const double rate = ReadScalar(c.in(2)), low = ReadScalar(c.in(3)), high = ReadScalar(c.in(4));
  const int64_t rows = c.out(0).shape[0];
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  std::vector<int64_t> place;
  for (int64_t i = 0; i < bins + 2; ++i) {
    const double m =
        mel(low) + static_cast<double>(i) * (mel(high) - mel(low)) / static_cast<double>(bins + 2);
    const double at =
        std::floor(static_cast<double>(length + 1) * (700 * (std::pow(10, m / 2595) - 1)) / rate);
    if (!(at >= 0 && at < static_cast<double>(rows) + 1))
      return Error::Invalid("the frequency range ", low, " to ", high, " at ", rate);
    place.push_back(static_cast<int64_t>(at));
  }
  DispatchOr(c.out(0).dtype, FloatTypes{}, [&]<class T>() {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t i = 0; i < bins; ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t begin = place[at], centre = place[at + 1], end = place[at + 2];
        double value = 0;
        if (centre == begin && row == centre)
          value = 1;
        else if (row >= begin && row < centre)
          value = static_cast<double>(row - begin) / static_cast<double>(centre - begin);
        else if (row >= centre && row < end)
          value = static_cast<double>(end - row) / static_cast<double>(end - centre);
        if (row == centre) value = 1;
        c.out(0).as<T>()[row * bins + i] = static_cast<T>(static_cast<Compute<T>>(value));
      }
  });
  return {};
}

constexpr Arity kOne = {1, 1};
constexpr DTypeSet kSizes = {DType::kI32, DType::kI64};
constexpr Operator kRows[] = {
    {"BlackmanWindow", 17, kOne, kOne, kSizes, InferWindow, Blackman},
    {"DFT", 17, {1, 3}, kOne, kFloats, InferDft, DftOp, Operator::kPlain, DftFlops},
    {"HammingWindow", 17, kOne, kOne, kSizes, InferWindow, Hamming},
    {"HannWindow", 17, kOne, kOne, kSizes, InferWindow, Hann},
    {"MelWeightMatrix", 17, {5, 5}, kOne, kSizes, InferMel, Mel},
    {"STFT", 17, {2, 4}, kOne, kFloats, InferStft, Stft, Operator::kPlain, StftFlops},
};

}  // namespace

std::span<const Operator> SignalOperators() {
  return kRows;
}

}  // namespace celer::graph
