// Operators that run subgraphs, and sequences and optionals of tensors.
#include <cstring>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/strided.h"

namespace celer::graph {
namespace {

Status InferNothing(InferContext&) {
  return {};
}

size_t Bytes(const TensorView& tensor) {
  return static_cast<size_t>(*BytesFor(tensor.dtype, *tensor.shape.elements()));
}

// A value that stays when the memory it lies in is used for something else.
Result<Data> Keep(const Data& data) {
  if (data.kind != Data::Kind::kTensor || data.owner) return data;
  CELER_ASSIGN(Data copy, NewTensor(data.tensor.dtype, data.tensor.shape));
  if (Bytes(copy.tensor) > 0) std::memcpy(copy.tensor.data, data.tensor.data, Bytes(copy.tensor));
  return copy;
}
Result<Data> Scalar(DType dtype, int64_t value) {
  CELER_ASSIGN(Data out, NewTensor(dtype, Shape{}));
  if (dtype == DType::kBool)
    *out.tensor.as<bool>() = value != 0;
  else
    *out.tensor.as<int64_t>() = value;
  return out;
}
Result<bool> Truth(const Data& data) {
  if (data.kind != Data::Kind::kTensor || data.tensor.dtype != DType::kBool ||
      *data.tensor.shape.elements() != 1)
    return Error::Invalid("its condition is not one boolean");
  return *data.tensor.as<bool>();
}
Result<const Graph*> Subgraph(const Node& node, const char* key) {
  const auto* const found = node.Get<std::shared_ptr<Graph>>(key);
  if (!found) return Error::Corrupt("it has no ", key);
  return static_cast<const Graph*>(found->get());
}

Status If(KernelContext& c) {
  CELER_ASSIGN(const bool condition, Truth(c.data(0)));
  CELER_ASSIGN(const Graph* const branch, Subgraph(c.node, condition ? "then_branch" : "else_branch"));
  CELER_ASSIGN(std::vector<Data> out, c.subgraphs->Run(*branch, {}));
  if (out.size() < c.outputs())
    return Error::Corrupt("its branch gives ", out.size(), " of ", c.outputs(), " outputs");
  for (size_t i = 0; i < c.outputs(); ++i) c.Set(i, std::move(out[i]));
  return {};
}

// Tensors of one shape, side by side along a new axis.
Result<Data> Stack(ThreadPool& pool, const std::vector<Data>& items, int64_t axis_given, bool reversed) {
  const TensorView& first = items[0].tensor;
  CELER_ASSIGN(const int axis, CheckAxis(axis_given, first.shape.rank() + 1));
  std::vector<int64_t> dims = Dims(first.shape);
  dims.insert(dims.begin() + axis, static_cast<int64_t>(items.size()));
  CELER_ASSIGN(const Shape shape, MakeShape(dims));
  CELER_ASSIGN(Data out, NewTensor(first.dtype, shape));
  const int64_t outer = Product(first.shape, 0, axis), inner = Product(first.shape, axis, first.shape.rank());
  const auto count = static_cast<int64_t>(items.size());
  const int64_t size[] = {outer, inner}, from[] = {inner, 1}, to[] = {inner * count, 1};
  for (int64_t i = 0; i < count; ++i) {
    const Data& item = items[i];
    if (item.kind != Data::Kind::kTensor || item.tensor.dtype != first.dtype ||
        !(item.tensor.shape == first.shape))
      return Error::Invalid("its body gives another shape or type in another round");
    const int64_t at = (reversed ? count - 1 - i : i) * inner;
    CopyStrided(pool, first.dtype, size, item.tensor.data, from,
                out.tensor.data + at * Info(first.dtype).block_bytes, to);
  }
  return out;
}
// An output that no round has made: its type comes from the body, and it has no elements.
Result<Data> EmptyStack(const Value& value) {
  std::vector<int64_t> dims = {0};
  if (value.type.shape)
    for (const Dim& dim : *value.type.shape) dims.push_back(std::max<int64_t>(dim.size, 0));
  CELER_ASSIGN(const Shape shape, MakeShape(dims));
  return NewTensor(value.type.dtype.value_or(DType::kF32), shape);
}

// max_rounds, condition, carried values...
Status Loop(KernelContext& c) {
  CELER_ASSIGN(const Graph* const body, Subgraph(c.node, "body"));
  const size_t carried = c.inputs() > 2 ? c.inputs() - 2 : 0;
  if (body->inputs.size() != carried + 2 || body->outputs.size() < carried + 1 ||
      c.outputs() > body->outputs.size() - 1)
    return Error::Corrupt("its body has ", body->inputs.size(), " inputs and ", body->outputs.size(),
                          " outputs for ", carried, " carried values");
  int64_t rounds = INT64_MAX;
  if (c.has(0)) {
    const auto given = c.ints(0);
    if (!given || given->size() != 1) return Error::Invalid("its number of rounds is not one number");
    rounds = (*given)[0];
  }
  bool going = true;
  if (c.has(1)) {
    CELER_ASSIGN(going, Truth(c.data(1)));
  }
  std::vector<Data> state;
  for (size_t i = 0; i < carried; ++i) state.push_back(c.has(i + 2) ? c.data(i + 2) : Data{});
  const size_t scans = body->outputs.size() - 1 - carried;
  std::vector<std::vector<Data>> made(scans);
  for (int64_t round = 0; round < rounds && going; ++round) {
    std::vector<Data> in(2);
    CELER_ASSIGN(in[0], Scalar(DType::kI64, round));
    CELER_ASSIGN(in[1], Scalar(DType::kBool, going));
    for (Data& value : state) in.push_back(std::move(value));
    CELER_ASSIGN(std::vector<Data> out, c.subgraphs->Run(*body, std::move(in)));
    CELER_ASSIGN(going, Truth(out[0]));
    for (size_t i = 0; i < carried; ++i) state[i] = std::move(out[i + 1]);
    for (size_t i = 0; i < scans; ++i) made[i].push_back(std::move(out[i + 1 + carried]));
  }
  for (size_t i = 0; i < carried && i < c.outputs(); ++i) {
    CELER_ASSIGN(Data kept, Keep(state[i]));
    c.Set(i, std::move(kept));
  }
  for (size_t i = 0; i < scans && carried + i < c.outputs(); ++i) {
    if (made[i].empty()) {
      CELER_ASSIGN(Data empty, EmptyStack(body->value(body->outputs[carried + 1 + i])));
      c.Set(carried + i, std::move(empty));
      continue;
    }
    CELER_ASSIGN(Data stacked, Stack(c.pool, made[i], 0, false));
    c.Set(carried + i, std::move(stacked));
  }
  return {};
}

// One slice of a tensor along an axis, without that axis.
Result<Data> SliceAt(ThreadPool& pool, const TensorView& from, int axis, int64_t index) {
  std::vector<int64_t> dims = Dims(from.shape);
  dims.erase(dims.begin() + axis);
  CELER_ASSIGN(const Shape shape, MakeShape(dims));
  CELER_ASSIGN(Data out, NewTensor(from.dtype, shape));
  const int64_t outer = Product(from.shape, 0, axis),
                inner = Product(from.shape, axis + 1, from.shape.rank());
  const int64_t size[] = {outer, inner}, step[] = {inner * from.shape[axis], 1}, to[] = {inner, 1};
  CopyStrided(pool, from.dtype, size, from.data + index * inner * Info(from.dtype).block_bytes, step,
              out.tensor.data, to);
  return out;
}

// states..., sequences...
Status Scan(KernelContext& c) {
  CELER_ASSIGN(const Graph* const body, Subgraph(c.node, "body"));
  const int64_t given = c.node.Int("num_scan_inputs", 0);
  if (given < 1 || given > static_cast<int64_t>(c.inputs()) || body->inputs.size() != c.inputs())
    return Error::Corrupt("it has ", given, " scanned inputs of ", c.inputs());
  const auto scanned = static_cast<size_t>(given);
  const size_t states = c.inputs() - scanned;
  if (body->outputs.size() < states || c.outputs() > body->outputs.size())
    return Error::Corrupt("its body has ", body->outputs.size(), " outputs for ", states, " states");
  const size_t outputs = body->outputs.size() - states;
  const auto entry = [&](const char* key, size_t i) {
    const std::vector<int64_t> list = c.node.Ints(key);
    return i < list.size() ? list[i] : int64_t{0};
  };
  std::vector<int> axes;
  int64_t rounds = -1;
  for (size_t i = 0; i < scanned; ++i) {
    if (c.data(states + i).kind != Data::Kind::kTensor)
      return Error::Invalid("it scans something else than tensors");
    CELER_ASSIGN(const int axis, CheckAxis(entry("scan_input_axes", i), c.shape(states + i).rank()));
    axes.push_back(axis);
    const int64_t length = c.shape(states + i)[axis];
    if (rounds >= 0 && length != rounds)
      return Error::Invalid("its scanned inputs are ", rounds, " and ", length, " long");
    rounds = length;
  }
  std::vector<Data> state;
  for (size_t i = 0; i < states; ++i) state.push_back(c.data(i));
  std::vector<std::vector<Data>> made(outputs);
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<Data> in;
    for (Data& value : state) in.push_back(std::move(value));
    for (size_t i = 0; i < scanned; ++i) {
      const int64_t at = entry("scan_input_directions", i) == 1 ? rounds - 1 - round : round;
      CELER_ASSIGN(Data slice, SliceAt(c.pool, c.in(states + i), axes[i], at));
      in.push_back(std::move(slice));
    }
    CELER_ASSIGN(std::vector<Data> out, c.subgraphs->Run(*body, std::move(in)));
    for (size_t i = 0; i < states; ++i) state[i] = std::move(out[i]);
    for (size_t i = 0; i < outputs; ++i) made[i].push_back(std::move(out[states + i]));
  }
  for (size_t i = 0; i < states && i < c.outputs(); ++i) {
    CELER_ASSIGN(Data kept, Keep(state[i]));
    c.Set(i, std::move(kept));
  }
  for (size_t i = 0; i < outputs && states + i < c.outputs(); ++i) {
    if (made[i].empty()) {
      CELER_ASSIGN(Data empty, EmptyStack(body->value(body->outputs[states + i])));
      c.Set(states + i, std::move(empty));
      continue;
    }
    CELER_ASSIGN(Data stacked, Stack(c.pool, made[i], entry("scan_output_axes", i),
                                     entry("scan_output_directions", i) == 1));
    c.Set(states + i, std::move(stacked));
  }
  return {};
}

// Sequences.

Status CheckSequence(const OpInputs& c, size_t i) {
  if (!c.has(i) || c.data(i).kind != Data::Kind::kSequence)
    return Error::Invalid("its input ", i, " is no sequence");
  return {};
}
// A place in a sequence of n; `end` counts as one for inserting.
Result<size_t> Position(const OpInputs& c, size_t input, size_t n, bool end) {
  const auto size = static_cast<int64_t>(n);
  if (!c.has(input)) return n;
  const auto given = c.ints(input);
  if (!given || given->size() != 1) return Error::Invalid("its position is not one number");
  const int64_t most = end ? size : size - 1;
  if ((*given)[0] < -size || (*given)[0] > most)
    return Error::Invalid("the position ", (*given)[0], " is outside of a sequence of ", size);
  return static_cast<size_t>((*given)[0] < 0 ? (*given)[0] + size : (*given)[0]);
}

Status SequenceConstruct(KernelContext& c) {
  std::vector<Data> items;
  for (size_t i = 0; i < c.inputs(); ++i) {
    CELER_ASSIGN(Data item, Keep(c.data(i)));
    items.push_back(std::move(item));
  }
  c.Set(0, Data::Sequence(std::move(items)));
  return {};
}
Status SequenceEmpty(KernelContext& c) {
  c.Set(0, Data::Sequence({}));
  return {};
}
Status SequenceInsert(KernelContext& c) {
  CELER_RETURN_IF_ERROR(CheckSequence(c, 0));
  std::vector<Data> items = *c.data(0).items;
  CELER_ASSIGN(const size_t at, Position(c, 2, items.size(), true));
  CELER_ASSIGN(Data item, Keep(c.data(1)));
  items.insert(items.begin() + static_cast<long>(at), std::move(item));
  c.Set(0, Data::Sequence(std::move(items)));
  return {};
}
Status SequenceErase(KernelContext& c) {
  CELER_RETURN_IF_ERROR(CheckSequence(c, 0));
  std::vector<Data> items = *c.data(0).items;
  if (items.empty()) return Error::Invalid("its sequence is empty");
  CELER_ASSIGN(size_t at, Position(c, 1, items.size(), false));
  at = std::min(at, items.size() - 1);
  items.erase(items.begin() + static_cast<long>(at));
  c.Set(0, Data::Sequence(std::move(items)));
  return {};
}
Status SequenceAt(KernelContext& c) {
  CELER_RETURN_IF_ERROR(CheckSequence(c, 0));
  if (c.data(0).items->empty()) return Error::Invalid("its sequence is empty");
  CELER_ASSIGN(const size_t at, Position(c, 1, c.data(0).items->size(), false));
  c.Set(0, (*c.data(0).items)[at]);
  return {};
}
Status SequenceLength(KernelContext& c) {
  CELER_RETURN_IF_ERROR(CheckSequence(c, 0));
  CELER_ASSIGN(Data length, Scalar(DType::kI64, static_cast<int64_t>(c.data(0).items->size())));
  c.Set(0, std::move(length));
  return {};
}
Status ConcatFromSequence(KernelContext& c) {
  CELER_RETURN_IF_ERROR(CheckSequence(c, 0));
  const std::vector<Data>& items = *c.data(0).items;
  if (items.empty()) return Error::Invalid("its sequence is empty");
  if (c.node.Int("new_axis", 0) != 0) {
    CELER_ASSIGN(Data stacked, Stack(c.pool, items, c.node.Int("axis", 0), false));
    c.Set(0, std::move(stacked));
    return {};
  }
  const TensorView& first = items[0].tensor;
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), first.shape.rank()));
  std::vector<int64_t> dims = Dims(first.shape);
  dims[axis] = 0;
  for (const Data& item : items) {
    bool fits = item.kind == Data::Kind::kTensor && item.tensor.dtype == first.dtype &&
                item.tensor.shape.rank() == first.shape.rank();
    for (int i = 0; fits && i < first.shape.rank(); ++i)
      fits = i == axis || item.tensor.shape[i] == first.shape[i];
    if (!fits) return Error::Invalid("its tensors do not fit together along axis ", axis);
    dims[axis] += item.tensor.shape[axis];
  }
  CELER_RETURN_IF_ERROR(c.Allocate(0, first.dtype, dims));
  const int64_t outer = Product(first.shape, 0, axis),
                row = Product(c.out(0).shape, axis, first.shape.rank());
  int64_t at = 0;
  for (const Data& item : items) {
    const int64_t part = Product(item.tensor.shape, axis, first.shape.rank());
    const int64_t size[] = {outer, part}, from[] = {part, 1}, to[] = {row, 1};
    CopyStrided(c.pool, first.dtype, size, item.tensor.data, from,
                c.out(0).data + at * Info(first.dtype).block_bytes, to);
    at += part;
  }
  return {};
}
constexpr int64_t kMostItems = 1 << 17;  // each costs memory, whatever its size
Status SplitToSequence(KernelContext& c) {
  const TensorView& in = c.in(0);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), in.shape.rank()));
  const int64_t n = in.shape[axis];
  std::vector<int64_t> parts;
  bool drop = false;
  if (c.has(1)) {
    const std::vector<int64_t> given = *c.ints(1);
    if (c.shape(1).rank() == 0) {
      if (given.empty() || given[0] < 1) return Error::Invalid("pieces of ", given.empty() ? 0 : given[0]);
      if (n / given[0] > kMostItems) return Error::Invalid(n / given[0], " pieces; at most ", kMostItems);
      for (int64_t at = 0; at < n; at += std::min(given[0], n - at))
        parts.push_back(std::min(given[0], n - at));
    } else {
      parts = given;
    }
  } else {
    if (n > kMostItems) return Error::Invalid(n, " pieces; at most ", kMostItems);
    parts.assign(n, 1);
    drop = c.node.Int("keepdims", 1) == 0;
  }
  int64_t sum = 0;
  for (const int64_t part : parts) {
    if (part < 0 || part > n - sum)
      return Error::Invalid("a piece of ", part, " after ", sum, " of an axis of ", n);
    sum += part;
  }
  if (sum != n) return Error::Invalid("pieces of ", sum, " in all for an axis of ", n);
  std::vector<Data> items;
  int64_t at = 0;
  const int64_t outer = Product(in.shape, 0, axis), inner = Product(in.shape, axis + 1, in.shape.rank());
  for (const int64_t part : parts) {
    std::vector<int64_t> dims = Dims(in.shape);
    dims[axis] = part;
    if (drop) dims.erase(dims.begin() + axis);
    CELER_ASSIGN(const Shape shape, MakeShape(dims));
    CELER_ASSIGN(Data item, NewTensor(in.dtype, shape));
    const int64_t size[] = {outer, part * inner}, from[] = {n * inner, 1}, to[] = {part * inner, 1};
    CopyStrided(c.pool, in.dtype, size, in.data + at * inner * Info(in.dtype).block_bytes, from,
                item.tensor.data, to);
    items.push_back(std::move(item));
    at += part;
  }
  c.Set(0, Data::Sequence(std::move(items)));
  return {};
}
// sequence, more sequences or tensors...; the body runs for each element.
Status SequenceMap(KernelContext& c) {
  CELER_ASSIGN(const Graph* const body, Subgraph(c.node, "body"));
  CELER_RETURN_IF_ERROR(CheckSequence(c, 0));
  const size_t n = c.data(0).items->size();
  std::vector<std::vector<Data>> made(c.outputs());
  for (size_t i = 0; i < n; ++i) {
    std::vector<Data> in;
    for (size_t k = 0; k < c.inputs(); ++k) {
      const Data& data = c.data(k);
      if (data.kind == Data::Kind::kSequence && i >= data.items->size())
        return Error::Invalid("its sequences are ", n, " and ", data.items->size(), " long");
      in.push_back(data.kind == Data::Kind::kSequence ? (*data.items)[i] : data);
    }
    CELER_ASSIGN(std::vector<Data> out, c.subgraphs->Run(*body, std::move(in)));
    if (out.size() < made.size()) return Error::Corrupt("its body gives ", out.size(), " outputs");
    for (size_t k = 0; k < made.size(); ++k) made[k].push_back(std::move(out[k]));
  }
  for (size_t k = 0; k < made.size(); ++k) c.Set(k, Data::Sequence(std::move(made[k])));
  return {};
}

