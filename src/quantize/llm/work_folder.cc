#include "quantize/llm/work_folder.h"

#include <fmt/format.h>

#include <cstring>
#include <system_error>

#include "io/safetensors/safetensors.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKey = "key";
constexpr const char *kLayerFile = "layer-", *kHeadFile = "head.safetensors";
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

Error NotWhole(const SafetensorsFile& file, std::string_view name) {
  return Error::Corrupt(file.source(), ": '", name, "' is not whole; remove that folder and start anew");
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
    return NotWhole(file, tensor.name);
  return IntTensor::From(t, tensor.rows(), tensor.cols(), Copy<int32_t>(*words), Copy<uint16_t>(*scales),
                         t.symmetric ? std::vector<uint8_t>() : Copy<uint8_t>(*zeros));
}

// "words/" and the tensor's own name.
struct PartName {
  std::string_view kind, tensor;
};
PartName Split(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return {{}, name};
  return {name.substr(0, slash + 1), name.substr(slash + 1)};
}

// Whether a part is of a tensor of the plan, and of its size. Integers are checked when they are read.
Status CheckPart(const SafetensorsFile& file, const TensorRecord& record, const QuantizePlan& plan) {
  const PartName name = Split(record.name);
  const PlannedTensor* planned = plan.Find(name.tensor);
  if (!planned)
    return Error::Corrupt(file.source(), ": '", name.tensor,
                          "' is no tensor of the model; remove that folder and start anew");
  if (name.kind != kBlocks && name.kind != kFloats) return {};
  const int64_t bytes = name.kind == kFloats ? 4 * planned->rows() * planned->cols() : planned->bytes_after();
  if (static_cast<int64_t>(record.bytes.size()) != bytes) return NotWhole(file, name.tensor);
  return {};
}

// Adds what a file holds.
Status AddParts(const SafetensorsFile& file, const QuantizePlan& plan, LayerParts* parts) {
  for (const TensorRecord& record : file.tensors()) {
    CELER_RETURN_IF_ERROR(CheckPart(file, record, plan));
    const PartName name = Split(record.name);
    const std::string tensor(name.tensor);
    if (name.kind == kWords) {
      CELER_ASSIGN(parts->ints[tensor], ReadInts(file, *plan.Find(tensor)));
    } else if (name.kind == kBlocks) {
      parts->blocks[tensor] = Copy<std::byte>(record);
    } else if (name.kind == kFloats) {
      parts->floats[tensor] = Copy<float>(record);
    }
  }
  return {};
}

}  // namespace

const TensorRecord* QuantizedParts::Find(std::string_view kind, std::string_view name) const {
  const std::string full = std::string(kind) + std::string(name);
  const auto it = file_of_.find(full);
  return it == file_of_.end() ? nullptr : files_[it->second].Find(full);
}

const TensorRecord* QuantizedParts::Blocks(std::string_view name) const {
  return Find(kBlocks, name);
}

const TensorRecord* QuantizedParts::Floats(std::string_view name) const {
  return Find(kFloats, name);
}

bool QuantizedParts::HasInts(std::string_view name) const {
  return Find(kWords, name) != nullptr;
}

Result<IntTensor> QuantizedParts::Ints(const PlannedTensor& tensor) const {
  const SafetensorsFile& file = files_[file_of_.at(std::string(kWords) + tensor.name)];
  CELER_ASSIGN(IntTensor out, ReadInts(file, tensor));
  for (const std::string_view kind : {kWords, kScales, kZeros})
    if (const TensorRecord* part = Find(kind, tensor.name)) file.DropPages(*part);
  return out;
}

void QuantizedParts::DropPages(const TensorRecord& part) const {
  if (const auto it = file_of_.find(part.name); it != file_of_.end()) files_[it->second].DropPages(part);
}

Result<LayerParts> QuantizedParts::LoadAll(const QuantizePlan& plan) const {
  LayerParts out;
  for (const SafetensorsFile& file : files_) CELER_RETURN_IF_ERROR(AddParts(file, plan, &out));
  return out;
}

fs::path WorkFolder::LayerPath(int64_t layer) const {
  return path_ / fmt::format("{}{:04}.safetensors", kLayerFile, layer);
}

fs::path WorkFolder::HeadPath() const {
  return path_ / kHeadFile;
}

bool WorkFolder::has_head() const {
  std::error_code ignored;
  return fs::exists(HeadPath(), ignored);
}

Status WorkFolder::CheckKey(const fs::path& file_path) const {
  CELER_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(file_path));
  const auto found = file.metadata().find(kKey);
  if (found != file.metadata().end() && found->second == key_) return {};
  return Error::Invalid(path_.string(),
                        ": holds the layers of a run with another model, text or other settings; repeat "
                        "that command, or remove this folder to start anew");
}

Result<WorkFolder> WorkFolder::Open(const fs::path& path, const std::string& key) {
  WorkFolder out;
  out.path_ = path;
  out.key_ = key;
  std::error_code ignored;
  for (; fs::exists(out.LayerPath(out.finished_), ignored); ++out.finished_)
    CELER_RETURN_IF_ERROR(out.CheckKey(out.LayerPath(out.finished_)));
  if (out.has_head()) CELER_RETURN_IF_ERROR(out.CheckKey(out.HeadPath()));
  return out;
}

Result<LayerParts> WorkFolder::Load(int64_t layer, const QuantizePlan& plan) const {
  CELER_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(LayerPath(layer)));
  LayerParts out;
  CELER_RETURN_IF_ERROR(AddParts(file, plan, &out));
  return out;
}

Status WorkFolder::Make() const {
  std::error_code error;
  fs::create_directories(path_, error);
  return error ? Status(Error::Io(path_.string(), ": cannot be made: ", error.message())) : Status();
}

Status WorkFolder::Save(int64_t layer, const LayerParts& parts) {
  CELER_RETURN_IF_ERROR(Make());
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

Status WorkFolder::SaveHead(const PlannedTensor& head, const TensorFill& fill) {
  CELER_RETURN_IF_ERROR(Make());
  const TensorSpec spec{std::string(kBlocks) + head.name, DType::kU8, {head.bytes_after()}};
  return WriteSafetensors(HeadPath(), std::span(&spec, 1), {{kKey, key_}}, fill);
}

Result<QuantizedParts> WorkFolder::Parts(const QuantizePlan& plan) const {
  QuantizedParts out;
  std::vector<fs::path> paths;
  for (int64_t i = 0; i < finished_; ++i) paths.push_back(LayerPath(i));
  if (has_head()) paths.push_back(HeadPath());
  for (const fs::path& path : paths) {
    CELER_ASSIGN(SafetensorsFile file, SafetensorsFile::Open(path));
    for (const TensorRecord& record : file.tensors()) {
      CELER_RETURN_IF_ERROR(CheckPart(file, record, plan));
      out.file_of_[record.name] = out.files_.size();
    }
    out.files_.push_back(std::move(file));
  }
  return out;
}

void RemoveWorkFolder(const fs::path& work) {
  std::error_code ignored;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(work, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kLayerFile) || name.starts_with(kHeadFile)) files.push_back(entry.path());
  }
  for (const fs::path& file : files) fs::remove(file, ignored);
  fs::remove(work, ignored);  // fails where somebody else's files are left
}

}  // namespace celer
