// Linear models, support vector machines, and what is done to features before them.
#include <cmath>
#include <limits>

#include "graph/ops/common.h"
#include "graph/ops/ml/ml.h"
#include "graph/ops/other_domains.h"

namespace celer::graph {
namespace {

float Dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// ---- linear -------------------------------------------------------------------------------------------

Status CheckCoefficients(size_t given, int64_t targets, int64_t features) {
  if (targets >= 1 && targets <= (1 << 24) && features <= (int64_t{1} << 40) / targets &&
      static_cast<int64_t>(given) == targets * features)
    return {};
  return Error::Invalid(given, " coefficients for ", targets, " targets of ", features, " features");
}

struct LinearModel {
  std::vector<float> coefficients, intercepts;
  std::vector<int64_t> labels;
  int64_t targets = 1, columns = 1;  // columns: of the scores
  PostTransform transform = PostTransform::kNone;
};
Result<LinearModel> LinearModelOf(const OpInputs& c, const FeatureRows& x) {
  LinearModel out;
  out.coefficients = c.node.Floats("coefficients");
  out.intercepts = c.node.Floats("intercepts");
  CELER_ASSIGN(out.transform, PostTransformOf(c.node));
  if (c.node.op == "LinearRegressor") {
    out.targets = out.columns = c.node.Int("targets", 1);
    CELER_RETURN_IF_ERROR(CheckCoefficients(out.coefficients.size(), out.targets, x.features));
    if (out.intercepts.empty()) out.intercepts.assign(out.targets, 0);
    if (static_cast<int64_t>(out.intercepts.size()) != out.targets)
      return Error::Invalid(out.intercepts.size(), " intercepts for ", out.targets, " targets");
    return out;
  }
  CELER_ASSIGN(out.labels, ClassLabelsOf(c.node, "classlabels_ints"));
  if (out.intercepts.empty() && x.features > 0)
    out.intercepts.assign(out.coefficients.size() / static_cast<size_t>(x.features), 0);
  out.targets = out.columns = static_cast<int64_t>(out.intercepts.size());
  CELER_RETURN_IF_ERROR(CheckCoefficients(out.coefficients.size(), out.targets, x.features));
  if (out.targets == 1 && out.labels.size() == 2) out.columns = 2;
  if (out.targets > 1 && static_cast<int64_t>(out.labels.size()) < out.targets)
    return Error::Invalid(out.labels.size(), " labels for ", out.targets, " classes");
  return out;
}

Status InferLinear(InferContext& c) {
  CELER_ASSIGN(const FeatureRows x, FeatureRowsOf(c));
  CELER_ASSIGN(const LinearModel model, LinearModelOf(c, x));
  const std::vector<int64_t> rows = {x.rows}, scores = {x.rows, model.columns};
  if (model.labels.empty()) return c.Set(0, DType::kF32, scores);
  CELER_RETURN_IF_ERROR(c.Set(0, DType::kI64, rows));
  return c.Set(1, DType::kF32, scores);
}

Status Linear(KernelContext& c) {
  CELER_ASSIGN(const FeatureRows x, FeatureRowsOf(c));
  CELER_ASSIGN(const LinearModel model, LinearModelOf(c, x));
  std::vector<float> copy;
  const float* const features = FeaturesAsFloats(c, copy);
  const bool classes = !model.labels.empty();
  Parallel(c.pool, x.rows, x.features * model.targets, [&](int64_t begin, int64_t end) {
    std::vector<float> s(static_cast<size_t>(std::max<int64_t>(model.targets, 2)));
    for (int64_t r = begin; r < end; ++r) {
      int64_t best = 0;
      for (int64_t t = 0; t < model.targets; ++t) {
        s[t] = Dot(features + r * x.features, model.coefficients.data() + t * x.features, x.features) +
               model.intercepts[t];
        if (s[t] > s[best]) best = t;
      }
      if (classes && c.wants(0)) {
        int64_t& label = c.out(0).as<int64_t>()[r];
        if (model.targets > 1)
          label = model.labels[best];
        else if (model.labels.size() == 2)
          label = model.labels[s[0] > 0 ? 1 : 0];
        else
          label = s[0] > 0 ? 1 : 0;
      }
      if (model.targets > 1)
        TransformScores(model.transform, s.data(), model.targets);
      else if (model.transform == PostTransform::kProbit)  // as ONNX Runtime has it: one score knows no other
        s[0] = Probit(s[0]);
      else if (model.columns == 2)
        TransformPair(model.transform, s[0], true, s.data());
      if (c.wants(classes ? 1 : 0))
        std::copy_n(s.begin(), model.columns, c.out(classes ? 1 : 0).as<float>() + r * model.columns);
    }
  });
  return {};
}

// ---- support vector machines --------------------------------------------------------------------------

struct SvmKernel {
  enum class Kind : uint8_t { kLinear, kPoly, kRbf, kSigmoid } kind = Kind::kLinear;
  float gamma = 0, coef0 = 0, degree = 0;

