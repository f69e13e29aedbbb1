// Networks of one operator (or two), made of bytes: shapes that nearly fit, attributes of any size, empty
// inputs. For fuzz targets and tests alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/ir/operator.h"
#include "graph/load/fuzz_forms.h"
#include "graph/load/load_network.h"
#include "graph/ops/elements.h"

namespace celer::graph {

// Choices out of bytes, and when they are used up, out of numbers that follow from them.
class FuzzChoices {
 public:
  explicit FuzzChoices(std::span<const uint8_t> bytes) : bytes_(bytes) {
    uint64_t seed = bytes.size();
    for (const uint8_t byte : bytes) seed = seed * 1099511628211u + byte;
    random_.seed(seed);
  }
  // 0 to n - 1.
  size_t Below(size_t n) {
    if (at_ < bytes_.size()) return bytes_[at_++] % n;
    return static_cast<size_t>(random_() % n);
  }
  bool OneIn(size_t n) { return Below(n) == 0; }

  int64_t Int() {  // mostly small, often at an end of a range
    constexpr int64_t kLimits[] = {0,
                                   -1,
                                   INT64_MIN,
                                   INT64_MAX,
                                   INT64_MIN + 1,
                                   int64_t{1} << 62,
                                   -(int64_t{1} << 62),
                                   int64_t{1} << 61,
                                   int64_t{1} << 48,
                                   int64_t{1} << 43,
                                   int64_t{1} << 32,
                                   int64_t{1} << 31,
                                   (int64_t{1} << 31) - 1,
                                   -(int64_t{1} << 31),
                                   1 << 24,
                                   1 << 20,
                                   65536,
                                   4097,
                                   1000,
                                   100};
    if (OneIn(2)) return static_cast<int64_t>(Below(9)) - 3;
    return kLimits[Below(std::size(kLimits))];
  }
  float Float() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kLimits[] = {0.0f,   -0.0f,  1.0f,   -1.0f,     std::numeric_limits<float>::quiet_NaN(),
                                 1e-40f, 3e38f,  -3e38f, kInfinity, -kInfinity,
                                 1e9f,   -1e18f, 1e18f};
    if (!OneIn(4)) return (static_cast<float>(Below(65)) - 32) / 8;
    return kLimits[Below(std::size(kLimits))];
  }

 private:
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
  std::mt19937_64 random_;
};

inline std::vector<std::string_view> FuzzSplit(std::string_view text, char at) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

// Any numbers of the tensor's type.
inline void FuzzFill(const TensorView& tensor, FuzzChoices& choices) {
  const int64_t n = *tensor.shape.elements();
  const bool plain = DispatchOr(tensor.dtype, PlainTypes{}, [&]<class T>() {
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kIsFloat<T>)
        tensor.as<T>()[i] = static_cast<T>(choices.Float());
      else if constexpr (std::is_same_v<T, bool>)
        tensor.as<T>()[i] = choices.OneIn(2);
      else
        tensor.as<T>()[i] = static_cast<T>(choices.Int());
    }
  });
  const int64_t bytes = plain ? 0 : *BytesFor(tensor.dtype, n);
  for (int64_t i = 0; i < bytes; ++i) tensor.as<uint8_t>()[i] = static_cast<uint8_t>(choices.Below(16));
}

// Makes a network of one node, a form at a time.
class FuzzNodes {
 public:
  FuzzNodes(const Operator& op, FuzzChoices& choices) : op_(op), form_(*FuzzFormOf(op)), choices_(choices) {
    std::vector<DType> types;
    for (int i = 0; i <= static_cast<int>(DType::kU2); ++i)
      if (op.types.Has(static_cast<DType>(i))) types.push_back(static_cast<DType>(i));
    // Mostly f32, where it may be: fast kernels are for it.
    type_ = op.types.Has(DType::kF32) && !choices.OneIn(3) ? DType::kF32 : types[choices.Below(types.size())];
  }

