// Resize and Upsample: separable, one dimension after the other, or planes at once where that is all there is
// to do.
#include "graph/ops/resize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "graph/ops/common.h"
#include "graph/ops/fast/fast.h"
#include "kernels/network/resize/resize.h"

namespace celer::graph {
namespace {

// Along one dimension: for each place of the output the elements of the input that make it, with their
// weights.
struct Taps {
  int count = 1;
  std::vector<int64_t> index;  // [out, count]; -1: nothing, or the value for outside
  std::vector<double> weight;
};

struct ResizeRules {
  std::string mode, place, nearest;
  double cubic;
  bool exclude_outside, antialias;
  double extrapolation;
};
ResizeRules RulesOf(const Node& node) {
  // Until opset 10 there was one rule for places.
  const char* const place = node.opset < 11 ? "asymmetric" : "half_pixel";
  return {node.Text("mode", "nearest"),
          node.Text("coordinate_transformation_mode", place),
          node.Text("nearest_mode", node.opset < 11 ? "floor" : "round_prefer_floor"),
          node.Float("cubic_coeff_a", -0.75f),
          node.Int("exclude_outside", 0) != 0,
          node.Int("antialias", 0) != 0,
          node.Float("extrapolation_value", 0)};
}

// Where place `i` of the output lies in the input.
double Place(const ResizeRules& rules, int64_t i, int64_t in, int64_t out, double scale, double begin,
             double end) {
  // With scales the exact length m of the output is not always whole. Corners are those of the output that
  // there is, as torch and ONNX Runtime have it; ONNX's own reference takes the exact length there too.
  const auto x = static_cast<double>(i), n = static_cast<double>(in), m = n * scale;
  if (rules.place == "asymmetric") return x / scale;
  if (rules.place == "align_corners") return out == 1 ? 0 : x * (n - 1) / static_cast<double>(out - 1);
  if (rules.place == "pytorch_half_pixel") return out > 1 ? (x + 0.5) / scale - 0.5 : 0;
  if (rules.place == "half_pixel_symmetric") {
    // A length that is whole but for rounding is whole: else places fall just below those of the input.
    const double whole = static_cast<double>(out);
    const double adjustment = std::abs(m - whole) < 1e-6 * whole ? 1 : whole / m, centre = n / 2,
                 offset = centre * (1 - adjustment);
    return offset + (x + 0.5) / scale - 0.5;
  }
  if (rules.place == "tf_crop_and_resize")
    return out > 1 ? begin * (n - 1) + x * (end - begin) * (n - 1) / (static_cast<double>(out) - 1)
                   : 0.5 * (begin + end) * (n - 1);
  return (x + 0.5) / scale - 0.5;
}

int64_t Clamped(double at, int64_t in) {
  return std::clamp<int64_t>(ConvertTo<int64_t>(at), 0, in - 1);
}

Taps MakeTaps(const ResizeRules& rules, int64_t in, int64_t out, double scale, double begin, double end) {
  Taps taps;
  const bool crop = rules.place == "tf_crop_and_resize";
  if (rules.mode == "nearest") {
    for (int64_t i = 0; i < out; ++i) {
      const double x = Place(rules, i, in, out, scale, begin, end);
      double at = std::floor(x);
      if (rules.nearest == "ceil") at = std::ceil(x);
      if (rules.nearest == "round_prefer_floor") at = std::ceil(x - 0.5);
      if (rules.nearest == "round_prefer_ceil") at = std::floor(x + 0.5);
      const bool outside = crop && (x < 0 || x > static_cast<double>(in - 1));
      taps.index.push_back(outside ? -1 : Clamped(at, in));
      taps.weight.push_back(1);
    }
    return taps;
  }
  // Antialiasing: a smaller image has a wider filter, so that no element is skipped.
  const bool cubic = rules.mode == "cubic";
  const double stretch = rules.antialias && scale < 1 ? 1 / scale : 1;
  const double support = (cubic ? 2 : 1) * stretch;
  const double reach = std::min(std::ceil(support), 1e6);
  taps.count = static_cast<int>(2 * reach);
  for (int64_t i = 0; i < out; ++i) {
    const double x = Place(rules, i, in, out, scale, begin, end);
    const bool outside = crop && (x < 0 || x > static_cast<double>(in - 1));
    const double base = std::floor(x) - reach + 1;
    double sum = 0;
    const size_t first = taps.weight.size();
    for (int k = 0; k < taps.count; ++k) {
      const double at = base + k, d = (at - x) / stretch;
      double w = cubic ? CubicWeight(d, rules.cubic) : std::max(0.0, 1 - std::abs(d));
      const bool beyond = at < 0 || at > static_cast<double>(in - 1);
      if (beyond && rules.exclude_outside) w = 0;  // otherwise the border is repeated
      taps.index.push_back(outside ? -1 : Clamped(at, in));
      taps.weight.push_back(w);
      sum += w;
    }
    if (sum != 0)
      for (size_t k = first; k < taps.weight.size(); ++k) taps.weight[k] /= sum;
  }
  return taps;
}

// What each dimension is resized by and to. nullopt while the numbers are not known.
struct ResizePlan {
  std::vector<int64_t> dims;
  std::vector<double> scales, begin, end;
};
Result<std::optional<ResizePlan>> PlanResize(const OpInputs& c) {
  const Shape& in = c.shape(0);
  const auto rank = static_cast<size_t>(in.rank());
  ResizePlan plan{Dims(in), std::vector<double>(rank, 1), std::vector<double>(rank, 0),
                  std::vector<double>(rank, 1)};
  std::vector<int> axes;
  if (c.node.Find("axes")) {
    CELER_ASSIGN(axes, CheckAxes(c.node.Ints("axes"), in.rank()));
  } else {
    for (int i = 0; i < in.rank(); ++i) axes.push_back(i);
  }
  const bool old = c.node.op == "Upsample" || c.node.opset < 11;
  const size_t scale_input = old ? 1 : 2, size_input = 3;
  const auto floats = [&](size_t i) {
    std::vector<double> out;
    DispatchOr(c.dtype(i), FloatTypes{}, [&]<class T>() {
      for (int64_t k = 0; k < c.elements(i); ++k)
        out.push_back(static_cast<double>(Wide(c.in(i).as<T>()[k])));
    });
    return out;
  };
  std::vector<double> scales;
  if (old && c.node.Find("scales"))
    for (const float scale : c.node.Floats("scales")) scales.push_back(static_cast<double>(scale));
  if (c.has(scale_input)) {
    if (!c.known(scale_input)) return std::optional<ResizePlan>();
    scales = floats(scale_input);
  }
  if (!old && c.has(1) && c.elements(1) > 0) {
    if (!c.known(1)) return std::optional<ResizePlan>();
    const std::vector<double> roi = floats(1);
    if (roi.size() == 2 * axes.size())
      for (size_t i = 0; i < axes.size(); ++i) {
        plan.begin[axes[i]] = roi[i];
        plan.end[axes[i]] = roi[axes.size() + i];
      }
  }
  if (!scales.empty()) {
    if (scales.size() != axes.size())
      return Error::Invalid(scales.size(), " scales for ", axes.size(), " axes");
    for (size_t i = 0; i < axes.size(); ++i) {
      const auto d = static_cast<size_t>(axes[i]);
      if (!(scales[i] > 0 && scales[i] < 1e9)) return Error::Invalid("a scale of ", scales[i]);
      plan.scales[d] = scales[i];
      const double region = RulesOf(c.node).place == "tf_crop_and_resize" ? plan.end[d] - plan.begin[d] : 1;
      plan.dims[d] = ConvertTo<int64_t>(std::floor(static_cast<double>(plan.dims[d]) * region * scales[i]));
    }
    return std::optional(std::move(plan));
  }
  if (old || !c.has(size_input)) return Error::Invalid("neither scales nor sizes are given");
  const auto sizes = c.ints(size_input);
  if (!sizes) return std::optional<ResizePlan>();
  if (sizes->size() != axes.size()) return Error::Invalid(sizes->size(), " sizes for ", axes.size(), " axes");
  const std::string policy = c.node.Text("keep_aspect_ratio_policy", "stretch");
  double common = policy == "not_larger" ? std::numeric_limits<double>::infinity() : 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    const double ratio =
        static_cast<double>((*sizes)[i]) / static_cast<double>(std::max<int64_t>(in[axes[i]], 1));
    common = policy == "not_larger" ? std::min(common, ratio) : std::max(common, ratio);
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto d = static_cast<size_t>(axes[i]);
    const auto n = static_cast<double>(in[axes[i]]);
    if (policy == "stretch") {
      plan.dims[d] = (*sizes)[i];
      plan.scales[d] = n > 0 ? static_cast<double>((*sizes)[i]) / n : 1;
    } else {
      plan.dims[d] = ConvertTo<int64_t>(std::nearbyint(n * common));
      plan.scales[d] = common;
    }
  }
  return std::optional(std::move(plan));
}

struct PlanesState {
  ResizeAxis y, x;
};

// Nearest, or between two neighbours.
ResizeAxis AxisOf(const Taps& taps) {
  ResizeAxis axis;
  const auto count = static_cast<size_t>(taps.count);
  for (size_t i = 0; i < taps.index.size(); i += count) {
    axis.first.push_back(static_cast<int32_t>(taps.index[i]));
    if (count == 1) continue;
    axis.second.push_back(static_cast<int32_t>(taps.index[i + 1]));
    axis.weight.push_back(static_cast<float>(taps.weight[i + 1]));
  }
  return axis;
}

}  // namespace

