// Operators that select elements: gather, scatter, by condition, by size.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "graph/ops/common.h"
#include "graph/ops/families.h"

namespace celer::graph {
namespace {

constexpr DTypeSet kIndexTypes = {DType::kI64, DType::kI32};

size_t ElementBytes(DType dtype) {
  return static_cast<size_t>(Info(dtype).block_bytes);
}
Status CheckIndexType(const OpInputs& c, size_t i) {
  if (!kIndexTypes.Has(c.dtype(i)))
    return Error::Invalid("indices of ", Name(c.dtype(i)), "; they are i32 or i64");
  return {};
}
// Indices count from the end when negative. Every one is checked before it is used.
Result<std::vector<int64_t>> Indices(const OpInputs& c, size_t input, int64_t size) {
  std::vector<int64_t> out = ReadInts(c.in(input));
  for (int64_t& index : out) {
    if (index < -size || index >= size)
      return Error::Invalid("the index ", index, " is outside of ", size, " elements");
    if (index < 0) index += size;
  }
  return out;
}

Status InferGather(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckIndexType(c, 1));
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), c.shape(0).rank()));
  std::vector<int64_t> dims(c.shape(0).dims().begin(), c.shape(0).dims().begin() + axis);
  dims.insert(dims.end(), c.shape(1).dims().begin(), c.shape(1).dims().end());
  dims.insert(dims.end(), c.shape(0).dims().begin() + axis + 1, c.shape(0).dims().end());
  return c.Set(0, c.dtype(0), dims);
}
Status Gather(KernelContext& c) {
  const Shape& in = c.shape(0);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), in.rank()));
  CELER_ASSIGN(const std::vector<int64_t> indices, Indices(c, 1, in[axis]));
  const int64_t outer = Product(in, 0, axis), inner = Product(in, axis + 1, in.rank());
  const size_t bytes = static_cast<size_t>(inner) * ElementBytes(c.dtype(0));
  if (bytes == 0) return {};
  const auto count = static_cast<int64_t>(indices.size());
  Parallel(c.pool, outer * count, inner, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(c.out(0).data + static_cast<size_t>(i) * bytes,
                  c.in(0).data + static_cast<size_t>(i / count * in[axis] + indices[i % count]) * bytes,
                  bytes);
  });
  return {};
}

std::optional<int64_t> GatherPart(const InferContext& c, size_t) {
  const Shape& in = c.shape(0);
  const auto axis = CheckAxis(c.node.Int("axis", 0), in.rank());
  if (!axis || Product(in, 0, *axis) != 1 || !c.known(1) || c.elements(1) != 1) return std::nullopt;
  const auto index = Indices(c, 1, in[*axis]);
  if (!index) return std::nullopt;
  return (*index)[0] * Product(in, *axis + 1, in.rank());
}

// The offset in `data` of each element of `indices`, whose place along `axis` its index gives.
Result<std::vector<int64_t>> ElementOffsets(const OpInputs& c, const Shape& data, size_t input, int axis) {
  CELER_ASSIGN(std::vector<int64_t> at, Indices(c, input, data[axis]));
  const Shape& shape = c.shape(input);
  std::vector<int64_t> stride(static_cast<size_t>(data.rank()), 1);
  for (int i = data.rank() - 2; i >= 0; --i) stride[i] = stride[i + 1] * data[i + 1];
  for (size_t e = 0; e < at.size(); ++e) {
    int64_t rest = static_cast<int64_t>(e), offset = at[e] * stride[axis];
    for (int i = shape.rank() - 1; i >= 0; --i) {
      if (i != axis) offset += rest % shape[i] * stride[i];
      rest /= shape[i];
    }
    at[e] = offset;
  }
  return at;
}
Status CheckElements(const OpInputs& c, size_t input, int axis) {
  CELER_RETURN_IF_ERROR(CheckIndexType(c, input));
  const Shape &data = c.shape(0), &shape = c.shape(input);
  bool fits = shape.rank() == data.rank();
  for (int i = 0; fits && i < data.rank(); ++i) fits = i == axis || shape[i] <= data[i];
  if (!fits) return Error::Invalid("indices of ", shape.ToString(), " for ", data.ToString());
  return {};
}
Status InferGatherElements(InferContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), c.shape(0).rank()));
  CELER_RETURN_IF_ERROR(CheckElements(c, 1, axis));
  return c.Set(0, c.dtype(0), c.shape(1));
}
Status GatherElements(KernelContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), c.shape(0).rank()));
  CELER_ASSIGN(const std::vector<int64_t> at, ElementOffsets(c, c.shape(0), 1, axis));
  DispatchSize(c.dtype(0), [&]<class T>() {
    for (size_t i = 0; i < at.size(); ++i) c.out(0).as<T>()[i] = c.in(0).as<T>()[at[i]];
  });
  return {};
}