  Network Make() {
    const int opset = std::max(op_.since, op_.domain.empty() && !choices_.OneIn(4) ? 18 : op_.since);
    network_.opset = opset;
    Node node{.op = std::string(op_.name), .domain = std::string(op_.domain), .name = "node", .opset = opset};
    Specs();
    for (const Spec& spec : specs_) node.inputs.push_back(Input(spec));
    if (choices_.OneIn(16) && !node.inputs.empty())
      node.inputs[choices_.Below(node.inputs.size())] = kNoValue;
    while (!choices_.OneIn(8) && !node.inputs.empty() && node.inputs.back() == kNoValue)
      node.inputs.pop_back();
    for (const std::string_view text : FuzzSplit(form_.attributes, ' '))
      if (!text.empty()) AddAttribute(node, text);
    std::vector<std::string> names;
    const int outputs =
        form_.outputs > 1 ? 1 + static_cast<int>(choices_.Below(static_cast<size_t>(form_.outputs))) : 1;
    for (int i = 0; i < outputs; ++i) names.push_back("y" + std::to_string(i));
    const std::vector<ValueId> made = network_.graph.AddNode(std::move(node), names).outputs;
    network_.graph.outputs = made;
    if (choices_.OneIn(4)) Follow(made[0]);
    if (choices_.OneIn(16)) {  // an output that nobody reads, and that has no name
      std::vector<ValueId>& outputs_of = network_.graph.nodes.back().outputs;
      ValueId& gone = outputs_of[choices_.Below(outputs_of.size())];
      std::erase(network_.graph.outputs, gone);
      gone = kNoValue;
    }
    return std::move(network_);
  }

 private:
  struct Spec {
    char kind = 'T';
    bool given = true;
    std::vector<int64_t> dims = {};
    std::vector<double> numbers = {};
  };

  void Specs() {
    for (std::string_view text : FuzzSplit(form_.inputs, ' ')) {
      Spec spec;
      if (text.front() == '?') {
        spec.given = !choices_.OneIn(2);
        text.remove_prefix(1);
      }
      spec.kind = text.front();
      text.remove_prefix(1);
      const size_t equals = std::min(text.find('='), text.size());
      for (const std::string_view dim : FuzzSplit(text.substr(0, equals), ','))
        spec.dims.push_back(std::stoll(std::string(dim)));
      for (const std::string_view number : FuzzSplit(text.substr(std::min(equals + 1, text.size())), ','))
        spec.numbers.push_back(std::stod(std::string(number)));
      specs_.push_back(std::move(spec));
    }
    // One size becomes another in all inputs, so that they fit as before; or one tensor alone differs.
    constexpr int64_t kSizes[] = {0, 0, 1, 2, 7, 16, 64, 4096, 1 << 20, int64_t{1} << 31, int64_t{1} << 43};
    const auto size = [&] { return kSizes[choices_.Below(std::size(kSizes))]; };
    for (size_t change = choices_.Below(3); change-- > 0 && !specs_.empty();) {
      const Spec& one = specs_[choices_.Below(specs_.size())];
      if (one.dims.empty()) continue;
      const int64_t from = one.dims[choices_.Below(one.dims.size())], to = size();
      for (Spec& spec : specs_) std::replace(spec.dims.begin(), spec.dims.end(), from, to);
    }
    if (choices_.OneIn(6) && !specs_.empty()) {
      Spec& one = specs_[choices_.Below(specs_.size())];
      if (!one.dims.empty()) one.dims[choices_.Below(one.dims.size())] = size();
      if (choices_.OneIn(4)) one.dims.push_back(1 + static_cast<int64_t>(choices_.Below(3)));
      if (choices_.OneIn(4) && !one.dims.empty()) one.dims.pop_back();
    }
  }

  DType TypeOf(char kind) {
    if (choices_.OneIn(40)) {
      const auto any = static_cast<DType>(choices_.Below(static_cast<size_t>(DType::kU2) + 1));
      if (kAnyType.Has(any)) return any;
    }
    switch (kind) {
      case 'f':
        return DType::kF32;
      case 'i':
        return DType::kI64;
      case 'I':
        return DType::kI32;
      case 'b':
        return DType::kBool;
      case 'u':
        return DType::kU8;
      case 's':
        return DType::kI8;
      default:
        return type_;
    }
  }

