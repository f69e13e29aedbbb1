// Runs a network on inputs of one number everywhere, and says what came out.
//   graph resnet50.onnx 0.5
#include <celer/graph.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

int Fail(const celer::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.message().c_str());
  return 1;
}

std::string Shape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: graph NETWORK NUMBER\n");
    return 2;
  }
  const auto model = celer::GraphModel::Load(argv[1]);
  if (!model) return Fail(model.error());
  const float number = std::strtof(argv[2], nullptr);

  std::map<std::string, celer::GraphTensor> inputs;
  std::map<std::string, std::vector<float>> memory;  // a session reads inputs where they lie
  for (const celer::GraphPort& port : model->inputs()) {
    if (port.dtype != "f32")
      return Fail(celer::Error::Unsupported("the input '", port.name, "' is of ", port.dtype, ", not f32"));
    std::vector<int64_t> shape = port.shape;
    size_t elements = 1;
    for (int64_t& size : shape) {
      size = std::max<int64_t>(size, 1);  // one of what may be any number, such as pictures in a batch
      elements *= static_cast<size_t>(size);
    }
    std::vector<float>& values = memory[port.name];
    values.assign(elements, number);
    inputs[port.name] = {"f32", shape, std::as_bytes(std::span<const float>(values))};
  }
  celer::GraphSession session(*model);  // one for each thread; they share the weights
  const auto outputs = session.Run(inputs);
  if (!outputs) return Fail(outputs.error());
  for (size_t i = 0; i < outputs->size(); ++i) {
    const celer::GraphTensor& tensor = (*outputs)[i];
    std::printf("%s: %s %s", model->outputs()[i].name.c_str(), tensor.dtype.c_str(),
                Shape(tensor.shape).c_str());
    if (tensor.dtype == "f32" && !tensor.bytes.empty()) {
      const auto* const values = reinterpret_cast<const float*>(tensor.bytes.data());
      const auto* const most = std::max_element(values, values + tensor.bytes.size() / sizeof(float));
      std::printf(", the largest is %g, element %td", static_cast<double>(*most), most - values);
    }
    std::printf("\n");
  }
  return 0;
}
