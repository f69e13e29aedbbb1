// Convolutions: the direct reference forms that faster kernels are compared with.
#include <cmath>
#include <limits>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"
#include "graph/ops/window.h"

namespace celer::graph {
namespace {

std::vector<int64_t> KernelDims(const Shape& weights) {
  return {weights.dims().begin() + 2, weights.dims().end()};
}

// x [n, channels, ...] with w [out channels, channels / group, ...]; `bias` is the number of an input, or 0.
Result<Window> CheckConv(const Node& node, const Shape& x, const Shape& w, bool transposed) {
  if (x.rank() < 3 || w.rank() != x.rank())
    return Error::Invalid("an input of ", x.ToString(), " and weights of ", w.ToString());
  const int64_t group = node.Int("group", 1);
  // Without channels any number of groups would divide them.
  if (group < 1 || group > std::max<int64_t>(x[1], 1)) return Error::Invalid("a group of ", group);
  const std::vector<int64_t> kernel = node.Ints("kernel_shape");
  if (!kernel.empty() && kernel != KernelDims(w))
    return Error::Invalid("kernel_shape is not that of the weights ", w.ToString());
  const bool fits = transposed ? x[1] == w[0] && x[1] % group == 0
                               : x[1] % group == 0 && w[1] == x[1] / group && w[0] % group == 0;
  if (!fits)
    return Error::Invalid("an input of ", x.ToString(), " and weights of ", w.ToString(), " in ", group,
                          " groups");
  return transposed ? TransposedWindow(node, x, KernelDims(w)) : SlidingWindow(node, x, KernelDims(w));
}

Status SetOutput(InferContext& c, DType dtype, int64_t batch, int64_t channels, const Window& w) {
  std::vector<int64_t> dims = {batch, channels};
  dims.insert(dims.end(), w.out_dims().begin(), w.out_dims().end());
  return c.Set(0, dtype, dims);
}

// One row of the output at a time: for each tap of the window, the input row under it is added. `x_of` and
// `w_of` turn stored elements into numbers to compute with.
template <class Sum, class X, class W, class XOf, class WOf, class Store>
void ConvRows(ThreadPool& pool, const Window& w, const X* x, const W* weights, int64_t batch,
              int64_t channels, int64_t out_channels, int64_t group, const XOf& x_of, const WOf& w_of,
              const Store& store) {
  const int64_t in_group = channels / group, out_group = out_channels / group;
  const int64_t rows = batch * out_channels * w.out[0] * w.out[1];
  const int64_t cost = in_group * w.kernel_size() * w.out[2];
  Parallel(pool, rows, cost, [&](int64_t begin, int64_t end) {
    std::vector<Sum> row(static_cast<size_t>(w.out[2]));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t oh = r % w.out[1], od = r / w.out[1] % w.out[0],
                    oc = r / (w.out[1] * w.out[0]) % out_channels,
                    n = r / (w.out[1] * w.out[0] * out_channels);
      std::fill(row.begin(), row.end(), Sum{0});
      for (int64_t ic = 0; ic < in_group; ++ic) {
        const X* const plane = x + (n * channels + oc / out_group * in_group + ic) * w.in_size();
        const W* const taps = weights + (oc * in_group + ic) * w.kernel_size();
        for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
          const int64_t id = od * w.stride[0] + kd * w.dilation[0] - w.before[0];
          if (id < 0 || id >= w.in[0]) continue;
          for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
            const int64_t ih = oh * w.stride[1] + kh * w.dilation[1] - w.before[1];
            if (ih < 0 || ih >= w.in[1]) continue;
            const X* const line = plane + (id * w.in[1] + ih) * w.in[2];
            for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
              const Sum tap = w_of(taps[(kd * w.kernel[1] + kh) * w.kernel[2] + kw], oc);
              const int64_t shift = kw * w.dilation[2] - w.before[2], step = w.stride[2];
              const int64_t first = shift < 0 ? (-shift + step - 1) / step : 0;
              const int64_t last = w.in[2] > shift ? std::min(w.out[2], (w.in[2] - shift - 1) / step + 1) : 0;
              if (step == 1) {
                for (int64_t i = first; i < last; ++i) row[i] += tap * x_of(line[i + shift]);
              } else {
                for (int64_t i = first; i < last; ++i) row[i] += tap * x_of(line[i * step + shift]);
              }
            }
          }
        }
      }
      store(r * w.out[2], oc, row);
    }
  });
}