enum class Combine { kSet, kAdd, kMul, kMax, kMin };
Result<Combine> CombineOf(const Node& node) {
  const std::string name = node.Text("reduction", "none");
  if (name == "none") return Combine::kSet;
  if (name == "add") return Combine::kAdd;
  if (name == "mul") return Combine::kMul;
  if (name == "max") return Combine::kMax;
  if (name == "min") return Combine::kMin;
  return Error::Unsupported("the reduction '", name, "'");
}
// to[at[i] + j] = combine(to[...], from[i · run + j])
Status Scatter(KernelContext& c, const std::vector<int64_t>& at, size_t updates, int64_t run) {
  CELER_ASSIGN(const Combine how, CombineOf(c.node));
  const auto bytes = static_cast<size_t>(c.elements(0)) * ElementBytes(c.dtype(0));
  if (bytes > 0 && c.out(0).data != c.in(0).data) std::memcpy(c.out(0).data, c.in(0).data, bytes);
  if (how == Combine::kSet) {
    DispatchSize(c.dtype(0), [&]<class T>() {
      for (size_t i = 0; i < at.size(); ++i)
        std::copy_n(c.in(updates).as<T>() + static_cast<int64_t>(i) * run, run, c.out(0).as<T>() + at[i]);
    });
    return {};
  }
  const bool known = DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    for (size_t i = 0; i < at.size(); ++i)
      for (int64_t j = 0; j < run; ++j) {
        T& to = c.out(0).as<T>()[at[i] + j];
        using W = Compute<T>;
        const W a = Wide(to), b = Wide(c.in(updates).as<T>()[static_cast<int64_t>(i) * run + j]);
        to = static_cast<T>(how == Combine::kAdd   ? WrapAdd<W>(a, b)
                            : how == Combine::kMul ? WrapMul<W>(a, b)
                            : how == Combine::kMax ? Larger<W>(a, b)
                                                   : Smaller<W>(a, b));
      }
  });
  return known ? Status() : Error::Unsupported("a reduction of ", Name(c.dtype(0)));
}

Status InferScatterElements(InferContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), c.shape(0).rank()));
  CELER_RETURN_IF_ERROR(CheckElements(c, 1, axis));
  CELER_RETURN_IF_ERROR(CheckSameType(c, 2));
  if (!(c.shape(2) == c.shape(1)))
    return Error::Invalid("updates of ", c.shape(2).ToString(), " for indices of ", c.shape(1).ToString());
  return InferSame(c);
}
Status ScatterElements(KernelContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), c.shape(0).rank()));
  CELER_ASSIGN(const std::vector<int64_t> at, ElementOffsets(c, c.shape(0), 1, axis));
  return Scatter(c, at, 2, 1);
}

