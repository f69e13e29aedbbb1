#include "cli/graph/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "cli/graph/graph.h"
#include "cli/shared/command.h"
#include "graph/ops/elements.h"
#include "io/file/printable.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

// How a picture becomes an input.
struct PictureTarget {
  int64_t height = 0, width = 0, channels = 3;
  bool channels_last = false;
  std::vector<int64_t> shape = {};
  DType dtype = DType::kF32;
};

std::vector<std::string> NamesOf(const std::vector<GraphPort>& ports) {
  std::vector<std::string> names;
  for (const GraphPort& port : ports) names.push_back(port.name);
  return names;
}

std::string PortText(const GraphPort& port) {
  std::vector<std::string> dims;
  for (size_t i = 0; i < port.shape.size(); ++i)
    dims.push_back(port.shape[i] >= 0          ? std::to_string(port.shape[i])
                   : port.dim_names[i].empty() ? "?"
                                               : Printable(port.dim_names[i]));
  return fmt::format("{}[{}]", port.texts ? "string" : port.dtype, fmt::join(dims, ", "));
}

Result<PictureTarget> TargetFor(const GraphPort& port, const PictureFlags& flags, const Picture& picture) {
  const std::string what = "--input " + Printable(port.name);
  if (port.shape.size() != 4 && port.shape.size() != 3)
    return Error::Invalid(what, ": a picture needs an input of 3 or 4 dimensions, and this one is ",
                          PortText(port), "; give an .npy file");
  PictureTarget out;
  const size_t at = port.shape.size() - 3;  // behind the batch
  const auto is_channels = [&](size_t i) { return port.shape[i] == 3 || port.shape[i] == 1; };
  if (flags.layout == "auto")
    out.channels_last = !is_channels(at) && is_channels(at + 2);
  else
    out.channels_last = flags.layout == "nhwc";
  const size_t c = out.channels_last ? at + 2 : at, h = out.channels_last ? at : at + 1;
  out.channels = port.shape[c] < 0 ? 3 : port.shape[c];
  if (out.channels != 3 && out.channels != 1)
    return Error::Invalid(what, ": a picture has 3 channels or 1, and the input ", PortText(port), " has ",
                          out.channels, "; --layout nchw or nhwc says which dimension they are");
  out.height = port.shape[h], out.width = port.shape[h + 1];
  if (!flags.size.empty()) {
    CELER_ASSIGN(const auto size, ParseDims(flags.size));
    if (size.size() != 2 || size[0] < 1 || size[1] < 1 || size[0] > 16384 || size[1] > 16384)
      return Error::Invalid("--size ", Printable(flags.size), ": expected HEIGHT,WIDTH of 1 to 16384");
    if ((out.height >= 0 && out.height != size[0]) || (out.width >= 0 && out.width != size[1]))
      return Error::Invalid("--size ", Printable(flags.size), ": the input '", Printable(port.name), "' is ",
                            PortText(port));
    out.height = size[0], out.width = size[1];
  }
  if (out.height < 0) out.height = picture.height;
  if (out.width < 0) out.width = picture.width;
  if (out.height < 1 || out.width < 1 || out.height > 16384 || out.width > 16384)
    return Error::Invalid(what, ": the input ", PortText(port), " is no size for a picture");
  const int64_t batch = at == 1 ? std::max<int64_t>(port.shape[0], 1) : 1;
  if (batch != 1) return Error::Invalid(what, ": one picture for an input of ", batch, "; give an .npy file");
  if (at == 1) out.shape.push_back(1);
  if (out.channels_last)
    out.shape.insert(out.shape.end(), {out.height, out.width, out.channels});
  else
    out.shape.insert(out.shape.end(), {out.channels, out.height, out.width});
  const auto dtype = ParseDType(port.dtype.empty() ? "f32" : port.dtype);
  if (!dtype || (*dtype != DType::kF32 && *dtype != DType::kU8))
    return Error::Invalid(what, ": a picture becomes f32 or u8, and the input is ", PortText(port),
                          "; give an .npy file");
  out.dtype = *dtype;
  return out;
}