double CubicWeight(double distance, double a) {
  const double d = std::abs(distance);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  if (d < 2) return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
  return 0;
}

Status InferResize(InferContext& c) {
  const ResizeRules rules = RulesOf(c.node);
  if (rules.mode != "nearest" && rules.mode != "linear" && rules.mode != "cubic" && rules.mode != "bilinear")
    return Error::Unsupported("the mode '", rules.mode, "'");
  CELER_ASSIGN(const auto plan, PlanResize(c));
  if (!plan) return {};
  for (size_t i = 0; i < plan->dims.size(); ++i)
    if (plan->dims[i] > 0 && c.shape(0)[static_cast<int>(i)] == 0)
      return Error::Invalid("a dimension of 0 cannot be resized");
  return c.Set(0, c.dtype(0), plan->dims);
}
// One dimension after the other: [outer, n, inner] becomes [outer, m, inner].
Status Resize(KernelContext& c) {
  CELER_ASSIGN(const auto plan, PlanResize(c));
  ResizeRules rules = RulesOf(c.node);
  if (rules.mode == "bilinear") rules.mode = "linear";
  const Shape& in = c.shape(0);
  const auto rank = static_cast<size_t>(in.rank());
  const bool crop = rules.place == "tf_crop_and_resize";
  if (rules.mode == "nearest" && !crop) {
    // Elements are only moved, whatever their type is.
    std::vector<std::vector<int64_t>> from;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t n = in[static_cast<int>(d)];
      from.push_back(MakeTaps(rules, n, plan->dims[d], plan->scales[d], 0, 1).index);
    }
    DispatchSize(c.dtype(0), [&]<class T>() {
      const int64_t length = rank > 0 ? plan->dims[rank - 1] : 1;
      const int64_t rows = rank > 0 ? Product(plan->dims, 0, rank - 1) : 1;
      Parallel(c.pool, rows, length, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          int64_t rest = r, at = 0, step = rank > 0 ? in[static_cast<int>(rank) - 1] : 1;
          for (size_t d = rank > 0 ? rank - 1 : 0; d-- > 0;) {
            at += from[d][static_cast<size_t>(rest % plan->dims[d])] * step;
            rest /= plan->dims[d];
            step *= in[static_cast<int>(d)];
          }
          T* const to = c.out(0).as<T>() + r * length;
          for (int64_t i = 0; i < length; ++i)
            to[i] = c.in(0).as<T>()[at + (rank > 0 ? from[rank - 1][i] : 0)];
        }
      });
    });
    return {};
  }
  Status status;
  const bool known = DispatchOr(
      c.dtype(0), TypeList<float, double, Half, Brain, uint8_t, int8_t, int32_t>{}, [&]<class T>() {
        std::vector<float> now(static_cast<size_t>(c.elements(0)));
        for (size_t i = 0; i < now.size(); ++i) now[i] = static_cast<float>(Wide(c.in(0).as<T>()[i]));
        std::vector<bool> outside;
        std::vector<int64_t> dims = Dims(in);
        std::vector<std::vector<int64_t>> gone(rank);
        // Those that shrink first: what lies between is then never larger than the input or the output.
        std::vector<size_t> order(rank);
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_partition(order.begin(), order.end(), [&](size_t d) { return plan->dims[d] < dims[d]; });
        for (const size_t d : order) {
          const int64_t n = dims[d], m = plan->dims[d];
          if (n == m && plan->scales[d] == 1 && !(crop && (plan->begin[d] != 0 || plan->end[d] != 1)))
            continue;
          const Taps taps = MakeTaps(rules, n, m, plan->scales[d], plan->begin[d], plan->end[d]);
          const int64_t outer = Product(dims, 0, d), inner = Product(dims, d + 1, rank);
          dims[d] = m;
          std::vector<float> next(static_cast<size_t>(Product(dims, 0, rank)));
          Parallel(c.pool, outer * m, inner * taps.count, [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
              const int64_t o = r / m, i = r % m;
              float* const to = next.data() + r * inner;
              for (int k = 0; k < taps.count; ++k) {
                const auto tap = static_cast<size_t>(i * taps.count + k);
                if (taps.index[tap] < 0 || taps.weight[tap] == 0) continue;
                const float* const x = now.data() + (o * n + taps.index[tap]) * inner;
                const auto w = static_cast<float>(taps.weight[tap]);
                for (int64_t j = 0; j < inner; ++j) to[j] += w * x[j];
              }
            }
          });
          for (int64_t i = 0; i < m; ++i)
            if (taps.index[i * taps.count] < 0) gone[d].push_back(i);
          now = std::move(next);
        }
        for (int64_t i = 0; i < c.out_elements(0); ++i) {
          float value = now[i];
          int64_t rest = i;
          for (size_t d = rank; d-- > 0;) {
            if (!gone[d].empty() && std::binary_search(gone[d].begin(), gone[d].end(), rest % dims[d]))
              value = static_cast<float>(rules.extrapolation);
            rest /= dims[d];
          }
          if constexpr (std::is_integral_v<T>)
            c.out(0).as<T>()[i] = ConvertTo<T>(std::nearbyint(value));
          else
            c.out(0).as<T>()[i] = static_cast<T>(value);
        }
      });
  if (!known) return Error::Unsupported("resizing ", Name(c.dtype(0)), " in the mode '", rules.mode, "'");
  return status;
}

