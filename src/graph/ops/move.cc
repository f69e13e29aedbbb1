// Operators that move elements: transpose, slice, split, concat, pad, tile.
#include <cstring>

#include "graph/ops/common.h"
#include "graph/ops/families.h"
#include "graph/ops/strided.h"

namespace celer::graph {
namespace {

std::vector<int64_t> Strides(std::span<const int64_t> dims) {
  std::vector<int64_t> out(dims.size());
  int64_t step = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    out[i] = step;
    step *= dims[i];
  }
  return out;
}
std::vector<int64_t> Strides(const Shape& shape) {
  return Strides(shape.dims());
}
size_t ElementBytes(DType dtype) {
  return static_cast<size_t>(Info(dtype).block_bytes);
}

Result<std::vector<int>> Permutation(const OpInputs& c) {
  const int rank = c.shape(0).rank();
  const std::vector<int64_t> given = c.node.Ints("perm");
  if (!c.node.Find("perm")) {
    std::vector<int> out;
    for (int i = rank - 1; i >= 0; --i) out.push_back(i);
    return out;
  }
  if (given.size() != static_cast<size_t>(rank))
    return Error::Invalid("perm has ", given.size(), " entries for ", rank, " dimensions");
  return CheckAxes(given, rank);
}
Status InferTranspose(InferContext& c) {
  CELER_ASSIGN(const std::vector<int> perm, Permutation(c));
  std::vector<int64_t> dims;
  for (const int axis : perm) dims.push_back(c.shape(0)[axis]);
  return c.Set(0, c.dtype(0), dims);
}
Status Transpose(KernelContext& c) {
  CELER_ASSIGN(const std::vector<int> perm, Permutation(c));
  const std::vector<int64_t> in = Strides(c.shape(0));
  std::vector<int64_t> from;
  for (const int axis : perm) from.push_back(in[axis]);
  CopyStrided(c.pool, c.dtype(0), c.out(0).shape.dims(), c.in(0).data, from, c.out(0).data,
              Strides(c.out(0).shape));
  return {};
}

Status InferConcat(InferContext& c) {
  const Shape& first = c.shape(0);
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 1), first.rank()));
  std::vector<int64_t> dims = Dims(first);
  for (size_t i = 1; i < c.inputs(); ++i) {
    CELER_RETURN_IF_ERROR(CheckSameType(c, i));
    const Shape& shape = c.shape(i);
    bool fits = shape.rank() == first.rank();
    for (int d = 0; fits && d < shape.rank(); ++d) fits = d == axis || shape[d] == first[d];
    if (!fits)
      return Error::Invalid(first.ToString(), " and ", shape.ToString(), " cannot be joined along axis ",
                            axis);
    dims[axis] += shape[axis];
  }
  return c.Set(0, c.dtype(0), dims);
}
Status Concat(KernelContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 1), c.shape(0).rank()));
  const size_t size = ElementBytes(c.dtype(0));
  const Shape& out = c.out(0).shape;
  const int64_t outer = Product(out, 0, axis), row = Product(out, axis, out.rank());
  int64_t at = 0;
  for (size_t i = 0; i < c.inputs(); ++i) {
    const int64_t part = Product(c.shape(i), axis, out.rank());
    std::byte* const to = c.out(0).data + static_cast<size_t>(at) * size;
    if (to != c.in(i).data)  // the plan may have put it there
      CopyStrided(c.pool, c.dtype(0), std::array{outer, part}, c.in(i).data, std::array{part, int64_t{1}}, to,
                  std::array{row, int64_t{1}});
    at += part;
  }
  return {};
}

