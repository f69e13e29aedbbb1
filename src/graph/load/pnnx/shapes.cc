// What moves and cuts tensors without computing: shapes, slices, padding, resizing.
#include <algorithm>
#include <limits>

#include "graph/load/pnnx/modules.h"

namespace celer::graph {
namespace {

using L = Lowering;
constexpr int64_t kToTheEnd = std::numeric_limits<int64_t>::max();
constexpr int64_t kNotSelected = std::numeric_limits<int32_t>::max();

void Reshape(L& l) {
  const ValueId x = FirstInput(l);
  const char* const key = l.Has("shape") || l.HasArgument("shape") ? "shape" : "size";
  l.Output(0, l.Node("Reshape", {x, l.IntsOrOperand(key)}, {{"allowzero", int64_t{1}}}));
}
void Flatten(L& l) {
  const ValueId x = FirstInput(l);
  const auto rank = l.Rank(x);
  const int64_t start = l.Axis(l.Int("start_dim", l.op().type == "nn.Flatten" ? 1 : 0), x);
  int64_t end = l.Int("end_dim", -1);
  if (end != -1 && (!rank || end != *rank - 1)) {
    end = l.Axis(end, x);
    const ValueId shape = l.ShapeOf(x);
    const auto part = [&](int64_t from, int64_t to) {
      return l.Node("Slice", {shape, l.Constants({from}), l.Constants({to}), l.Constants({0})});
    };
    const ValueId whole = l.Node("Concat", {part(0, start), l.Constants({-1}), part(end + 1, kToTheEnd)},
                                 {{"axis", int64_t{0}}}, DType::kI64);
    l.Output(0, l.Node("Reshape", {x, whole}));
    return;
  }
  std::vector<int64_t> shape(static_cast<size_t>(std::max<int64_t>(start, 0)), 0);
  shape.push_back(-1);
  l.Output(0, l.Node("Reshape", {x, l.Constants(shape)}));
}
void Unflatten(L& l) {
  const ValueId x = FirstInput(l);
  const int64_t axis = l.Axis(l.Int("dim", 0), x);
  const ValueId shape = l.ShapeOf(x);
  const auto part = [&](int64_t from, int64_t to) {
    return l.Node("Slice", {shape, l.Constants({from}), l.Constants({to}), l.Constants({0})});
  };
  const char* const key = l.Has("sizes") ? "sizes" : "unflattened_size";
  l.Output(0,
           l.Node("Reshape",
                  {x, l.Node("Concat", {part(0, axis), l.Constants(l.Ints(key)), part(axis + 1, kToTheEnd)},
                             {{"axis", int64_t{0}}}, DType::kI64)}));
}
void Permute(L& l) {
  const ValueId x = FirstInput(l);
  std::vector<int64_t> order = l.Ints("dims");
  for (int64_t& axis : order) axis = axis < 0 ? axis + static_cast<int64_t>(order.size()) : axis;
  l.Output(0, l.Node("Transpose", {x}, {{"perm", order}}));
}
void Transpose(L& l) {
  const ValueId x = FirstInput(l);
  const auto rank = l.Rank(x);
  const int64_t a = l.Axis(l.Int("dim0", 0), x), b = l.Axis(l.Int("dim1", 1), x);
  if (!rank || a < 0 || b < 0 || a >= *rank || b >= *rank) {
    l.Fail("the shape of its input is not known, or has no such dimensions");
    return;
  }
  std::vector<int64_t> order;
  for (int64_t i = 0; i < *rank; ++i) order.push_back(i);
  std::swap(order[a], order[b]);
  l.Output(0, l.Node("Transpose", {x}, {{"perm", order}}));
}
void Unsqueeze(L& l) {
  l.Output(0, l.Node("Unsqueeze", {FirstInput(l), l.Constants({l.Int("dim", 0)})}));
}
void Squeeze(L& l) {
  l.Output(0, l.Has("dim") ? l.Node("Squeeze", {FirstInput(l), l.Constants(l.Ints("dim"))})
                           : l.Node("Squeeze", {FirstInput(l)}));
}
void Expand(L& l) {
  const ValueId x = FirstInput(l);
  const char* const key = l.Has("sizes") || l.HasArgument("sizes")   ? "sizes"
                          : l.Has("shape") || l.HasArgument("shape") ? "shape"
                                                                     : "size";
  if (l.HasArgument(key)) {
    l.Output(0, l.Node("Expand", {x, l.Argument(key, 1)}));
    return;
  }
  std::vector<int64_t> sizes = l.Ints(key);
  for (int64_t& size : sizes) size = size == -1 ? 1 : size;  // as it is
  l.Output(0, l.Node("Expand", {x, l.Constants(sizes)}));
}
void ExpandAs(L& l) {
  l.Output(0, l.Node("Expand", {l.Input(0), l.ShapeOf(l.Input(1))}));
}
void Repeat(L& l) {
  ValueId x = FirstInput(l);
  const std::vector<int64_t> times = l.Ints(l.Has("sizes") ? "sizes" : "dims");
  const auto rank = l.Rank(x);
  if (!rank) {
    l.Fail("the shape of its input is not known");
    return;
  }
  std::vector<int64_t> front;
  for (int64_t i = 0; i < static_cast<int64_t>(times.size()) - *rank; ++i) front.push_back(i);
  if (!front.empty()) x = l.Node("Unsqueeze", {x, l.Constants(front)});
  l.Output(0, l.Node("Tile", {x, l.Constants(times)}));
}
void Cat(L& l) {
  std::vector<ValueId> parts;
  for (size_t i = 0; i < l.inputs(); ++i) parts.push_back(l.Input(i));
  l.Output(0, l.Node("Concat", parts, {{"axis", l.Int("dim", 0)}}));
}
void Stack(L& l) {
  std::vector<ValueId> parts;
  const int64_t axis = l.Int("dim", 0);
  for (size_t i = 0; i < l.inputs(); ++i)
    parts.push_back(l.Node("Unsqueeze", {l.Input(i), l.Constants({axis})}));
  l.Output(0, l.Node("Concat", parts, {{"axis", axis}}));
}
// Each piece [begin, end) of a dimension.
void Pieces(L& l, int64_t axis, const std::vector<int64_t>& ends) {
  const ValueId x = FirstInput(l);
  int64_t begin = 0;
  for (size_t i = 0; i < l.op().outputs.size(); ++i) {
    const int64_t end = i < ends.size() ? ends[i] : kToTheEnd;
    l.Output(i, l.Node("Slice", {x, l.Constants({begin}), l.Constants({end}), l.Constants({axis})}));
    begin = end;
  }
}
void Split(L& l) {
  const char* const key = l.Has("split_size_or_sections") ? "split_size_or_sections" : "split_size";
  std::vector<int64_t> sizes = l.Ints(key), ends;
  if (sizes.size() == 1) sizes.resize(l.op().outputs.size(), sizes[0]);
  int64_t end = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (sizes[i] < 0 || sizes[i] > kToTheEnd - end) {
      l.Fail("a piece of ", sizes[i]);
      return;
    }
    ends.push_back(end += sizes[i]);
  }
  Pieces(l, l.Int("dim", 0), ends);
}
void TensorSplit(L& l) {
  if (!l.Has("indices")) l.Fail("it has no indices");
  Pieces(l, l.Int("dim", 0), l.Ints("indices"));
}
void Chunk(L& l) {
  const ValueId x = FirstInput(l);
  const size_t outputs = l.op().outputs.size();
  const std::vector<ValueId> parts = l.NodeOf(
      "Split", {x}, outputs, {{"axis", l.Int("dim", 0)}, {"num_outputs", static_cast<int64_t>(outputs)}});
  for (size_t i = 0; i < outputs; ++i) {
    l.graph().value(parts[i]).type.dtype = l.TypeOf(x);
    l.Output(i, parts[i]);
  }
}
void Unbind(L& l) {
  const ValueId x = FirstInput(l);
  for (size_t i = 0; i < l.op().outputs.size(); ++i)
    l.Output(i, l.Node("Gather", {x, l.ConstantInt(static_cast<int64_t>(i))}, {{"axis", l.Int("dim", 0)}}));
}
void Select(L& l) {
  const ValueId index = l.HasArgument("index") ? l.Argument("index", 1) : l.ConstantInt(l.Int("index", 0));
  l.Output(0, l.Node("Gather", {FirstInput(l), index}, {{"axis", l.Int("dim", 0)}}));
}
void Slice(L& l) {
  ValueId x = FirstInput(l);
  const bool many = l.Has("dims");
  const std::vector<int64_t> axes = many ? l.Ints("dims") : std::vector<int64_t>{l.Int("dim", 0)};
  const auto list = [&](const char* plural, const char* single, int64_t otherwise) {
    const char* const key = many ? plural : single;
    return l.HasArgument(key) ? l.Node("Reshape", {l.Argument(key, 1), l.Constants({-1})})
                              : l.Constants(l.Ints(key, axes.size(), otherwise));
  };
  const std::vector<int64_t> selects =
      many && l.Has("selects") ? l.Ints("selects", axes.size(), kNotSelected) : std::vector<int64_t>();
  std::vector<int64_t> gone;  // dimensions of which one index is kept
  if (std::any_of(selects.begin(), selects.end(), [](int64_t s) { return s != kNotSelected; })) {
    std::vector<int64_t> starts = l.Ints("starts", axes.size(), 0),
                         ends = l.Ints("ends", axes.size(), kToTheEnd);
    const std::vector<int64_t> steps = l.Ints("steps", axes.size(), 1);
    for (size_t i = 0; i < axes.size(); ++i) {
      if (selects[i] == kNotSelected) continue;
      starts[i] = selects[i];
      ends[i] = selects[i] == -1 || selects[i] == kToTheEnd ? kToTheEnd : selects[i] + 1;
      gone.push_back(axes[i]);
    }
    x = l.Node("Slice", {x, l.Constants(starts), l.Constants(ends), l.Constants(axes), l.Constants(steps)});
    l.Output(0, l.Node("Squeeze", {x, l.Constants(gone)}));
    return;
  }
  const ValueId starts = list("starts", "start", 0), ends = list("ends", "end", kToTheEnd),
                steps = list("steps", "step", 1);
  l.Output(0, l.Node("Slice", {x, starts, ends, l.Constants(axes), steps}));
}
void IndexSelect(L& l) {
  l.Output(0, l.Node("Gather", {FirstInput(l), l.Argument("index", 1)}, {{"axis", l.Int("dim", 0)}}));
}
void Gather(L& l) {
  l.Output(0, l.Node("GatherElements", {FirstInput(l), l.Argument("index", 1)}, {{"axis", l.Int("dim", 0)}}));
}
void Size(L& l) {
  const ValueId x = FirstInput(l);
  l.Output(0, l.Has("dim") ? l.SizeOf(x, l.Int("dim", 0)) : l.ShapeOf(x));
}
void Pad(L& l) {
  const ValueId x = FirstInput(l);
  const std::string mode = l.Text("mode", "constant");
  const std::vector<int64_t> pads = l.Ints(l.Has("pad") ? "pad" : "padding");
  std::vector<int64_t> axes, begins, ends;  // PyTorch begins with the last dimension
  for (size_t i = 0; i + 1 < pads.size(); i += 2) {
    axes.push_back(-1 - static_cast<int64_t>(i / 2));
    begins.push_back(pads[i]);
    ends.push_back(pads[i + 1]);
  }
  begins.insert(begins.end(), ends.begin(), ends.end());
  const std::string& type = l.op().type;
  const std::string onnx = type.starts_with("nn.Reflection") || mode == "reflect"      ? "reflect"
                           : type.starts_with("nn.Replication") || mode == "replicate" ? "edge"
                           : mode == "circular"                                        ? "wrap"
                                                                                       : "constant";
  const ValueId value = l.Cast(l.ConstantFloat(l.Float("value", 0)), l.TypeOf(x));
  l.Output(0, l.Node("Pad", {x, l.Constants(begins), value, l.Constants(axes)}, {{"mode", onnx}}, {}, 19));
}
void Resize(L& l) {
  const ValueId x = FirstInput(l);
  const std::string mode = l.op().type.ends_with("Nearest2d")    ? "nearest"
                           : l.op().type.ends_with("Bilinear2d") ? "bilinear"
                                                                 : l.Text("mode", "nearest");
  const bool corners = l.op().type.ends_with("Bilinear2d") || l.Bool("align_corners", false);
  const auto rank = l.Rank(x);
  if (!rank || *rank < 3) {
    l.Fail("the shape of its input is not known");
    return;
  }
  const auto spatial = static_cast<size_t>(*rank - 2);
  std::vector<int64_t> axes;
  for (size_t i = 0; i < spatial; ++i) axes.push_back(static_cast<int64_t>(i) + 2);
  L::Attributes attributes = {{"axes", axes}};
  if (mode == "nearest") {
    attributes.insert(attributes.end(), {{"mode", std::string("nearest")},
                                         {"coordinate_transformation_mode", std::string("asymmetric")},
                                         {"nearest_mode", std::string("floor")}});
  } else if (mode == "bilinear" || mode == "linear" || mode == "trilinear" || mode == "bicubic") {
    attributes.insert(attributes.end(), {{"mode", std::string(mode == "bicubic" ? "cubic" : "linear")},
                                         {"coordinate_transformation_mode",
                                          std::string(corners ? "align_corners" : "half_pixel")},
                                         {"cubic_coeff_a", -0.75f}});
  } else {
    l.Fail("the mode '", mode, "' is not known");
  }
  if (l.HasArgument("size") || l.Has("size")) {
    const ValueId sizes =
        l.HasArgument("size") ? l.Argument("size", 1) : l.Constants(l.Ints("size", spatial, 1));
    l.Output(0, l.Node("Resize", std::vector<ValueId>{x, kNoValue, kNoValue, sizes}, std::move(attributes)));
    return;
  }
  std::vector<double> factors = l.Floats("scale_factor");
  if (factors.size() == 1) factors.resize(spatial, factors[0]);
  if (factors.size() != spatial) {
    l.Fail("it has neither a size nor a scale_factor for ", spatial, " dimensions");
    return;
  }
  std::vector<ValueId> scales;
  for (const double factor : factors)
    scales.push_back(l.Node("Reshape", {l.ConstantFloat(factor), l.Constants({1})}));
  l.Output(
      0, l.Node("Resize", std::vector<ValueId>{x, kNoValue, l.Node("Concat", scales, {{"axis", int64_t{0}}})},
                std::move(attributes)));
}
void PixelShuffle(L& l) {
  l.Output(0, l.Node("DepthToSpace", {FirstInput(l)},
                     {{"blocksize", l.Int("upscale_factor", 1)}, {"mode", std::string("CRD")}}));
}
// [n, groups * k, ...] becomes [n, k * groups, ...]: the groups' channels take turns.
void ChannelShuffle(L& l) {
  const ValueId x = FirstInput(l), shape = l.ShapeOf(x);
  const int64_t groups = l.Int("groups", 1);
  if (groups < 1) l.Fail("groups is ", groups);
  const ValueId places = l.Node(
      "ReduceProd", {l.Node("Slice", {shape, l.Constants({2}), l.Constants({kToTheEnd})}, {}, DType::kI64)},
      {{"keepdims", int64_t{1}}}, DType::kI64);
  const ValueId apart =
      l.Node("Concat", {l.Constants({0, groups, -1}), places}, {{"axis", int64_t{0}}}, DType::kI64);
  const ValueId turned =
      l.Node("Transpose", {l.Node("Reshape", {x, apart})}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  l.Output(0, l.Node("Reshape", {turned, shape}));
}
void Roll(L& l) {
  ValueId x = FirstInput(l);
  const std::vector<int64_t> shifts = l.Ints("shifts"), axes = l.Ints("dims");
  if (shifts.size() != axes.size())
    l.Fail("it has ", shifts.size(), " shifts for ", axes.size(), " dimensions");
  for (size_t i = 0; i < std::min(shifts.size(), axes.size()); ++i) {
    const auto part = [&](int64_t from, int64_t to) {
      return l.Node("Slice", {x, l.Constants({from}), l.Constants({to}), l.Constants({axes[i]})});
    };
    if (shifts[i] < -kToTheEnd)
      l.Fail("a shift of ", shifts[i]);
    else if (shifts[i] != 0)
      x = l.Node("Concat", {part(-shifts[i], kToTheEnd), part(0, -shifts[i])}, {{"axis", axes[i]}});
  }
  l.Output(0, x);
}

constexpr PnnxRow kRows[] = {
    {"Tensor.view", Reshape},
    {"Tensor.reshape", Reshape},
    {"torch.reshape", Reshape},
    {"torch.flatten", Flatten},
    {"nn.Flatten", Flatten},
    {"torch.unflatten", Unflatten},
    {"Tensor.unflatten", Unflatten},
    {"nn.Unflatten", Unflatten},
    {"torch.permute", Permute},
    {"Tensor.permute", Permute},
    {"torch.transpose", Transpose},
    {"Tensor.transpose", Transpose},
    {"torch.unsqueeze", Unsqueeze},
    {"torch.squeeze", Squeeze},
    {"Tensor.expand", Expand},
    {"Tensor.expand_as", ExpandAs},
    {"Tensor.repeat", Repeat},
    {"torch.tile", Repeat},
    {"torch.cat", Cat},
    {"torch.concat", Cat},
    {"torch.stack", Stack},
    {"torch.split", Split},
    {"torch.tensor_split", TensorSplit},
    {"torch.chunk", Chunk},
    {"torch.unbind", Unbind},
    {"Tensor.select", Select},
    {"torch.select", Select},
    {"Tensor.slice", Slice},
    {"torch.index_select", IndexSelect},
    {"torch.gather", Gather},
    {"Tensor.size", Size},
    {"F.pad", Pad},
    {"nn.ZeroPad2d", Pad},
    {"nn.ConstantPad1d", Pad},
    {"nn.ConstantPad2d", Pad},
    {"nn.ReflectionPad1d", Pad},
    {"nn.ReflectionPad2d", Pad},
    {"nn.ReplicationPad1d", Pad},
    {"nn.ReplicationPad2d", Pad},
    {"nn.Upsample", Resize},
    {"F.interpolate", Resize},
    {"F.upsample", Resize},
    {"nn.UpsamplingNearest2d", Resize},
    {"nn.UpsamplingBilinear2d", Resize},
    {"F.upsample_nearest", Resize},
    {"F.upsample_bilinear", Resize},
    {"nn.PixelShuffle", PixelShuffle},
    {"F.pixel_shuffle", PixelShuffle},
    {"nn.ChannelShuffle", ChannelShuffle},
    {"F.channel_shuffle", ChannelShuffle},
    {"torch.channel_shuffle", ChannelShuffle},
    {"torch.roll", Roll},
};

}  // namespace

std::span<const PnnxRow> PnnxShapes() {
  return kRows;
}

}  // namespace celer::graph
