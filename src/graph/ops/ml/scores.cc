#include <cmath>
#include <limits>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/ml/ml.h"

namespace celer::graph {

Result<FeatureRows> FeatureRowsOf(const OpInputs& c) {
  const Shape& x = c.shape(0);
  if (x.rank() == 1) return FeatureRows{1, x[0]};
  if (x.rank() == 2) return FeatureRows{x[0], x[1]};
  return Error::Invalid("features of ", x.ToString(), "; [rows, features] are expected");
}

const float* FeaturesAsFloats(const KernelContext& c, std::vector<float>& copy) {
  if (c.dtype(0) == DType::kF32) return c.in(0).as<float>();
  copy.resize(c.elements(0));
  CastElements(c.pool, c.in(0), TensorView::Contiguous(copy.data(), DType::kF32, Device::Cpu(), c.shape(0)));
  return copy.data();
}

Result<PostTransform> PostTransformOf(const Node& node) {
  struct Row {
    std::string_view name;
    PostTransform transform;
  };
  constexpr Row kNames[] = {{"NONE", PostTransform::kNone},
                            {"SOFTMAX", PostTransform::kSoftmax},
                            {"LOGISTIC", PostTransform::kLogistic},
                            {"SOFTMAX_ZERO", PostTransform::kSoftmaxZero},
                            {"PROBIT", PostTransform::kProbit}};
  const std::string name = node.Text("post_transform", "NONE");
  for (const Row& row : kNames)
    if (row.name == name) return row.transform;
  return Error::Invalid("post_transform is '", name, "'; NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT");
}

float Logistic(float x) {
  const float v = 1 / (1 + std::exp(-std::abs(x)));
  return x < 0 ? 1 - v : v;
}

// The approximation of the inverse error function that ONNX Runtime has.
float Probit(float x) {
  const float y = 2 * x - 1, log = std::log((1 - y) * (1 + y));
  const float v = 2 / (3.14159f * 0.147f) + 0.5f * log;
  const float root = std::sqrt(-v + std::sqrt(v * v - log / 0.147f));
  return 1.41421356f * (y < 0 ? -root : root);
}

namespace {

void SoftmaxOf(float* scores, int64_t count, bool skip_zeros) {
  float most = -std::numeric_limits<float>::max(), sum = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, scores[i]);
  for (int64_t i = 0; i < count; ++i) {
    // A score of zero stays one: nothing was said about its class.
    if (skip_zeros && std::abs(scores[i]) <= 1e-7f) {
      scores[i] *= std::exp(-most);
      continue;
    }
    scores[i] = std::exp(scores[i] - most);
    sum += scores[i];
  }
  for (int64_t i = 0; i < count; ++i) scores[i] /= sum;
}

}  // namespace

void TransformScores(PostTransform transform, float* scores, int64_t count) {
  switch (transform) {
    case PostTransform::kNone:
      return;
    case PostTransform::kSoftmax:
    case PostTransform::kSoftmaxZero:
      return SoftmaxOf(scores, count, transform == PostTransform::kSoftmaxZero);
    case PostTransform::kLogistic:
      for (int64_t i = 0; i < count; ++i) scores[i] = Logistic(scores[i]);
      return;
    case PostTransform::kProbit:
      for (int64_t i = 0; i < count; ++i) scores[i] = Probit(scores[i]);
      return;
  }
}

void TransformPair(PostTransform transform, float score, bool probability, float* to) {
  if (transform == PostTransform::kLogistic) {
    to[0] = Logistic(-score), to[1] = Logistic(score);
  } else if (probability) {
    to[0] = 1 - score, to[1] = score;
  } else {
    to[0] = -score, to[1] = score;
  }
}

Result<std::vector<int64_t>> ClassLabelsOf(const Node& node, const char* key) {
  std::vector<int64_t> labels = node.Ints(key);
  if (labels.empty()) return Error::Invalid("it has no labels of classes");
  if (labels.size() > 65535) return Error::Invalid(labels.size(), " classes; at most 65535 are supported");
  return labels;
}

}  // namespace celer::graph