Result<std::optional<std::vector<int64_t>>> SplitSizes(const OpInputs& c, size_t outputs, int64_t total) {
  if (c.has(1)) {
    const auto given = c.ints(1);
    if (!given) return std::optional<std::vector<int64_t>>();
    return std::optional(*given);
  }
  if (c.node.Find("split")) return std::optional(c.node.Ints("split"));
  const auto count = static_cast<int64_t>(outputs);
  if (c.node.Find("num_outputs") && c.node.Int("num_outputs", 0) != count)
    return Error::Invalid("num_outputs is ", c.node.Int("num_outputs", 0), ", and it has ", outputs,
                          " outputs");
  const int64_t each = (total + count - 1) / count;
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < count; ++i) sizes.push_back(std::clamp<int64_t>(total - i * each, 0, each));
  return std::optional(sizes);
}
Status InferSplit(InferContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), c.shape(0).rank()));
  CELER_ASSIGN(const auto sizes, SplitSizes(c, c.outputs(), c.shape(0)[axis]));
  if (!sizes) return {};
  int64_t sum = 0;
  for (const int64_t size : *sizes) {
    if (size < 0 || size > c.shape(0)[axis])
      return Error::Invalid("its pieces, one of them of ", size, ", do not make up axis ", axis, " of ",
                            c.shape(0).ToString());
    sum += size;
  }
  if (sizes->size() != c.outputs() || sum != c.shape(0)[axis])
    return Error::Invalid("its ", sizes->size(), " pieces of ", sum, " in all do not make up axis ", axis,
                          " of ", c.shape(0).ToString(), " in ", c.outputs(), " outputs");
  std::vector<int64_t> dims = Dims(c.shape(0));
  for (size_t i = 0; i < sizes->size(); ++i) {
    dims[axis] = (*sizes)[i];
    CELER_RETURN_IF_ERROR(c.Set(i, c.dtype(0), dims));
  }
  return {};
}
Status Split(KernelContext& c) {
  CELER_ASSIGN(const int axis, CheckAxis(c.node.Int("axis", 0), c.shape(0).rank()));
  CELER_ASSIGN(const auto sizes, SplitSizes(c, c.outputs(), c.shape(0)[axis]));
  const size_t size = ElementBytes(c.dtype(0));
  const Shape& in = c.shape(0);
  const int64_t outer = Product(in, 0, axis), inner = Product(in, axis + 1, in.rank()),
                row = in[axis] * inner;
  int64_t at = 0;
  for (size_t i = 0; i < c.outputs(); ++i) {
    const int64_t part = (*sizes)[i] * inner;
    const std::byte* const from = c.in(0).data + static_cast<size_t>(at) * size;
    if (c.wants(i) && from != c.out(i).data)  // the plan may have made it a part of the input
      CopyStrided(c.pool, c.dtype(0), std::array{outer, part}, from, std::array{row, int64_t{1}},
                  c.out(i).data, std::array{part, int64_t{1}});
    at += part;
  }
  return {};
}

std::optional<int64_t> SplitPart(const InferContext& c, size_t output) {
  const Shape& in = c.shape(0);
  const auto axis = CheckAxis(c.node.Int("axis", 0), in.rank());
  if (!axis || Product(in, 0, *axis) != 1) return std::nullopt;
  const auto sizes = SplitSizes(c, c.outputs(), in[*axis]);
  if (!sizes || !*sizes) return std::nullopt;
  int64_t before = 0;
  for (size_t i = 0; i < output; ++i) before += (**sizes)[i];
  return before * Product(in, *axis + 1, in.rank());
}