// The picture in the size of the input; what letterboxing leaves open is grey.
Picture Fitted(const PictureFlags& flags, const PictureTarget& target, Placed* placed) {
  const Picture& from = placed->picture;
  const auto width = static_cast<int>(target.width), height = static_cast<int>(target.height);
  placed->width = width, placed->height = height;
  if (flags.fit == "stretch") {
    placed->scale_x = static_cast<double>(width) / from.width;
    placed->scale_y = static_cast<double>(height) / from.height;
    return Resized(from, width, height);
  }
  const double by_width = static_cast<double>(width) / from.width,
               by_height = static_cast<double>(height) / from.height;
  const double scale = flags.fit == "crop" ? std::max(by_width, by_height) : std::min(by_width, by_height);
  const auto inner_width = std::max(1, static_cast<int>(std::lround(from.width * scale))),
             inner_height = std::max(1, static_cast<int>(std::lround(from.height * scale)));
  Picture inner = Resized(from, inner_width, inner_height);
  const int left = (width - inner_width) / 2, top = (height - inner_height) / 2;
  Picture out{width, height,
              std::vector<uint8_t>(static_cast<size_t>(width) * static_cast<size_t>(height) * 3, 114)};
  for (int y = std::max(0, top); y < std::min(height, top + inner_height); ++y) {
    const int x = std::max(0, left), end = std::min(width, left + inner_width);
    std::memcpy(out.at(x, y), inner.at(x - left, y - top), static_cast<size_t>(end - x) * 3);
  }
  placed->scale_x = placed->scale_y = scale;
  placed->left = left, placed->top = top;
  return out;
}

Result<std::array<double, 3>> PerChannel(const std::vector<double>& given, const char* flag,
                                         double otherwise) {
  if (given.empty()) return std::array<double, 3>{otherwise, otherwise, otherwise};
  if (given.size() == 1) return std::array<double, 3>{given[0], given[0], given[0]};
  if (given.size() != 3)
    return Error::Invalid(flag, ": ", given.size(), " numbers; give one, or one for each of 3 channels");
  return std::array<double, 3>{given[0], given[1], given[2]};
}

Result<NpyArray> FromPicture(const GraphPort& port, const PictureFlags& flags, Placed* placed) {
  CELER_ASSIGN(const PictureTarget target, TargetFor(port, flags, placed->picture));
  const Picture fitted = Fitted(flags, target, placed);
  CELER_ASSIGN(const auto mean, PerChannel(flags.mean, "--mean", 0));
  CELER_ASSIGN(const auto std, PerChannel(flags.std, "--std", 1));
  for (const double s : std)
    if (!(s > 0)) return Error::Invalid("--std ", s, ": expected more than 0");
  const auto pixels = static_cast<size_t>(target.height * target.width);
  const auto channels = static_cast<size_t>(target.channels);
  NpyArray out;
  out.dtype = target.dtype;
  out.shape = Shape(std::span<const int64_t>(target.shape));
  const bool bytes = target.dtype == DType::kU8;
  out.bytes.resize(pixels * channels * (bytes ? 1 : 4));
  for (size_t p = 0; p < pixels; ++p) {
    const uint8_t* const rgb = &fitted.rgb[p * 3];
    for (size_t c = 0; c < channels; ++c) {
      const double value = channels == 1             ? 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]
                           : flags.channels == "bgr" ? rgb[2 - c]
                                                     : rgb[c];
      const size_t at = target.channels_last ? p * channels + c : c * pixels + p;
      if (bytes) {
        out.bytes[at] = static_cast<std::byte>(std::lround(value));
      } else {
        const auto number = static_cast<float>((value * flags.scale - mean[c]) / std[c]);
        std::memcpy(&out.bytes[at * 4], &number, 4);
      }
    }
  }
  return out;
}

// "16000", "0.5,1": numbers instead of a file. Nullopt if it is none.
std::optional<std::vector<double>> Numbers(const std::string& text) {
  std::vector<double> out;
  const char* at = text.data();
  const char* const end = at + text.size();
  do {
    double number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (next != end && *next != ',')) return std::nullopt;
    out.push_back(number);
    at = next == end ? end : next + 1;
  } while (at != end);
  return text.ends_with(',') ? std::nullopt : std::optional(out);
}