  float operator()(const float* a, const float* b, int64_t n) const {
    if (kind == Kind::kRbf) {
      float sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
      return std::exp(-gamma * sum);
    }
    const float dot = Dot(a, b, n);
    if (kind == Kind::kPoly) return std::pow(gamma * dot + coef0, degree);
    if (kind == Kind::kSigmoid) return std::tanh(gamma * dot + coef0);
    return dot;
  }
};
Result<SvmKernel> SvmKernelOf(const Node& node) {
  SvmKernel out;
  const std::string name = node.Text("kernel_type", "LINEAR");
  using K = SvmKernel::Kind;
  if (name == "POLY")
    out.kind = K::kPoly;
  else if (name == "RBF")
    out.kind = K::kRbf;
  else if (name == "SIGMOID")
    out.kind = K::kSigmoid;
  else if (name != "LINEAR")
    return Error::Invalid("kernel_type is '", name, "'; LINEAR, POLY, RBF and SIGMOID are known");
  const std::vector<float> params = node.Floats("kernel_params");
  if (params.size() != 3 && !(params.empty() && out.kind == K::kLinear))
    return Error::Invalid("kernel_params has ", params.size(), " numbers; 3 are expected");
  if (params.size() == 3) out.gamma = params[0], out.coef0 = params[1], out.degree = params[2];
  return out;
}

struct Svm {
  SvmKernel kernel;
  std::vector<float> coefficients, vectors, rho, prob_a, prob_b;
  std::vector<int64_t> per_class, starts, labels;
  int64_t supports = 0, classes = 0, pairs = 0;
  PostTransform transform = PostTransform::kNone;
};
Result<Svm> SvmOf(const OpInputs& c, const FeatureRows& x) {
  Svm out;
  const Node& node = c.node;
  CELER_ASSIGN(out.kernel, SvmKernelOf(node));
  CELER_ASSIGN(out.transform, PostTransformOf(node));
  out.coefficients = node.Floats("coefficients");
  out.vectors = node.Floats("support_vectors");
  out.rho = node.Floats("rho");
  if (out.rho.empty()) return Error::Invalid("it has no rho");
  const bool regressor = node.op == "SVMRegressor";
  if (regressor) {
    out.supports = node.Int("n_supports", 0);
    if (out.supports < 0 || out.supports > (1 << 28)) return Error::Invalid("n_supports is ", out.supports);
  } else {
    CELER_ASSIGN(out.labels, ClassLabelsOf(node, "classlabels_ints"));
    out.classes = static_cast<int64_t>(out.labels.size());
    if (out.classes > 4096) return Error::Invalid(out.classes, " classes; at most 4096 are supported");
    out.per_class = node.Ints("vectors_per_class");
    for (const int64_t count : out.per_class) {
      if (count < 0 || count > (1 << 28)) return Error::Invalid("a class with ", count, " support vectors");
      out.starts.push_back(out.supports);
      out.supports += count;
    }
    out.pairs = out.classes * (out.classes - 1) / 2;
  }
  if (out.supports == 0) {
    out.kernel.kind = SvmKernel::Kind::kLinear;
    CELER_RETURN_IF_ERROR(
        CheckCoefficients(out.coefficients.size(), regressor ? 1 : out.classes, x.features));
    return out;
  }
  if (out.supports * std::max<int64_t>(x.features, 1) != static_cast<int64_t>(out.vectors.size()) ||
      x.features == 0)
    return Error::Invalid(out.vectors.size(), " numbers for ", out.supports, " support vectors of ",
                          x.features, " features");
  const int64_t sets = regressor ? 1 : out.classes - 1;
  if (static_cast<int64_t>(out.coefficients.size()) < sets * out.supports)
    return Error::Invalid(out.coefficients.size(), " coefficients for ", out.supports, " support vectors");
  if (regressor) return out;
  out.prob_a = node.Floats("prob_a");
  out.prob_b = node.Floats("prob_b");
  const auto pairs = static_cast<size_t>(out.pairs);
  if (static_cast<int64_t>(out.per_class.size()) != out.classes || out.classes < 2 ||
      out.rho.size() < pairs || out.prob_a.size() != out.prob_b.size() ||
      (!out.prob_a.empty() && out.prob_a.size() < pairs))
    return Error::Invalid("vectors_per_class, rho, prob_a and prob_b do not fit ", out.classes, " classes");
  return out;
}

int64_t SvmColumns(const Svm& svm) {
  if (svm.supports == 0 || !svm.prob_a.empty() || svm.classes <= 2) return svm.classes;
  return svm.pairs;
}
Status InferSvm(InferContext& c) {
  CELER_ASSIGN(const FeatureRows x, FeatureRowsOf(c));
  CELER_ASSIGN(const Svm svm, SvmOf(c, x));
  const std::vector<int64_t> rows = {x.rows};
  if (svm.labels.empty()) return c.Set(0, DType::kF32, std::vector<int64_t>{x.rows, 1});
  CELER_RETURN_IF_ERROR(c.Set(0, DType::kI64, rows));
  return c.Set(1, DType::kF32, std::vector<int64_t>{x.rows, SvmColumns(svm)});
}

// Probabilities of classes from those of pairs: method 2 of Wu, Lin and Weng (2004), as libsvm has it.
void CoupleProbabilities(int64_t k, const std::vector<float>& r, float* p) {
  const auto n = static_cast<size_t>(k);
  std::vector<float> q(n * n, 0), qp(n, 0);
  const float enough = 0.005f / static_cast<float>(k);
  for (size_t i = 0; i < n; ++i) {
    p[i] = 1 / static_cast<float>(k);
    for (size_t j = 0; j < n; ++j) {
      if (j == i) continue;
      q[i * n + i] += r[j * n + i] * r[j * n + i];
      q[i * n + j] = j < i ? q[j * n + i] : -r[j * n + i] * r[i * n + j];
    }
  }
  for (int round = 0; round < 100; ++round) {
    float pqp = 0, error = 0;
    for (size_t i = 0; i < n; ++i) {
      qp[i] = 0;
      for (size_t j = 0; j < n; ++j) qp[i] += q[i * n + j] * p[j];
      pqp += p[i] * qp[i];
    }
    for (size_t i = 0; i < n; ++i) error = std::max(error, std::abs(qp[i] - pqp));
    if (error < enough) return;
    for (size_t i = 0; i < n; ++i) {
      const float step = (pqp - qp[i]) / q[i * n + i];
      p[i] += step;
      pqp = (pqp + step * (step * q[i * n + i] + 2 * qp[i])) / (1 + step) / (1 + step);
      for (size_t j = 0; j < n; ++j) {
        qp[j] = (qp[j] + step * q[i * n + j]) / (1 + step);
        p[j] /= 1 + step;
      }
    }
  }
}

// One-vs-one: scores of all pairs of classes, and the votes of each class.
void ScorePairs(const Svm& svm, const std::vector<float>& kernels, float* scores, int64_t* votes) {
  size_t pair = 0;
  for (int64_t i = 0; i + 1 < svm.classes; ++i)
    for (int64_t j = i + 1; j < svm.classes; ++j, ++pair) {
      const auto part = [&](int64_t of, int64_t set) {
        double sum = 0;
        const int64_t begin = svm.starts[of];
        for (int64_t m = begin; m < begin + svm.per_class[of]; ++m)
          sum += svm.coefficients[set * svm.supports + m] * kernels[m];
        return sum;
      };
      const double sum = part(i, j - 1) + part(j, i) + svm.rho[pair];
      scores[pair] = static_cast<float>(sum);
      ++votes[sum > 0 ? i : j];
    }
}

struct SvmRoom {
  std::vector<float> kernels, pairs, probabilities;
  std::vector<int64_t> votes;
};

int64_t ClassifyLinear(const Svm& svm, const float* x, int64_t features, float* scores) {
  int64_t best = 0;
  for (int64_t k = 0; k < svm.classes; ++k) {
    scores[k] = Dot(x, svm.coefficients.data() + k * features, features) + svm.rho[0];
    if (scores[k] > scores[best]) best = k;
  }
  if (svm.classes == 2) {
    bool positive = true;
    for (const float w : svm.coefficients) positive = positive && w >= 0;
    if (positive ? scores[best] >= 0.5f : scores[best] > 0) best = 1;
  }
  TransformScores(svm.transform, scores, svm.classes);
  return svm.labels[best];
}

int64_t Classify(const Svm& svm, const float* x, int64_t features, SvmRoom& room, float* scores) {
  if (svm.supports == 0) return ClassifyLinear(svm, x, features, scores);
  for (int64_t m = 0; m < svm.supports; ++m)
    room.kernels[m] = svm.kernel(x, svm.vectors.data() + m * features, features);
  std::fill(room.votes.begin(), room.votes.end(), 0);
  ScorePairs(svm, room.kernels, room.pairs.data(), room.votes.data());
  const int64_t label =
      svm.labels[std::max_element(room.votes.begin(), room.votes.end()) - room.votes.begin()];
  if (!svm.prob_a.empty()) {
    size_t pair = 0;
    const auto n = static_cast<size_t>(svm.classes);
    for (size_t i = 0; i + 1 < n; ++i)
      for (size_t j = i + 1; j < n; ++j, ++pair) {
        const float p = 1 - Logistic(room.pairs[pair] * svm.prob_a[pair] + svm.prob_b[pair]);
        room.probabilities[i * n + j] = std::min(std::max(p, 1e-7f), 1 - 1e-7f);
        room.probabilities[j * n + i] = 1 - room.probabilities[i * n + j];
      }
    CoupleProbabilities(svm.classes, room.probabilities, scores);
    TransformScores(svm.transform, scores, svm.classes);
  } else if (svm.classes == 2) {
    TransformPair(svm.transform, room.pairs[0], svm.transform != PostTransform::kNone, scores);
  } else {
    std::copy(room.pairs.begin(), room.pairs.end(), scores);
    TransformScores(svm.transform, scores, svm.pairs);
  }
  return label;
}

Status SvmClassifier(KernelContext& c) {
  CELER_ASSIGN(const FeatureRows x, FeatureRowsOf(c));
  CELER_ASSIGN(const Svm svm, SvmOf(c, x));
  std::vector<float> copy;
  const float* const features = FeaturesAsFloats(c, copy);
  const int64_t columns = SvmColumns(svm);
  Parallel(c.pool, x.rows, std::max<int64_t>(svm.supports, 1) * x.features, [&](int64_t begin, int64_t end) {
    SvmRoom room{.kernels = std::vector<float>(static_cast<size_t>(svm.supports)),
                 .pairs = std::vector<float>(static_cast<size_t>(std::max<int64_t>(svm.pairs, 1))),
                 .probabilities = std::vector<float>(static_cast<size_t>(svm.classes * svm.classes)),
                 .votes = std::vector<int64_t>(static_cast<size_t>(svm.classes))};
    std::vector<float> scores(static_cast<size_t>(std::max<int64_t>(columns, 2)));
    for (int64_t r = begin; r < end; ++r) {
      const int64_t label = Classify(svm, features + r * x.features, x.features, room, scores.data());
      if (c.wants(0)) c.out(0).as<int64_t>()[r] = label;
      if (c.wants(1)) std::copy_n(scores.begin(), columns, c.out(1).as<float>() + r * columns);
    }
  });
  return {};
}

Status SvmRegressor(KernelContext& c) {
  CELER_ASSIGN(const FeatureRows x, FeatureRowsOf(c));
  CELER_ASSIGN(const Svm svm, SvmOf(c, x));
  std::vector<float> copy;
  const float* const features = FeaturesAsFloats(c, copy);
  const bool one_class = c.node.Int("one_class", 0) != 0;
  Parallel(c.pool, x.rows, std::max<int64_t>(svm.supports, 1) * x.features, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* const row = features + r * x.features;
      float sum = svm.rho[0];
      if (svm.supports == 0) {
        sum += Dot(row, svm.coefficients.data(), x.features);
      } else {
        float parts = 0;
        for (int64_t m = 0; m < svm.supports; ++m)
          parts += svm.coefficients[m] * svm.kernel(row, svm.vectors.data() + m * x.features, x.features);
        sum += parts;
      }
      c.out(0).as<float>()[r] = one_class ? (sum > 0 ? 1.0f : -1.0f) : sum;
    }
  });
  return {};
}