Status InferConv(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckSameType(c, 1));
  CELER_RETURN_IF_ERROR(CheckSameType(c, 2));
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(1), false));
  if (c.has(2) && c.elements(2) != c.shape(1)[0])
    return Error::Invalid("a bias of ", c.shape(2).ToString(), " for ", c.shape(1)[0], " channels");
  return SetOutput(c, c.dtype(0), c.shape(0)[0], c.shape(1)[0], w);
}
Status Conv(KernelContext& c) {
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(1), false));
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    using S = Compute<T>;
    const T* const bias = c.has(2) ? c.in(2).as<T>() : nullptr;
    T* const out = c.out(0).as<T>();
    ConvRows<S>(
        c.pool, w, c.in(0).as<T>(), c.in(1).as<T>(), c.shape(0)[0], c.shape(0)[1], c.shape(1)[0],
        c.node.Int("group", 1), [](T v) { return Wide(v); }, [](T v, int64_t) { return Wide(v); },
        [&](int64_t at, int64_t oc, const std::vector<S>& row) {
          const S start = bias ? Wide(bias[oc]) : S{0};
          for (size_t i = 0; i < row.size(); ++i)
            out[at + static_cast<int64_t>(i)] = static_cast<T>(row[i] + start);
        });
  });
  return {};
}
double ConvFlops(const InferContext& c) {
  const Shape& w = c.shape(1);
  return 2.0 * static_cast<double>(*c.output(0).shape.elements()) *
         static_cast<double>(Product(w, 1, w.rank()));
}

Status InferConvTranspose(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckSameType(c, 1));
  CELER_RETURN_IF_ERROR(CheckSameType(c, 2));
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(1), true));
  int64_t channels = 0;
  if (__builtin_mul_overflow(c.shape(1)[1], c.node.Int("group", 1), &channels))
    return Error::Invalid("a group of ", c.node.Int("group", 1));
  if (c.has(2) && c.elements(2) != channels)
    return Error::Invalid("a bias of ", c.shape(2).ToString(), " for ", channels, " channels");
  return SetOutput(c, c.dtype(0), c.shape(0)[0], channels, w);
}
// Scatter form: each input element is added to the outputs under its window (col2im).
Status ConvTranspose(KernelContext& c) {
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(1), true));
  const int64_t group = c.node.Int("group", 1), channels = c.shape(0)[1], in_group = channels / group,
                out_group = c.shape(1)[1], out_channels = out_group * group;
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    using S = Compute<T>;
    Parallel(c.pool, c.shape(0)[0] * out_channels, in_group * w.kernel_size() * w.in_size(),
             [&](int64_t begin, int64_t end) {
               std::vector<S> plane(static_cast<size_t>(w.out_size()));
               for (int64_t r = begin; r < end; ++r) {
                 const int64_t n = r / out_channels, oc = r % out_channels, g = oc / out_group;
                 std::fill(plane.begin(), plane.end(), c.has(2) ? Wide(c.in(2).as<T>()[oc]) : S{0});
                 for (int64_t ic = g * in_group; ic < (g + 1) * in_group; ++ic) {
                   const T* const x = c.in(0).as<T>() + (n * channels + ic) * w.in_size();
                   const T* const taps =
                       c.in(1).as<T>() + (ic * out_group + oc % out_group) * w.kernel_size();
                   for (int64_t kd = 0; kd < w.kernel[0]; ++kd)
                     for (int64_t kh = 0; kh < w.kernel[1]; ++kh)
                       for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
                         const S tap = Wide(taps[(kd * w.kernel[1] + kh) * w.kernel[2] + kw]);
                         for (int64_t id = 0; id < w.in[0]; ++id) {
                           const int64_t od = id * w.stride[0] + kd * w.dilation[0] - w.before[0];
                           if (od < 0 || od >= w.out[0]) continue;
                           for (int64_t ih = 0; ih < w.in[1]; ++ih) {
                             const int64_t oh = ih * w.stride[1] + kh * w.dilation[1] - w.before[1];
                             if (oh < 0 || oh >= w.out[1]) continue;
                             for (int64_t iw = 0; iw < w.in[2]; ++iw) {
                               const int64_t ow = iw * w.stride[2] + kw * w.dilation[2] - w.before[2];
                               if (ow < 0 || ow >= w.out[2]) continue;
                               plane[(od * w.out[1] + oh) * w.out[2] + ow] +=
                                   tap * Wide(x[(id * w.in[1] + ih) * w.in[2] + iw]);
                             }
                           }
                         }
                       }
                 }
                 for (int64_t i = 0; i < w.out_size(); ++i)
                   c.out(0).as<T>()[r * w.out_size() + i] = static_cast<T>(plane[i]);
               }
             });
  });
  return {};
}
double ConvTransposeFlops(const InferContext& c) {
  const Shape& w = c.shape(1);
  return 2.0 * static_cast<double>(c.elements(0)) * static_cast<double>(Product(w, 1, w.rank()));
}

