#include "quantize/work_folder.h"

#include <fmt/format.h>

#include <cstring>
#include <system_error>

#include "io/safetensors.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKey = "key";
// Names in a layer's file: one of these and the tensor's own name.
constexpr std::string_view kWords = "words/", kScales = "scales/", kZeros = "zeros/", kBlocks = "blocks/",
                           kFloats = "floats/";

template <class T>
std::vector<T> Copy(const TensorRecord& record) {
  std::vector<T> out(record.bytes.size() / sizeof(T));
  std::memcpy(out.data(), record.bytes.data(), out.size() * sizeof(T));
  return out;
}

template <class T>
TensorRecord Record(std::string_view kind, const std::string& name, DType dtype,
                    const std::vector<T>& values) {
  return {std::string(kind) + name,
          dtype,
          {static_cast<int64_t>(values.size())},
          std::as_bytes(std::span(values))};
}

Result<IntTensor> ReadInts(const SafetensorsFile& file, const PlannedTensor& tensor) {
  const TensorRecord *words = file.Find(std::string(kWords) + tensor.name),
                     *scales = file.Find(std::string(kScales) + tensor.name),
                     *zeros = file.Find(std::string(kZeros) + tensor.name);
  const Target& t = tensor.target;
  const int64_t values = tensor.rows() * tensor.cols(),
                groups = values / (t.group > 0 ? t.group : tensor.cols());
  const auto holds = [](const TensorRecord* record, int64_t bytes) {
    return record && static_cast<int64_t>(record->bytes.size()) == bytes;
  };
  if (t.kind != Target::Kind::kInt || !holds(words, values * t.bits / 8) || !holds(scales, groups * 2) ||
      (!t.symmetric && !holds(zeros, groups)))
    return Error::Corrupt(file.source(), ": '", tensor.name,
                          "' is not whole; remove that folder and start anew");
  return IntTensor::From(t, tensor.rows(), tensor.cols(), Copy<int32_t>(*words), Copy<uint16_t>(*scales),
                         t.symmetric ? std::vector<uint8_t>() : Copy<uint8_t>(*zeros));
}

}  // namespace

fs::path WorkFolder::LayerPath(int64_t layer) const {
  return path_ / fmt::format("layer-{:04}.safetensors", layer);
}

Result<WorkFolder> WorkFolder::Open(const fs::path& path, const std::string& key) {
  WorkFolder out;
  out.path_ = path;
  out.key_ = key;
  std::error_code ignored;
  for (; fs::exists(out.LayerPath(out.finished_), ignored); ++out.finished_) {
    CELER_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(out.LayerPath(out.finished_)));
    const auto found = file.metadata().find(kKey);
    if (found == file.metadata().end() || found->second != key)
      return Error::Invalid(path.string(),
                            ": holds the layers of a run with another model, text or other settings; repeat "
                            "that command, or remove this folder to start anew");
  }
  return out;
}

Status WorkFolder::Load(int64_t layer, const QuantizePlan& plan, QuantizedParts* parts) const {
  CELER_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(LayerPath(layer)));
  for (const TensorRecord& record : file.tensors()) {
    const size_t slash = record.name.find('/');
    const std::string_view kind = std::string_view(record.name).substr(0, slash + 1);
    const std::string name = record.name.substr(slash + 1);
    const PlannedTensor* planned = plan.Find(name);
    if (!planned)
      return Error::Corrupt(file.source(), ": '", name,
                            "' is no tensor of the model; remove that folder and start anew");
    if (kind == kWords) {
      CELER_ASSIGN(parts->ints[name], ReadInts(file, *planned));
    } else if (kind == kBlocks || kind == kFloats) {
      const int64_t bytes = kind == kFloats ? 4 * planned->rows() * planned->cols() : planned->bytes_after();
      if (static_cast<int64_t>(record.bytes.size()) != bytes)
        return Error::Corrupt(file.source(), ": '", name,
                              "' is not whole; remove that folder and start anew");
      if (kind == kBlocks)
        parts->blocks[name] = Copy<std::byte>(record);
      else
        parts->floats[name] = Copy<float>(record);
    }
  }
  return {};
}

Status WorkFolder::Save(int64_t layer, const QuantizedParts& parts) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) return Error::Io(path_.string(), ": cannot be made: ", error.message());
  std::vector<TensorRecord> records;
  for (const auto& [name, ints] : parts.ints) {
    records.push_back(Record(kWords, name, DType::kI32, ints.words()));
    records.push_back(Record(kScales, name, DType::kBf16, ints.scales()));
    if (!ints.zeros().empty()) records.push_back(Record(kZeros, name, DType::kU8, ints.zeros()));
  }
  for (const auto& [name, blocks] : parts.blocks)
    records.push_back(Record(kBlocks, name, DType::kU8, blocks));
  for (const auto& [name, floats] : parts.floats)
    records.push_back(Record(kFloats, name, DType::kF32, floats));
  CELER_RETURN_IF_ERROR(WriteSafetensors(LayerPath(layer), records, {{kKey, key_}}));
  finished_ = layer + 1;
  return {};
}

}  // namespace celer