Status Optional(KernelContext& c) {
  if (!c.has(0)) return {};
  CELER_ASSIGN(Data kept, Keep(c.data(0)));
  c.Set(0, std::move(kept));
  return {};
}
Status OptionalHasElement(KernelContext& c) {
  CELER_ASSIGN(Data answer, Scalar(DType::kBool, c.has(0)));
  c.Set(0, std::move(answer));
  return {};
}
Status OptionalGetElement(KernelContext& c) {
  if (!c.has(0)) return Error::Invalid("its optional holds nothing");
  return Optional(c);
}

constexpr unsigned kC = Operator::kControl, kS = Operator::kSequences;
constexpr Arity kOne = {1, 1}, kAny = {0, -1};
constexpr Operator kRows[] = {
    {"ConcatFromSequence", 11, kOne, kOne, kAnyType, InferNothing, ConcatFromSequence, kS},
    {"If", 1, kOne, kAny, kBools, InferNothing, If, kC},
    {"Loop", 1, {1, -1}, kAny, kAnyType, InferNothing, Loop, kC},
    {"Optional", 15, {0, 1}, kOne, kAnyType, InferNothing, Optional, kS},
    {"OptionalGetElement", 15, kOne, kOne, kAnyType, InferNothing, OptionalGetElement, kS},
    {"OptionalHasElement", 15, {0, 1}, kOne, kAnyType, InferNothing, OptionalHasElement, kS},
    {"Scan", 9, {1, -1}, kAny, kAnyType, InferNothing, Scan, kC},
    {"SequenceAt", 11, {2, 2}, kOne, kAnyType, InferNothing, SequenceAt, kS},
    {"SequenceConstruct", 11, {1, -1}, kOne, kAnyType, InferNothing, SequenceConstruct, kS},
    {"SequenceEmpty", 11, {0, 0}, kOne, kAnyType, InferNothing, SequenceEmpty, kS},
    {"SequenceErase", 11, {1, 2}, kOne, kAnyType, InferNothing, SequenceErase, kS},
    {"SequenceInsert", 11, {2, 3}, kOne, kAnyType, InferNothing, SequenceInsert, kS},
    {"SequenceLength", 11, kOne, kOne, kAnyType, InferNothing, SequenceLength, kS},
    {"SequenceMap", 17, {1, -1}, {1, -1}, kAnyType, InferNothing, SequenceMap, kS | kC},
    {"SplitToSequence", 11, {1, 2}, kOne, kAnyType, InferNothing, SplitToSequence, kS},
};

}  // namespace

std::span<const Operator> ControlOperators() {
  return kRows;
}

}  // namespace celer::graph
