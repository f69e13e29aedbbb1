#include "cli/graph/picture_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "graph/ops/elements.h"
#include "io/file/printable.h"
#include "report/output.h"

namespace celer::cli {
namespace {

// How an array is read as pixels.
struct PixelLayout {
  int64_t channels = 1, height = 0, width = 0;
  bool channels_last = false;

  size_t pixels() const { return static_cast<size_t>(height * width); }
  size_t at(size_t pixel, int64_t channel) const {
    const auto c = static_cast<size_t>(channel), n = static_cast<size_t>(channels);
    return channels_last ? pixel * n + c : c * pixels() + pixel;
  }
};

struct ValueSpan {
  double low = std::numeric_limits<double>::infinity(), high = -low;
};

bool IsColourCount(int64_t n) {
  return n == 1 || n == 3 || n == 4;
}

Error NoPicture(const GraphTensor& tensor, const std::string& name, const std::string& why) {
  return Error::Invalid("the output '", Printable(name), "' is ", tensor.dtype,
                        fmt::format("[{}]", fmt::join(tensor.shape, ", ")), ", which is no picture: ", why,
                        "; write it to an .npy or .npz");
}

Result<PixelLayout> LayoutOf(const GraphTensor& tensor, const std::string& name, const PictureFlags& flags) {
  std::span<const int64_t> dims = tensor.shape;
  while (dims.size() > 3 && dims[0] == 1) dims = dims.subspan(1);
  PixelLayout out;
  if (dims.size() == 2) {
    out.height = dims[0], out.width = dims[1];
  } else if (dims.size() == 3) {
    // Colours are few; of classes, those are the channels that make the picture square, or the fewer ones.
    const bool by_colours = IsColourCount(dims[0]) != IsColourCount(dims[2]) && dims[1] > 1;
    const bool last = by_colours           ? IsColourCount(dims[2])
                      : dims[1] == dims[2] ? false
                      : dims[0] == dims[1] ? true
                                           : dims[2] < dims[0];
    out.channels_last = flags.layout == "nhwc" || (flags.layout == "auto" && last);
    out.channels = out.channels_last ? dims[2] : dims[0];
    out.height = out.channels_last ? dims[0] : dims[1];
    out.width = out.channels_last ? dims[1] : dims[2];
  } else {
    return NoPicture(tensor, name, "that has [1, C, H, W], [C, H, W], [H, W, C] or [H, W]");
  }
  if (out.channels < 1 || out.height < 1 || out.width < 1) return NoPicture(tensor, name, "it has no pixels");
  if (out.height == 1 || out.width == 1) return NoPicture(tensor, name, "it is a row of values");
  return out;
}

Result<std::vector<double>> NumbersOf(const GraphTensor& tensor, const std::string& name, ValueSpan* span) {
  std::vector<double> out;
  const auto dtype = ParseDType(tensor.dtype);
  const bool known = dtype && graph::DispatchOr(*dtype, graph::PlainTypes{}, [&]<class T>() {
                       out.resize(tensor.bytes.size() / sizeof(T));
                       for (size_t i = 0; i < out.size(); ++i) {
                         T element;
                         std::memcpy(&element, &tensor.bytes[i * sizeof(T)], sizeof(T));
                         out[i] = static_cast<double>(static_cast<graph::Compute<T>>(element));
                       }
                     });
  if (!known) return NoPicture(tensor, name, "its elements are no numbers");
  for (const double value : out) {
    if (!std::isfinite(value)) return NoPicture(tensor, name, "it has values that are not finite");
    span->low = std::min(span->low, value), span->high = std::max(span->high, value);
  }
  return out;
}

// Colours of neighbouring classes differ much: bits of the number go to the highest bits of red, green and
// blue in turn, as in the maps of Pascal VOC. Class 0 is black.
std::array<uint8_t, 3> ClassColour(uint64_t index) {
  std::array<uint8_t, 3> out{};
  for (int bit = 7; bit >= 0 && index > 0; --bit, index >>= 3)
    for (size_t c = 0; c < 3; ++c) out[c] = static_cast<uint8_t>(out[c] | (index >> c & 1) << bit);
  return out;
}

PixelRows ClassMap(const PixelLayout& layout, const std::vector<double>& numbers) {
  PixelRows out{layout.width, layout.height, 3, std::vector<uint8_t>(layout.pixels() * 3)};
  for (size_t p = 0; p < layout.pixels(); ++p) {
    uint64_t best = 0;
    if (layout.channels == 1) {
      best = static_cast<uint64_t>(static_cast<int64_t>(numbers[p]));
    } else {
      for (int64_t c = 1; c < layout.channels; ++c)
        if (numbers[layout.at(p, c)] > numbers[layout.at(p, static_cast<int64_t>(best))])
          best = static_cast<uint64_t>(c);
    }
    const auto colour = ClassColour(best);
    std::copy(colour.begin(), colour.end(), out.bytes.begin() + static_cast<int64_t>(p) * 3);
  }
  return out;
}

PixelRows Colours(const PixelLayout& layout, const std::vector<double>& numbers, double scale, bool bgr) {
  PixelRows out{layout.width, layout.height, static_cast<int>(layout.channels),
                std::vector<uint8_t>(numbers.size())};
  for (size_t p = 0; p < layout.pixels(); ++p)
    for (int64_t c = 0; c < layout.channels; ++c) {
      const int64_t from = bgr && layout.channels >= 3 && c < 3 ? 2 - c : c;
      const double value = std::clamp(std::round(numbers[layout.at(p, from)] * scale), 0.0, 255.0);
      out.bytes[p * static_cast<size_t>(layout.channels) + static_cast<size_t>(c)] =
          static_cast<uint8_t>(value);
    }
  return out;
}

}  // namespace

Result<PixelRows> PixelsOf(const GraphTensor& tensor, const std::string& name, const PictureFlags& flags) {
  // Networks for pictures reach a little beyond the range they learned.
  constexpr double kSlack = 0.5;
  CELER_ASSIGN(const PixelLayout layout, LayoutOf(tensor, name, flags));
  ValueSpan span;
  CELER_ASSIGN(const std::vector<double> numbers, NumbersOf(tensor, name, &span));
  const bool bgr = flags.channels == "bgr", colours = IsColourCount(layout.channels);
  const auto within = [&](double most) {
    return span.low >= -kSlack * most && span.high <= (1 + kSlack) * most;
  };
  const bool floats = tensor.dtype.find('f') != std::string::npos;
  if (floats) {
    if (!colours) return ClassMap(layout, numbers);
    if (within(1)) return Colours(layout, numbers, 255, bgr);
    if (within(255)) return Colours(layout, numbers, 1, bgr);
    return NoPicture(tensor, name,
                     fmt::format("its values go from {:.4g} to {:.4g}, and those of pictures from 0 to 1 or "
                                 "from 0 to 255",
                                 span.low, span.high));
  }
  if (layout.channels == 1 && tensor.dtype != "u8") {
    constexpr double kMostClasses = 1 << 24;  // colours that there are
    if (span.low < 0 || span.high >= kMostClasses)
      return NoPicture(tensor, name,
                       fmt::format("its values go from {} to {}, and are no classes", span.low, span.high));
    return ClassMap(layout, numbers);
  }
  if (!colours)
    return NoPicture(tensor, name, fmt::format("{} channels; a picture has 1, 3 or 4", layout.channels));
  if (span.low < 0 || span.high > 255)
    return NoPicture(
        tensor, name,
        fmt::format("its values go from {} to {}, and those of pictures from 0 to 255", span.low, span.high));
  return Colours(layout, numbers, 1, bgr);
}

Status WriteOutputPicture(const std::filesystem::path& path, const std::vector<GraphPort>& ports,
                          const std::vector<GraphTensor>& outputs, const PictureFlags& flags) {
  std::optional<Error> why;  // the first output is none
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto pixels = PixelsOf(outputs[i], ports[i].name, flags);
    if (!pixels) {
      if (!why) why = pixels.error();
      continue;
    }
    CELER_RETURN_IF_ERROR(WritePixels(*pixels, path));
    Say("{}: the output '{}' as a picture of {} x {} pixels\n", path.string(), Printable(ports[i].name),
        pixels->width, pixels->height);
    return {};
  }
  if (!why) return Error::Invalid("--output ", path.string(), ": the network has no outputs");
  return why->WithContext("--output " + path.string());
}

}  // namespace celer::cli
