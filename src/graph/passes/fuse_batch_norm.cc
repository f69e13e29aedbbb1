// Folds a batch norm into a convolution: y = scale (conv(x) - mean) / sqrt(variance + eps) + shift is a
// convolution with other weights.
#include <cmath>

#include "graph/passes/fusing.h"

namespace celer::graph {

Result<int> FuseBatchNorm(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).op != "BatchNormalization" || !r.node(n).domain.empty()) continue;
    const Node& norm = r.node(n);
    bool training = norm.Int("training_mode", 0) != 0;
    for (size_t i = 1; i < norm.outputs.size(); ++i)
      training |= norm.outputs[i] != kNoValue && r.Readers(norm.outputs[i]) > 0;
    if (training || norm.inputs.size() != 5) continue;
    Node* const conv = SingleUseConv(r, norm.inputs[0]);
    if (!conv) continue;
    std::vector<float> parts[4];
    bool known = true;
    for (size_t i = 0; i < 4; ++i) {
      const Constant* const constant = r.ConstantOf(norm.inputs[i + 1]);
      known &= constant && constant->dtype == DType::kF32;
      if (known) parts[i] = FloatsOf(*constant);
    }
    if (!known) continue;
    const auto& [scale, shift, mean, variance] = parts;
    for (const auto& part : parts) known &= part.size() == scale.size();
    if (!known) continue;
    ChannelScale by;
    for (size_t c = 0; c < scale.size(); ++c) {
      const double factor =
          double{scale[c]} / std::sqrt(double{variance[c]} + double{norm.Float("epsilon", 1e-5f)});
      by.factor.push_back(static_cast<float>(factor));
      by.shift.push_back(static_cast<float>(shift[c] - mean[c] * factor));
    }
    const std::string note = norm.Label() + " is in the weights of " + conv->Label();
    if (!ScaleOutputs(r, *conv, by)) continue;
    explain(note);
    TakeOver(r, *conv, r.node(n));
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
