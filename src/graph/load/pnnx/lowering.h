// Lowering of one PNNX operator to nodes of the graph: a builder, and the operator's arguments.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/ir/ir.h"
#include "graph/load/pnnx/pnnx_file.h"

namespace celer::graph {

class Lowering {
 public:
  using Attributes = std::vector<std::pair<std::string, Attribute>>;
  static constexpr int kOpset = 18;

  Lowering(const PnnxFile& file, Graph* graph) : file_(file), graph_(*graph) {}

  void Begin(const PnnxOperator& op) { op_ = &op; }
  const PnnxOperator& op() const { return *op_; }
  Graph& graph() { return graph_; }

  // The first thing that went wrong with this operator. What is built after it does not matter.
  template <class... T>
  ValueId Fail(const T&... parts) {
    if (!error_)
      error_ =
          Error::Unsupported(file_.source, ":", op_->line, ": ", op_->type, " '", op_->name, "': ", parts...);
    return kNoValue;
  }
  const std::optional<Error>& error() const { return error_; }

  // --- arguments ---
  bool HasArgument(const std::string& name) const { return op_->input_of.contains(name); }
  // The operand of an argument; by its place if the file does not say which is which.
  ValueId Argument(const std::string& name, size_t place);
  ValueId Input(size_t i);
  ValueId Operand(const std::string& name);
  size_t inputs() const { return op_->inputs.size(); }
  ValueId Weight(const std::string& key);  // kNoValue if it has none
  bool Has(const std::string& key) const;  // given, and not None
  int64_t Int(const std::string& key, int64_t otherwise);
  double Float(const std::string& key, double otherwise);
  bool Bool(const std::string& key, bool otherwise);
  std::string Text(const std::string& key, std::string_view otherwise);
  std::vector<int64_t> Ints(const std::string& key);  // a number is a list of one
  std::vector<int64_t> Ints(const std::string& key, size_t n, int64_t otherwise);  // a number stands for all
  std::vector<double> Floats(const std::string& key);
  // A parameter that may also be an operand: a list of integers.
  ValueId IntsOrOperand(const std::string& key);

  // --- what is known of a value ---
  std::optional<int64_t> Rank(ValueId value) const;
  std::optional<std::vector<int64_t>> Dims(ValueId value) const;  // only if all are known
  DType TypeOf(ValueId value) const;                              // f32 if nothing is known
  // 0 to rank - 1; an error if the rank is needed and not known.
  int64_t Axis(int64_t axis, ValueId value);

  // --- building ---
  ValueId Node(std::string_view name, std::initializer_list<ValueId> inputs, Attributes attributes = {},
               std::optional<DType> type = {}, int opset = kOpset);
  ValueId Node(std::string_view name, std::vector<ValueId> inputs, Attributes attributes = {},
               std::optional<DType> type = {}, int opset = kOpset);
  std::vector<ValueId> NodeOf(std::string_view name, std::vector<ValueId> inputs, size_t outputs,
                              Attributes attributes = {}, int opset = kOpset);
  ValueId Constants(const std::vector<int64_t>& numbers);
  ValueId ConstantInt(int64_t number);  // a scalar
  ValueId ConstantFloat(double number, DType type = DType::kF32);
  ValueId AddConstant(Constant constant);
  ValueId Cast(ValueId value, DType type);
  ValueId ShapeOf(ValueId value) { return Node("Shape", {value}, {}, DType::kI64); }
  ValueId SizeOf(ValueId value, int64_t axis);    // a scalar
  ValueId Transposed(const std::string& weight);  // the last two dimensions of a weight
  void Output(size_t i, ValueId value);

 private:
  const PnnxFile& file_;
  Graph& graph_;
  const PnnxOperator* op_ = nullptr;
  std::optional<Error> error_;
  std::map<std::string, ValueId> operands_;
  int64_t next_ = 0;
};

// One row for each operator of PNNX that is known.
struct PnnxRow {
  std::string_view type;
  void (*lower)(Lowering&);
};
const PnnxRow* FindPnnxRow(std::string_view type);

void LowerExpression(Lowering& l);  // expression_nodes.cc

}  // namespace celer::graph