constexpr DTypeSet kBytes = {DType::kU8, DType::kI8};
using Bytes = TypeList<uint8_t, int8_t>;

// x, w, x_zero, w_zero
Status InferConvInteger(InferContext& c) {
  if (!kBytes.Has(c.dtype(1))) return Error::Invalid("weights of ", Name(c.dtype(1)));
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(1), false));
  if (c.has(2) && (c.dtype(2) != c.dtype(0) || c.elements(2) != 1))
    return Error::Invalid("its zero point does not fit");
  if (c.has(3) && (c.dtype(3) != c.dtype(1) || (c.elements(3) != 1 && c.elements(3) != c.shape(1)[0])))
    return Error::Invalid("the zero points of its weights do not fit");
  return SetOutput(c, DType::kI32, c.shape(0)[0], c.shape(1)[0], w);
}
Status ConvInteger(KernelContext& c) {
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(1), false));
  DispatchOr(c.dtype(0), Bytes{}, [&]<class X>() {
    DispatchOr(c.dtype(1), Bytes{}, [&]<class W>() {
      const int32_t x_zero = c.has(2) ? *c.in(2).as<X>() : 0;
      const W* const w_zero = c.has(3) ? c.in(3).as<W>() : nullptr;
      const bool each = c.has(3) && c.elements(3) > 1;
      ConvRows<int32_t>(
          c.pool, w, c.in(0).as<X>(), c.in(1).as<W>(), c.shape(0)[0], c.shape(0)[1], c.shape(1)[0],
          c.node.Int("group", 1), [=](X v) { return v - x_zero; },
          [=](W v, int64_t oc) { return v - (w_zero ? w_zero[each ? oc : 0] : 0); },
          [&](int64_t at, int64_t, const std::vector<int32_t>& row) {
            std::copy(row.begin(), row.end(), c.out(0).as<int32_t>() + at);
          });
    });
  });
  return {};
}

