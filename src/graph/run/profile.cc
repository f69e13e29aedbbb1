#include "graph/run/profile.h"

#include <algorithm>

namespace celer::graph {

double OperatorTime::Median() const {
  if (seconds.empty()) return 0;
  std::vector<double> sorted = seconds;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

Profile::Profile(Session& session) : session_(session), seconds_(session.program().main().nodes.size()) {
  session.Observe([this](const Node& node, const std::vector<const Data*>&, double seconds) {
    const auto index = static_cast<size_t>(&node - session_.program().graph().nodes.data());
    seconds_[index].push_back(seconds);
  });
}

Profile::~Profile() {
  session_.Observe({});
}

std::vector<OperatorTime> Profile::Times() const {
  std::vector<OperatorTime> out;
  const std::vector<CompiledNode>& nodes = session_.program().main().nodes;
  const MemoryPlan* const plan = session_.plan();
  for (size_t i = 0; i < nodes.size(); ++i) {
    OperatorTime time{.node = nodes[i].node, .seconds = seconds_[i]};
    if (plan) {
      time.kernel = plan->nodes[i].kernel_name;
      time.how = plan->nodes[i].how;
      time.flops = plan->node_flops[i];
      time.bytes = plan->node_bytes[i];
    }
    out.push_back(std::move(time));
  }
  return out;
}

}  // namespace celer::graph
