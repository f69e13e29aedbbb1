// Networks: sessions over numpy arrays and whatever else speaks DLPack or the buffer protocol.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "base/utf8.h"
#include "celer/graph.h"
#include "cli/graph/inputs.h"
#include "common.h"

namespace celer::python {
namespace {

struct DTypeName {
  nb::dlpack::dtype_code code;
  uint8_t bits;
  const char* name;
};
constexpr DTypeName kDTypes[] = {
    {nb::dlpack::dtype_code::Float, 32, "f32"}, {nb::dlpack::dtype_code::Float, 64, "f64"},
    {nb::dlpack::dtype_code::Float, 16, "f16"}, {nb::dlpack::dtype_code::Bfloat, 16, "bf16"},
    {nb::dlpack::dtype_code::Int, 8, "i8"},     {nb::dlpack::dtype_code::Int, 16, "i16"},
    {nb::dlpack::dtype_code::Int, 32, "i32"},   {nb::dlpack::dtype_code::Int, 64, "i64"},
    {nb::dlpack::dtype_code::UInt, 8, "u8"},    {nb::dlpack::dtype_code::UInt, 16, "u16"},
    {nb::dlpack::dtype_code::UInt, 32, "u32"},  {nb::dlpack::dtype_code::UInt, 64, "u64"},
    {nb::dlpack::dtype_code::Bool, 8, "bool"},
};

const char* NameOf(nb::dlpack::dtype dtype) {
  for (const DTypeName& one : kDTypes)
    if (static_cast<uint8_t>(one.code) == dtype.code && one.bits == dtype.bits && dtype.lanes == 1)
      return one.name;
  return nullptr;
}

nb::dlpack::dtype DTypeOf(const std::string& name) {
  for (const DTypeName& one : kDTypes)
    if (name == one.name) return {static_cast<uint8_t>(one.code), one.bits, 1};
  throw Raised(Error::Unsupported("the element type '", name, "' has no counterpart in DLPack"));
}

using Input = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Pixels = nb::ndarray<nb::ro, uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<nb::numpy>;

struct Network {
  Network(GraphModel its_model, int threads) : model(std::move(its_model)), session(model, threads) {}
  GraphModel model;
  GraphSession session;
  std::mutex mutex;  // one run at a time
};

GraphTensor ToTensor(const std::string& name, const Input& array) {
  const char* const dtype = NameOf(array.dtype());
  if (!dtype)
    throw Raised(Error::Unsupported("the input '", name, "' has an element type that networks do not have"));
  std::vector<int64_t> shape;
  for (size_t i = 0; i < array.ndim(); ++i) shape.push_back(static_cast<int64_t>(array.shape(i)));
  return {dtype, std::move(shape), {static_cast<const std::byte*>(array.data()), array.nbytes()}};
}

std::vector<size_t> Sizes(const std::vector<int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

class NetworkSession {
 public:
  NetworkSession(const std::string& path, bool optimize, const std::string& precision, bool integers,
                 int64_t threads) {
    OrRaise(NoteThreads());
    if (precision != "f32" && precision != "f16")
      throw Raised(Error::Invalid("precision is '", precision, "', expected f32 or f16"));
    if (threads < 0 || threads > 1024)
      throw Raised(Error::Invalid("threads is ", threads, ", expected 0 to 1024"));
    const ReleaseGil release;
    const GraphOptions options{.optimize = optimize,
                               .precision = precision == "f16" ? GraphPrecision::kF16 : GraphPrecision::kF32,
                               .integers = integers};
    network_ = Guarded(
        std::make_unique<Network>(OrRaise(GraphModel::Load(path, options)), static_cast<int>(threads)));
  }

  // Text of a file, which need not be UTF-8.
  static nb::str Text(const std::string& text) {
    const std::string valid = utf8::ToValid(text);
    return nb::str(valid.data(), valid.size());
  }
  static nb::list Texts(const std::vector<std::string>& texts) {
    nb::list out;
    for (const std::string& text : texts) out.append(Text(text));
    return out;
  }

  nb::list Ports(bool inputs) const {
    nb::list out;
    for (const GraphPort& port : inputs ? network_->model.inputs() : network_->model.outputs()) {
      nb::dict row;
      row["name"] = Text(port.name);
      row["dtype"] = port.dtype;
      row["shape"] = nb::cast(port.shape);
      row["dim_names"] = Texts(port.dim_names);
      row["is_tensor"] = port.is_tensor;
      row["classes"] = Texts(port.classes);
      if (port.texts) row["texts"] = Texts(*port.texts);
      out.append(row);
    }
    return out;
  }
  int64_t parameters() const { return network_->model.parameters(); }

  // A picture as this input wants it: out of a file, or of its pixels.
  Output PictureFor(const std::string& input, const nb::object& picture,
                    const cli::PictureFlags& flags) const {
    const std::vector<GraphPort>& ports = network_->model.inputs();
    const auto port =
        std::find_if(ports.begin(), ports.end(), [&](const GraphPort& one) { return one.name == input; });
    if (port == ports.end()) throw Raised(Error::Invalid("there is no input '", input, "'"));
    NpyArray made;
    if (nb::isinstance<nb::str>(picture)) {
      const std::filesystem::path path(nb::cast<std::string>(picture));
      const ReleaseGil release;
      made = OrRaise(cli::PictureInput(*port, flags, path));
    } else {
      const auto pixels = nb::cast<Pixels>(picture);
      constexpr size_t kMost = 1 << 15;
      if (pixels.shape(0) < 1 || pixels.shape(1) < 1 || pixels.shape(0) > kMost || pixels.shape(1) > kMost)
        throw Raised(Error::Invalid("a picture of ", pixels.shape(0), " x ", pixels.shape(1),
                                    " pixels, expected 1 to ", kMost));
      const ReleaseGil release;
      made = OrRaise(cli::PictureInput(*port, flags,
                                       {.width = static_cast<int>(pixels.shape(1)),
                                        .height = static_cast<int>(pixels.shape(0)),
                                        .rgb = {pixels.data(), pixels.data() + pixels.nbytes()}}));
    }
    const std::span<const int64_t> dims = made.shape.dims();
    return CopyOf(
        {.dtype = std::string(Name(made.dtype)), .shape = {dims.begin(), dims.end()}, .bytes = made.bytes});
  }

  // The outputs at these places, as arrays of their own; or written into `into`, which are contiguous, one for each.
  nb::list Run(const nb::dict& feed, const std::vector<size_t>& wanted, const std::optional<nb::list>& into) {
    OrRaise(CheckFork());
    std::vector<Input> arrays;  // keep what the tensors view
    std::map<std::string, GraphTensor> inputs;
    for (const auto& [key, value] : feed) {
      const auto name = nb::cast<std::string>(key);
      arrays.push_back(nb::cast<Input>(value));
      inputs.emplace(name, ToTensor(name, arrays.back()));
    }
    std::unique_lock lock(network_->mutex, std::defer_lock);
    std::vector<GraphTensor> outputs;
    {
      const ReleaseGil release;
      lock.lock();
      outputs = OrRaise(network_->session.Run(inputs));
    }
    nb::list out;
    for (size_t i = 0; i < wanted.size(); ++i) {
      const GraphTensor& tensor = outputs.at(wanted[i]);
      if (into)
        CopyInto(tensor, (*into)[i]);
      else
        out.append(nb::cast(CopyOf(tensor)));
    }
    return out;
  }

 private:
  static Output CopyOf(const GraphTensor& tensor) {
    auto* const bytes = static_cast<std::byte*>(
        ::operator new (std::max<size_t>(1, tensor.bytes.size()), std::align_val_t{64}));
    const nb::capsule owner(bytes,
                            [](void* memory) noexcept { ::operator delete (memory, std::align_val_t{64}); });
    if (!tensor.bytes.empty()) std::memcpy(bytes, tensor.bytes.data(), tensor.bytes.size());
    const std::vector<size_t> shape = Sizes(tensor.shape);
    return Output(bytes, shape.size(), shape.data(), owner, nullptr, DTypeOf(tensor.dtype));
  }

  static void CopyInto(const GraphTensor& tensor, nb::handle target) {
    const auto array = nb::cast<nb::ndarray<nb::c_contig, nb::device::cpu>>(target);
    const char* const dtype = NameOf(array.dtype());
    bool same = dtype && tensor.dtype == dtype && array.ndim() == tensor.shape.size();
    for (size_t i = 0; same && i < array.ndim(); ++i)
      same = static_cast<int64_t>(array.shape(i)) == tensor.shape[i];
    if (!same)
      throw Raised(
          Error::Invalid("a bound output has another shape or element type than the network's, which is ",
                         tensor.dtype, " of rank ", tensor.shape.size()));
    if (!tensor.bytes.empty()) std::memcpy(array.data(), tensor.bytes.data(), tensor.bytes.size());
  }

  std::shared_ptr<Network> network_;
};

}  // namespace

void BindGraph(nb::module_& module) {
  nb::class_<NetworkSession>(module, "Session")
      .def(nb::init<const std::string&, bool, const std::string&, bool, int64_t>(), nb::arg("path"),
           nb::kw_only(), nb::arg("optimize"), nb::arg("precision"), nb::arg("integers"), nb::arg("threads"))
      .def("ports", &NetworkSession::Ports, nb::arg("inputs"))
      .def_prop_ro("parameters", &NetworkSession::parameters)
      .def(
          "picture",
          [](const NetworkSession& session, const std::string& input, const nb::object& picture,
             std::vector<double> mean, std::vector<double> std, double scale, std::string layout,
             std::string channels, std::string fit, std::string size) {
            return session.PictureFor(input, picture,
                                      {.mean = std::move(mean),
                                       .std = std::move(std),
                                       .scale = scale,
                                       .layout = std::move(layout),
                                       .channels = std::move(channels),
                                       .fit = std::move(fit),
                                       .size = std::move(size)});
          },
          nb::arg("input"), nb::arg("picture"), nb::kw_only(), nb::arg("mean"), nb::arg("std"),
          nb::arg("scale"), nb::arg("layout"), nb::arg("channels"), nb::arg("fit"), nb::arg("size"))
      .def("run", &NetworkSession::Run, nb::arg("feed"), nb::arg("wanted"),
           nb::arg("into").none() = nb::none());
}

}  // namespace celer::python