// Tuples of indices into the dimensions from `batch` on.
Result<std::vector<int64_t>> TupleOffsets(const OpInputs& c, int batch) {
  const Shape &data = c.shape(0), &shape = c.shape(1);
  const auto length = static_cast<int>(shape[shape.rank() - 1]);
  const std::vector<int64_t> indices = ReadInts(c.in(1));
  const int64_t tuples = Product(shape, 0, shape.rank() - 1);
  const int64_t batches = Product(data, 0, batch), per_batch = batches > 0 ? tuples / batches : 0;
  std::vector<int64_t> out;
  for (int64_t t = 0; t < tuples; ++t) {
    int64_t offset = per_batch > 0 ? t / per_batch : 0;
    for (int i = 0; i < length; ++i) {
      const int64_t size = data[batch + i];
      int64_t index = indices[t * length + i];
      if (index < -size || index >= size)
        return Error::Invalid("the index ", index, " is outside of ", size, " elements");
      offset = offset * size + (index < 0 ? index + size : index);
    }
    out.push_back(offset * Product(data, batch + length, data.rank()));
  }
  return out;
}
Result<int> TupleBatch(const OpInputs& c) {
  CELER_RETURN_IF_ERROR(CheckIndexType(c, 1));
  const int64_t batch = c.node.Int("batch_dims", 0);
  const Shape &data = c.shape(0), &shape = c.shape(1);
  bool fits = shape.rank() >= 1 && batch >= 0 && batch < shape.rank() && batch < std::max(data.rank(), 1) &&
              shape[shape.rank() - 1] >= 0 && shape[shape.rank() - 1] <= data.rank() - batch;
  for (int i = 0; fits && i < batch; ++i) fits = shape[i] == data[i];
  if (!fits) return Error::Invalid("indices of ", shape.ToString(), " for ", data.ToString());
  return static_cast<int>(batch);
}
Status InferGatherNd(InferContext& c) {
  CELER_ASSIGN(const int batch, TupleBatch(c));
  const Shape &data = c.shape(0), &shape = c.shape(1);
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end() - 1);
  dims.insert(dims.end(), data.dims().begin() + batch + shape[shape.rank() - 1], data.dims().end());
  return c.Set(0, c.dtype(0), dims);
}
Status GatherNd(KernelContext& c) {
  CELER_ASSIGN(const int batch, TupleBatch(c));
  CELER_ASSIGN(const std::vector<int64_t> at, TupleOffsets(c, batch));
  const Shape& data = c.shape(0);
  const int64_t run = Product(data, batch + static_cast<int>(c.shape(1)[c.shape(1).rank() - 1]), data.rank());
  DispatchSize(c.dtype(0), [&]<class T>() {
    for (size_t i = 0; i < at.size(); ++i)
      std::copy_n(c.in(0).as<T>() + at[i], run, c.out(0).as<T>() + static_cast<int64_t>(i) * run);
  });
  return {};
}
Status InferScatterNd(InferContext& c) {
  CELER_ASSIGN([[maybe_unused]] const int batch, TupleBatch(c));
  CELER_RETURN_IF_ERROR(CheckSameType(c, 2));
  const Shape &data = c.shape(0), &shape = c.shape(1);
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end() - 1);
  dims.insert(dims.end(), data.dims().begin() + shape[shape.rank() - 1], data.dims().end());
  CELER_ASSIGN(const Shape updates, MakeShape(dims));
  if (!(c.shape(2) == updates))
    return Error::Invalid("updates of ", c.shape(2).ToString(), " where ", updates.ToString(), " are needed");
  return InferSame(c);
}
Status ScatterNd(KernelContext& c) {
  CELER_ASSIGN(const std::vector<int64_t> at, TupleOffsets(c, 0));
  return Scatter(c, at, 2,
                 Product(c.shape(0), static_cast<int>(c.shape(1)[c.shape(1).rank() - 1]), c.shape(0).rank()));
}

