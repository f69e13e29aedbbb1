#include "cli/graph/compare.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "graph/ops/elements.h"

namespace celer::cli {
namespace {

std::vector<double> Numbers(DType dtype, const std::byte* data, int64_t count) {
  std::vector<double> out(static_cast<size_t>(count));
  graph::DispatchOr(dtype, graph::PlainTypes{}, [&]<class T>() {
    for (size_t i = 0; i < out.size(); ++i) {
      T value;
      std::memcpy(&value, data + i * sizeof(T), sizeof(T));
      out[i] = static_cast<double>(graph::Wide(value));
    }
  });
  return out;
}

}  // namespace

Difference Compare(const TensorView& ours, const NpyArray& theirs) {
  Difference out;
  if (ours.dtype != theirs.dtype || !(ours.shape == theirs.shape)) {
    out.error = std::numeric_limits<double>::infinity();
    out.problem = fmt::format("{}{} for {}{}", Name(ours.dtype), ours.shape.ToString(), Name(theirs.dtype),
                              theirs.shape.ToString());
    return out;
  }
  const int64_t count = *ours.shape.elements();
  const std::vector<double> a = Numbers(ours.dtype, ours.data, count),
                            b = Numbers(theirs.dtype, theirs.bytes.data(), count);
  for (const double v : b)
    if (std::isfinite(v)) out.scale = std::max(out.scale, std::abs(v));
  // A value of nothing but zeros is compared as it is.
  const double unit = out.scale > 0 ? out.scale : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const bool finite = std::isfinite(a[i]) && std::isfinite(b[i]);
    const double error = finite ? std::abs(a[i] - b[i]) / unit : std::numeric_limits<double>::infinity();
    if (error <= out.error) continue;
    out.error = error;
    out.at = static_cast<int64_t>(i);
    out.ours = a[i], out.theirs = b[i];
  }
  return out;
}

std::string Describe(const Difference& difference, const Shape& shape) {
  if (!difference.problem.empty()) return difference.problem;
  std::vector<int64_t> place(static_cast<size_t>(shape.rank()));
  int64_t rest = difference.at;
  for (int i = shape.rank(); i-- > 0; rest /= std::max<int64_t>(shape[i], 1))
    place[i] = rest % std::max<int64_t>(shape[i], 1);
  return fmt::format("an error of {:.2g} of its scale {:.3g}, at [{}]: {:.6g} instead of {:.6g}",
                     difference.error, difference.scale, fmt::join(place, ", "), difference.ours,
                     difference.theirs);
}

}  // namespace celer::cli