namespace {

template <class T>
bool PlanesFit(const InferContext& c) {
  const ResizeRules rules = RulesOf(c.node);
  if (c.dtype(0) != kDTypeOf<T> || c.shape(0).rank() != 4 || c.elements(0) == 0 || rules.antialias ||
      rules.exclude_outside || rules.mode == "cubic" || rules.place == "tf_crop_and_resize")
    return false;
  const auto plan = PlanResize(c);
  constexpr int64_t kMost = int64_t{1} << 24;  // the axes' tables are made when a run is planned
  return plan && *plan && (*plan)->scales[0] == 1 && (*plan)->scales[1] == 1 && (*plan)->dims[2] > 0 &&
         (*plan)->dims[3] > 0 && (*plan)->dims[2] <= kMost && (*plan)->dims[3] <= kMost &&
         c.shape(0)[2] <= kMost && c.shape(0)[3] <= kMost;
}

template <class T>
Status RunPlanes(KernelContext& c) {
  const auto& state = *static_cast<const PlanesState*>(c.state);
  const Shape& in = c.shape(0);
  ResizePlanes(c.in(0).as<T>(), in[0] * in[1], in[2], in[3], state.y, state.x, c.out(0).as<T>(), c.pool);
  return {};
}

Prepared PrepareResize(const InferContext& c, int, PackCache&) {
  const ResizePlan plan = **PlanResize(c);
  ResizeRules rules = RulesOf(c.node);
  if (rules.mode == "bilinear") rules.mode = "linear";
  const auto axis = [&](size_t d) {
    return AxisOf(MakeTaps(rules, c.shape(0)[static_cast<int>(d)], plan.dims[d], plan.scales[d], 0, 1));
  };
  return {std::make_shared<PlanesState>(PlanesState{axis(2), axis(3)}), 0};
}

}  // namespace

constexpr FastKernel kFastResize[] = {{"planes", PlanesFit<float>, RunPlanes<float>, PrepareResize},
                                      {"planes f16", PlanesFit<F16>, RunPlanes<F16>, PrepareResize}};

}  // namespace celer::graph
