// Losses of classification.
#include <cmath>

#include "graph/ops/common.h"
#include "graph/ops/families.h"

namespace celer::graph {
namespace {

// x [n, classes, ...], target [n, ...], weight [classes]
Status CheckLoss(const OpInputs& c) {
  const Shape &x = c.shape(0), &target = c.shape(1);
  bool fits = x.rank() >= 2 && target.rank() == x.rank() - 1 && target[0] == x[0];
  for (int i = 2; fits && i < x.rank(); ++i) fits = target[i - 1] == x[i];
  if (!fits || (c.dtype(1) != DType::kI64 && c.dtype(1) != DType::kI32))
    return Error::Invalid("targets of ", target.ToString(), " for ", x.ToString());
  if (c.has(2) && (c.elements(2) != x[1] || c.dtype(2) != c.dtype(0)))
    return Error::Invalid("weights of ", c.shape(2).ToString(), " for ", x[1], " classes");
  const std::string how = c.node.Text("reduction", "mean");
  if (how != "none" && how != "sum" && how != "mean") return Error::Invalid("the reduction '", how, "'");
  return {};
}
Status InferLoss(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckLoss(c));
  CELER_RETURN_IF_ERROR(c.node.Text("reduction", "mean") == "none" ? c.Set(0, c.dtype(0), c.shape(1))
                                                                   : c.Set(0, c.dtype(0), Shape{}));
  return c.Set(1, c.dtype(0), c.shape(0));
}
template <bool kSoftmax>
Status Loss(KernelContext& c) {
  const Shape& x = c.shape(0);
  const int64_t batch = x[0], classes = x[1], inner = Product(x, 2, x.rank());
  const std::string how = c.node.Text("reduction", "mean");
  const bool ignores = c.node.Find("ignore_index") != nullptr;
  const int64_t ignored = c.node.Int("ignore_index", 0);
  const std::vector<int64_t> target = ReadInts(c.in(1));
  for (const int64_t t : target)
    if ((t < 0 || t >= classes) && !(ignores && t == ignored))
      return Error::Invalid("the target ", t, " of ", classes, " classes");
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class T>() {
    double total = 0, weights = 0;
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t j = 0; j < inner; ++j) {
        const T* const row = c.in(0).as<T>() + n * classes * inner + j;
        double shift = 0;
        if (kSoftmax) {
          double most = -INFINITY, sum = 0;
          for (int64_t k = 0; k < classes; ++k)
            most = std::max(most, static_cast<double>(Wide(row[k * inner])));
          for (int64_t k = 0; k < classes; ++k)
            sum += std::exp(static_cast<double>(Wide(row[k * inner])) - most);
          shift = most + std::log(sum);
          if (c.wants(1))
            for (int64_t k = 0; k < classes; ++k)
              c.out(1).as<T>()[n * classes * inner + k * inner + j] =
                  static_cast<T>(static_cast<Compute<T>>(static_cast<double>(Wide(row[k * inner])) - shift));
        }
        const int64_t t = target[n * inner + j];
        double loss = 0;
        if (!(ignores && t == ignored)) {
          const double w = c.has(2) ? static_cast<double>(Wide(c.in(2).as<T>()[t])) : 1;
          loss = -(static_cast<double>(Wide(row[t * inner])) - shift) * w;
          weights += w;
        }
        total += loss;
        if (how == "none") c.out(0).as<T>()[n * inner + j] = static_cast<T>(static_cast<Compute<T>>(loss));
      }
    if (how == "sum") *c.out(0).as<T>() = static_cast<T>(static_cast<Compute<T>>(total));
    if (how == "mean") *c.out(0).as<T>() = static_cast<T>(static_cast<Compute<T>>(total / weights));
  });
  return {};
}

constexpr Operator kRows[] = {
    {"NegativeLogLikelihoodLoss", 12, {2, 3}, {1, 1}, kFloats, InferLoss, Loss<false>},
    {"SoftmaxCrossEntropyLoss", 12, {2, 3}, {1, 2}, kFloats, InferLoss, Loss<true>},
};

}  // namespace

std::span<const Operator> LossOperators() {
  return kRows;
}

}  // namespace celer::graph