struct SliceRange {
  int64_t start, step, count;
};
// One per dimension; nullopt while the numbers are not known.
Result<std::optional<std::vector<SliceRange>>> SliceRanges(const OpInputs& c) {
  using Out = std::optional<std::vector<SliceRange>>;
  const Shape& shape = c.shape(0);
  std::vector<int64_t> starts, ends, axes, steps;
  if (c.inputs() > 1) {
    for (size_t i = 1; i < c.inputs(); ++i)
      if (c.has(i) && !c.known(i)) return Out();
    if (!c.has(1) || !c.has(2)) return Error::Invalid("its starts or its ends are not given");
    starts = *c.ints(1);
    ends = *c.ints(2);
    if (c.has(3)) axes = *c.ints(3);
    if (c.has(4)) steps = *c.ints(4);
  } else {
    starts = c.node.Ints("starts");
    ends = c.node.Ints("ends");
    axes = c.node.Ints("axes");
  }
  if (axes.empty() && !c.has(3))
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  steps.resize(c.has(4) ? steps.size() : starts.size(), 1);
  if (starts.size() != ends.size() || starts.size() != axes.size() || starts.size() != steps.size())
    return Error::Invalid(starts.size(), " starts, ", ends.size(), " ends, ", axes.size(), " axes and ",
                          steps.size(), " steps");
  CELER_ASSIGN(const std::vector<int> checked, CheckAxes(axes, shape.rank()));
  std::vector<SliceRange> out;
  for (int i = 0; i < shape.rank(); ++i) out.push_back({0, 1, shape[i]});
  for (size_t i = 0; i < checked.size(); ++i) {
    const int64_t n = shape[checked[i]], step = steps[i];
    if (step == 0) return Error::Invalid("a step of 0");
    // Far outside is as good as just outside, and can be added to without overflow.
    const int64_t far = n + 1;
    int64_t start = std::clamp(starts[i], -far - n, far), end = std::clamp(ends[i], -far - n, far);
    if (start < 0) start += n;
    if (end < 0) end += n;
    int64_t count = 0;
    if (step > 0) {
      start = std::clamp<int64_t>(start, 0, n);
      end = std::clamp<int64_t>(end, 0, n);
      count = end > start ? (end - start - 1) / step + 1 : 0;
    } else if (n > 0) {
      // A start before the first element is the first element, as ONNX has it; numpy takes nothing then.
      start = std::clamp<int64_t>(start, 0, n - 1);
      end = std::clamp<int64_t>(end, -1, n - 1);
      const int64_t back = step == INT64_MIN ? INT64_MAX : -step;
      count = start > end ? (start - end - 1) / back + 1 : 0;
    }
    out[checked[i]] = {start, step, count};
  }
  return Out(std::move(out));
}
Status InferSlice(InferContext& c) {
  CELER_ASSIGN(const auto ranges, SliceRanges(c));
  if (!ranges) return {};
  std::vector<int64_t> dims;
  for (const SliceRange& range : *ranges) dims.push_back(range.count);
  return c.Set(0, c.dtype(0), dims);
}
Status Slice(KernelContext& c) {
  CELER_ASSIGN(const auto ranges, SliceRanges(c));
  if (c.out_elements(0) == 0) return {};
  std::vector<int64_t> from = Strides(c.shape(0));
  int64_t start = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    start += (*ranges)[i].start * from[i];
    from[i] *= (*ranges)[i].count > 1 ? (*ranges)[i].step : 1;
  }
  CopyStrided(c.pool, c.dtype(0), c.out(0).shape.dims(),
              c.in(0).data + static_cast<size_t>(start) * ElementBytes(c.dtype(0)), from, c.out(0).data,
              Strides(c.out(0).shape));
  return {};
}

std::optional<int64_t> SlicePart(const InferContext& c, size_t) {
  const auto ranges = SliceRanges(c);
  if (!ranges || !*ranges) return std::nullopt;
  int64_t offset = 0, step = 1, count = 1;
  for (size_t i = (*ranges)->size(); i-- > 0;) {
    const SliceRange& range = (**ranges)[i];
    if (range.count != 1 && (range.step != 1 || step != count)) return std::nullopt;
    offset += range.start * step;
    step *= c.shape(0)[static_cast<int>(i)];
    count *= range.count;
  }
  return count > 0 ? std::optional(offset) : std::nullopt;
}

