// Ensembles of trees: classifiers and regressors.
#include <algorithm>

#include "graph/ops/common.h"
#include "graph/ops/ml/forest.h"
#include "graph/ops/ml/ml.h"
#include "graph/ops/other_domains.h"

namespace celer::graph {
namespace {

// What a node says beside its trees.
template <class T>
struct Ensemble {
  Forest<T> forest;
  PostTransform transform = PostTransform::kNone;
  TreeSum how = TreeSum::kSum;
  std::vector<int64_t> labels;  // of a classifier
  // Of two classes, all leaves speak of one of them.
  bool one_speaks = false;
  bool all_positive = true;  // no weight is negative: sums are probabilities
};

Result<TreeSum> TreeSumOf(const Node& node) {
  constexpr std::string_view kNames[] = {"AVERAGE", "SUM", "MIN", "MAX"};
  constexpr TreeSum kSums[] = {TreeSum::kAverage, TreeSum::kSum, TreeSum::kMin, TreeSum::kMax};
  if (node.op == "TreeEnsemble") {
    const int64_t which = node.Int("aggregate_function", 1);
    if (which < 0 || which > 3) return Error::Invalid("aggregate_function is ", which, "; 0 to 3 are known");
    return kSums[which];
  }
  const std::string name = node.Text("aggregate_function", "SUM");
  for (size_t i = 0; i < 4; ++i)
    if (name == kNames[i]) return kSums[i];
  return Error::Invalid("aggregate_function is '", name, "'; AVERAGE, SUM, MIN and MAX are known");
}

template <class T>
Result<Ensemble<T>> EnsembleOf(const Node& node) {
  Ensemble<T> out;
  CELER_ASSIGN(out.forest, ForestOf<T>(node));
  if (node.op == "TreeEnsemble") {
    const int64_t transform = node.Int("post_transform", 0);
    if (transform < 0 || transform > 4)
      return Error::Invalid("post_transform is ", transform, "; 0 to 4 are known");
    out.transform = static_cast<PostTransform>(transform);
  } else {
    CELER_ASSIGN(out.transform, PostTransformOf(node));
  }
  const auto bases = static_cast<int64_t>(out.forest.base.size());
  if (node.op == "TreeEnsembleClassifier") {
    CELER_ASSIGN(out.labels, ClassLabelsOf(node, "classlabels_int64s"));
    if (bases > out.forest.targets)
      return Error::Invalid(bases, " base_values for ", out.forest.targets, " classes");
    for (const TreeWeight<T>& weight : out.forest.weights)
      out.all_positive = out.all_positive && !(weight.value < 0);
    out.one_speaks = out.forest.targets == 2 &&
                     std::all_of(out.forest.weights.begin(), out.forest.weights.end(),
                                 [&](const auto& w) { return w.target == out.forest.weights[0].target; });
  } else {
    CELER_ASSIGN(out.how, TreeSumOf(node));
  }
  return out;
}

Status CheckFeatures(const FeatureRows& x, int64_t needed) {
  if (x.features >= std::max<int64_t>(needed, 1)) return {};
  return Error::Invalid("rows of ", x.features, " features; its trees look at ", needed);
}

template <class T>
Status InferTyped(InferContext& c) {
  CELER_ASSIGN(const FeatureRows x, FeatureRowsOf(c));
  CELER_ASSIGN(const Ensemble<T> ensemble, EnsembleOf<T>(c.node));
  CELER_RETURN_IF_ERROR(CheckFeatures(x, ensemble.forest.features));
  const std::vector<int64_t> scores = {x.rows, ensemble.forest.targets};
  if (c.node.op == "TreeEnsembleClassifier") {
    const std::vector<int64_t> rows = {x.rows};
    CELER_RETURN_IF_ERROR(c.Set(0, DType::kI64, rows));
    return c.Set(1, DType::kF32, scores);
  }
  const bool wide = c.node.op == "TreeEnsemble" && c.dtype(0) == DType::kF64;
  return c.Set(0, wide ? DType::kF64 : DType::kF32, scores);
}
Status InferTrees(InferContext& c) {
  return c.dtype(0) == DType::kF64 ? InferTyped<double>(c) : InferTyped<float>(c);
}

// Two classes. Where leaves speak of one of them alone, ONNX is vague; this is what ONNX Runtime makes of it:
// a sum for the first class decides about the second. Where both have scores, the larger one decides; ONNX
// Runtime looks at the second alone there, and drops sums if there are two base values.
template <class T>
int64_t FinishPair(const Ensemble<T>& e, T* s, const uint8_t* given, float* to) {
  const std::vector<T>& base = e.forest.base;
  const bool second = given[1] != 0;
  for (size_t i = 0; i < base.size(); ++i) s[i] += base[i];
  if (!e.one_speaks || (second && base.size() == 2)) {
    to[0] = static_cast<float>(s[0]), to[1] = static_cast<float>(s[1]);
    TransformScores(e.transform, to, 2);
    return e.labels[s[1] > s[0] ? 1 : 0];
  }
  const T decides = second ? s[1] : s[0];
  if (!second && base.size() < 2) {
    TransformPair(e.transform, static_cast<float>(s[0]), e.all_positive, to);
  } else {  // the other one has no score
    to[0] = second ? 0 : static_cast<float>(s[0]);
    to[1] = second ? static_cast<float>(s[1]) : 0;
    TransformScores(e.transform, to, 2);
  }
  return e.labels[(e.all_positive ? decides > T(0.5) : decides > 0) ? 1 : 0];
}

template <class T>
int64_t FinishClasses(const Ensemble<T>& e, T* s, const uint8_t* given, float* to) {
  const int64_t n = e.forest.targets;
  if (n == 2) return FinishPair(e, s, given, to);
  int64_t best = -1;
  for (int64_t i = 0; i < n; ++i) {
    const bool has_base = i < static_cast<int64_t>(e.forest.base.size());
    if (has_base) s[i] += e.forest.base[i];
    if ((given[i] || has_base) && (best < 0 || s[i] > s[best])) best = i;
    to[i] = static_cast<float>(s[i]);
  }
  if (n > 1) TransformScores(e.transform, to, n);
  return e.labels[static_cast<size_t>(std::max<int64_t>(best, 0))];
}

template <class T>
void FinishTargets(const Ensemble<T>& e, T* s) {
  const Forest<T>& forest = e.forest;
  const bool all = static_cast<int64_t>(forest.base.size()) == forest.targets;
  for (int64_t i = 0; i < forest.targets; ++i) {
    if (e.how == TreeSum::kAverage) s[i] /= static_cast<T>(forest.roots.size());
    if (all) s[i] += forest.base[i];
  }
}

template <class T, class X>
void RunRows(const Ensemble<T>& e, const KernelContext& c, const FeatureRows& rows, int64_t begin,
             int64_t end) {
  const int64_t n = e.forest.targets, count = end - begin;
  std::vector<T> scores(static_cast<size_t>(count * n), T(0));
  std::vector<uint8_t> given(static_cast<size_t>(count * n), 0);
  const X* const x = c.in(0).as<X>() + begin * rows.features;
  SumTrees<T, X>(e.forest, e.how, x, rows.features, count, scores.data(), given.data());
  std::vector<float> room(static_cast<size_t>(n));
  for (int64_t r = 0; r < count; ++r) {
    T* const s = scores.data() + r * n;
    if (!e.labels.empty()) {
      const int64_t label = FinishClasses(e, s, given.data() + r * n, room.data());
      if (c.wants(0)) c.out(0).as<int64_t>()[begin + r] = label;
      if (c.wants(1)) std::copy(room.begin(), room.end(), c.out(1).as<float>() + (begin + r) * n);
      continue;
    }
    FinishTargets(e, s);
    std::copy(s, s + n, room.begin());
    if (n > 1)
      TransformScores(e.transform, room.data(), n);
    else if (e.transform == PostTransform::kProbit)  // as ONNX Runtime has it: alone, no other is applied
      room[0] = Probit(room[0]);
    const bool as_they_are =
        n == 1 ? e.transform != PostTransform::kProbit : e.transform == PostTransform::kNone;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = (begin + r) * n + i;
      if (c.out(0).dtype == DType::kF64)
        c.out(0).as<double>()[at] = as_they_are ? static_cast<double>(s[i]) : static_cast<double>(room[i]);
      else
        c.out(0).as<float>()[at] = room[i];
    }
  }
}

template <class T>
Status RunEnsemble(KernelContext& c, const Ensemble<T>& e) {
  CELER_ASSIGN(const FeatureRows rows, FeatureRowsOf(c));
  CELER_RETURN_IF_ERROR(CheckFeatures(rows, e.forest.features));
  const auto trees = static_cast<int64_t>(e.forest.roots.size());
  // A row of a hundred trees is some microseconds.
  const int64_t grain = std::max<int64_t>(1, 256 / std::max<int64_t>(1, trees));
  c.pool.ParallelFor(rows.rows, grain, [&](int64_t begin, int64_t end) {
    if constexpr (std::is_same_v<T, double>) {
      RunRows<T, double>(e, c, rows, begin, end);
    } else {
      DispatchOr(c.dtype(0), TypeList<float, int64_t, int32_t>{},
                 [&]<class X>() { RunRows<T, X>(e, c, rows, begin, end); });
    }
  });
  return {};
}

template <class T>
Status RunUnprepared(KernelContext& c) {
  CELER_ASSIGN(const Ensemble<T> ensemble, EnsembleOf<T>(c.node));
  return RunEnsemble(c, ensemble);
}
Status Trees(KernelContext& c) {
  return c.dtype(0) == DType::kF64 ? RunUnprepared<double>(c) : RunUnprepared<float>(c);
}

// The trees are laid out once, when a run is planned.
bool FitsTrees(const InferContext&) {
  return true;
}
template <class T>
Prepared PrepareTyped(const InferContext& c) {
  auto ensemble = EnsembleOf<T>(c.node);
  if (!ensemble) return {};  // inference has said so
  return {.state = std::make_shared<const Ensemble<T>>(std::move(*ensemble))};
}
Prepared PrepareTrees(const InferContext& c, int, PackCache&) {
  return c.dtype(0) == DType::kF64 ? PrepareTyped<double>(c) : PrepareTyped<float>(c);
}
Status RunPrepared(KernelContext& c) {
  if (!c.state) return Trees(c);
  if (c.dtype(0) == DType::kF64) return RunEnsemble(c, *static_cast<const Ensemble<double>*>(c.state));
  return RunEnsemble(c, *static_cast<const Ensemble<float>*>(c.state));
}
constexpr FastKernel kFastTrees[] = {{"flat", FitsTrees, RunPrepared, PrepareTrees}};

constexpr Operator kRows[] = {
    {"TreeEnsemble", 5, Arity(1, 1), Arity(1, 1), kFeatureTypes, InferTrees, Trees, Operator::kPlain, nullptr,
     kFastTrees, kMlDomain},
    {"TreeEnsembleClassifier", 1, Arity(1, 1), Arity(1, 2), kFeatureTypes, InferTrees, Trees,
     Operator::kPlain, nullptr, kFastTrees, kMlDomain},
    {"TreeEnsembleRegressor", 1, Arity(1, 1), Arity(1, 1), kFeatureTypes, InferTrees, Trees, Operator::kPlain,
     nullptr, kFastTrees, kMlDomain},
};

}  // namespace

std::span<const Operator> TreeOperators() {
  return kRows;
}

}  // namespace celer::graph
