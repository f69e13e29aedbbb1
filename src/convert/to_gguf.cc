// A folder as one GGUF file.
#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <unordered_map>

#include "convert/source.h"
#include "formats/decode.h"
#include "io/file/disk_space.h"
#include "io/gguf/gguf_writer.h"
#include "models/config/family.h"
#include "models/config/rope_config.h"
#include "models/load/gguf_keys.h"
#include "quantize/llm/target.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRopeFactors = "rope_freqs.weight";

const std::vector<float>* LongRopeFactors(const RopeConfig& rope, const std::string& name) {
  return name == kGgufLongFactors    ? &rope.long_factors
         : name == kGgufShortFactors ? &rope.short_factors
                                     : nullptr;
}

class GgufOutput {
 public:
  GgufOutput(ConvertSource source, const ConvertOptions& options)
      : source_(std::move(source)), options_(options), config_(source_.parts.config()) {}

  // What every tensor becomes. Nothing is read but vectors.
  Status Plan() {
    base_ = UsualType(source_.parts.source());
    recipe_.weights = options_.weights.empty() ? std::string(Name(base_)) : options_.weights;
    CELER_RETURN_IF_ERROR(recipe_.Check());
    if (const auto target = Target::Parse(recipe_.weights); target && target->kind == Target::Kind::kStored) {
      const DType dtype = target->dtype;
      if (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBf16) base_ = dtype;
    }
    CELER_ASSIGN(std::vector<FileTensor> tensors, FileTensors(config_, ModelContainer::kGguf));
    const TensorFiller filler(source_.parts, true, DefaultThreadPool(), {}, 0);
    for (FileTensor& tensor : tensors) {
      if (!IsOfRope(tensor.name) && tensor.optional && !filler.Has(tensor)) continue;
      CELER_ASSIGN(const DType dtype, TypeOf(tensor));
      writer_.AddTensor({tensor.name, dtype, tensor.shape});
      if (tensor.shape.rank() > 1) values_[dtype] += tensor.shape.elements().value_or(0);
      by_name_.emplace(tensor.name, std::move(tensor));
    }
    return {};
  }

  Status SetMetadata() {
    CELER_RETURN_IF_ERROR(SetGgufKeys(config_, &writer_));
    writer_.SetString("general.type", "model");
    writer_.SetString("general.name", NameOfModel());
    if (const auto type = GgufFileType(MostCommon())) writer_.SetUint32("general.file_type", *type);
    writer_.SetUint32("general.quantization_version", 2);
    if (!source_.vocabulary) {
      writer_.SetString("tokenizer.ggml.model", "none");
      return {};
    }
    source_.vocabulary->Pad(config_.vocab);
    if (std::ssize(source_.vocabulary->tokens) > config_.vocab)
      return Error::Unsupported(source_.path.string(), ": its tokenizer has ",
                                source_.vocabulary->tokens.size(), " tokens, and the model has rows for ",
                                config_.vocab, "; --no-tokenizer converts the model alone");
    source_.vocabulary->WriteTo(&writer_);
    return {};
  }

  Result<Converted> Write(const fs::path& out, ThreadPool& pool) {
    const int64_t bytes = writer_.FileBytes();
    CELER_RETURN_IF_ERROR(CheckFreeSpace(out, bytes, kNoRoomRemedy));
    TensorFiller filler(source_.parts, true, pool, options_.progress, bytes);
    const auto fill = [&](const TensorSpec& spec, const TensorSink& sink) -> Status {
      if (!IsOfRope(spec.name)) return filler.Fill(by_name_.at(spec.name), spec.dtype, sink);
      const std::vector<float>* const given = LongRopeFactors(config_.rope, spec.name);
      const std::vector<float> values = given ? *given : GgufRopeFactors(config_.rope);
      return sink(std::as_bytes(std::span(values)));
    };
    const auto check = [&](const fs::path& written) { return Check(written, out); };
    CELER_RETURN_IF_ERROR(writer_.Write(out, fill, check));
    return Converted{.model = config_.family,
                     .weights = std::string(Name(MostCommon())),
                     .tensors = std::ssize(writer_.tensors()),
                     .bytes = bytes,
                     .notes = std::move(source_.notes)};
  }

