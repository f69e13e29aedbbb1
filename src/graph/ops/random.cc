// Random numbers. The attribute `seed` makes them the same in every run; without it a fixed one is used, so
// that runs can be compared.
#include <cmath>
#include <random>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/families.h"

namespace celer::graph {
namespace {

std::mt19937_64 Generator(const Node& node) {
  const float seed = node.Float("seed", 1);
  return std::mt19937_64(ConvertTo<uint64_t>(std::isfinite(seed) ? std::abs(seed) * 65536.0 : 0.0));
}
Status CheckFloat(DType dtype) {
  return kFloats.Has(dtype) ? Status() : Error::Unsupported("random numbers of ", Name(dtype));
}
Status InferLike(InferContext& c) {
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "dtype", c.dtype(0)));
  CELER_RETURN_IF_ERROR(CheckFloat(dtype));
  return c.Set(0, dtype, c.shape(0));
}
Status InferGiven(InferContext& c) {
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "dtype", DType::kF32));
  CELER_RETURN_IF_ERROR(CheckFloat(dtype));
  return c.Set(0, dtype, c.node.Ints("shape"));
}
template <class Draw>
void Fill(const TensorView& out, const Draw& draw) {
  DispatchOr(out.dtype, FloatTypes{}, [&]<class T>() {
    for (int64_t i = 0; i < *out.shape.elements(); ++i)
      out.as<T>()[i] = static_cast<T>(static_cast<Compute<T>>(draw()));
  });
}
Status Uniform(KernelContext& c) {
  std::mt19937_64 generator = Generator(c.node);
  const float low = c.node.Float("low", 0), high = c.node.Float("high", 1);
  if (!(low < high) || !std::isfinite(low) || !std::isfinite(high))
    return Error::Invalid("numbers between ", low, " and ", high);
  std::uniform_real_distribution<double> draw(low, high);
  Fill(c.out(0), [&] { return draw(generator); });
  return {};
}
Status Normal(KernelContext& c) {
  std::mt19937_64 generator = Generator(c.node);
  const float mean = c.node.Float("mean", 0), scale = c.node.Float("scale", 1);
  if (!(scale >= 0)) return Error::Invalid("a scale of ", scale);
  std::normal_distribution<double> draw(0, 1);
  Fill(c.out(0), [&] { return mean + scale * draw(generator); });
  return {};
}
Status InferBernoulli(InferContext& c) {
  CELER_ASSIGN(const DType dtype, TypeAttribute(c.node, "dtype", c.dtype(0)));
  if (!(kNumbers | kBools).Has(dtype)) return Error::Unsupported("random numbers of ", Name(dtype));
  return c.Set(0, dtype, c.shape(0));
}
Status Bernoulli(KernelContext& c) {
  std::mt19937_64 generator = Generator(c.node);
  std::uniform_real_distribution<double> draw(0, 1);
  DispatchOr(c.dtype(0), FloatTypes{}, [&]<class In>() {
    DispatchOr(c.out(0).dtype, PlainTypes{}, [&]<class Out>() {
      for (int64_t i = 0; i < c.elements(0); ++i)
        c.out(0).as<Out>()[i] =
            static_cast<Out>(draw(generator) < static_cast<double>(Wide(c.in(0).as<In>()[i])));
    });
  });
  return {};
}

constexpr unsigned kR = Operator::kRandom;
constexpr Arity kOne = {1, 1}, kNone = {0, 0};
constexpr Operator kRows[] = {
    {"Bernoulli", 15, kOne, kOne, kFloats, InferBernoulli, Bernoulli, kR},
    {"RandomNormal", 1, kNone, kOne, kAnyType, InferGiven, Normal, kR},
    {"RandomNormalLike", 1, kOne, kOne, kAnyType, InferLike, Normal, kR},
    {"RandomUniform", 1, kNone, kOne, kAnyType, InferGiven, Uniform, kR},
    {"RandomUniformLike", 1, kOne, kOne, kAnyType, InferLike, Uniform, kR},
};

}  // namespace

std::span<const Operator> RandomOperators() {
  return kRows;
}

}  // namespace celer::graph