// "Paris,Rome": strings instead of a file.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text)
    if (c == ',')
      out.emplace_back();
    else
      out.back() += c;
  return out;
}

// False for an element type that this does not write.
bool StoreAs(NpyArray* array, size_t i, double value) {
  return graph::DispatchOr(array->dtype, graph::PlainTypes{}, [&]<class T>() {
    const auto number = static_cast<T>(static_cast<graph::Compute<T>>(value));
    std::memcpy(&array->bytes[i * sizeof(T)], &number, sizeof(T));
  });
}

double LoadFrom(const NpyArray& array, size_t i) {
  double out = 0;
  graph::DispatchOr(array.dtype, graph::PlainTypes{}, [&]<class T>() {
    T element;
    std::memcpy(&element, &array.bytes[i * sizeof(T)], sizeof(T));
    out = static_cast<double>(static_cast<graph::Compute<T>>(element));
  });
  return out;
}

Result<NpyArray> Empty(const GraphPort& port, const std::vector<int64_t>& dims) {
  NpyArray out;
  const auto dtype = ParseDType(port.dtype.empty() ? "f32" : port.dtype);
  if (!dtype)
    return Error::Invalid("the input '", Printable(port.name), "' is ", PortText(port),
                          "; give it as an .npy file");
  out.dtype = *dtype;
  if (dims.size() > Shape::kMaxRank)
    return Error::Invalid("the input '", Printable(port.name), "': ", dims.size(), " dimensions; at most ",
                          Shape::kMaxRank, " are supported");
  out.shape = Shape(std::span<const int64_t>(dims));
  const auto elements = out.shape.elements();
  const auto bytes = elements ? BytesFor(out.dtype, *elements) : std::nullopt;
  if (!bytes || *bytes > int64_t{1} << 36)
    return Error::Invalid("the input '", Printable(port.name), "': a shape of ", out.shape.ToString(),
                          " is more than 64 GiB");
  out.bytes.resize(*bytes);
  return out;
}

Result<NpyArray> FromNumbers(const GraphPort& port, const std::vector<double>& numbers) {
  std::vector<int64_t> dims = port.shape;
  int64_t fixed = 1, open = 0;
  for (const int64_t dim : dims) dim < 0 ? void(++open) : void(fixed *= dim);
  const auto count = static_cast<int64_t>(numbers.size());
  for (int64_t& dim : dims)
    if (dim < 0) dim = open == 1 && count > 1 && fixed > 0 && count % fixed == 0 ? count / fixed : 1;
  CELER_ASSIGN(NpyArray out, Empty(port, dims));
  const int64_t elements = *out.shape.elements();
  if (count != 1 && count != elements)
    return Error::Invalid("--input ", Printable(port.name), ": ", count, " numbers for ", PortText(port));
  for (int64_t i = 0; i < elements; ++i)
    if (!StoreAs(&out, static_cast<size_t>(i), numbers[count == 1 ? 0 : static_cast<size_t>(i)]))
      return Error::Invalid("--input ", Printable(port.name), ": numbers cannot be written as ", port.dtype,
                            "; give an .npy file");
  return out;
}

// Strings by their places in the list of those that the network names.
Result<NpyArray> FromTexts(const GraphPort& port, const std::string& given, std::vector<std::string>* texts) {
  std::vector<double> places;
  Shape shape;
  const bool file = fs::exists(given);
  if (file) {
    CELER_ASSIGN(NpyTexts read, ReadNpyTexts(given));
    *texts = std::move(read.texts);
    shape = read.shape;
  } else {
    *texts = Words(given);
  }
  for (const std::string& text : *texts) {
    const auto found = std::find(port.texts->begin(), port.texts->end(), text);
    places.push_back(found == port.texts->end() ? -1 : static_cast<double>(found - port.texts->begin()));
  }
  if (!file) {
    CELER_ASSIGN(NpyArray out, FromNumbers(port, places));
    texts->resize(*out.shape.elements(), texts->front());
    return out;
  }
  CELER_ASSIGN(NpyArray out, Empty(port, {shape.dims().begin(), shape.dims().end()}));
  for (size_t i = 0; i < places.size(); ++i) StoreAs(&out, i, places[i]);
  return out;
}

