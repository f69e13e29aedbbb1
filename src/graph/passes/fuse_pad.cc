#include <algorithm>

#include "graph/ir/operator.h"
#include "graph/passes/pass.h"

namespace celer::graph {

Result<int> FusePad(Rewriter& r, const std::function<void(std::string)>& explain) {
  int changes = 0;
  for (size_t n = 0; n < r.nodes(); ++n) {
    if (r.removed(n) || r.node(n).op != "Conv" || !r.node(n).domain.empty()) continue;
    Node& conv = r.node(n);
    Node* const pad = r.SingleUseProducer(conv.inputs[0], "Pad");
    if (!pad || pad->Text("mode", "constant") != "constant" || conv.Text("auto_pad", "NOTSET") != "NOTSET")
      continue;
    const Constant* const amounts = pad->inputs.size() > 1 ? r.ConstantOf(pad->inputs[1]) : nullptr;
    const Constant* const weight = r.ConstantOf(conv.inputs[1]);
    if (!amounts || !weight) continue;
    if (pad->inputs.size() > 2 && pad->inputs[2] != kNoValue && r.Scalar(pad->inputs[2]) != 0) continue;
    const auto rank = static_cast<int64_t>(weight->shape.dims().size());
    const std::vector<int64_t> numbers = ReadInts(amounts->view());
    std::vector<int64_t> axes;
    if (pad->inputs.size() > 3 && pad->inputs[3] != kNoValue) {
      const Constant* const given = r.ConstantOf(pad->inputs[3]);
      if (!given) continue;
      axes = ReadInts(given->view());
    } else {
      for (int64_t i = 0; i < rank; ++i) axes.push_back(i);
    }
    if (numbers.size() != axes.size() * 2) continue;
    std::vector<int64_t> pads = conv.Ints("pads");
    const auto spatial = static_cast<size_t>(rank - 2);
    if (pads.empty()) pads.resize(spatial * 2, 0);
    bool fits = pads.size() == spatial * 2;
    for (size_t i = 0; i < axes.size() && fits; ++i) {
      const int64_t axis = axes[i] < 0 ? axes[i] + rank : axes[i], before = numbers[i],
                    after = numbers[i + axes.size()];
      if (axis < 2) {
        fits = before == 0 && after == 0;
      } else if (axis >= rank || before < 0 || after < 0) {
        fits = false;
      } else {
        pads[axis - 2] += before;
        pads[static_cast<size_t>(axis - 2) + spatial] += after;
      }
    }
    if (!fits) continue;
    explain(pad->Label() + " is fused into " + conv.Label());
    std::erase_if(conv.attributes, [](const auto& attribute) { return attribute.first == "pads"; });
    conv.attributes.emplace_back("pads", pads);
    conv.inputs[0] = pad->inputs[0];
    r.Remove(*pad);
    ++changes;
  }
  return changes;
}

}  // namespace celer::graph