// How much is added before and after each dimension; negative numbers cut.
struct Pads {
  std::vector<int64_t> before, after;
};
Result<std::optional<Pads>> GivenPads(const OpInputs& c) {
  const int rank = c.shape(0).rank();
  std::vector<int64_t> pads;
  if (c.inputs() > 1) {
    if ((c.has(1) && !c.known(1)) || (c.has(3) && !c.known(3))) return std::optional<Pads>();
    if (c.has(1)) pads = *c.ints(1);
  } else {
    pads = c.node.Find("pads") ? c.node.Ints("pads") : c.node.Ints("paddings");
  }
  std::vector<int> axes;
  if (c.has(3)) {
    CELER_ASSIGN(axes, CheckAxes(*c.ints(3), rank));
  } else {
    for (int i = 0; i < rank; ++i) axes.push_back(i);
  }
  if (pads.size() != axes.size() * 2)
    return Error::Invalid(pads.size(), " pads for ", axes.size(), " axes; it takes two for each");
  Pads out{std::vector<int64_t>(static_cast<size_t>(rank)), std::vector<int64_t>(static_cast<size_t>(rank))};
  for (size_t i = 0; i < axes.size(); ++i) {
    constexpr int64_t kMost = int64_t{1} << 40;
    for (const int64_t pad : {pads[i], pads[i + axes.size()]})
      if (pad < -kMost || pad > kMost) return Error::Invalid("a pad of ", pad);
    out.before[axes[i]] = pads[i];
    out.after[axes[i]] = pads[i + axes.size()];
  }
  return std::optional(std::move(out));
}
Status InferPad(InferContext& c) {
  CELER_ASSIGN(const auto pads, GivenPads(c));
  if (!pads) return {};
  if (c.has(2)) CELER_RETURN_IF_ERROR(CheckSameType(c, 2));
  const std::string mode = c.node.Text("mode", "constant");
  if (mode != "constant" && mode != "reflect" && mode != "edge" && mode != "wrap")
    return Error::Unsupported("the mode '", mode, "'");
  std::vector<int64_t> dims;
  for (int i = 0; i < c.shape(0).rank(); ++i) {
    const auto d = static_cast<size_t>(i);
    dims.push_back(c.shape(0)[i] + pads->before[d] + pads->after[d]);
    if (mode != "constant" && c.shape(0)[i] == 0 && dims.back() > 0)
      return Error::Invalid("there is nothing to repeat in dimension ", i);
  }
  return c.Set(0, c.dtype(0), dims);
}
// For each place of the output the place of the input it takes, -1 for the constant.
std::vector<int64_t> PadSources(int64_t size, int64_t before, int64_t out, const std::string& mode) {
  std::vector<int64_t> from(static_cast<size_t>(out));
  for (int64_t i = 0; i < out; ++i) {
    int64_t at = i - before;
    if (at < 0 || at >= size) {
      if (mode == "constant") {
        at = -1;
      } else if (mode == "edge") {
        at = std::clamp<int64_t>(at, 0, size - 1);
      } else if (mode == "wrap") {
        at = (at % size + size) % size;
      } else {
        const int64_t period = std::max<int64_t>(2 * (size - 1), 1);
        at = (at % period + period) % period;
        if (at >= size) at = period - at;
      }
    }
    from[i] = at;
  }
  return from;
}
Status Pad(KernelContext& c) {
  CELER_ASSIGN(const auto pads, GivenPads(c));
  const std::string mode = c.node.Text("mode", "constant");
  const Shape &in = c.shape(0), &out = c.out(0).shape;
  if (c.out_elements(0) == 0) return {};
  const int rank = in.rank();
  if (rank == 0) {
    std::memcpy(c.out(0).data, c.in(0).data, ElementBytes(c.dtype(0)));
    return {};
  }
  std::vector<std::vector<int64_t>> from;
  for (int i = 0; i < rank; ++i) from.push_back(PadSources(in[i], pads->before[i], out[i], mode));
  const std::vector<int64_t> stride = Strides(in);
  DispatchSize(c.dtype(0), [&]<class T>() {
    T fill = 0;
    if (c.has(2)) {
      std::memcpy(&fill, c.in(2).data, sizeof(T));
    } else if constexpr (std::is_same_v<T, uint32_t>) {
      const float value = c.node.Float("value", 0);  // until opset 10
      if (c.dtype(0) == DType::kF32) std::memcpy(&fill, &value, sizeof(T));
    }
    const T* const x = c.in(0).as<T>();
    T* const y = c.out(0).as<T>();
    const int64_t length = out[rank - 1], rows = Product(out, 0, rank - 1);
    const std::vector<int64_t>& last = from[rank - 1];
    Parallel(c.pool, rows, length, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        int64_t rest = row, at = 0;
        bool inside = true;
        for (int i = rank - 2; i >= 0; --i) {
          const int64_t source = from[i][rest % out[i]];
          rest /= out[i];
          inside = inside && source >= 0;
          at += source * stride[i];
        }
        T* const to = y + row * length;
        if (!inside) {
          std::fill_n(to, length, fill);
          continue;
        }
        for (int64_t i = 0; i < length; ++i) {
          const int64_t source = last[i];
          to[i] = source < 0 ? fill : x[at + source];
        }
      }
    });
  });
  return {};
}