Result<NpyArray> RandomInput(const GraphPort& port, const std::string* shape, std::mt19937_64& random) {
  std::vector<int64_t> dims = port.shape;
  for (int64_t& dim : dims) dim = dim < 0 ? 1 : dim;
  if (shape) {
    CELER_ASSIGN(dims, ParseDims(*shape));
  }
  CELER_ASSIGN(NpyArray out, Empty(port, dims));
  const bool floats = out.dtype == DType::kF32 || out.dtype == DType::kF64 || out.dtype == DType::kF16;
  for (size_t i = 0; i < static_cast<size_t>(*out.shape.elements()); ++i) {
    const uint64_t bits = random();
    const double value = floats ? static_cast<double>(bits >> 11) * 0x1p-53 : static_cast<double>(bits & 1);
    if (!StoreAs(&out, i, value))
      return Error::Invalid("the input '", Printable(port.name), "' is ", port.dtype,
                            ", which cannot be filled with random values; give it as an .npy file");
  }
  return out;
}

// NAME=FILE as it stands, or FILE alone where there is one input.
std::vector<std::string> WithNames(const std::vector<std::string>& given,
                                   const std::vector<GraphPort>& ports) {
  std::vector<std::string> out = given;
  for (std::string& word : out)
    if (ports.size() == 1 && !word.starts_with(ports[0].name + "=") && fs::exists(word))
      word = ports[0].name + "=" + word;
  return out;
}

}  // namespace

Result<NpyArray> AsFloatsOf(const GraphPort& port, NpyArray array, const std::string& source) {
  const auto wanted = ParseDType(port.dtype);
  const auto is_float = [](DType dtype) {
    return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16;
  };
  if (!wanted || *wanted == array.dtype || !is_float(*wanted) || !is_float(array.dtype)) return array;
  NpyArray out{*wanted, array.shape, {}};
  const auto count = static_cast<size_t>(*array.shape.elements());
  out.bytes.resize(count * static_cast<size_t>(*BytesFor(*wanted, 1)));
  for (size_t i = 0; i < count; ++i) {
    const double value = LoadFrom(array, i);
    StoreAs(&out, i, value);
    if (std::isfinite(value) && !std::isfinite(LoadFrom(out, i)))
      return Error::Invalid(source, ": element ", i, " is ", fmt::format("{:g}", value),
                            ", too large for the ", port.dtype, " of the input '", Printable(port.name), "'");
  }
  return out;
}

Result<NpyArray> PictureInput(const GraphPort& port, const PictureFlags& flags, Picture picture) {
  Placed placed;
  placed.picture = std::move(picture);
  return FromPicture(port, flags, &placed);
}

Result<NpyArray> PictureInput(const GraphPort& port, const PictureFlags& flags, const fs::path& path) {
  CELER_ASSIGN(Picture picture, ReadPicture(path));
  return PictureInput(port, flags, std::move(picture));
}

void AddInputFlags(CLI::App& app, InputFlags* flags) {
  app.add_option(
         "--input", flags->inputs,
         "NAME=FILE, once per input: an .npy array, a picture (JPEG, PNG, ...), or numbers or words as in "
         "sr=16000 or city=Rome,Paris")
      ->allow_extra_args(false);
  AddPictureFlags(app, &flags->picture);
}

