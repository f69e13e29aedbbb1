// Categories as numbers, and columns of features picked and joined. Strings are ids of the network's texts
// here (graph/load/string_table.h), so that they are integers like others.
#include <bit>
#include <unordered_map>

#include "graph/ops/cast.h"
#include "graph/ops/common.h"
#include "graph/ops/ml/ml.h"
#include "graph/ops/other_domains.h"

namespace celer::graph {
namespace {

// x [..., columns], indices -> [..., indices]; one dimension gives [1, indices].
Status InferExtract(InferContext& c) {
  const Shape& x = c.shape(0);
  if (x.rank() == 0) return Error::Invalid("a number has no columns to take");
  if (c.dtype(1) != DType::kI64) return Error::Invalid("indices of ", Name(c.dtype(1)), "; i64 are expected");
  if (c.elements(1) == 0) return Error::Invalid("no index is given");
  std::vector<int64_t> dims = Dims(x);
  dims.back() = c.elements(1);
  if (dims.size() == 1) dims.insert(dims.begin(), 1);
  return c.Set(0, c.dtype(0), dims);
}
Status Extract(KernelContext& c) {
  const int64_t columns = c.shape(0)[c.shape(0).rank() - 1], picked = c.elements(1);
  const int64_t* const indices = c.in(1).as<int64_t>();
  for (int64_t i = 0; i < picked; ++i)
    if (indices[i] < 0 || indices[i] >= columns)
      return Error::Invalid("the column ", indices[i], " of ", columns);
  const int64_t rows = columns == 0 ? 0 : c.elements(0) / columns;
  DispatchSize(c.dtype(0), [&]<class T>() {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < picked; ++i)
        c.out(0).as<T>()[r * picked + i] = c.in(0).as<T>()[r * columns + indices[i]];
  });
  return {};
}

// Columns of each input: as many as inputdimensions says, cut off or filled up with zeros.
Result<std::vector<int64_t>> VectorizedColumns(const OpInputs& c) {
  const std::vector<int64_t> given = c.node.Ints("inputdimensions");
  std::vector<int64_t> out;
  int64_t total = 0;
  for (size_t i = 0; i < c.inputs(); ++i) {
    if (!c.has(i) || !kFeatureTypes.Has(c.dtype(i)))
      return Error::Invalid("its input ", i, " is no table of numbers");
    const Shape& x = c.shape(i);
    if (x.rank() < 1 || x.rank() > 2) return Error::Invalid("features of ", x.ToString());
    const int64_t rows = x.rank() == 1 ? 1 : x[0];
    if (const Shape& first = c.shape(0); rows != (first.rank() == 1 ? 1 : first[0]))
      return Error::Invalid("inputs of ", first.ToString(), " and ", x.ToString());
    const int64_t columns = given.empty() ? x[x.rank() - 1] : i < given.size() ? given[i] : 0;
    if (columns < 0 || columns > (int64_t{1} << 31)) return Error::Invalid("inputdimensions has ", columns);
    out.push_back(columns);
    total += columns;
  }
  out.push_back(total);
  return out;
}
Status InferVectorize(InferContext& c) {
  CELER_ASSIGN(const std::vector<int64_t> columns, VectorizedColumns(c));
  const Shape& x = c.shape(0);
  return c.Set(0, DType::kF32, std::vector<int64_t>{x.rank() == 1 ? 1 : x[0], columns.back()});
}
Status Vectorize(KernelContext& c) {
  CELER_ASSIGN(const std::vector<int64_t> columns, VectorizedColumns(c));
  const int64_t total = columns.back(), rows = c.out(0).shape[0];
  float* const out = c.out(0).as<float>();
  std::fill_n(out, rows * total, 0.0f);
  int64_t at = 0;
  for (size_t i = 0; i < c.inputs(); ++i) {
    const int64_t has = c.shape(i)[c.shape(i).rank() - 1];
    DispatchOr(c.dtype(i), NumberTypes{}, [&]<class T>() {
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t k = 0; k < std::min(has, columns[i]); ++k)
          out[r * total + at + k] = static_cast<float>(Wide(c.in(i).as<T>()[r * has + k]));
    });
    at += columns[i];
  }
  return {};
}

