// Operators on images and boxes: resizing, sampling at given places, and choosing boxes.
#include <cmath>
#include <limits>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/fast/fast.h"
#include "graph/ops/resize.h"

namespace celer::graph {
namespace {

// x [n, channels, spatial...], grid [n, spatial out..., dimensions]; two or three spatial dimensions.
Status InferGridSample(InferContext& c) {
  const Shape &x = c.shape(0), &grid = c.shape(1);
  const int dims = x.rank() - 2;
  if (dims < 2 || dims > 3 || grid.rank() != x.rank() || grid[0] != x[0] || grid[grid.rank() - 1] != dims ||
      !kFloats.Has(c.dtype(1)))
    return Error::Invalid("a grid of ", grid.ToString(), " for ", x.ToString());
  const std::string mode = c.node.Text("mode", "linear");
  if (dims == 3 && (mode == "cubic" || mode == "bicubic"))
    return Error::Unsupported("cubic samples of volumes");
  std::vector<int64_t> out = {x[0], x[1]};
  out.insert(out.end(), grid.dims().begin() + 1, grid.dims().end() - 1);
  return c.Set(0, c.dtype(0), out);
}
double Reflected(double x, double low, double high) {
  const double range = high - low;
  if (range <= 0) return low;
  if (x < low) {
    const double d = low - x, turns = std::floor(d / range), rest = d - turns * range;
    return std::fmod(turns, 2) == 0 ? low + rest : high - rest;
  }
  if (x > high) {
    const double d = x - high, turns = std::floor(d / range), rest = d - turns * range;
    return std::fmod(turns, 2) == 0 ? high - rest : low + rest;
  }
  return x;
}
Status GridSample(KernelContext& c) {
  const Shape &x = c.shape(0), &grid = c.shape(1);
  const int dims = x.rank() - 2;
  const bool corners = c.node.Int("align_corners", 0) != 0;
  const std::string mode = c.node.Text("mode", "linear"), padding = c.node.Text("padding_mode", "zeros");
  const bool nearest = mode == "nearest", cubic = mode == "cubic" || mode == "bicubic";
  const int64_t planes = Product(x, 2, x.rank()), points = Product(grid, 1, grid.rank() - 1);
  std::array<int64_t, 3> size{1, 1, 1};
  for (int d = 0; d < dims; ++d) size[3 - dims + d] = x[2 + d];
  if (planes == 0 && c.out_elements(0) > 0)
    return Error::Invalid("there is nothing to sample in ", x.ToString());
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    DispatchOr(c.dtype(1), FloatTypes{}, [&]<class G>() {
      Parallel(c.pool, x[0] * points, x[1] * 64, [&](int64_t begin, int64_t end) {
        for (int64_t p = begin; p < end; ++p) {
          const int64_t n = p / points;
          // Places in the tensor's order: the grid has the innermost first.
          std::array<double, 3> at{0, 0, 0};
          for (int d = 0; d < dims; ++d) {
            const auto s = static_cast<size_t>(2 - d);
            const double g = static_cast<double>(Wide(c.in(1).as<G>()[p * dims + d]));
            const auto m = static_cast<double>(size[s]);
            double place = corners ? (g + 1) / 2 * (m - 1) : ((g + 1) * m - 1) / 2;
            if (nearest) place = std::nearbyint(place);
            // A cubic sample is of 16 elements around its place; each is brought inside on its own.
            if (padding == "border" && !cubic) place = std::clamp(place, 0.0, m - 1);
            if (padding == "reflection" && !cubic)
              place = std::clamp(corners ? Reflected(place, 0, m - 1) : Reflected(place, -0.5, m - 0.5), 0.0,
                                 m - 1);
            at[s] = std::isfinite(place) ? std::clamp(place, -1e9, 1e9) : -1e9;
          }
          for (int64_t ch = 0; ch < x[1]; ++ch) {
            const T* const plane = c.in(0).as<T>() + (n * x[1] + ch) * planes;
            const auto pixel = [&](std::array<int64_t, 3> i) {
              int64_t offset = 0;
              for (size_t s = 0; s < 3; ++s) {
                const auto m = static_cast<double>(size[s]);
                if (padding == "border") i[s] = std::clamp<int64_t>(i[s], 0, size[s] - 1);
                if (padding == "reflection" && (i[s] < 0 || i[s] >= size[s]))
                  i[s] = static_cast<int64_t>(
                      std::clamp(corners ? Reflected(static_cast<double>(i[s]), 0, m - 1)
                                         : Reflected(static_cast<double>(i[s]), -0.5, m - 0.5),
                                 0.0, m - 1));
                if (i[s] < 0 || i[s] >= size[s]) return 0.0;
                offset = offset * size[s] + i[s];
              }
              return static_cast<double>(Wide(plane[offset]));
            };
            std::array<int64_t, 3> base{};
            std::array<double, 3> part{};
            for (size_t s = 0; s < 3; ++s) {
              base[s] = static_cast<int64_t>(std::floor(at[s]));
              part[s] = at[s] - static_cast<double>(base[s]);
            }
            double value = 0;
            if (nearest) {
              value = pixel(base);
            } else if (cubic) {
              for (int64_t i = -1; i <= 2; ++i)
                for (int64_t j = -1; j <= 2; ++j)
                  value += CubicWeight(part[1] - static_cast<double>(i), -0.75) *
                           CubicWeight(part[2] - static_cast<double>(j), -0.75) *
                           pixel({base[0], base[1] + i, base[2] + j});
            } else {
              for (int corner = 0; corner < 8; ++corner) {
                std::array<int64_t, 3> i = base;
                double w = 1;
                for (size_t s = 0; s < 3; ++s) {
                  const bool upper = corner >> s & 1;
                  i[s] += upper;
                  w *= upper ? part[s] : 1 - part[s];
                }
                if (w != 0) value += w * pixel(i);
              }
            }
            c.out(0).as<T>()[(n * x[1] + ch) * points + p % points] =
                static_cast<T>(static_cast<Compute<T>>(value));
          }
        }
      });
    });
  });
  return {};
}

