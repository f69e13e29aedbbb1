// Rewrites of a graph that keep what it computes. Each pass is one file and one row of the table (passes.cc).
//
// A rule looks at a node and what made its inputs. It fires only when what it takes away has no other reader:
// no second node, no output of the graph, no subgraph.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "graph/ir.h"

namespace celer::graph {

// A graph while passes work on it: who makes and who reads each value.
class Rewriter {
 public:
  explicit Rewriter(Graph* graph);

  Graph& graph() { return graph_; }
  // By index; nodes that were removed have no operator, and stay until Finish().
  size_t nodes() const { return graph_.nodes.size(); }
  Node& node(size_t i) { return graph_.nodes[i]; }
  bool removed(size_t i) const { return graph_.nodes[i].op.empty(); }

  // The node that makes a value; -1: none does.
  int MakerOf(ValueId value) const { return value == kNoValue ? -1 : maker_[static_cast<size_t>(value)]; }
  // The maker, if it is this operator of the common domain and nobody but one node reads the value.
  Node* OnlyFor(ValueId value, std::string_view op);
  // The maker, if it is this operator.
  Node* MadeBy(ValueId value, std::string_view op);
  int Readers(ValueId value) const { return value == kNoValue ? 0 : readers_[static_cast<size_t>(value)]; }
  const Constant* ConstantOf(ValueId value) const;
  // The number of a constant with one element.
  std::optional<double> Scalar(ValueId value) const;
  std::optional<int64_t> RankOf(ValueId value) const;

  // Everyone who reads `from` reads `to` instead, and so does the graph's list of outputs.
  void Replace(ValueId from, ValueId to);
  void Remove(Node& node);
  ValueId AddConstant(std::string name, Constant constant);
  ValueId AddFloats(std::string name, const std::vector<int64_t>& dims, const std::vector<float>& numbers);
  ValueId AddInts(std::string name, const std::vector<int64_t>& numbers);
  // Behind all others; Finish() puts the nodes in order.
  Node& Add(Node node, const std::string& output);
  // What a node reads or makes was changed by hand.
  void Recount();
  // Takes removed nodes out, and those whose outputs nobody reads.
  Status Finish();

 private:
  Graph& graph_;
  std::vector<int> maker_, readers_;
};

std::vector<float> FloatsOf(const Constant& constant);  // f32 only; else empty

struct Pass {
  std::string_view name, about;
  // How often it changed something. `explain` takes a sentence for each change.
  Result<int> (*run)(Rewriter& rewriter, const std::function<void(std::string)>& explain);
  bool portable = true;  // makes no operators of celer's own
};
std::span<const Pass> Passes();

struct PassReport {
  std::string_view name;
  int changes = 0;
  double seconds = 0;
  std::vector<std::string> notes = {};
};
struct OptimizeOptions {
  // Only what another runtime knows too: no operators of celer's own.
  bool portable = false;
  std::vector<std::string> without = {};  // names of passes that are left out
};
// All passes in the order of the table, again and again until none changes anything, and the graph is
// verified after each. Subgraphs are left as they are. An unknown name in `without` is an error.
Result<std::vector<PassReport>> Optimize(Graph* graph, const OptimizeOptions& options = {});

// One per file.
Result<int> FoldConstants(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> RemoveIdentities(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> MergeEqual(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> CancelMoves(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> FuseBatchNorm(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> FusePad(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> RecoverGelu(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> FuseActivation(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> RecoverLayerNorm(Rewriter& r, const std::function<void(std::string)>& explain);

}  // namespace celer::graph