// past_cache, update, write_indices: a piece of a cache is replaced, for each batch at a place of its own.
Status InferTensorScatter(InferContext& c) {
  CELER_RETURN_IF_ERROR(CheckSameType(c, 1));
  const Shape &cache = c.shape(0), &update = c.shape(1);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -2), cache.rank()));
  bool fits = cache.rank() == update.rank() && axis > 0 && update[axis] <= cache[axis];
  for (int i = 0; fits && i < cache.rank(); ++i) fits = i == axis || cache[i] == update[i];
  if (!fits || (c.has(2) && (!kIndexTypes.Has(c.dtype(2)) || c.elements(2) != cache[0])))
    return Error::Invalid("an update of ", update.ToString(), " for ", cache.ToString());
  return InferSame(c);
}
Status TensorScatter(KernelContext& c) {
  const Shape &cache = c.shape(0), &update = c.shape(1);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -2), cache.rank()));
  const bool circular = c.node.Text("mode", "linear") == "circular";
  const std::vector<int64_t> starts =
      c.has(2) ? ReadInts(c.in(2)) : std::vector<int64_t>(static_cast<size_t>(cache[0]), 0);
  const size_t size = ElementBytes(c.dtype(0));
  for (const int64_t start : starts)
    if (start < 0 || (!circular && start > cache[axis] - update[axis]))
      return Error::Invalid("the index ", start, " for ", update[axis], " rows is outside of ", cache[axis]);
  if (c.elements(0) > 0) std::memcpy(c.out(0).data, c.in(0).data, static_cast<size_t>(c.elements(0)) * size);
  const int64_t outer = Product(cache, 1, axis), run = Product(cache, axis + 1, cache.rank());
  for (int64_t b = 0; b < cache[0]; ++b)
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < update[axis]; ++i) {
        const int64_t to = (starts[b] % cache[axis] + i) % cache[axis];
        if (run > 0)
          std::memcpy(c.out(0).data + static_cast<size_t>(((b * outer + o) * cache[axis] + to) * run) * size,
                      c.in(1).data + static_cast<size_t>(((b * outer + o) * update[axis] + i) * run) * size,
                      static_cast<size_t>(run) * size);
      }
  return {};
}

// indices, depth, values [off, on]
Status InferOneHot(InferContext& c) {
  if (c.elements(1) != 1 || c.elements(2) != 2)
    return Error::Invalid("its depth must be one number, its values two");
  if (!c.known(1)) return {};
  const double depth = ReadScalar(c.in(1));
  if (!(depth >= 1 && depth < 1e12)) return Error::Invalid("a depth of ", depth);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), c.shape(0).rank() + 1));
  std::vector<int64_t> dims = Dims(c.shape(0));
  dims.insert(dims.begin() + axis, static_cast<int64_t>(depth));
  return c.Set(0, c.dtype(2), dims);
}
Status OneHot(KernelContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), c.shape(0).rank() + 1));
  const int64_t depth = c.out(0).shape[axis], inner = Product(c.shape(0), axis, c.shape(0).rank());
  DispatchSize(c.dtype(2), [&]<class T>() {
    const T off = c.in(2).as<T>()[0], on = c.in(2).as<T>()[1];
    std::fill_n(c.out(0).as<T>(), c.out_elements(0), off);
    DispatchOr(c.dtype(0), NumberTypes{}, [&]<class I>() {
      for (int64_t i = 0; i < c.elements(0); ++i) {
        const double value = static_cast<double>(Wide(c.in(0).as<I>()[i]));
        if (!(value >= static_cast<double>(-depth) && value < static_cast<double>(depth))) continue;
        const auto whole = static_cast<int64_t>(value);
        const int64_t at = whole < 0 ? whole + depth : whole;
        c.out(0).as<T>()[(i / inner * depth + at) * inner + i % inner] = on;
      }
    });
  });
  return {};
}

