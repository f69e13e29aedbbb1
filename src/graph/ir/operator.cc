#include "graph/ir/operator.h"

#include <algorithm>
#include <cstring>

#include "base/safe_math.h"
#include "device/allocator.h"
#include "device/buffer.h"
#include "device/cpu_allocator.h"
#include "graph/ops/elements.h"

namespace celer::graph {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 48;
constexpr int64_t kMostAroundNothing = int64_t{1} << 31;

}  // namespace

Result<Shape> MakeShape(std::span<const int64_t> dims) {
  if (dims.size() > Shape::kMaxRank)
    return Error::Unsupported("a tensor of ", dims.size(), " dimensions; at most ", Shape::kMaxRank,
                              " are supported");
  int64_t elements = 1;
  bool overflow = false, empty = false;
  for (const int64_t dim : dims) {
    if (dim < 0) return Error::Invalid("a tensor with a dimension of ", dim);
    empty = empty || dim == 0;
    const auto next = CheckedMul(elements, std::max<int64_t>(dim, 1));
    overflow = overflow || !next || *next > kMostElements;
    if (!overflow) elements = *next;
  }
  const Shape shape(dims);  // shape: none is negative, and there are not too many
  if (overflow) return Error::Invalid("a tensor of ", shape.ToString(), ": too many elements");
  if (empty && elements > kMostAroundNothing)
    return Error::Invalid("an empty tensor of ", shape.ToString(), ": its other dimensions are too large");
  return shape;
}

Shape PartOf(const Shape& shape, int begin, int end) {
  // shape: of one
  return Shape(shape.dims().subspan(begin, end - begin));
}

Shape ListShape(size_t n) {
  return Shape{static_cast<int64_t>(n)};  // shape: of a size in memory
}

bool HasDims(const Shape& shape, std::initializer_list<int64_t> dims) {
  return std::ranges::equal(shape.dims(), dims);
}

uint64_t& MaxTensorBytes() {
  static uint64_t most = TotalHostBytes();  // asked once: it reads files of the system
  return most;
}

Result<Data> NewTensor(DType dtype, const Shape& shape) {
  const auto elements = shape.elements();
  const auto bytes = elements ? BytesFor(dtype, *elements) : std::nullopt;
  if (!bytes) return Error::Invalid("a tensor of ", shape.ToString(), ": too many elements");
  if (static_cast<uint64_t>(*bytes) > MaxTensorBytes())
    return Error::OutOfMemory("a tensor of ", shape.ToString(), " takes ", *bytes,
                              " bytes; this machine has ", MaxTensorBytes(),
                              " in all; give it smaller inputs");
  CELER_ASSIGN(Buffer buffer, Buffer::Allocate(CpuAllocator(), static_cast<size_t>(*bytes)));
  auto owner = std::make_shared<Buffer>(std::move(buffer));
  std::byte* const data = owner->data();
  return Data::Of(TensorView::Contiguous(data, dtype, Device::Cpu(), shape), std::move(owner));
}

std::vector<int64_t> ReadInts(const TensorView& tensor) {
  std::vector<int64_t> out(static_cast<size_t>(*tensor.shape.elements()));
  DispatchOr(tensor.dtype, IntegerTypes{}, [&]<class T>() {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int64_t>(tensor.as<T>()[i]);
  });
  return out;
}

double ReadScalar(const TensorView& tensor) {
  double out = 0;
  if (*tensor.shape.elements() > 0)
    DispatchOr(tensor.dtype, PlainTypes{},
               [&]<class T>() { out = static_cast<double>(Wide(*tensor.as<T>())); });
  return out;
}

Status InferContext::Set(size_t i, DType dtype, std::span<const int64_t> dims) {
  if (i >= outputs_.size()) return {};
  CELER_ASSIGN(const Shape shape, MakeShape(dims));
  outputs_[i] = {true, dtype, shape};
  return {};
}

Status KernelContext::Allocate(size_t i, DType dtype, std::span<const int64_t> dims) {
  if (i >= outputs_.size()) return {};
  CELER_ASSIGN(const Shape shape, MakeShape(dims));
  CELER_ASSIGN(outputs_[i], NewTensor(dtype, shape));
  return {};
}

PackCache::Packed PackCache::Get(const void* constant, const std::string& how,
                                 const std::function<AlignedVector<float>()>& pack) {
  const std::lock_guard lock(mutex_);
  Packed& packed = packed_[{constant, how}];
  if (!packed) packed = std::make_shared<const AlignedVector<float>>(pack());
  return packed;
}

}  // namespace celer::graph