Status InferTile(InferContext& c) {
  const auto repeats = c.ints(1);
  if (!repeats) return {};
  if (repeats->size() != static_cast<size_t>(c.shape(0).rank()))
    return Error::Invalid(repeats->size(), " repeats for ", c.shape(0).rank(), " dimensions");
  std::vector<int64_t> dims = Dims(c.shape(0));
  for (size_t i = 0; i < dims.size(); ++i)
    if ((*repeats)[i] < 0 || __builtin_mul_overflow(dims[i], (*repeats)[i], &dims[i]))
      return Error::Invalid("a repeat of ", (*repeats)[i]);
  return c.Set(0, c.dtype(0), dims);
}
// Each dimension becomes two: the repeats, which walk nowhere in the input, and the elements.
Status Tile(KernelContext& c) {
  const std::vector<int64_t> repeats = *c.ints(1), in = Strides(c.shape(0)), out = Strides(c.out(0).shape);
  std::vector<int64_t> dims, from, to;
  for (size_t i = 0; i < repeats.size(); ++i) {
    const int64_t n = c.shape(0)[static_cast<int>(i)];
    dims.insert(dims.end(), {repeats[i], n});
    from.insert(from.end(), {0, in[i]});
    to.insert(to.end(), {out[i] * n, out[i]});
  }
  CopyStrided(c.pool, c.dtype(0), dims, c.in(0).data, from, c.out(0).data, to);
  return {};
}