// ---- features -----------------------------------------------------------------------------------------

// One number for all features, or one for each.
Status CheckPerFeature(const char* what, size_t given, int64_t features) {
  if (given == 1 || static_cast<int64_t>(given) == features) return {};
  return Error::Invalid(what, " has ", given, " numbers for ", features, " features");
}
int64_t LastOf(const Shape& shape) {
  return shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
}

Status InferScaler(InferContext& c) {
  const int64_t features = LastOf(c.shape(0));
  CELER_RETURN_IF_ERROR(CheckPerFeature("scale", c.node.Floats("scale").size(), features));
  CELER_RETURN_IF_ERROR(CheckPerFeature("offset", c.node.Floats("offset").size(), features));
  return c.Set(0, DType::kF32, c.shape(0));
}
Status Scale(KernelContext& c) {
  const std::vector<float> scale = c.node.Floats("scale"), offset = c.node.Floats("offset");
  const int64_t features = LastOf(c.shape(0));
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    for (int64_t i = 0; i < c.elements(0); ++i) {
      const auto f = static_cast<size_t>(i % features);
      c.out(0).as<float>()[i] = static_cast<float>(
          (static_cast<float>(Wide(c.in(0).as<T>()[i])) - offset[offset.size() == 1 ? 0 : f]) *
          scale[scale.size() == 1 ? 0 : f]);
    }
  });
  return {};
}