// x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias
Status InferQLinearConv(InferContext& c) {
  if (!kBytes.Has(c.dtype(3)) || !kBytes.Has(c.dtype(7)))
    return Error::Unsupported("weights of ", Name(c.dtype(3)), " and an output of ", Name(c.dtype(7)));
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(3), false));
  const int64_t channels = c.shape(3)[0];
  const bool fits = c.dtype(1) == DType::kF32 && c.dtype(4) == DType::kF32 && c.dtype(6) == DType::kF32 &&
                    c.dtype(2) == c.dtype(0) && c.dtype(5) == c.dtype(3) && c.elements(1) == 1 &&
                    c.elements(2) == 1 && (c.elements(4) == 1 || c.elements(4) == channels) &&
                    (c.elements(5) == 1 || c.elements(5) == channels) && c.elements(6) == 1 &&
                    c.elements(7) == 1 &&
                    (!c.has(8) || (c.dtype(8) == DType::kI32 && c.elements(8) == channels));
  if (!fits) return Error::Invalid("its scales, zero points or bias do not fit");
  return SetOutput(c, c.dtype(7), c.shape(0)[0], channels, w);
}
Status QLinearConv(KernelContext& c) {
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(3), false));
  DispatchOr(c.dtype(0), Bytes{}, [&]<class X>() {
    DispatchOr(c.dtype(3), Bytes{}, [&]<class W>() {
      DispatchOr(c.dtype(7), Bytes{}, [&]<class Y>() {
        const int32_t x_zero = *c.in(2).as<X>(), y_zero = *c.in(7).as<Y>();
        const W* const w_zero = c.in(5).as<W>();
        const float *const w_scale = c.in(4).as<float>(), x_scale = *c.in(1).as<float>(),
                           y_scale = *c.in(6).as<float>();
        const bool each_zero = c.elements(5) > 1, each_scale = c.elements(4) > 1;
        const int32_t* const bias = c.has(8) ? c.in(8).as<int32_t>() : nullptr;
        ConvRows<int32_t>(
            c.pool, w, c.in(0).as<X>(), c.in(3).as<W>(), c.shape(0)[0], c.shape(0)[1], c.shape(3)[0],
            c.node.Int("group", 1), [=](X v) { return v - x_zero; },
            [=](W v, int64_t oc) { return v - w_zero[each_zero ? oc : 0]; },
            [&](int64_t at, int64_t oc, const std::vector<int32_t>& row) {
              const double scale = static_cast<double>(x_scale) * w_scale[each_scale ? oc : 0] / y_scale;
              for (size_t i = 0; i < row.size(); ++i) {
                const double x =
                    std::nearbyint((static_cast<double>(row[i]) + (bias ? bias[oc] : 0)) * scale) + y_zero;
                c.out(0).as<Y>()[at + static_cast<int64_t>(i)] = ConvertTo<Y>(x);
              }
            });
      });
    });
  });
  return {};
}

