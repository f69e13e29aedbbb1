// Graph rewrites that keep what is computed. Each pass is one file and one row of the table (passes.cc).
//
// A rule matches a node and the producers of its inputs. It fires only when what it removes has no other
// reader: no second node, no output of the graph, no subgraph.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "graph/ir/ir.h"

namespace celer::graph {

// Sample shapes of all values, for representative sizes of the inputs: a dimension that is not fixed is given
// one, the same for the same symbol. Files rarely say more than the shapes of inputs and outputs. A rule may
// take from it whether it is profitable, not whether it is legal, unless `exact`.
struct SampleShapes {
  std::vector<std::optional<Shape>> of;     // by value
  std::vector<std::optional<DType>> types;  // by value
  bool exact = false;                       // all inputs have fixed sizes
  bool exact_ranks = false;                 // no operator makes ranks that depend on sizes
};
SampleShapes SampleShapesOf(const Graph& graph);

// A graph while passes work on it: the producer and the readers of each value.
class Rewriter {
 public:
  // `shapes`, which may be none, were taken before any rewriting.
  explicit Rewriter(Graph* graph, const SampleShapes* shapes = nullptr, bool integers = false);

  Graph& graph() { return graph_; }
  // Integers are used wherever it is legal, whatever the cost model says.
  bool integers_anyway() const { return integers_anyway_; }
  // By index; nodes that were removed have no operator, and stay until Finish().
  size_t nodes() const { return graph_.nodes.size(); }
  Node& node(size_t i) { return graph_.nodes[i]; }
  bool removed(size_t i) const { return graph_.nodes[i].op.empty(); }

  // The node that produces a value; -1: none does.
  int ProducerOf(ValueId value) const { return value == kNoValue ? -1 : maker_[value]; }
  // The producer, if it is this operator of the common domain and the value has a single reader.
  Node* SingleUseProducer(ValueId value, std::string_view op);
  // The producer, if it is this operator.
  Node* ProducedBy(ValueId value, std::string_view op);
  int Readers(ValueId value) const { return value == kNoValue ? 0 : readers_[value]; }
  const Constant* ConstantOf(ValueId value) const;
  // The number of a constant with one element.
  std::optional<double> Scalar(ValueId value) const;
  std::optional<int64_t> RankOf(ValueId value) const;
  // For the sizes of SampleShapes, or by what the file says.
  std::optional<Shape> SampleOf(ValueId value) const;
  // Samples are the shapes themselves.
  bool exact_shapes() const { return shapes_ && shapes_->exact; }
  // The element type, as far as it is known.
  std::optional<DType> TypeOf(ValueId value) const;
  // Both are of one shape, so that nothing is broadcast: surely, or for the sampled sizes.
  bool LikelySameShape(ValueId a, ValueId b) const;

  // Every reader of `from` reads `to` instead, and so does the graph's list of outputs.
  void Replace(ValueId from, ValueId to);
  void Remove(Node& node);
  ValueId AddConstant(std::string name, Constant constant);
  ValueId AddFloats(std::string name, const std::vector<int64_t>& dims, const std::vector<float>& numbers);
  ValueId AddInts(std::string name, const std::vector<int64_t>& numbers);
  // Appended; Finish() restores topological order.
  Node& Add(Node node, const std::string& output);
  // What a node reads or makes was changed by hand.
  void Recount();
  // Dead-code elimination: takes removed nodes out, and those whose outputs nobody reads.
  Status Finish();

 private:
  void CountReads(const Node& one);

  Graph& graph_;
  const SampleShapes* shapes_;
  std::vector<int> maker_, readers_;
  const bool integers_anyway_;
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
  bool integers_anyway = false;           // also where floats are thought to be faster on this machine
};
// All passes in the order of the table, repeated to a fixed point, and the graph is verified after each.
// Subgraphs are left as they are. An unknown name in `without` is an error.
Result<std::vector<PassReport>> Optimize(Graph* graph, const OptimizeOptions& options = {});

// Mixed precision: values between operators become f16, and convolutions and products compute in f16, as far
// as there are kernels for it; the network's inputs and outputs stay as they are. Not one of Passes(): it
// changes what is computed, and comes last. An error, in one sentence, on a CPU without such arithmetic.
Result<PassReport> LowerToF16(Graph* graph);
// The same on any CPU; without the arithmetic it runs on reference kernels.
Result<int> ToF16(Rewriter& r, const std::function<void(std::string)>& explain);

// One per file.
Result<int> FoldConstants(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> RemoveIdentities(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> MergeEqual(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> CancelMoves(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> FuseBatchNorm(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> FuseScale(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> FusePad(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> RecoverGelu(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> RecoverSwish(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> RecoverAttention(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> FuseActivation(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> FuseProduct(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> UseIntegers(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> CancelQuantize(Rewriter& r, const std::function<void(std::string)>& explain);
Result<int> RecoverLayerNorm(Rewriter& r, const std::function<void(std::string)>& explain);

}  // namespace celer::graph
