#include "graph/load/pnnx/lowering.h"

#include <cstring>

#include "graph/ir/operator.h"

namespace celer::graph {
namespace {

// ONNX's numbers for element types, which Cast takes.
int64_t OnnxNumber(DType type) {
  switch (type) {
    case DType::kF32:
      return 1;
    case DType::kU8:
      return 2;
    case DType::kI8:
      return 3;
    case DType::kI16:
      return 5;
    case DType::kI32:
      return 6;
    case DType::kI64:
      return 7;
    case DType::kBool:
      return 9;
    case DType::kF16:
      return 10;
    case DType::kF64:
      return 11;
    default:
      return 16;  // bf16
  }
}

Constant MakeConstant(DType dtype, const Shape& shape, const void* data, size_t bytes) {
  auto copy = std::make_shared<std::vector<uint64_t>>((bytes + 7) / 8 + 1);
  if (bytes > 0) std::memcpy(copy->data(), data, bytes);
  const std::span<const std::byte> view(reinterpret_cast<const std::byte*>(copy->data()), bytes);
  return {dtype, shape, view, std::move(copy)};
}

}  // namespace

ValueId Lowering::Operand(const std::string& name) {
  const auto found = operands_.find(name);
  if (found != operands_.end()) return found->second;
  return Fail("it reads operand '", name, "', which no operator before it gives");
}

ValueId Lowering::Input(size_t i) {
  if (i >= op_->inputs.size()) return Fail("it has ", op_->inputs.size(), " inputs, too few");
  return Operand(op_->inputs[i]);
}

ValueId Lowering::Argument(const std::string& name, size_t place) {
  if (const auto found = op_->input_of.find(name); found != op_->input_of.end())
    return Operand(found->second);
  return Input(place);
}

ValueId Lowering::Weight(const std::string& key) {
  const auto found = op_->weights.find(key);
  if (found == op_->weights.end()) return kNoValue;
  return graph_.AddConstant(op_->name + "." + key, found->second);
}

bool Lowering::Has(const std::string& key) const {
  const auto found = op_->parameters.find(key);
  return found != op_->parameters.end() && !std::holds_alternative<std::monostate>(found->second);
}

int64_t Lowering::Int(const std::string& key, int64_t otherwise) {
  const std::vector<int64_t> list = Ints(key);
  if (list.empty()) return otherwise;
  return list[0];
}

double Lowering::Float(const std::string& key, double otherwise) {
  const std::vector<double> list = Floats(key);
  return list.empty() ? otherwise : list[0];
}

bool Lowering::Bool(const std::string& key, bool otherwise) {
  if (!Has(key)) return otherwise;
  if (const bool* value = std::get_if<bool>(&op_->parameters.at(key))) return *value;
  return Int(key, otherwise ? 1 : 0) != 0;
}

std::string Lowering::Text(const std::string& key, std::string_view otherwise) {
  if (!Has(key)) return std::string(otherwise);
  if (const auto* value = std::get_if<std::string>(&op_->parameters.at(key))) return *value;
  Fail("its ", key, " is no word");
  return "";
}

std::vector<int64_t> Lowering::Ints(const std::string& key) {
  if (!Has(key)) return {};
  const PnnxParameter& value = op_->parameters.at(key);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) return *list;
  if (const auto* number = std::get_if<int64_t>(&value)) return {*number};
  if (const auto* flag = std::get_if<bool>(&value)) return {*flag ? 1 : 0};
  Fail("its ", key, " is not a list of integers");
  return {};
}

std::vector<int64_t> Lowering::Ints(const std::string& key, size_t n, int64_t otherwise) {
  std::vector<int64_t> list = Ints(key);
  if (list.empty()) list = {otherwise};
  if (list.size() == 1) list.resize(n, list[0]);
  if (list.size() != n) Fail("its ", key, " has ", list.size(), " numbers, expected ", n);
  list.resize(n);
  return list;
}

std::vector<double> Lowering::Floats(const std::string& key) {
  if (!Has(key)) return {};
  const PnnxParameter& value = op_->parameters.at(key);
  if (const auto* list = std::get_if<std::vector<double>>(&value)) return *list;
  if (const auto* number = std::get_if<double>(&value)) return {*number};
  const std::vector<int64_t> ints = Ints(key);
  return {ints.begin(), ints.end()};
}

ValueId Lowering::IntsOrOperand(const std::string& key) {
  if (HasArgument(key)) return Argument(key, 0);
  if (!Has(key) && op_->inputs.size() > 1 && op_->input_of.empty()) return Input(1);
  return Constants(Ints(key));
}

std::optional<int64_t> Lowering::Rank(ValueId value) const {
  if (value == kNoValue || !graph_.value(value).type.shape) return std::nullopt;
  return static_cast<int64_t>(graph_.value(value).type.shape->size());
}

std::optional<std::vector<int64_t>> Lowering::Dims(ValueId value) const {
  if (!Rank(value)) return std::nullopt;
  std::vector<int64_t> dims;
  for (const Dim& dim : *graph_.value(value).type.shape) {
    if (!dim.fixed()) return std::nullopt;
    dims.push_back(dim.size);
  }
  return dims;
}

