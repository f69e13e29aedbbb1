// What the operators of ai.onnx.ml share: rows of features, and what is done to scores.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/ir/operator.h"

namespace celer::graph {

inline constexpr std::string_view kMlDomain = "ai.onnx.ml";
// What features may be stored as.
inline constexpr DTypeSet kFeatureTypes = {DType::kF32, DType::kF64, DType::kI64, DType::kI32};

// [rows, features]; one dimension is one row.
struct FeatureRows {
  int64_t rows = 0, features = 0;
};
Result<FeatureRows> FeatureRowsOf(const OpInputs& c);
// The rows as f32; a copy only where they are something else.
const float* FeaturesAsFloats(const KernelContext& c, std::vector<float>& copy);

enum class PostTransform : uint8_t { kNone, kSoftmax, kLogistic, kSoftmaxZero, kProbit };
Result<PostTransform> PostTransformOf(const Node& node);

float Logistic(float x);
float Probit(float x);
// Of several scores of one row, in place.
void TransformScores(PostTransform transform, float* scores, int64_t count);
// One score of two classes: what becomes of it is in to[0] and to[1]. `probability`: it is one of the second
// class, else a distance that is positive there.
void TransformPair(PostTransform transform, float score, bool probability, float* to);

// Labels of classes: integers. Strings were made ids of the network's texts when it was loaded.
Result<std::vector<int64_t>> ClassLabelsOf(const Node& node, const char* key);

}  // namespace celer::graph