// x, w, offset, bias, mask: every tap of the window reads at an offset of its own, by bilinear interpolation.
Status InferDeformConv(InferContext& c) {
  if (c.shape(0).rank() != 4)
    return Error::Unsupported("an input of ", c.shape(0).ToString(), "; images are supported");
  for (size_t i = 1; i < c.inputs(); ++i) CELER_RETURN_IF_ERROR(CheckSameType(c, i));
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(1), false));
  const int64_t groups = c.node.Int("offset_group", 1);
  if (groups < 1 || groups > std::max<int64_t>(c.shape(0)[1], 1) || c.shape(0)[1] % groups != 0)
    return Error::Invalid("an offset_group of ", groups);
  CELER_ASSIGN([[maybe_unused]] const Shape taps, MakeShape({groups, w.kernel_size(), 2}));
  CELER_ASSIGN(const Shape offset,
               MakeShape({c.shape(0)[0], groups * w.kernel_size() * 2, w.out[1], w.out[2]}));
  CELER_ASSIGN(const Shape mask, MakeShape({c.shape(0)[0], groups * w.kernel_size(), w.out[1], w.out[2]}));
  if (!(c.shape(2) == offset) || (c.has(4) && !(c.shape(4) == mask)) ||
      (c.has(3) && c.elements(3) != c.shape(1)[0]))
    return Error::Invalid("offsets of ", c.shape(2).ToString(), " where ", offset.ToString(), " are needed");
  return SetOutput(c, c.dtype(0), c.shape(0)[0], c.shape(1)[0], w);
}
Status DeformConv(KernelContext& c) {
  CELER_ASSIGN(const Window w, CheckConv(c.node, c.shape(0), c.shape(1), false));
  const int64_t group = c.node.Int("group", 1), offset_group = c.node.Int("offset_group", 1),
                batch = c.shape(0)[0], channels = c.shape(0)[1], out_channels = c.shape(1)[0],
                in_group = channels / group, out_group = out_channels / group, h = w.in[1], width = w.in[2],
                taps = w.kernel_size(), per_offset = channels / offset_group;
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t oc = 0; oc < out_channels; ++oc)
        for (int64_t oh = 0; oh < w.out[1]; ++oh)
          for (int64_t ow = 0; ow < w.out[2]; ++ow) {
            double sum = c.has(3) ? static_cast<double>(Wide(c.in(3).as<T>()[oc])) : 0;
            for (int64_t ic = 0; ic < in_group; ++ic) {
              const int64_t channel = oc / out_group * in_group + ic, og = channel / per_offset;
              const T* const plane = c.in(0).as<T>() + (n * channels + channel) * h * width;
              const auto at = [&](int64_t y, int64_t x) {
                return y < 0 || y >= h || x < 0 || x >= width
                           ? 0.0
                           : static_cast<double>(Wide(plane[y * width + x]));
              };
              for (int64_t k = 0; k < taps; ++k) {
                const int64_t kh = k / w.kernel[2], kw = k % w.kernel[2];
                const auto moved = [&](int64_t part) {
                  const int64_t plane_at = (n * offset_group + og) * taps * 2 + k * 2 + part;
                  return static_cast<double>(
                      Wide(c.in(2).as<T>()[(plane_at * w.out[1] + oh) * w.out[2] + ow]));
                };
                const double y = static_cast<double>(oh * w.stride[1] + kh * w.dilation[1] - w.before[1]) +
                                 moved(0),
                             x = static_cast<double>(ow * w.stride[2] + kw * w.dilation[2] - w.before[2]) +
                                 moved(1);
                if (!(y > -1 && y < static_cast<double>(h) && x > -1 && x < static_cast<double>(width)))
                  continue;
                const auto y0 = static_cast<int64_t>(std::floor(y)), x0 = static_cast<int64_t>(std::floor(x));
                const double fy = y - static_cast<double>(y0), fx = x - static_cast<double>(x0);
                double value = (1 - fy) * ((1 - fx) * at(y0, x0) + fx * at(y0, x0 + 1)) +
                               fy * ((1 - fx) * at(y0 + 1, x0) + fx * at(y0 + 1, x0 + 1));
                if (c.has(4))
                  value *= static_cast<double>(Wide(
                      c.in(4)
                          .as<T>()[(((n * offset_group + og) * taps + k) * w.out[1] + oh) * w.out[2] + ow]));
                sum += value * static_cast<double>(Wide(c.in(1).as<T>()[(oc * in_group + ic) * taps + k]));
              }
            }
            c.out(0).as<T>()[((n * out_channels + oc) * w.out[1] + oh) * w.out[2] + ow] =
                static_cast<T>(static_cast<Compute<T>>(sum));
          }
  });
  return {};
}

