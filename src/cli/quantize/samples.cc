#include "cli/quantize/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "graph/ops/elements.h"
#include "io/file/mapped_file.h"
#include "io/file/printable.h"
#include "io/npy/store_zip.h"

namespace celer::cli {
namespace {

namespace fs = std::filesystem;

// Arrays of one file, for each input in order. `rows` of the first dimension are a sample; 0: all is one.
struct Arrays {
  std::shared_ptr<const MappedFile> file;
  struct Part {
    NpyView view;
    int64_t rows = 0;
    bool drop = false;  // the first dimension counts samples and is none of the input's
  };
  std::vector<Part> parts = {};
  int64_t samples = 1;
  std::deque<NpyArray> turned = {};  // what the file has in Fortran order; parts point there
};

struct SampleItem {
  fs::path path;
  std::shared_ptr<const Arrays> arrays;  // null: a picture
  int64_t index = 0;
};

bool IsArray(const fs::path& path) {
  return path.extension() == ".npy" || path.extension() == ".npz";
}

// How many samples an array holds for an input.
Result<std::pair<Arrays::Part, int64_t>> Split(const NpyView& view, const GraphPort& port,
                                               const std::string& where) {
  Arrays::Part part{view};
  const auto rank = static_cast<size_t>(view.shape.rank());
  if (rank == port.shape.size() + 1) {
    part.rows = 1, part.drop = true;
    return std::pair(part, view.shape[0]);
  }
  if (rank != port.shape.size())
    return Error::Invalid(where, ": an array of ", view.shape.ToString(), " for the input '",
                          Printable(port.name), "', which has ", port.shape.size(), " dimensions");
  if (rank < 2) return std::pair(part, int64_t{1});
  const int64_t batch = std::max<int64_t>(port.shape[0] < 0 ? 1 : port.shape[0], 1);
  if (view.shape[0] % batch != 0)
    return Error::Invalid(where, ": ", view.shape[0], " rows are no whole batches of ", batch,
                          " for the input '", Printable(port.name), "'");
  part.rows = batch;
  return std::pair(part, view.shape[0] / batch);
}

Result<std::shared_ptr<const Arrays>> OpenArrays(const fs::path& path, const std::vector<GraphPort>& ports) {
  auto out = std::make_shared<Arrays>();
  std::vector<NpyView> views;
  const std::string where = path.string();
  if (path.extension() == ".npy") {
    if (ports.size() != 1)
      return Error::Invalid(where, ": the network has ", ports.size(),
                            " inputs; give an .npz file with an array for each by name");
    CELER_ASSIGN(MappedFile file, MappedFile::Open(path));
    out->file = std::make_shared<const MappedFile>(std::move(file));
    CELER_ASSIGN(const NpyView view, ViewNpy(out->file->bytes(), where));
    views.push_back(view);
  } else {
    CELER_ASSIGN(const StoreZip zip, StoreZip::Open(path));
    out->file = zip.file();
    for (const GraphPort& port : ports) {
      const StoreZip::Entry* const entry = zip.Find(port.name + ".npy");
      if (!entry)
        return Error::Invalid(where, ": has no array '", Printable(port.name),
                              "' for the input of that name");
      CELER_ASSIGN(const NpyView view, ViewNpy(entry->bytes, where + ": " + entry->name));
      views.push_back(view);
    }
  }
  for (NpyView& view : views) {
    if (!view.fortran) continue;
    out->turned.push_back(RowMajor(view));
    view = {view.dtype, view.shape, out->turned.back().bytes};
  }
  for (size_t i = 0; i < views.size(); ++i) {
    CELER_ASSIGN(const auto split, Split(views[i], ports[i], where));
    if (i > 0 && split.second != out->samples)
      return Error::Invalid(where, ": has ", out->samples, " samples for '", Printable(ports[0].name),
                            "' and ", split.second, " for '", Printable(ports[i].name), "'");
    out->parts.push_back(split.first);
    out->samples = split.second;
  }
  return std::shared_ptr<const Arrays>(std::move(out));
}

std::vector<NpyArray> ReadArrays(const Arrays& arrays, int64_t index) {
  std::vector<NpyArray> out;
  for (const Arrays::Part& part : arrays.parts) {
    const NpyView& view = part.view;
    NpyArray array{view.dtype, view.shape, {}};
    std::span<const std::byte> bytes = view.bytes;
    if (part.rows > 0) {
      const std::span<const int64_t> whole = view.shape.dims();
      std::vector<int64_t> dims(whole.begin() + (part.drop ? 1 : 0), whole.end());
      if (!part.drop) dims[0] = part.rows;
      array.shape = Shape(std::span<const int64_t>(dims));
      const size_t size =
          view.bytes.size() / static_cast<size_t>(view.shape[0]) * static_cast<size_t>(part.rows);
      bytes = view.bytes.subspan(static_cast<size_t>(index) * size, size);
    }
    array.bytes.assign(bytes.begin(), bytes.end());
    arrays.file->DropPages(bytes);
    out.push_back(std::move(array));
  }
  return out;
}

Result<std::vector<fs::path>> Files(const std::vector<std::string>& paths, const std::string& flag) {
  std::vector<fs::path> out;
  for (const std::string& word : paths) {
    const fs::path path(word);
    std::error_code error;
    if (!fs::exists(path, error))
      return Error::NotFound(flag, " ", Printable(word), ": there is no such file or folder");
    if (!fs::is_directory(path, error)) {
      if (!IsArray(path) && !LooksLikePicture(path))
        return Error::Invalid(flag, " ", Printable(word),
                              ": expected a picture, an .npy or .npz file, or a folder");
      out.push_back(path);
      continue;
    }
    std::vector<fs::path> inside;
    for (const auto& entry : fs::directory_iterator(path, error))
      if (IsArray(entry.path()) || IsReadablePicture(entry.path())) inside.push_back(entry.path());
    if (inside.empty())
      return Error::Invalid(flag, " ", Printable(word),
                            ": the folder has no pictures and no .npy or .npz files");
    std::sort(inside.begin(), inside.end());
    out.insert(out.end(), inside.begin(), inside.end());
  }
  return out;
}

std::string NameOf(const SampleItem& item) {
  return item.path.string() +
         (item.arrays && item.arrays->samples > 1 ? ", sample " + std::to_string(item.index) : "");
}

}  // namespace

Result<SampleSet> OpenSamples(const std::vector<GraphPort>& ports, const SampleFlags& flags,
                              const PictureFlags& picture, const std::string& flag) {
  CELER_ASSIGN(const std::vector<fs::path> files, Files(flags.paths, flag));
  auto items = std::make_shared<std::vector<SampleItem>>();
  int64_t seen = 0;
  const auto full = [&] { return flags.most > 0 && static_cast<int64_t>(items->size()) >= flags.most; };
  for (const fs::path& path : files) {
    if (full()) break;
    std::shared_ptr<const Arrays> arrays;
    if (IsArray(path)) {
      CELER_ASSIGN(arrays, OpenArrays(path, ports));
    } else if (ports.size() != 1) {
      return Error::Invalid(path.string(), ": a picture, and the network has ", ports.size(),
                            " inputs; give .npz files with an array for each by name");
    }
    for (int64_t i = 0; i < (arrays ? arrays->samples : 1); ++i)
      if (seen++ % flags.every == 0 && !full()) items->push_back({path, arrays, i});
  }
  if (items->empty()) return Error::Invalid(flag, ": no samples; give pictures, arrays or a folder of them");
  SampleSet out;
  out.samples.count = static_cast<int64_t>(items->size());
  out.samples.get = [items, ports, picture](int64_t index) -> Result<std::vector<NpyArray>> {
    const SampleItem& item = (*items)[index];
    if (item.arrays) {
      std::vector<NpyArray> read = ReadArrays(*item.arrays, item.index);
      for (size_t i = 0; i < read.size(); ++i) {
        CELER_ASSIGN(read[i], AsFloatsOf(ports[i], std::move(read[i]), item.path.string()));
      }
      return read;
    }
    std::vector<NpyArray> arrays(1);
    auto array = PictureInput(ports[0], picture, item.path);
    if (!array) return array.error().WithContext(item.path.string());
    arrays[0] = std::move(*array);
    return arrays;
  };
  out.samples.name = [items](int64_t index) { return NameOf((*items)[index]); };
  out.class_by_name = [items](int64_t index) -> std::optional<int64_t> {
    const std::string stem = (*items)[index].path.stem().string();
    int64_t number = 0;
    const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), number);
    return error == std::errc() ? std::optional(number) : std::nullopt;
  };
  return out;
}

