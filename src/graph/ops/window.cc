#include "graph/ops/window.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/network/conv/conv.h"

namespace celer::graph {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;  // products of two such fit in 64 bits

Status Fill(const Node& node, const char* key, int64_t least, size_t rank, std::array<int64_t, 3>* out) {
  const std::vector<int64_t> given = node.Ints(key);
  if (given.empty()) return {};
  if (given.size() != rank)
    return Error::Invalid(key, " has ", given.size(), " entries for ", rank, " dimensions");
  for (size_t i = 0; i < rank; ++i) {
    if (given[i] < least || given[i] >= kMost) return Error::Invalid(key, " has an entry of ", given[i]);
    (*out)[3 - rank + i] = given[i];
  }
  return {};
}

Result<Window> Begin(const Node& node, const Shape& input, std::span<const int64_t> kernel) {
  Window w;
  w.rank = input.rank() - 2;
  if (w.rank < 1 || w.rank > 3)
    return Error::Unsupported("an input of ", input.ToString(),
                              "; one to three spatial dimensions are supported");
  const auto rank = static_cast<size_t>(w.rank);
  if (kernel.size() != rank)
    return Error::Invalid("a window of ", kernel.size(), " dimensions on ", input.ToString());
  for (size_t i = 0; i < rank; ++i) {
    w.in[3 - rank + i] = input[static_cast<int>(i) + 2];
    w.kernel[3 - rank + i] = kernel[i];
    if (kernel[i] < 1 || kernel[i] >= kMost || w.in[3 - rank + i] >= kMost)
      return Error::Invalid("a window of ", kernel[i], " on a dimension of ", w.in[3 - rank + i]);
  }
  CELER_RETURN_IF_ERROR(Fill(node, "strides", 1, rank, &w.stride));
  CELER_RETURN_IF_ERROR(Fill(node, "dilations", 1, rank, &w.dilation));
  const std::vector<int64_t> pads = node.Ints("pads");
  if (!pads.empty()) {
    if (pads.size() != 2 * rank) return Error::Invalid(pads.size(), " pads for ", rank, " dimensions");
    for (size_t i = 0; i < rank; ++i) {
      w.before[3 - rank + i] = pads[i];
      w.after[3 - rank + i] = pads[rank + i];
      for (const int64_t pad : {pads[i], pads[rank + i]})
        if (pad < 0 || pad >= kMost) return Error::Invalid("a pad of ", pad);
    }
  }
  return w;
}

}  // namespace

bool Window::Modest() const {
  for (size_t i = 0; i < 3; ++i) {
    const int64_t most = 4096 + 2 * in[i];
    if ((kernel[i] - 1) * dilation[i] > most || stride[i] > most || before[i] > most || after[i] > most)
      return false;
  }
  return true;
}

Result<Window> SlidingWindow(const Node& node, const Shape& input, std::span<const int64_t> kernel) {
  CELER_ASSIGN(Window w, Begin(node, input, kernel));
  const std::string mode = node.Text("auto_pad", "NOTSET");
  const bool ceil = node.Int("ceil_mode", 0) != 0;
  for (size_t i = static_cast<size_t>(3 - w.rank); i < 3; ++i) {
    const int64_t extent = (w.kernel[i] - 1) * w.dilation[i] + 1;
    if (mode == "SAME_UPPER" || mode == "SAME_LOWER") {
      w.out[i] = (w.in[i] + w.stride[i] - 1) / w.stride[i];
      const int64_t total = std::max<int64_t>(0, (w.out[i] - 1) * w.stride[i] + extent - w.in[i]);
      w.before[i] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.after[i] = total - w.before[i];
      continue;
    }
    if (mode == "VALID") w.before[i] = w.after[i] = 0;
    const int64_t room = w.in[i] + w.before[i] + w.after[i] - extent;
    if (room < 0)
      return Error::Invalid("a window of ", extent, " does not fit ", w.in[i], " elements with pads of ",
                            w.before[i], " and ", w.after[i]);
    w.out[i] = (ceil ? (room + w.stride[i] - 1) / w.stride[i] : room / w.stride[i]) + 1;
    // The last window begins inside the input or the pad before it.
    if (ceil && (w.out[i] - 1) * w.stride[i] >= w.in[i] + w.before[i]) --w.out[i];
  }
  return w;
}

Result<Window> TransposedWindow(const Node& node, const Shape& input, std::span<const int64_t> kernel) {
  CELER_ASSIGN(Window w, Begin(node, input, kernel));
  const auto rank = static_cast<size_t>(w.rank);
  std::array<int64_t, 3> extra{0, 0, 0}, wanted{-1, -1, -1};
  CELER_RETURN_IF_ERROR(Fill(node, "output_padding", 0, rank, &extra));
  std::vector<int64_t> shape = node.Ints("output_shape");
  if (shape.size() == rank + 2) shape.erase(shape.begin(), shape.begin() + 2);
  if (!shape.empty() && shape.size() != rank)
    return Error::Invalid("output_shape has ", shape.size(), " entries for ", rank, " dimensions");
  for (size_t i = 0; i < shape.size(); ++i) wanted[3 - rank + i] = shape[i];
  const std::string mode = node.Text("auto_pad", "NOTSET");
  for (size_t i = 3 - rank; i < 3; ++i) {
    const int64_t extent = (w.kernel[i] - 1) * w.dilation[i] + 1;
    const int64_t full = (w.in[i] - 1) * w.stride[i] + extra[i] + extent;
    if (!shape.empty() || mode == "SAME_UPPER" || mode == "SAME_LOWER") {
      w.out[i] = shape.empty() ? w.in[i] * w.stride[i] : wanted[i];
      if (w.out[i] < 0 || w.out[i] >= kMost) return Error::Invalid("an output dimension of ", w.out[i]);
      const int64_t total = std::max<int64_t>(0, full - w.out[i]);
      w.before[i] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.after[i] = total - w.before[i];
    } else {
      w.out[i] = full - w.before[i] - w.after[i];
    }
    if (w.out[i] < 0 || w.out[i] >= kMost) return Error::Invalid("an output dimension of ", w.out[i]);
  }
  return w;
}

ConvShape ConvShapeOf(const Window& window, int64_t batch, int64_t channels, int64_t out_channels,
                      int64_t groups) {
  return {.batch = batch,
          .channels = channels,
          .in_h = window.in[1],
          .in_w = window.in[2],
          .out_channels = out_channels,
          .groups = groups,
          .kernel_h = window.kernel[1],
          .kernel_w = window.kernel[2],
          .stride_h = window.stride[1],
          .stride_w = window.stride[2],
          .dilation_h = window.dilation[1],
          .dilation_w = window.dilation[2],
          .pad_top = window.before[1],
          .pad_left = window.before[2],
          .pad_bottom = window.after[1],
          .pad_right = window.after[2]};
}

}  // namespace celer::graph