// theta [n, d, d + 1], size [n, channels, spatial...]
Status InferAffineGrid(InferContext& c) {
  const auto size = c.ints(1);
  if (!size) return {};
  const auto dims = static_cast<int64_t>(size->size()) - 2;
  if (dims < 2 || dims > 3 || !HasDims(c.shape(0), {(*size)[0], dims, dims + 1}))
    return Error::Invalid("theta of ", c.shape(0).ToString(), " for ", dims, " dimensions");
  std::vector<int64_t> out = {(*size)[0]};
  out.insert(out.end(), size->begin() + 2, size->end());
  out.push_back(dims);
  return c.Set(0, c.dtype(0), out);
}
Status AffineGrid(KernelContext& c) {
  const std::vector<int64_t> size = *c.ints(1);
  const auto dims = size.size() - 2;
  const bool corners = c.node.Int("align_corners", 0) != 0;
  const int64_t points = Product(size, 2, size.size());
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    for (int64_t n = 0; n < size[0]; ++n)
      for (int64_t p = 0; p < points; ++p) {
        std::array<double, 4> at{0, 0, 0, 0};
        int64_t rest = p;
        for (size_t d = 0; d < dims; ++d) {  // the innermost first, as the grid has it
          const int64_t m = size[size.size() - 1 - d], i = rest % m;
          rest /= m;
          at[d] = corners ? (m > 1 ? -1 + 2 * static_cast<double>(i) / static_cast<double>(m - 1) : 0)
                          : (2 * static_cast<double>(i) + 1) / static_cast<double>(m) - 1;
        }
        at[dims] = 1;
        for (size_t d = 0; d < dims; ++d) {
          double sum = 0;
          for (size_t k = 0; k <= dims; ++k)
            sum += at[k] * static_cast<double>(Wide(
                               c.in(0).as<T>()[(n * static_cast<int64_t>(dims) + static_cast<int64_t>(d)) *
                                                   static_cast<int64_t>(dims + 1) +
                                               static_cast<int64_t>(k)]));
          c.out(0).as<T>()[(n * points + p) * static_cast<int64_t>(dims) + static_cast<int64_t>(d)] =
              static_cast<T>(static_cast<Compute<T>>(sum));
        }
      }
  });
  return {};
}

// x [n, channels, h, w], boxes [k, 4], the image of each box [k]
Status InferRoiAlign(InferContext& c) {
  const int64_t h = c.node.Int("output_height", 1), w = c.node.Int("output_width", 1);
  if (c.shape(0).rank() != 4 || c.shape(1).rank() != 2 || c.shape(1)[1] != 4 ||
      c.elements(2) != c.shape(1)[0] || c.dtype(2) != DType::kI64 || c.dtype(1) != c.dtype(0))
    return Error::Invalid("boxes of ", c.shape(1).ToString(), " on ", c.shape(0).ToString());
  if (h < 1 || w < 1 || h > 65536 || w > 65536) return Error::Invalid("an output of ", h, " by ", w);
  return c.Set(0, c.dtype(0), {c.shape(1)[0], c.shape(0)[1], h, w});
}
// Between two pixels of a row or a column: how much of the second one.
struct Sample {
  int64_t low, high;
  double share;
};
// Where the samples of each bin of a box lie along one axis. Those outside of the picture count as 0 and are skipped, so
// that a box of any size costs little more than what it has in common with the picture.
struct BoxAxis {
  double start, bin;  // in pixels
  int64_t samples;    // of each bin
  int64_t length;     // of the picture

