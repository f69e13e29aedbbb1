// One row of the operator table, and what its functions get to see. The rows stand in src/graph/ops, one file
// per family; operator_table.h finds them.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/tensor_view.h"
#include "device/aligned_vector.h"
#include "device/thread_pool.h"
#include "graph/ir/ir.h"

namespace celer::graph {

// What a value holds while a graph runs: nothing, a tensor, or a sequence of tensors.
struct Data {
  enum class Kind : uint8_t { kNone, kTensor, kSequence };

  Kind kind = Kind::kNone;
  bool known = true;  // false while planning: only the type and shape are there, not the elements
  TensorView tensor = {};
  std::shared_ptr<void> owner = {};  // of the tensor's memory; null when that outlives the run
  std::shared_ptr<const std::vector<Data>> items = {};

  static Data Of(const TensorView& view, std::shared_ptr<void> owner = nullptr) {
    return {Kind::kTensor, true, view, std::move(owner), nullptr};
  }
  static Data Sequence(std::vector<Data> items) {
    return {Kind::kSequence, true, {}, nullptr, std::make_shared<const std::vector<Data>>(std::move(items))};
  }
};

// A shape out of numbers that may come from a file: an error when one is negative, when there are more than
// Shape::kMaxRank, or when the elements cannot be counted. The constructors of Shape abort instead, so
// tools/check_shapes.py keeps them out of this module. An empty tensor takes no memory that would bound its
// other dimensions, and loops run over them: they have a bound of their own.
Result<Shape> MakeShape(std::span<const int64_t> dims);
inline Result<Shape> MakeShape(std::initializer_list<int64_t> dims) {
  return MakeShape(std::span(dims.begin(), dims.size()));
}
// Dimensions [begin, end) of a shape.
Shape PartOf(const Shape& shape, int begin, int end);
// A list of things that are in memory.
Shape ListShape(size_t n);
// Whether a shape has just these dimensions, which may be any numbers.
bool HasDims(const Shape& shape, std::initializer_list<int64_t> dims);

// What one tensor, and all outputs of one node together, may take: this machine's memory, or what a test
// sets.
uint64_t& MaxTensorBytes();

// A new dense tensor on the heap; its elements are undefined. An error when this machine cannot have as much.
Result<Data> NewTensor(DType dtype, const Shape& shape);

// The elements of an integer tensor of any width.
std::vector<int64_t> ReadInts(const TensorView& tensor);
// The first element of a tensor of any plain numeric type.
double ReadScalar(const TensorView& tensor);

class OpInputs {
 public:
  OpInputs(const Node& n, std::span<const Data* const> inputs) : node(n), inputs_(inputs) {}

  const Node& node;

  size_t inputs() const { return inputs_.size(); }  // given or not
  bool has(size_t i) const {
    return i < inputs_.size() && inputs_[i] && inputs_[i]->kind != Data::Kind::kNone;
  }
  // There is a value, which may still hold nothing: an optional.
  bool given(size_t i) const { return i < inputs_.size() && inputs_[i]; }
  const Data& data(size_t i) const { return *inputs_[i]; }
  const TensorView& in(size_t i) const { return inputs_[i]->tensor; }
  const Shape& shape(size_t i) const { return in(i).shape; }
  DType dtype(size_t i) const { return in(i).dtype; }
  bool known(size_t i) const { return has(i) && inputs_[i]->known; }
  int64_t elements(size_t i) const { return *in(i).shape.elements(); }
  // The numbers of an input such as the shape of a Reshape, if they are known already.
  std::optional<std::vector<int64_t>> ints(size_t i) const {
    if (!known(i)) return std::nullopt;
    return ReadInts(in(i));
  }

 protected:
  std::span<const Data* const> inputs_;
};

// Shape inference sees the types and shapes of all inputs, and the elements of those that are known. It sets
// the types and shapes of the outputs; a data-dependent one that it leaves open is allocated by the kernel.
class InferContext : public OpInputs {
 public:
  struct Output {
    bool set = false;
    DType dtype = DType::kF32;
    Shape shape = {};
  };

  InferContext(const Node& n, std::span<const Data* const> inputs, std::span<Output> outputs)
      : OpInputs(n, inputs), outputs_(outputs) {}

  size_t outputs() const { return outputs_.size(); }
  Status Set(size_t i, DType dtype, std::span<const int64_t> dims);
  Status Set(size_t i, DType dtype, std::initializer_list<int64_t> dims) {
    return Set(i, dtype, std::span(dims.begin(), dims.size()));
  }
  Status Set(size_t i, DType dtype, const Shape& shape) { return Set(i, dtype, shape.dims()); }
  const Output& output(size_t i) const { return outputs_[i]; }

 private:
  std::span<Output> outputs_;
};

// Runs a subgraph of the node; given by the executor.
class SubgraphRunner {
 public:
  virtual ~SubgraphRunner() = default;
  // Outputs own their memory.
  virtual Result<std::vector<Data>> Run(const Graph& subgraph, std::vector<Data> inputs) = 0;
};

class KernelContext : public OpInputs {
 public:
  KernelContext(const Node& n, std::span<const Data* const> inputs, std::span<Data> outputs, ThreadPool& p,
                SubgraphRunner* runner)
      : OpInputs(n, inputs), pool(p), subgraphs(runner), outputs_(outputs) {}