Status InferNormalizer(InferContext& c) {
  CELER_ASSIGN([[maybe_unused]] const FeatureRows x, FeatureRowsOf(c));
  const std::string norm = c.node.Text("norm", "MAX");
  if (norm != "MAX" && norm != "L1" && norm != "L2")
    return Error::Invalid("norm is '", norm, "'; MAX, L1 and L2 are known");
  return c.Set(0, DType::kF32, c.shape(0));
}
Status Normalize(KernelContext& c) {
  CELER_ASSIGN(const FeatureRows x, FeatureRowsOf(c));
  const std::string norm = c.node.Text("norm", "MAX");
  std::vector<float> copy;
  const float* const features = FeaturesAsFloats(c, copy);
  float* const out = c.out(0).as<float>();
  for (int64_t r = 0; r < x.rows; ++r) {
    const float* const row = features + r * x.features;
    float size = norm == "MAX" ? std::numeric_limits<float>::lowest() : 0;
    for (int64_t i = 0; i < x.features; ++i) {
      if (norm == "MAX") size = std::max(size, row[i]);
      if (norm == "L1") size += std::abs(row[i]);
      if (norm == "L2") size += row[i] * row[i];
    }
    if (norm == "L2") size = std::sqrt(size);
    for (int64_t i = 0; i < x.features; ++i) out[r * x.features + i] = size != 0 ? row[i] / size : row[i];
  }
  return {};
}