Status InferDepthToSpace(InferContext& c) {
  const Shape& in = c.shape(0);
  const int64_t b = c.node.Int("blocksize", 0);
  if (in.rank() != 4 || b <= 0 || b > 1 << 20 || in[1] % (b * b) != 0)
    return Error::Invalid("blocks of ", b, " do not fit ", in.ToString());
  CELER_RETURN_IF_ERROR(MakeShape({in[2], b}));
  CELER_RETURN_IF_ERROR(MakeShape({in[3], b}));
  return c.Set(0, c.dtype(0), {in[0], in[1] / (b * b), in[2] * b, in[3] * b});
}
Status DepthToSpace(KernelContext& c) {
  const Shape& in = c.shape(0);
  const int64_t b = c.node.Int("blocksize", 0), depth = in[1] / (b * b), h = in[2], w = in[3];
  const bool by_column = c.node.Text("mode", "DCR") == "CRD";
  // The output is [n, depth, h, b, w, b]; the channels are [b, b, depth] or [depth, b, b].
  const int64_t dims[] = {in[0], depth, h, b, w, b};
  const int64_t area = h * w;
  const int64_t d_step = by_column ? b * b * area : area, row_step = by_column ? b * area : b * depth * area,
                col_step = by_column ? area : depth * area;
  const int64_t from[] = {in[1] * area, d_step, w, row_step, 1, col_step};
  CopyStrided(c.pool, c.dtype(0), dims, c.in(0).data, from, c.out(0).data, Strides(std::span(dims)));
  return {};
}
Status InferSpaceToDepth(InferContext& c) {
  const Shape& in = c.shape(0);
  const int64_t b = c.node.Int("blocksize", 0);
  if (in.rank() != 4 || b <= 0 || b > 1 << 20 || in[2] % b != 0 || in[3] % b != 0)
    return Error::Invalid("blocks of ", b, " do not fit ", in.ToString());
  CELER_RETURN_IF_ERROR(MakeShape({in[1], b, b}));
  return c.Set(0, c.dtype(0), {in[0], in[1] * b * b, in[2] / b, in[3] / b});
}
Status SpaceToDepth(KernelContext& c) {
  const Shape& in = c.shape(0);
  const int64_t b = c.node.Int("blocksize", 0), h = in[2] / b, w = in[3] / b;
  const int64_t dims[] = {in[0], b, b, in[1], h, w};
  const int64_t from[] = {in[1] * in[2] * in[3], in[3], 1, in[2] * in[3], in[3] * b, b};
  CopyStrided(c.pool, c.dtype(0), dims, c.in(0).data, from, c.out(0).data, Strides(std::span(dims)));
  return {};
}

Status InferReverse(InferContext& c) {
  const int64_t batch = c.node.Int("batch_axis", 1), time = c.node.Int("time_axis", 0);
  if (c.shape(0).rank() < 2 || (batch != 0 && batch != 1) || time != 1 - batch)
    return Error::Invalid("batch_axis ", batch, " and time_axis ", time, " of ", c.shape(0).ToString());
  if (c.shape(1).rank() != 1 || c.shape(1)[0] != c.shape(0)[static_cast<int>(batch)])
    return Error::Invalid("lengths of ", c.shape(1).ToString(), " for ", c.shape(0).ToString());
  return InferSame(c);
}
Status Reverse(KernelContext& c) {
  const Shape& in = c.shape(0);
  const int batch = static_cast<int>(c.node.Int("batch_axis", 1)), time = 1 - batch;
  const std::vector<int64_t> lengths = *c.ints(1);
  const auto row = static_cast<size_t>(Product(in, 2, in.rank())) * ElementBytes(c.dtype(0));
  const int64_t batch_step = batch == 0 ? in[1] : 1, time_step = batch == 0 ? 1 : in[1];
  for (int64_t b = 0; b < in[batch]; ++b) {
    const int64_t length = lengths[b];
    if (length < 0 || length > in[time]) return Error::Invalid("a length of ", length, " in ", in.ToString());
    for (int64_t t = 0; t < in[time]; ++t) {
      const int64_t source = t < length ? length - 1 - t : t;
      if (row > 0)
        std::memcpy(c.out(0).data + static_cast<size_t>(b * batch_step + t * time_step) * row,
                    c.in(0).data + static_cast<size_t>(b * batch_step + source * time_step) * row, row);
    }
  }
  return {};
}