Status InferOneHot(InferContext& c) {
  const std::vector<int64_t> categories = c.node.Ints("cats_int64s");
  if (categories.empty()) return Error::Invalid("it has no categories");
  std::vector<int64_t> dims = Dims(c.shape(0));
  dims.push_back(static_cast<int64_t>(categories.size()));
  return c.Set(0, DType::kF32, dims);
}
Status OneHot(KernelContext& c) {
  const std::vector<int64_t> categories = c.node.Ints("cats_int64s");
  const auto n = static_cast<int64_t>(categories.size());
  const bool zeros = c.node.Int("zeros", 1) != 0;
  std::unordered_map<int64_t, int64_t> places;
  for (int64_t i = 0; i < n; ++i) places[categories[i]] = i;
  float* const out = c.out(0).as<float>();
  std::fill_n(out, c.out_elements(0), 0.0f);
  Status unknown;
  DispatchOr(c.dtype(0), TypeList<int64_t, int32_t, float, double>{}, [&]<class T>() {
    for (int64_t i = 0; i < c.elements(0); ++i) {
      const T x = c.in(0).as<T>()[i];
      if constexpr (std::is_floating_point_v<T>) {
        // A number that no integer is has no category.
        if (!(std::abs(x) < T(9e18))) {
          if (!zeros) unknown = Error::Invalid("a category that it does not know, and zeros is 0");
          continue;
        }
      }
      const auto found = places.find(static_cast<int64_t>(x));
      if (found != places.end())
        out[i * n + found->second] = 1;
      else if (!zeros)
        unknown = Error::Invalid("the category ", static_cast<int64_t>(x), " is not known, and zeros is 0");
    }
  });
  return unknown;
}

// ---- LabelEncoder -------------------------------------------------------------------------------------

// Keys or values: of an attribute with a list, or of a tensor.
struct Encoded {
  DType dtype = DType::kI64;
  std::vector<int64_t> ints;
  std::vector<double> reals;

  size_t size() const { return dtype == DType::kI64 ? ints.size() : reals.size(); }
};
Result<Encoded> EncodedOf(const Node& node, const std::string& which) {
  Encoded out;
  const auto* const tensor = node.Get<Constant>(which + "_tensor");
  if (tensor) {
    const TensorView view = tensor->view();
    if (kIntegers.Has(view.dtype) || view.dtype == DType::kBool) {
      if (view.dtype != DType::kI64 && view.dtype != DType::kI32 && view.dtype != DType::kI16)
        return Error::Invalid(which, "_tensor is ", Name(view.dtype));
      out.ints = ReadInts(view);
      return out;
    }
    if (view.dtype != DType::kF32 && view.dtype != DType::kF64)
      return Error::Invalid(which, "_tensor is ", Name(view.dtype));
    out.dtype = view.dtype;
    DispatchOr(view.dtype, TypeList<float, double>{}, [&]<class T>() {
      for (int64_t i = 0; i < *view.shape.elements(); ++i)
        out.reals.push_back(static_cast<double>(view.as<T>()[i]));
    });
    return out;
  }
  const std::vector<float> floats = node.Floats(which + "_floats");
  if (!floats.empty()) {
    out.dtype = DType::kF32;
    out.reals.assign(floats.begin(), floats.end());
    return out;
  }
  out.ints = node.Ints(which + "_int64s");
  return out;
}

