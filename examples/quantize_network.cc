// Writes a network of 8-bit integers. Real samples would be pictures or arrays as the network will see them; these are random.
//   quantize_network net.onnx net-int8.onnx
#include <celer/graph.h>
#include <celer/quantize.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace {

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: quantize_network NETWORK OUT\n");
    return 2;
  }
  const auto model = celer::GraphModel::Load(argv[1]);
  if (!model) return Fail(model.error());
  std::mt19937 random(1);
  std::map<std::string, std::vector<float>> memory;  // holds until the next sample
  celer::QuantizeNetworkOptions options;
  options.count = 16;
  options.samples = [&](int64_t) -> celer::Result<std::map<std::string, celer::GraphTensor>> {
    std::map<std::string, celer::GraphTensor> inputs;
    for (const celer::GraphPort& port : model->inputs()) {
      if (port.dtype != "f32")
        return celer::Error::Unsupported("the input '", port.name, "' is of ", port.dtype, ", not f32");
      std::vector<int64_t> shape = port.shape;
      size_t elements = 1;
      for (int64_t& size : shape) elements *= static_cast<size_t>(size = std::max<int64_t>(size, 1));
      std::vector<float>& values = memory[port.name];
      values.resize(elements);
      std::generate(values.begin(), values.end(),
                    [&random] { return std::normal_distribution<float>()(random); });
      inputs[port.name] = {"f32", shape, std::as_bytes(std::span<const float>(values))};
    }
    return inputs;
  };
  const auto report = celer::QuantizeNetwork(argv[1], argv[2], options);
  if (!report) return Fail(report.error());
  std::printf("%lld of %lld layers as integers; constants %lld bytes, were %lld\n",
              static_cast<long long>(report->layers), static_cast<long long>(report->candidates),
              static_cast<long long>(report->bytes_after), static_cast<long long>(report->bytes_before));
  return 0;
}