Status InferImputer(InferContext& c) {
  const bool ints = c.dtype(0) == DType::kI64;
  const size_t given =
      ints ? c.node.Ints("imputed_value_int64s").size() : c.node.Floats("imputed_value_floats").size();
  CELER_RETURN_IF_ERROR(
      CheckPerFeature(ints ? "imputed_value_int64s" : "imputed_value_floats", given, LastOf(c.shape(0))));
  return InferSame(c);
}
template <class T>
void Impute(KernelContext& c, const std::vector<T>& by, T missing) {
  const int64_t features = LastOf(c.shape(0));
  for (int64_t i = 0; i < c.elements(0); ++i) {
    const T x = c.in(0).as<T>()[i];
    const bool gone = x == missing || (x != x && missing != missing);
    c.out(0).as<T>()[i] = gone ? by[by.size() == 1 ? 0 : static_cast<size_t>(i % features)] : x;
  }
}
Status Imputer(KernelContext& c) {
  const std::vector<float> floats = c.node.Floats("imputed_value_floats");
  const float missing = c.node.Float("replaced_value_float", 0);
  if (c.dtype(0) == DType::kI64)
    Impute<int64_t>(c, c.node.Ints("imputed_value_int64s"), c.node.Int("replaced_value_int64", 0));
  else if (c.dtype(0) == DType::kF32)
    Impute<float>(c, floats, missing);
  else
    Impute<double>(c, {floats.begin(), floats.end()}, static_cast<double>(missing));
  return {};
}

