#include "quantize/network/calibrate.h"

#include "io/file/printable.h"

namespace celer::ptq {
namespace {

using graph::Data;
using graph::Graph;
using graph::Node;

// Sums of each channel of a value, for the products that read it.
struct ChannelSums {
  bool last = false;  // channels are the last dimension, not the second
  std::vector<size_t> products = {};
  std::vector<double> sums = {};
  double count = 0;  // of elements per channel

  void Add(const TensorView& tensor, std::span<const float> values) {
    const int rank = tensor.shape.rank(), axis = last ? rank - 1 : 1;
    if (rank <= axis || axis < 0 || tensor.shape[axis] == 0) return;
    const auto channels = static_cast<size_t>(tensor.shape[axis]);
    size_t inner = 1;
    for (int i = axis + 1; i < rank; ++i) inner *= static_cast<size_t>(tensor.shape[i]);
    sums.resize(channels, 0.0);
    if (sums.size() != channels || inner == 0) return;
    for (size_t i = 0; i < values.size(); i += inner) {
      float sum = 0;
      for (size_t k = 0; k < inner; ++k) sum += values[i + k];
      sums[i / inner % channels] += double{sum};
    }
    count += static_cast<double>(values.size() / channels);
  }
};

class Watcher {
 public:
  Watcher(const Graph& graph, const ValueFacts& facts) : graph_(graph) {
    for (const ValueId id : Quantizable(graph, facts)) observers_[id];
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto product = MatchProduct(graph, graph.nodes[n]);
      if (!product) continue;
      ChannelSums& sums = sums_[{graph.nodes[n].inputs[0], product->channels_last}];
      sums.last = product->channels_last;
      sums.products.push_back(n);
    }
  }

  void See(ValueId id, const Data& data) {
    const std::span<const float> values = FloatsIn(&data);
    if (values.empty() || !status_) return;
    if (const auto at = observers_.find(id); at != observers_.end())
      if (const Status added = at->second.Add(values); !added)
        status_ =
            Error::Invalid("the value '", Printable(graph_.value(id).name), "' ", added.error().message());
    for (const bool last : {false, true})
      if (const auto at = sums_.find({id, last}); at != sums_.end()) at->second.Add(data.tensor, values);
  }

  const Status& status() const { return status_; }

  Calibration Result(const RangeOptions& options) const {
    Calibration out;
    for (const auto& [id, observer] : observers_)
      if (observer.seen()) out.ranges[id] = observer.Choose(options);
    for (const auto& [key, sums] : sums_) {
      if (sums.count == 0) continue;
      std::vector<float> means;
      for (const double sum : sums.sums) means.push_back(static_cast<float>(sum / sums.count));
      for (const size_t product : sums.products) out.means[product] = means;
    }
    return out;
  }

 private:
  const Graph& graph_;
  std::map<ValueId, Observer> observers_;
  std::map<std::pair<ValueId, bool>, ChannelSums> sums_;
  Status status_;
};

}  // namespace

Result<Calibration> Calibrate(const graph::Network& network, const ValueFacts& facts, const Samples& samples,
                              const RangeOptions& options, const Progress& progress) {
  if (samples.count < 1) return Error::Invalid("there are no calibration samples");
  const Graph& graph = network.graph;
  Watcher watcher(graph, facts);
  CELER_ASSIGN(Runner runner, Runner::Make(network, false));
  runner.session().Observe([&](const Node& node, const std::vector<const Data*>& outputs, double) {
    for (size_t i = 0; i < outputs.size(); ++i)
      if (outputs[i]) watcher.See(node.outputs[i], *outputs[i]);
  });
  for (int64_t s = 0; s < samples.count; ++s) {
    CELER_ASSIGN(const std::vector<NpyArray> sample, samples.get(s));
    const auto about = [&](const Error& error) { return error.WithContext(samples.name(s)); };
    for (size_t i = 0; i < sample.size() && i < graph.inputs.size(); ++i)
      watcher.See(graph.inputs[i],
                  Data::Of(TensorView::Contiguous(const_cast<std::byte*>(sample[i].bytes.data()),
                                                  sample[i].dtype, Device::Cpu(), sample[i].shape)));
    if (const auto ran = runner.Run(sample); !ran) return about(ran.error());
    if (!watcher.status()) return about(watcher.status().error());
    if (progress) CELER_RETURN_IF_ERROR(progress("calibrating", s + 1, samples.count));
  }
  return watcher.Result(options);
}

Result<ChannelPeaks> FindPeaks(const graph::Network& network, const std::vector<size_t>& nodes,
                               const Samples& samples, const Progress& progress) {
  ChannelPeaks out;
  if (nodes.empty()) return out;
  std::map<ValueId, std::vector<float>*> watched;
  for (const size_t node : nodes) watched[network.graph.nodes[node].outputs[0]] = &out[node];
  CELER_ASSIGN(Runner runner, Runner::Make(network, false));
  runner.session().Observe([&](const Node& node, const std::vector<const Data*>& outputs, double) {
    const auto at = node.outputs.empty() ? watched.end() : watched.find(node.outputs[0]);
    if (at == watched.end() || !outputs[0]) return;
    const std::span<const float> values = FloatsIn(outputs[0]);
    const Shape& shape = outputs[0]->tensor.shape;
    if (values.empty() || shape.rank() < 2) return;
    const auto channels = static_cast<size_t>(shape[1]);
    const size_t inner = values.size() / (static_cast<size_t>(shape[0]) * channels);
    at->second->resize(channels, 0.0f);
    for (size_t i = 0; i < values.size(); ++i) {
      float& peak = (*at->second)[i / inner % channels];
      peak = std::max(peak, values[i]);
    }
  });
  for (int64_t s = 0; s < samples.count; ++s) {
    CELER_ASSIGN(const std::vector<NpyArray> sample, samples.get(s));
    if (const auto ran = runner.Run(sample); !ran) return ran.error().WithContext(samples.name(s));
    if (progress) CELER_RETURN_IF_ERROR(progress("looking for peaks", s + 1, samples.count));
  }
  return out;
}

}  // namespace celer::ptq