Status InferNothing(InferContext&) {
  return {};
}
Status InferCompress(InferContext& c) {
  if (c.dtype(1) != DType::kBool || c.shape(1).rank() != 1)
    return Error::Invalid("its condition is no list of booleans");
  return {};
}
Status Compress(KernelContext& c) {
  const bool flat = !c.node.Find("axis");
  CELER_ASSIGN(const Shape shape, flat ? MakeShape({c.elements(0)}) : MakeShape(c.shape(0).dims()));
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), shape.rank()));
  std::vector<int64_t> kept;
  for (int64_t i = 0; i < std::min(c.elements(1), shape[axis]); ++i)
    if (c.in(1).as<bool>()[i]) kept.push_back(i);
  std::vector<int64_t> dims = Dims(shape);
  dims[axis] = static_cast<int64_t>(kept.size());
  CELER_RETURN_IF_ERROR(c.Allocate(0, c.dtype(0), dims));
  const int64_t outer = Product(shape, 0, axis), inner = Product(shape, axis + 1, shape.rank());
  const size_t bytes = static_cast<size_t>(inner) * ElementBytes(c.dtype(0));
  std::byte* to = c.out(0).data;
  for (int64_t o = 0; o < outer && bytes > 0; ++o)
    for (const int64_t index : kept) {
      std::memcpy(to, c.in(0).data + static_cast<size_t>(o * shape[axis] + index) * bytes, bytes);
      to += bytes;
    }
  return {};
}
Status NonZero(KernelContext& c) {
  std::vector<int64_t> found;
  DispatchOr(c.dtype(0), PlainTypes{}, [&]<class T>() {
    for (int64_t i = 0; i < c.elements(0); ++i)
      if (Wide(c.in(0).as<T>()[i]) != Compute<T>{0}) found.push_back(i);
  });
  const int rank = c.shape(0).rank();
  const auto count = static_cast<int64_t>(found.size());
  CELER_RETURN_IF_ERROR(c.Allocate(0, DType::kI64, std::vector<int64_t>{rank, count}));
  for (int64_t k = 0; k < count; ++k) {
    int64_t rest = found[k];
    for (int i = rank - 1; i >= 0; --i) {
      c.out(0).as<int64_t>()[i * count + k] = rest % c.shape(0)[i];
      rest /= c.shape(0)[i];
    }
  }
  return {};
}

Status InferTopK(InferContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), c.shape(0).rank()));
  int64_t k = c.node.Int("k", 0);
  if (c.has(1)) {
    const auto given = c.ints(1);
    if (!given) return {};
    if (given->size() != 1) return Error::Invalid("its k must be one number");
    k = (*given)[0];
  }
  if (k < 0 || k > c.shape(0)[axis])
    return Error::Invalid("the ", k, " largest of ", c.shape(0)[axis], " elements");
  std::vector<int64_t> dims = Dims(c.shape(0));
  dims[axis] = k;
  CELER_RETURN_IF_ERROR(c.Set(0, c.dtype(0), dims));
  return c.Set(1, DType::kI64, dims);
}
Status TopK(KernelContext& c) {
  const Shape& in = c.shape(0);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", -1), in.rank()));
  const bool largest = c.node.Int("largest", 1) != 0;
  const int64_t n = in[axis], k = c.out(0).shape[axis], outer = Product(in, 0, axis),
                inner = Product(in, axis + 1, in.rank());
  DispatchOr(c.dtype(0), NumberTypes{}, [&]<class T>() {
    std::vector<int64_t> order(static_cast<size_t>(n));
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t j = 0; j < inner; ++j) {
        const T* const x = c.in(0).as<T>() + o * n * inner + j;
        std::iota(order.begin(), order.end(), int64_t{0});
        // NaN counts as the largest; the sort is stable.
        const auto before = [&](int64_t a, int64_t b) {
          const auto va = Wide(x[a * inner]), vb = Wide(x[b * inner]);
          const bool na = va != va, nb = vb != vb;
          if (na != nb) return largest ? na : nb;
          if (!na && va != vb) return largest ? va > vb : va < vb;
          return a < b;
        };
        std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
        for (int64_t i = 0; i < k; ++i) {
          const int64_t to = (o * k + i) * inner + j;
          if (c.wants(0)) c.out(0).as<T>()[to] = x[order[i] * inner];
          if (c.wants(1)) c.out(1).as<int64_t>()[to] = order[i];
        }
      }
  });
  return {};
}