  BoxAxis(double box_start, double box, int64_t bins, int64_t ratio, int64_t pixels)
      : start(box_start),
        bin(box / static_cast<double>(bins)),
        samples(ratio > 0 ? ratio : std::clamp<int64_t>(ConvertTo<int64_t>(std::ceil(bin)), 0, 4096)),
        length(pixels) {}
  double At(int64_t of_bin, int64_t sample) const {
    return start + static_cast<double>(of_bin) * bin +
           (static_cast<double>(sample) + 0.5) * bin / static_cast<double>(samples);
  }
  // The first and the end of the samples in the picture.
  std::pair<int64_t, int64_t> Inside(int64_t of_bin) const {
    const auto first = [&](auto reached) {
      int64_t low = 0, high = samples;
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (reached(At(of_bin, middle)))
          high = middle;
        else
          low = middle + 1;
      }
      return low;
    };
    const auto end = static_cast<double>(length);
    if (std::isnan(start + bin)) return {0, 0};
    if (bin < 0)
      return {first([&](double at) { return at <= end; }), first([](double at) { return at < -1; })};
    return {first([](double at) { return at >= -1; }), first([&](double at) { return at > end; })};
  }
  Sample Of(int64_t of_bin, int64_t sample) const {
    const double at = std::max(0.0, At(of_bin, sample));
    const int64_t low = std::min(static_cast<int64_t>(at), length - 1);
    return {low, std::min(low + 1, length - 1), low == length - 1 ? 0 : at - static_cast<double>(low)};
  }
};
Status RoiAlign(KernelContext& c) {
  const Shape& x = c.shape(0);
  const int64_t out_h = c.out(0).shape[2], out_w = c.out(0).shape[3], height = x[2], width = x[3];
  const double scale = c.node.Float("spatial_scale", 1);
  const int64_t ratio = c.node.Int("sampling_ratio", 0);
  const bool largest = c.node.Text("mode", "avg") == "max";
  const bool half = c.node.Text("coordinate_transformation_mode",
                                c.node.opset < 16 ? "output_half_pixel" : "half_pixel") == "half_pixel";
  const double offset = half ? 0.5 : 0;
  if (ratio < 0 || ratio > 1024) return Error::Invalid("a sampling_ratio of ", ratio);
  if (height * width == 0) return Error::Invalid("there is nothing to sample in ", x.ToString());
  for (int64_t k = 0; k < c.elements(2); ++k)
    if (const int64_t image = c.in(2).as<int64_t>()[k]; image < 0 || image >= x[0])
      return Error::Invalid("a box on image ", image, " of ", x[0]);
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    Parallel(c.pool, c.shape(1)[0], x[1] * out_h * out_w * 64, [&](int64_t first, int64_t end) {
      for (int64_t k = first; k < end; ++k) {
        const auto edge = [&](int64_t i) {
          return static_cast<double>(Wide(c.in(1).as<T>()[k * 4 + i])) * scale - offset;
        };
        double box_w = edge(2) - edge(0), box_h = edge(3) - edge(1);
        if (!half) {
          box_w = std::max(box_w, 1.0);
          box_h = std::max(box_h, 1.0);
        }
        const BoxAxis rows(edge(1), box_h, out_h, ratio, height),
            columns(edge(0), box_w, out_w, ratio, width);
        const int64_t samples = rows.samples * columns.samples;
        for (int64_t ch = 0; ch < x[1]; ++ch) {
          const T* const plane = c.in(0).as<T>() + (c.in(2).as<int64_t>()[k] * x[1] + ch) * height * width;
          const auto v = [&](int64_t row, int64_t column) {
            return static_cast<double>(Wide(plane[row * width + column]));
          };
          for (int64_t oh = 0; oh < out_h; ++oh)
            for (int64_t ow = 0; ow < out_w; ++ow) {
              const auto [first_h, end_h] = rows.Inside(oh);
              const auto [first_w, end_w] = columns.Inside(ow);
              double sum = 0, most = -std::numeric_limits<double>::infinity();
              for (int64_t gh = first_h; gh < end_h; ++gh) {
                const Sample y = rows.Of(oh, gh);
                for (int64_t gw = first_w; gw < end_w; ++gw) {
                  const Sample xx = columns.Of(ow, gw);
                  const double a = (1 - y.share) * (1 - xx.share) * v(y.low, xx.low),
                               b = (1 - y.share) * xx.share * v(y.low, xx.high),
                               d = y.share * (1 - xx.share) * v(y.high, xx.low),
                               e = y.share * xx.share * v(y.high, xx.high);
                  sum += a + b + d + e;
                  most = std::max({most, a, b, d, e});
                }
              }
              if ((end_h - first_h) * (end_w - first_w) < samples) most = std::max(most, 0.0);
              const double count = static_cast<double>(std::max<int64_t>(samples, 1));
              const double value = largest ? (samples > 0 ? most : 0) : sum / count;
              c.out(0).as<T>()[((k * x[1] + ch) * out_h + oh) * out_w + ow] =
                  static_cast<T>(static_cast<Compute<T>>(value));
            }
        }
      }
    });
  });
  return {};
}