void AddPictureFlags(CLI::App& app, PictureFlags* flags) {
  PictureFlags& picture = *flags;
  app.add_option("--mean", picture.mean, "of a picture: subtracted from its channels, after the scale")
      ->delimiter(',');
  app.add_option("--std", picture.std, "of a picture: then its channels are divided by this")->delimiter(',');
  app.add_option("--scale", picture.scale, "of a picture: its values from 0 to 255 times this")
      ->default_str("1/255");
  app.add_option("--layout", picture.layout, "of a picture: auto, nchw or nhwc")
      ->check(CLI::IsMember({"auto", "nchw", "nhwc"}))
      ->capture_default_str();
  app.add_option("--channels", picture.channels, "of a picture: rgb or bgr")
      ->check(CLI::IsMember({"rgb", "bgr"}))
      ->capture_default_str();
  app.add_option("--fit", picture.fit, "of a picture: stretch, crop or letterbox it to the input's size")
      ->check(CLI::IsMember({"stretch", "crop", "letterbox"}))
      ->capture_default_str();
  app.add_option("--size", picture.size, "of a picture: HEIGHT,WIDTH where the network leaves it open");
}

void AddShapeFlags(CLI::App& app, InputFlags* flags) {
  app.add_option("--shape", flags->shapes,
                 "NAME=1,3,224,224: the shape of an input that is not given and so random; open dimensions "
                 "are 1")
      ->allow_extra_args(false);
  app.add_option("--seed", flags->seed, "of random inputs")->capture_default_str();
}

Result<Inputs> ReadInputs(const std::vector<GraphPort>& ports, const InputFlags& flags, bool fill_random) {
  const std::vector<std::string> names = NamesOf(ports);
  CELER_ASSIGN(const auto files, ByName(WithNames(flags.inputs, ports), "--input", names));
  CELER_ASSIGN(const auto shapes, ByName(flags.shapes, "--shape", names));
  Inputs out;
  std::mt19937_64 random(flags.seed);
  for (const GraphPort& port : ports) {
    if (!port.is_tensor)
      return Error::Unsupported("the input '", Printable(port.name),
                                "' is no tensor; sequences and optionals cannot be given here");
    const auto file = files.find(port.name);
    if (file == files.end()) {
      if (!fill_random)
        return Error::Invalid("the input '", Printable(port.name), "' is not given; add --input ",
                              Printable(port.name), "=FILE, an .npy array of ", PortText(port),
                              " or a picture");
      if (port.texts)
        return Error::Invalid("the input '", Printable(port.name), "' is ", PortText(port),
                              ", and strings cannot be random; add --input ", Printable(port.name),
                              "=WORD,WORD");
      const auto shape = shapes.find(port.name);
      CELER_ASSIGN(out.arrays[port.name],
                   RandomInput(port, shape == shapes.end() ? nullptr : &shape->second, random));
      out.random_inputs.push_back(port.name);
    } else if (port.texts) {
      CELER_ASSIGN(out.arrays[port.name], FromTexts(port, file->second, &out.texts[port.name]));
    } else if (const auto numbers = Numbers(file->second); numbers && !fs::exists(file->second)) {
      CELER_ASSIGN(out.arrays[port.name], FromNumbers(port, *numbers));
    } else if (LooksLikePicture(file->second)) {
      Placed placed;
      placed.input = port.name;
      CELER_ASSIGN(placed.picture, ReadPicture(file->second));
      CELER_ASSIGN(out.arrays[port.name], FromPicture(port, flags.picture, &placed));
      if (!out.picture) out.picture = std::move(placed);
    } else {
      CELER_ASSIGN(NpyArray array, ReadNpy(file->second));
      CELER_ASSIGN(out.arrays[port.name], AsFloatsOf(port, std::move(array), file->second));
    }
  }
  return out;
}

std::map<std::string, GraphTensor> Views(const Inputs& inputs) {
  std::map<std::string, GraphTensor> out;
  for (const auto& [name, array] : inputs.arrays)
    out[name] = {
        std::string(Name(array.dtype)), {array.shape.dims().begin(), array.shape.dims().end()}, array.bytes};
  return out;
}

std::vector<graph::Data> DataOf(const graph::Graph& graph, const Inputs& inputs) {
  std::vector<graph::Data> out;
  for (const graph::ValueId id : graph.inputs) {
    const NpyArray& array = inputs.arrays.at(graph.value(id).name);
    out.push_back(graph::Data::Of(TensorView::Contiguous(const_cast<std::byte*>(array.bytes.data()),
                                                         array.dtype, Device::Cpu(), array.shape)));
  }
  return out;
}

}  // namespace celer::cli