RangeWatch::RangeWatch(std::vector<GraphPort> ports) : ports_(std::move(ports)), seen_(ports_.size()) {}

ptq::Samples RangeWatch::Watched(const ptq::Samples& samples) {
  ptq::Samples out = samples;
  out.get = [this, get = samples.get](int64_t index) -> Result<std::vector<NpyArray>> {
    CELER_ASSIGN(std::vector<NpyArray> arrays, get(index));
    if (done_.insert(index).second) Add(arrays);
    return arrays;
  };
  return out;
}

void RangeWatch::Add(const std::vector<NpyArray>& arrays) {
  for (size_t i = 0; i < std::min(arrays.size(), seen_.size()); ++i) {
    const NpyArray& array = arrays[i];
    if (array.shape.elements().value_or(0) < 2) continue;  // a number is what it is
    double low = std::numeric_limits<double>::infinity(), high = -low;
    const bool known = graph::DispatchOr(array.dtype, graph::PlainTypes{}, [&]<class T>() {
      for (size_t at = 0; at + sizeof(T) <= array.bytes.size(); at += sizeof(T)) {
        T element;
        std::memcpy(&element, &array.bytes[at], sizeof(T));
        const auto value = static_cast<double>(static_cast<graph::Compute<T>>(element));
        low = std::min(low, value), high = std::max(high, value);
      }
    });
    if (!known) continue;
    Seen& seen = seen_[i];
    seen.low = std::min(seen.low, low), seen.high = std::max(seen.high, high);
    ++seen.samples;
    seen.constant += low >= high ? 1 : 0;
    seen.whole_numbers =
        array.dtype == DType::kI64 || array.dtype == DType::kI32 || array.dtype == DType::kBool;
  }
}

std::vector<std::string> RangeWatch::Warnings(const std::string& flag) const {
  std::vector<std::string> out;
  for (size_t i = 0; i < seen_.size(); ++i) {
    const Seen& seen = seen_[i];
    if (seen.samples == 0 || 2 * seen.constant < seen.samples || (seen.whole_numbers && seen_.size() > 1))
      continue;
    out.push_back(
        fmt::format("{}: the input '{}' is one value everywhere in {} of {} samples (range {:g} to {:g}); "
                    "ranges that come "
                    "from them do not fit real inputs: give samples of the kind that the network will see",
                    flag, Printable(ports_[i].name), seen.constant, seen.samples, seen.low, seen.high));
  }
  return out;
}

}  // namespace celer::cli