// boxes [n, k, 4], scores [n, classes, k], most per class, overlap threshold, score threshold
Status InferNms(InferContext& c) {
  const Shape &boxes = c.shape(0), &scores = c.shape(1);
  if (boxes.rank() != 3 || boxes[2] != 4 || scores.rank() != 3 || scores[0] != boxes[0] ||
      scores[2] != boxes[1] || c.dtype(1) != DType::kF32)
    return Error::Invalid("boxes of ", boxes.ToString(), " and scores of ", scores.ToString());
  for (size_t i = 2; i < 5; ++i)
    if (c.has(i) && c.elements(i) < 1) return Error::Invalid("its input ", i, " is empty");
  return {};
}
Status Nms(KernelContext& c) {
  const int64_t n = c.shape(0)[0], k = c.shape(0)[1], classes = c.shape(1)[1];
  const int64_t most = c.has(2) ? std::max<int64_t>(0, (*c.ints(2))[0]) : 0;
  const double overlap = c.has(3) ? ReadScalar(c.in(3)) : 0;
  const double least = c.has(4) ? ReadScalar(c.in(4)) : -std::numeric_limits<double>::infinity();
  const bool centred = c.node.Int("center_point_box", 0) != 0;
  struct Box {
    float y0, x0, y1, x1;
  };
  std::vector<int64_t> chosen;
  for (int64_t image = 0; image < n && k > 0; ++image) {
    std::vector<Box> boxes;
    for (int64_t i = 0; i < k; ++i) {
      const float* const b = c.in(0).as<float>() + (image * k + i) * 4;
      if (centred)
        boxes.push_back({b[1] - b[3] / 2, b[0] - b[2] / 2, b[1] + b[3] / 2, b[0] + b[2] / 2});
      else
        boxes.push_back(
            {std::min(b[0], b[2]), std::min(b[1], b[3]), std::max(b[0], b[2]), std::max(b[1], b[3])});
    }
    const auto meets = [&](const Box& a, const Box& b) {
      const float h = std::min(a.y1, b.y1) - std::max(a.y0, b.y0),
                  w = std::min(a.x1, b.x1) - std::max(a.x0, b.x0);
      if (h <= 0 || w <= 0) return false;
      const float common = h * w,
                  all = (a.y1 - a.y0) * (a.x1 - a.x0) + (b.y1 - b.y0) * (b.x1 - b.x0) - common;
      return all > 0 && static_cast<double>(common / all) > overlap;
    };
    for (int64_t label = 0; label < classes; ++label) {
      const float* const scores = c.in(1).as<float>() + (image * classes + label) * k;
      std::vector<int64_t> order, kept;
      for (int64_t i = 0; i < k; ++i)
        if (static_cast<double>(scores[i]) > least) order.push_back(i);
      std::stable_sort(order.begin(), order.end(),
                       [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
      for (const int64_t i : order) {
        if (static_cast<int64_t>(kept.size()) >= most) break;
        bool free = true;
        for (const int64_t j : kept) free = free && !meets(boxes[i], boxes[j]);
        if (!free) continue;
        kept.push_back(i);
        chosen.insert(chosen.end(), {image, label, i});
      }
    }
  }
  CELER_RETURN_IF_ERROR(
      c.Allocate(0, DType::kI64, std::vector<int64_t>{static_cast<int64_t>(chosen.size() / 3), 3}));
  std::copy(chosen.begin(), chosen.end(), c.out(0).as<int64_t>());
  return {};
}

constexpr Arity kOne = {1, 1};
constexpr Operator kRows[] = {
    {"AffineGrid", 20, {2, 2}, kOne, kFloats, InferAffineGrid, AffineGrid},
    {"GridSample", 16, {2, 2}, kOne, kFloats, InferGridSample, GridSample},
    {"NonMaxSuppression", 10, {2, 5}, kOne, {DType::kF32}, InferNms, Nms},
    {"Resize", 10, {1, 4}, kOne, kNumbers, InferResize, Resize, Operator::kPlain, nullptr, kFastResize},
    {"RoiAlign", 10, {3, 3}, kOne, kFloats, InferRoiAlign, RoiAlign},
    {"Upsample", 7, {1, 2}, kOne, kNumbers, InferResize, Resize, Operator::kPlain, nullptr, kFastResize},
};

}  // namespace

std::span<const Operator> ImageOperators() {
  return kRows;
}

}  // namespace celer::graph