  ThreadPool& pool;
  SubgraphRunner* const subgraphs;
  // Of a fast kernel that asked for them.
  const void* state = nullptr;
  std::byte* workspace = nullptr;  // 64-byte aligned

  size_t outputs() const { return outputs_.size(); }
  // False for an optional output that nobody reads and that has no memory.
  bool wants(size_t i) const { return i < outputs_.size() && outputs_[i].kind != Data::Kind::kNone; }
  const TensorView& out(size_t i) const { return outputs_[i].tensor; }
  int64_t out_elements(size_t i) const { return *outputs_[i].tensor.shape.elements(); }
  // For outputs that inference left open.
  Status Allocate(size_t i, DType dtype, std::span<const int64_t> dims);
  void Set(size_t i, Data value) {
    if (i < outputs_.size()) outputs_[i] = std::move(value);
  }

 private:
  std::span<Data> outputs_;
};

using InferFn = Status (*)(InferContext&);
using KernelFn = Status (*)(KernelContext&);
// Multiplications and additions, counted as two; for reports.
using FlopsFn = double (*)(const InferContext&);

// The element offset of an output in the first input, if it is a contiguous view of it: then nothing has to
// move.
using PartFn = std::optional<int64_t> (*)(const InferContext&, size_t output);

// A set of element types.
class DTypeSet {
 public:
  constexpr DTypeSet() = default;
  constexpr DTypeSet(std::initializer_list<DType> types) {
    for (const DType type : types) bits_ |= uint64_t{1} << static_cast<int>(type);
  }
  constexpr bool Has(DType type) const { return bits_ >> static_cast<int>(type) & 1; }
  constexpr DTypeSet operator|(DTypeSet other) const {
    DTypeSet out;
    out.bits_ = bits_ | other.bits_;
    return out;
  }
  constexpr bool operator==(const DTypeSet&) const = default;

 private:
  uint64_t bits_ = 0;
};

inline constexpr DTypeSet kFloats = {DType::kF32, DType::kF64, DType::kF16, DType::kBf16};
inline constexpr DTypeSet kSigned = {DType::kI8, DType::kI16, DType::kI32, DType::kI64};
inline constexpr DTypeSet kUnsigned = {DType::kU8, DType::kU16, DType::kU32, DType::kU64};
inline constexpr DTypeSet kIntegers = kSigned | kUnsigned;
inline constexpr DTypeSet kNumbers = kFloats | kIntegers;
inline constexpr DTypeSet kBools = {DType::kBool};
inline constexpr DTypeSet kSmallFloats = {DType::kFp8E4M3,     DType::kFp8E4M3Fnuz, DType::kFp8E5M2,
                                          DType::kFp8E5M2Fnuz, DType::kFp8E8M0,     DType::kFp4E2M1};
inline constexpr DTypeSet kSmallInts = {DType::kI4, DType::kU4, DType::kI2, DType::kU2};
inline constexpr DTypeSet kAnyType = kNumbers | kBools | kSmallFloats | kSmallInts;

struct Arity {
  constexpr Arity() = default;
  constexpr Arity(int least_count, int most_count) : least(least_count), most(most_count) {}

  int least = 1;
  int most = 1;  // -1: any number
};

// What a fast kernel prepares when a run is planned: packed weights, tables.
struct Prepared {
  std::shared_ptr<const void> state;
  int64_t workspace_bytes = 0;
};

// Packed constants, by the constant and how it was packed: plans and sessions share them.
class PackCache {
 public:
  using Packed = std::shared_ptr<const AlignedVector<float>>;
  Packed Get(const void* constant, const std::string& how, const std::function<AlignedVector<float>()>& pack);

 private:
  std::mutex mutex_;
  std::map<std::pair<const void*, std::string>, Packed> packed_;
};

// A faster kernel for some of an operator's cases. Several stand in a list, best first; the first whose
// fits() holds is chosen when a run is planned, and the reference kernel is the fallback.
struct FastKernel {
  std::string_view name;
  // Sees types and shapes, and the elements of constants.
  bool (*fits)(const InferContext&);
  KernelFn run;
  Prepared (*prepare)(const InferContext&, int threads, PackCache& packs) = nullptr;
  int overwrites = -1;  // an input whose memory the first output may take, if it is as large
};

inline constexpr std::span<const FastKernel> kNoFastKernels;

struct Operator {
  std::string_view name;
  int since = 1;  // the first opset whose meaning of the operator the functions know
  Arity inputs = {};
  Arity outputs = {};
  DTypeSet types = {};  // of the first input
  InferFn infer = nullptr;
  KernelFn reference = nullptr;

  // Traits that an executor may use.
  enum Trait : unsigned {
    kPlain = 0,
    kView = 1,        // the output is the first input's memory under another shape
    kInPlace = 2,     // the first output may be written over an input of the same size
    kControl = 4,     // runs subgraphs
    kRandom = 8,      // two runs differ, so it is never computed ahead
    kSequences = 16,  // takes or gives sequences and optionals
    kShapeOnly = 32,  // looks at the shape of its input, not at its elements
    kAnyKind = 64,    // takes tensors, and sequences and optionals too
    kJoin = 128       // the output is the inputs one after the other along `axis`
  };
  unsigned traits = kPlain;
  FlopsFn flops = nullptr;  // null: one per element of the first output
  std::span<const FastKernel> fast = {};
  std::string_view domain = {};
  int until = 0;  // the last such opset; 0: the newest
  PartFn part = nullptr;
};

}  // namespace celer::graph