// y, indices of the first of each, where each element went, counts
Status Unique(KernelContext& c) {
  const bool flat = !c.node.Find("axis"), sorted = c.node.Int("sorted", 1) != 0;
  CELER_ASSIGN(const Shape shape, flat ? MakeShape({c.elements(0)}) : MakeShape(c.shape(0).dims()));
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), shape.rank()));
  const int64_t n = shape[axis], outer = Product(shape, 0, axis),
                inner = Product(shape, axis + 1, shape.rank());
  if (n > 0 && c.elements(0) == 0)
    return Error::Invalid("the slices of ", shape.ToString(), " along axis ", axis, " have no elements");
  Status status;
  DispatchOr(c.dtype(0), PlainTypes{}, [&]<class T>() {
    const T* const x = c.in(0).as<T>();
    const auto at = [&](int64_t slice, int64_t e) {
      return Wide(x[(e / inner * n + slice) * inner + e % inner]);
    };
    const auto compare = [&](int64_t a, int64_t b) {
      for (int64_t e = 0; e < outer * inner; ++e)
        if (at(a, e) != at(b, e)) return at(a, e) < at(b, e) ? -1 : 1;
      return 0;
    };
    std::vector<int64_t> order(static_cast<size_t>(n)), first, where(static_cast<size_t>(n)), counts;
    std::iota(order.begin(), order.end(), int64_t{0});
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return compare(a, b) < 0; });
    for (const int64_t i : order) {
      if (first.empty() || compare(first.back(), i) != 0) {
        first.push_back(i);
        counts.push_back(0);
      }
      where[i] = static_cast<int64_t>(first.size()) - 1;
      ++counts.back();
    }
    if (!sorted) {
      std::vector<int64_t> by_place(first.size()), place(first.size()), moved_first, moved_counts;
      std::iota(by_place.begin(), by_place.end(), int64_t{0});
      std::sort(by_place.begin(), by_place.end(), [&](int64_t a, int64_t b) { return first[a] < first[b]; });
      for (size_t i = 0; i < by_place.size(); ++i) {
        place[by_place[i]] = static_cast<int64_t>(i);
        moved_first.push_back(first[by_place[i]]);
        moved_counts.push_back(counts[by_place[i]]);
      }
      first = moved_first;
      counts = moved_counts;
      for (int64_t& w : where) w = place[w];
    }
    const auto kinds = static_cast<int64_t>(first.size());
    std::vector<int64_t> dims = Dims(shape);
    dims[axis] = kinds;
    status = c.Allocate(0, c.dtype(0), dims);
    const std::vector<int64_t>* const lists[] = {&first, &where, &counts};
    for (size_t i = 0; i < 3 && status; ++i) {
      if (i + 1 >= c.outputs()) break;
      status = c.Allocate(i + 1, DType::kI64, std::vector<int64_t>{static_cast<int64_t>(lists[i]->size())});
      if (status) std::copy(lists[i]->begin(), lists[i]->end(), c.out(i + 1).as<int64_t>());
    }
    if (!status) return;
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t k = 0; k < kinds; ++k)
        for (int64_t j = 0; j < inner; ++j)
          c.out(0).as<T>()[(o * kinds + k) * inner + j] = x[(o * n + first[k]) * inner + j];
  });
  return status;
}

constexpr Arity kOne = {1, 1};
constexpr Operator kRows[] = {
    {"Compress", 9, {2, 2}, kOne, kAnyType, InferCompress, Compress},
    {"Gather", 1, Arity(2, 2), kOne, kAnyType, InferGather, Gather, Operator::kPlain, nullptr, kNoFastKernels,
     "", 0, GatherPart},
    {"GatherElements", 11, {2, 2}, kOne, kAnyType, InferGatherElements, GatherElements},
    {"GatherND", 11, {2, 2}, kOne, kAnyType, InferGatherNd, GatherNd},
    {"NonZero", 9, kOne, kOne, kNumbers | kBools, InferNothing, NonZero},
    {"OneHot", 9, {3, 3}, kOne, kNumbers, InferOneHot, OneHot},
    {"Scatter", 9, {3, 3}, kOne, kAnyType, InferScatterElements, ScatterElements},
    {"ScatterElements", 11, {3, 3}, kOne, kAnyType, InferScatterElements, ScatterElements},
    {"ScatterND", 11, {3, 3}, kOne, kAnyType, InferScatterNd, ScatterNd},
    {"TensorScatter", 24, {2, 3}, kOne, kAnyType, InferTensorScatter, TensorScatter},
    {"TopK", 1, {1, 2}, {1, 2}, kNumbers, InferTopK, TopK},
    {"Unique", 11, kOne, {1, 4}, kNumbers | kBools, InferNothing, Unique},
};

}  // namespace

std::span<const Operator> GatherOperators() {
  return kRows;
}

}  // namespace celer::graph