DType Lowering::TypeOf(ValueId value) const {
  if (value == kNoValue) return DType::kF32;
  return graph_.value(value).type.dtype.value_or(DType::kF32);
}

int64_t Lowering::Axis(int64_t axis, ValueId value) {
  const auto rank = Rank(value);
  if (axis < 0 && !rank)
    return Fail("it counts dimension ", axis, " from the end, and the file does not give its input's shape");
  if (axis < -Shape::kMaxRank || axis >= Shape::kMaxRank || (axis < 0 && axis + *rank < 0)) {
    Fail("its dimension ", axis, " is none of its input");
    return 0;
  }
  return axis < 0 ? axis + *rank : axis;
}

ValueId Lowering::Node(std::string_view name, std::initializer_list<ValueId> inputs, Attributes attributes,
                       std::optional<DType> type, int opset) {
  return Node(name, std::vector<ValueId>(inputs), std::move(attributes), type, opset);
}

ValueId Lowering::Node(std::string_view name, std::vector<ValueId> inputs, Attributes attributes,
                       std::optional<DType> type, int opset) {
  const ValueId first = inputs.empty() ? kNoValue : inputs[0];
  const ValueId out = NodeOf(name, std::move(inputs), 1, std::move(attributes), opset)[0];
  graph_.value(out).type.dtype = type ? *type : TypeOf(first);
  return out;
}

std::vector<ValueId> Lowering::NodeOf(std::string_view name, std::vector<ValueId> inputs, size_t outputs,
                                      Attributes attributes, int opset) {
  while (!inputs.empty() && inputs.back() == kNoValue) inputs.pop_back();
  std::vector<std::string> names;
  for (size_t i = 0; i < outputs; ++i) names.push_back(op_->name + "/" + std::to_string(next_++));
  return graph_
      .AddNode({.op = std::string(name),
                .name = op_->name,
                .opset = opset,
                .inputs = std::move(inputs),
                .attributes = std::move(attributes)},
               names)
      .outputs;
}

ValueId Lowering::AddConstant(Constant constant) {
  return graph_.AddConstant(op_->name + "/" + std::to_string(next_++), std::move(constant));
}

ValueId Lowering::Constants(const std::vector<int64_t>& numbers) {
  return AddConstant(
      MakeConstant(DType::kI64, ListShape(numbers.size()), numbers.data(), numbers.size() * sizeof(int64_t)));
}

ValueId Lowering::ConstantInt(int64_t number) {
  return AddConstant(MakeConstant(DType::kI64, {}, &number, sizeof(number)));
}

ValueId Lowering::ConstantFloat(double number, DType type) {
  if (type == DType::kF64) return AddConstant(MakeConstant(type, {}, &number, sizeof(number)));
  const auto single = static_cast<float>(number);
  const ValueId value = AddConstant(MakeConstant(DType::kF32, {}, &single, sizeof(single)));
  return type == DType::kF32 ? value : Cast(value, type);
}

ValueId Lowering::Cast(ValueId value, DType type) {
  if (value == kNoValue || TypeOf(value) == type) return value;
  return Node("Cast", {value}, {{"to", OnnxNumber(type)}}, type);
}

ValueId Lowering::SizeOf(ValueId value, int64_t axis) {
  return Node("Gather", {ShapeOf(value), ConstantInt(Axis(axis, value))}, {{"axis", int64_t{0}}},
              DType::kI64);
}

ValueId Lowering::Transposed(const std::string& key) {
  const auto found = op_->weights.find(key);
  if (found == op_->weights.end() || found->second.shape.dims().size() != 2)
    return Fail("it has no matrix '", key, "'");
  const Constant& from = found->second;
  const int64_t rows = from.shape.dims()[0], cols = from.shape.dims()[1];
  const auto size = static_cast<size_t>(Info(from.dtype).block_bytes);
  std::vector<std::byte> to(from.bytes.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      std::memcpy(to.data() + static_cast<size_t>(c * rows + r) * size,
                  from.bytes.data() + static_cast<size_t>(r * cols + c) * size, size);
  return AddConstant(MakeConstant(from.dtype, {cols, rows}, to.data(), to.size()));
}

void Lowering::Output(size_t i, ValueId value) {
  if (i >= op_->outputs.size()) {
    Fail("it has ", op_->outputs.size(), " outputs, expected more");
    return;
  }
  if (value == kNoValue) return;
  const std::string& name = op_->outputs[i];
  if (!operands_.emplace(name, value).second) {
    Fail("operand '", name, "' is given twice");
    return;
  }
  Value& v = graph_.value(value);
  if (const auto type = file_.operands.find(name); type != file_.operands.end()) {
    if (!v.type.shape) v.type.shape = type->second.shape;
    if (type->second.dtype && !v.constant) v.type.dtype = type->second.dtype;
  }
}

}  // namespace celer::graph