  ValueId Input(const Spec& spec) {
    if (!spec.given) return kNoValue;
    const std::string name = "x" + std::to_string(network_.graph.values.size());
    const DType dtype = TypeOf(spec.kind);
    ValueType type{.dtype = dtype, .shape = std::vector<Dim>()};
    for (const int64_t dim : spec.dims) type.shape->push_back({dim, ""});
    auto shape = MakeShape(spec.dims);
    const bool small = shape && *shape->elements() <= 4096 && !(kSmallFloats | kSmallInts).Has(dtype);
    ValueId id = kNoValue;
    if (!small || (choices_.OneIn(2) && spec.numbers.empty())) {
      id = network_.graph.AddInput(name, type);
    } else {
      auto data = NewTensor(dtype, *shape);
      if (!data) return kNoValue;
      FuzzFill(data->tensor, choices_);
      for (size_t i = 0; i < spec.numbers.size() && static_cast<int64_t>(i) < *shape->elements(); ++i)
        if (!choices_.OneIn(8))
          DispatchOr(dtype, PlainTypes{}, [&]<class T>() {
            data->tensor.as<T>()[i] = static_cast<T>(ConvertTo<Compute<T>>(spec.numbers[i]));
          });
      const auto bytes = static_cast<size_t>(*BytesFor(dtype, *shape->elements()));
      id = network_.graph.AddConstant(name, {dtype, *shape, {data->tensor.data, bytes}, data->owner});
    }
    if (spec.kind != 'Q') return id;
    Node split{.op = "SplitToSequence", .name = "split", .opset = 18, .inputs = {id}};
    const std::string sequence = name + ".sequence";
    return network_.graph.AddNode(std::move(split), std::span(&sequence, 1)).outputs[0];
  }

  int64_t IntOr(std::string_view usual) {
    return choices_.OneIn(2) ? choices_.Int() : std::stoll(std::string(usual));
  }

  void AddAttribute(Node& node, std::string_view text) {
    const bool needed = text.back() == '!';
    if (needed) text.remove_suffix(1);
    if (needed ? choices_.OneIn(20) : choices_.OneIn(2)) return;
    const size_t colon = text.find(':');
    const std::string name(text.substr(0, colon));
    const char kind = text[colon + 1];
    const std::string_view usual = text.substr(std::min(colon + 3, text.size()));
    const auto alternatives = FuzzSplit(usual, kind == 's' ? '|' : ',');
    switch (kind) {
      case 'i':
        node.attributes.emplace_back(name, IntOr(usual));
        break;
      case 'f':
        node.attributes.emplace_back(name, choices_.Float());
        break;
      case 's':
        node.attributes.emplace_back(
            name, choices_.OneIn(10) ? std::string("?")
                                     : std::string(alternatives[choices_.Below(alternatives.size())]));
        break;
      case 'I': {
        std::vector<int64_t> list;
        for (const std::string_view one : alternatives)
          list.push_back(choices_.OneIn(3) ? choices_.Int() : std::stoll(std::string(one)));
        if (choices_.OneIn(10)) list.push_back(choices_.Int());
        if (choices_.OneIn(10)) list.clear();
        node.attributes.emplace_back(name, std::move(list));
        break;
      }
      case 'F':
        node.attributes.emplace_back(name, std::vector<float>(alternatives.size(), choices_.Float()));
        break;
      case 'S': {
        std::vector<std::string> list(alternatives.begin(), alternatives.end());
        node.attributes.emplace_back(name, std::move(list));
        break;
      }
      default: {
        auto one = NewTensor(DType::kI64, choices_.OneIn(8) ? Shape{2} : Shape{1});
        FuzzFill(one->tensor, choices_);
        const auto bytes = static_cast<size_t>(*one->tensor.shape.elements()) * 8;
        node.attributes.emplace_back(
            name, Constant{DType::kI64, one->tensor.shape, {one->tensor.data, bytes}, one->owner});
      }
    }
  }

  // Another node behind it, so that passes find something.
  void Follow(ValueId value) {
    constexpr const char* kNext[] = {"Relu",           "Identity",  "Add",  "Mul",     "Reshape",
                                     "QuantizeLinear", "Transpose", "Cast", "Softmax", "Squeeze"};
    Node next{.op = kNext[choices_.Below(std::size(kNext))], .name = "next", .opset = 18, .inputs = {value}};
    if (next.op == "Add" || next.op == "Mul" || next.op == "QuantizeLinear")
      next.inputs.push_back(Input({'f', true, {}, {0.5}}));
    if (next.op == "Reshape") next.inputs.push_back(Input({'i', true, {1}, {-1}}));
    if (next.op == "Cast") next.attributes.emplace_back("to", int64_t{1});
    if (next.op == "Softmax") next.attributes.emplace_back("axis", choices_.Int());
    const std::string name = "z";
    network_.graph.outputs = network_.graph.AddNode(std::move(next), std::span(&name, 1)).outputs;
  }

  const Operator& op_;
  const FuzzForm& form_;
  FuzzChoices& choices_;
  DType type_;
  std::vector<Spec> specs_;
  Network network_;
};

}  // namespace celer::graph