struct LabelTable {
  std::unordered_map<int64_t, size_t> places;  // by the bits of a key
  Encoded values;
  DType out = DType::kI64;
  int64_t otherwise_int = -1;
  double otherwise_real = 0;
};
int64_t KeyOf(double key) {
  if (key != key) return std::bit_cast<int64_t>(std::numeric_limits<double>::quiet_NaN());  // all are one
  return std::bit_cast<int64_t>(key == 0 ? 0.0 : key);
}
Result<LabelTable> LabelTableOf(const OpInputs& c) {
  LabelTable out;
  CELER_ASSIGN(const Encoded keys, EncodedOf(c.node, "keys"));
  CELER_ASSIGN(out.values, EncodedOf(c.node, "values"));
  if (keys.size() == 0 || keys.size() != out.values.size())
    return Error::Invalid(keys.size(), " keys for ", out.values.size(), " values");
  const bool real_keys = keys.dtype != DType::kI64, real_x = kFloats.Has(c.dtype(0));
  if (real_keys != real_x)
    return Error::Invalid("keys of ", Name(keys.dtype), " for an input of ", Name(c.dtype(0)));
  for (size_t i = 0; i < keys.size(); ++i)  // the first of equal keys counts
    out.places.emplace(real_keys ? KeyOf(keys.reals[i]) : keys.ints[i], i);
  out.out = out.values.dtype;
  if (const auto* const values = c.node.Get<Constant>("values_tensor")) out.out = values->dtype;
  out.otherwise_int = c.node.Int("default_int64", -1);
  out.otherwise_real = static_cast<double>(c.node.Float("default_float", -0.0f));
  if (const auto* const given = c.node.Get<Constant>("default_tensor")) {
    if (given->shape.elements() != 1 || !kNumbers.Has(given->dtype))
      return Error::Invalid("default_tensor of ", given->shape.ToString());
    out.otherwise_real = ReadScalar(given->view());
    if (kIntegers.Has(given->dtype)) out.otherwise_int = ReadInts(given->view())[0];
  }
  return out;
}
Status InferLabels(InferContext& c) {
  CELER_ASSIGN(const LabelTable table, LabelTableOf(c));
  return c.Set(0, table.out, c.shape(0));
}
Status EncodeLabels(KernelContext& c) {
  CELER_ASSIGN(const LabelTable table, LabelTableOf(c));
  DispatchOr(c.dtype(0), TypeList<int64_t, int32_t, int16_t, float, double>{}, [&]<class X>() {
    DispatchOr(table.out, TypeList<int64_t, int32_t, int16_t, float, double>{}, [&]<class Y>() {
      for (int64_t i = 0; i < c.elements(0); ++i) {
        const X x = c.in(0).as<X>()[i];
        int64_t key = 0;
        if constexpr (std::is_floating_point_v<X>)
          key = KeyOf(static_cast<double>(x));
        else
          key = x;
        const auto found = table.places.find(key);
        Y& y = c.out(0).as<Y>()[i];
        if constexpr (std::is_floating_point_v<Y>)
          y = static_cast<Y>(found == table.places.end() ? table.otherwise_real
                                                         : table.values.reals[found->second]);
        else
          y = static_cast<Y>(found == table.places.end() ? table.otherwise_int
                                                         : table.values.ints[found->second]);
      }
    });
  });
  return {};
}

constexpr DTypeSet kLabelTypes = {DType::kI64, DType::kI32, DType::kI16, DType::kF32, DType::kF64};
constexpr Operator EncodeRow(std::string_view name, int since, Arity inputs, DTypeSet types, InferFn infer,
                             KernelFn run) {
  return {name, since, inputs, {1, 1}, types, infer, run, Operator::kPlain, nullptr, {}, kMlDomain};
}
constexpr Operator kRows[] = {
    EncodeRow("ArrayFeatureExtractor", 1, {2, 2}, kNumbers | kBools, InferExtract, Extract),
    EncodeRow("FeatureVectorizer", 1, {1, -1}, kFeatureTypes, InferVectorize, Vectorize),
    EncodeRow("LabelEncoder", 1, {1, 1}, kLabelTypes, InferLabels, EncodeLabels),
    EncodeRow("OneHotEncoder", 1, {1, 1}, kFeatureTypes, InferOneHot, OneHot),
};

}  // namespace

std::span<const Operator> EncodeOperators() {
  return kRows;
}

}  // namespace celer::graph
