// y = scale (conv(x) - mean) / sqrt(variance + eps) + shift is a convolution with other weights.
#include <cmath>

#include "graph/passes/pass.h"

namespace celer::graph {

Result<int> FuseBatchNorm(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).op != "BatchNormalization" || !r.node(n).domain.empty()) continue;
    const Node norm = r.node(n);
    bool training = norm.Int("training_mode", 0) != 0;
    for (size_t i = 1; i < norm.outputs.size(); ++i)
      training |= norm.outputs[i] != kNoValue && r.Readers(norm.outputs[i]) > 0;
    if (training || norm.inputs.size() != 5) continue;
    Node* conv = r.OnlyFor(norm.inputs[0], "Conv");
    const bool transposed = conv == nullptr;
    if (!conv) conv = r.OnlyFor(norm.inputs[0], "ConvTranspose");
    if (!conv || conv->inputs.size() < 2) continue;
    const bool has_bias = conv->inputs.size() > 2 && conv->inputs[2] != kNoValue;
    const Constant* const weight = r.ConstantOf(conv->inputs[1]);
    const Constant* const old_bias = has_bias ? r.ConstantOf(conv->inputs[2]) : nullptr;
    if (!weight || weight->dtype != DType::kF32 ||
        (has_bias && (!old_bias || old_bias->dtype != DType::kF32)))
      continue;
    std::vector<float> parts[4];
    bool known = true;
    for (size_t i = 0; i < 4; ++i) {
      const Constant* const constant = r.ConstantOf(norm.inputs[i + 1]);
      known &= constant && constant->dtype == DType::kF32;
      if (known) parts[i] = FloatsOf(*constant);
    }
    if (!known) continue;
    const auto& [scale, shift, mean, variance] = parts;
    const std::vector<int64_t> dims(weight->shape.dims().begin(), weight->shape.dims().end());
    // The weights of a transposed convolution are [in, out / groups, ...].
    const int64_t groups = conv->Int("group", 1), channels = transposed ? dims[1] * groups : dims[0];
    bool right = dims.size() >= 3 && groups >= 1;
    for (const auto& part : parts) right &= static_cast<int64_t>(part.size()) == channels;
    if (!right) continue;
    std::vector<float> factor,
        bias = has_bias ? FloatsOf(*old_bias) : std::vector<float>(static_cast<size_t>(channels), 0.0f);
    if (static_cast<int64_t>(bias.size()) != channels) continue;
    for (size_t c = 0; c < scale.size(); ++c) {
      factor.push_back(static_cast<float>(
          double{scale[c]} / std::sqrt(double{variance[c]} + double{norm.Float("epsilon", 1e-5f)})));
      bias[c] = (bias[c] - mean[c]) * factor[c] + shift[c];
    }
    std::vector<float> weights = FloatsOf(*weight);
    int64_t inner = 1;
    for (size_t i = 2; i < dims.size(); ++i) inner *= dims[i];
    const int64_t per_in = transposed ? dims[0] / groups : 0;
    for (int64_t a = 0; a < dims[0]; ++a)
      for (int64_t b = 0; b < dims[1]; ++b) {
        const int64_t channel = transposed ? a / per_in * dims[1] + b : a;
        for (int64_t k = 0; k < inner; ++k)
          weights[static_cast<size_t>((a * dims[1] + b) * inner + k)] *= factor[static_cast<size_t>(channel)];
      }
    explain(norm.Label() + " is in the weights of " + conv->Label());
    const std::string name = conv->name.empty() ? norm.name : conv->name;
    const ValueId new_weight = r.AddFloats(name + ".weight", dims, weights),
                  new_bias = r.AddFloats(name + ".bias", {channels}, bias);
    conv->inputs.resize(3);
    conv->inputs[1] = new_weight;
    conv->inputs[2] = new_bias;
    // The convolution makes what the norm made, under its name.
    r.Remove(r.node(n));
    conv->outputs[0] = norm.outputs[0];
    r.Recount();
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