Status Binarize(KernelContext& c) {
  const float threshold = c.node.Float("threshold", 0);
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    for (int64_t i = 0; i < c.elements(0); ++i)
      c.out(0).as<T>()[i] =
          static_cast<T>(Wide(c.in(0).as<T>()[i]) > static_cast<Compute<T>>(threshold) ? 1.0f : 0.0f);
  });
  return {};
}

constexpr Arity kOne = {1, 1};
constexpr DTypeSet kFloatOrInt = {DType::kF32, DType::kF64, DType::kI64};
// The fields between the kernel and the domain are those of an operator that has nothing special.
constexpr Operator MlRow(std::string_view name, Arity outputs, DTypeSet types, InferFn infer, KernelFn run) {
  return {name, 1, kOne, outputs, types, infer, run, Operator::kPlain, nullptr, {}, kMlDomain};
}
constexpr Operator kRows[] = {
    MlRow("Binarizer", kOne, kFeatureTypes, InferSame, Binarize),
    MlRow("Imputer", kOne, kFloatOrInt, InferImputer, Imputer),
    MlRow("LinearClassifier", {1, 2}, kFeatureTypes, InferLinear, Linear),
    MlRow("LinearRegressor", kOne, kFeatureTypes, InferLinear, Linear),
    MlRow("Normalizer", kOne, kFeatureTypes, InferNormalizer, Normalize),
    MlRow("SVMClassifier", {1, 2}, kFeatureTypes, InferSvm, SvmClassifier),
    MlRow("SVMRegressor", kOne, kFeatureTypes, InferSvm, SvmRegressor),
    MlRow("Scaler", kOne, kFeatureTypes, InferScaler, Scale),
};

}  // namespace

std::span<const Operator> LinearModelOperators() {
  return kRows;
}

}  // namespace celer::graph