// input [n, channels * block, blocks], image_shape, block_shape: overlapping blocks are added up into an
// image (the inverse of im2col).
Result<std::optional<Window>> ImageWindow(const OpInputs& c) {
  const auto image = c.ints(1), block = c.ints(2);
  if (!image || !block) return std::optional<Window>();
  if (c.shape(0).rank() != 3 || image->size() != block->size() || image->size() > 3 || image->empty())
    return Error::Unsupported("blocks of ", c.shape(0).ToString(), " for ", image->size(), " dimensions");
  std::vector<int64_t> dims = {c.shape(0)[0], 1};
  dims.insert(dims.end(), image->begin(), image->end());
  CELER_ASSIGN(const Shape shape, MakeShape(dims));
  CELER_ASSIGN(const Window w, SlidingWindow(c.node, shape, *block));
  for (const auto& sizes : {w.kernel, w.out}) CELER_RETURN_IF_ERROR(MakeShape(sizes));
  if (c.shape(0)[1] % w.kernel_size() != 0 || c.shape(0)[2] != w.out_size())
    return Error::Invalid("blocks of ", c.shape(0).ToString(), " do not make up the image ",
                          shape.ToString());
  return std::optional(w);
}
Status InferCol2Im(InferContext& c) {
  CELER_ASSIGN(const auto w, ImageWindow(c));
  if (!w) return {};
  std::vector<int64_t> dims = {c.shape(0)[0], c.shape(0)[1] / w->kernel_size()};
  const std::vector<int64_t> image = *c.ints(1);
  dims.insert(dims.end(), image.begin(), image.end());
  return c.Set(0, c.dtype(0), dims);
}
Status Col2Im(KernelContext& c) {
  CELER_ASSIGN(const auto found, ImageWindow(c));
  const Window& w = *found;
  const int64_t planes = c.shape(0)[0] * (c.shape(0)[1] / w.kernel_size());
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    std::vector<Compute<T>> plane(static_cast<size_t>(w.in_size()));
    for (int64_t p = 0; p < planes; ++p) {
      std::fill(plane.begin(), plane.end(), Compute<T>{0});
      for (int64_t k = 0; k < w.kernel_size(); ++k) {
        const int64_t kk[] = {k / (w.kernel[1] * w.kernel[2]), k / w.kernel[2] % w.kernel[1],
                              k % w.kernel[2]};
        for (int64_t o = 0; o < w.out_size(); ++o) {
          const int64_t oo[] = {o / (w.out[1] * w.out[2]), o / w.out[2] % w.out[1], o % w.out[2]};
          int64_t at = 0;
          bool inside = true;
          for (size_t i = 0; i < 3; ++i) {
            const int64_t place = oo[i] * w.stride[i] + kk[i] * w.dilation[i] - w.before[i];
            inside = inside && place >= 0 && place < w.in[i];
            at = at * w.in[i] + place;
          }
          if (inside) plane[at] += Wide(c.in(0).as<T>()[(p * w.kernel_size() + k) * w.out_size() + o]);
        }
      }
      for (int64_t i = 0; i < w.in_size(); ++i)
        c.out(0).as<T>()[p * w.in_size() + i] = static_cast<T>(plane[i]);
    }
  });
  return {};
}

constexpr Arity kOne = {1, 1};
constexpr Operator kRows[] = {
    {"Col2Im", 18, {3, 3}, kOne, kFloats, InferCol2Im, Col2Im},
    {"Conv", 1, {2, 3}, kOne, kFloats, InferConv, Conv, Operator::kPlain, ConvFlops, kFastConv},
    {"ConvInteger", 10, {2, 4}, kOne, kBytes, InferConvInteger, ConvInteger, Operator::kPlain, ConvFlops},
    {"ConvTranspose", 1, Arity(2, 3), kOne, kFloats, InferConvTranspose, ConvTranspose, Operator::kPlain,
     ConvTransposeFlops, kFastConvTranspose},
    {"DeformConv", 19, {3, 5}, kOne, kFloats, InferDeformConv, DeformConv, Operator::kPlain, ConvFlops},
    {"QLinearConv", 10, {8, 9}, kOne, kBytes, InferQLinearConv, QLinearConv},
};

}  // namespace

std::span<const Operator> ConvOperators() {
  return kRows;
}

}  // namespace celer::graph