 private:
  static bool IsOfRope(const std::string& name) {
    return name == kRopeFactors || name == kGgufLongFactors || name == kGgufShortFactors;
  }

  // Vectors, routers and tables of positions are f32, as llama.cpp needs them.
  Result<DType> TypeOf(const FileTensor& tensor) const {
    if (tensor.role == WeightRole::kVector || tensor.role == WeightRole::kRouter ||
        tensor.name == "position_embd.weight")
      return DType::kF32;
    const int64_t cols = tensor.shape[tensor.shape.rank() - 1];
    if (options_.weights.empty() && IsMxfp4(tensor.parts[0]))
      return DType::kMxfp4;  // the model was trained so
    const TensorPlace place = PlaceOf(tensor.name, tensor.shape, config_.layers, config_.tied_embeddings);
    Target target = recipe_.For(tensor.name, place, cols);
    if (target.kind == Target::Kind::kKeep) return base_;
    if (target.kind != Target::Kind::kStored)
      return Error::Invalid("--weights ", options_.weights,
                            ": a GGUF file holds no such integers; take q4_k_m, q4_1 or q8_0");
    // Products of single heads need plain numbers, and a product with few bits is upset by them.
    if (tensor.role == WeightRole::kHeads && BitsPerElement(target.dtype) < BitsPerElement(DType::kQ8_0))
      return cols % Info(DType::kQ8_0).block == 0 ? DType::kQ8_0 : DType::kF16;
    return target.dtype;
  }

  bool IsMxfp4(const ModelPart& part) const {
    std::string first = part.key;
    if (const size_t at = first.find('#'); at != std::string::npos) first.replace(at, 1, "0");
    return source_.parts.IsMxfp4(first);
  }

  DType MostCommon() const {
    const auto most = std::max_element(values_.begin(), values_.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    return most == values_.end() ? base_ : most->first;
  }

  std::string NameOfModel() const {
    const std::string name = source_.json.value("_name_or_path", std::string());
    if (!name.empty() && name.find("..") == std::string::npos) return fs::path(name).filename().string();
    std::error_code error;
    fs::path folder = fs::canonical(source_.path, error);
    return error || !folder.has_filename() ? std::string("model") : folder.filename().string();
  }

  // The file says what the folder does: some of it follows from constants of its readers.
  Status Check(const fs::path& written, const fs::path& out) {
    CELER_ASSIGN(const GgufFile file, GgufFile::Open(written));
    CELER_ASSIGN(const DecoderConfig read, ConfigFromGguf(file, out.string()));
    std::optional<std::string> difference = DifferenceOfModels(config_, read);
    if (!difference) {
      CELER_ASSIGN(difference, UnreadTensor(file, read));
    }
    return CheckDifference(difference, out.string(),
                           "its readers would take it for another model than the folder's", options_,
                           &source_.notes);
  }

  static Result<std::optional<std::string>> UnreadTensor(const GgufFile& file, const DecoderConfig& read) {
    CELER_ASSIGN(const std::vector<FileTensor> expected, FileTensors(read, ModelContainer::kGguf));
    std::set<std::string> names;
    for (const FileTensor& tensor : expected) names.insert(tensor.name);
    for (const TensorRecord& record : file.tensors())
      if (!names.contains(record.name) && !IsOfRope(record.name))
        return std::optional("tensor '" + record.name + "' is not read");
    return std::optional<std::string>();
  }

  ConvertSource source_;
  const ConvertOptions& options_;
  const DecoderConfig& config_;
  Recipe recipe_;
  DType base_ = DType::kBf16;
  GgufWriter writer_;
  std::unordered_map<std::string, FileTensor> by_name_;
  std::map<DType, int64_t> values_;
};

}  // namespace

Result<Converted> ConvertToGguf(ConvertSource source, const fs::path& out, const ConvertOptions& options,
                                ThreadPool& pool) {
  GgufOutput output(std::move(source), options);
  CELER_RETURN_IF_ERROR(output.Plan());
  CELER_RETURN_IF_ERROR(output.SetMetadata());
  return output.Write(out, pool);
}

}  // namespace celer