Result<std::vector<int>> CropAxes(const OpInputs& c) {
  const int rank = c.shape(0).rank();
  if (c.node.Find("axes")) return CheckAxes(c.node.Ints("axes"), rank);
  std::vector<int> all;
  for (int i = 0; i < rank; ++i) all.push_back(i);
  return all;
}
Status InferCrop(InferContext& c) {
  CELER_ASSIGN(const std::vector<int> axes, CropAxes(c));
  const auto sizes = c.ints(1);
  if (!sizes) return {};
  if (sizes->size() != axes.size()) return Error::Invalid(sizes->size(), " sizes for ", axes.size(), " axes");
  std::vector<int64_t> dims = Dims(c.shape(0));
  for (size_t i = 0; i < axes.size(); ++i) dims[axes[i]] = (*sizes)[i];
  return c.Set(0, c.dtype(0), dims);
}
Status CenterCropPad(KernelContext& c) {
  const Shape &in = c.shape(0), &out = c.out(0).shape;
  const size_t size = ElementBytes(c.dtype(0));
  std::memset(c.out(0).data, 0, static_cast<size_t>(c.out_elements(0)) * size);
  const std::vector<int64_t> in_stride = Strides(in), out_stride = Strides(out);
  std::vector<int64_t> dims;
  int64_t from = 0, to = 0;
  for (int i = 0; i < in.rank(); ++i) {
    const auto d = static_cast<size_t>(i);
    dims.push_back(std::min(in[i], out[i]));
    if (in[i] > out[i]) from += (in[i] - out[i]) / 2 * in_stride[d];
    if (out[i] > in[i]) to += (out[i] - in[i]) / 2 * out_stride[d];
  }
  CopyStrided(c.pool, c.dtype(0), dims, c.in(0).data + static_cast<size_t>(from) * size, in_stride,
              c.out(0).data + static_cast<size_t>(to) * size, out_stride);
  return {};
}

Status InferTrilu(InferContext& c) {
  if (c.shape(0).rank() < 2) return Error::Invalid("its input ", c.shape(0).ToString(), " is no matrix");
  return InferSame(c);
}
Status Trilu(KernelContext& c) {
  const bool upper = c.node.Int("upper", 1) != 0;
  const int64_t k = c.has(1) && c.elements(1) > 0 ? (*c.ints(1))[0] : 0;
  const Shape& in = c.shape(0);
  const int64_t rows = in[in.rank() - 2], cols = in[in.rank() - 1];
  const int64_t matrices = Product(in, 0, in.rank() - 2);
  DispatchSize(c.dtype(0), [&]<class T>() {
    for (int64_t m = 0; m < matrices; ++m)
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < cols; ++j) {
          const int64_t at = (m * rows + i) * cols + j;
          const bool keep = upper ? j - i >= k : j - i <= k;
          c.out(0).as<T>()[at] = keep ? c.in(0).as<T>()[at] : T{0};
        }
  });
  return {};
}

constexpr Arity kOne = {1, 1};
constexpr Operator kRows[] = {
    {"CenterCropPad", 18, {2, 2}, kOne, kAnyType, InferCrop, CenterCropPad},
    {"Concat", 4, {1, -1}, kOne, kAnyType, InferConcat, Concat, Operator::kJoin},
    {"DepthToSpace", 1, kOne, kOne, kAnyType, InferDepthToSpace, DepthToSpace},
    {"Pad", 2, {1, 4}, kOne, kAnyType, InferPad, Pad},
    {"ReverseSequence", 10, {2, 2}, kOne, kAnyType, InferReverse, Reverse},
    {"Slice", 1, {1, 5}, kOne, kAnyType, InferSlice, Slice, Operator::kPlain, nullptr, {}, {}, 0, SlicePart},
    {"SpaceToDepth", 1, kOne, kOne, kAnyType, InferSpaceToDepth, SpaceToDepth},
    {"Split", 2, Arity(1, 2), Arity(1, -1), kAnyType, InferSplit, Split, Operator::kPlain, nullptr,
     kNoFastKernels, "", 0, SplitPart},
    {"Tile", 6, {2, 2}, kOne, kAnyType, InferTile, Tile},
    {"Transpose", 1, kOne, kOne, kAnyType, InferTranspose, Transpose},
    {"Trilu", 14, {1, 2}, kOne, kAnyType, InferTrilu, Trilu},
};

}  // namespace

std::span<const Operator> MoveOperators() {
  return kRows;
}

}  // namespace celer::graph
