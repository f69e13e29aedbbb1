// A GGUF file as a folder.
#include <algorithm>
#include <unordered_map>

#include "convert/source.h"
#include "formats/decode.h"
#include "io/file/atomic_file.h"
#include "io/file/disk_space.h"
#include "io/file/tensor_stream.h"
#include "io/json/json.h"
#include "io/safetensors/safetensors.h"
#include "quantize/llm/target.h"

namespace celer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Result<DType> TypeFor(const ConvertOptions& options, const TensorSource& source) {
  if (options.weights.empty()) return UsualType(source);
  const auto target = Target::Parse(options.weights);
  const bool plain = target && target->kind == Target::Kind::kStored && !IsBlockQuantized(target->dtype);
  if (plain) return target->dtype;
  return Error::Invalid("--weights ", options.weights,
                        ": a folder gets f32, f16 or bf16; celer quantize makes it smaller afterwards");
}

const char* TorchName(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kF16 ? "float16" : "bfloat16";
}

bool Holds(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> encoded(static_cast<size_t>(*BytesFor(dtype, std::ssize(values))));
  std::vector<float> back(values.size());
  EncodeRow(dtype, values.data(), std::ssize(values), encoded.data());
  DecodeRow(dtype, encoded.data(), std::ssize(values), back.data());
  return back == values;
}

// Vectors and routers are f32 in GGUF. They take the type of the matrices where it holds them.
Result<std::vector<TensorSpec>> Plan(const TensorFiller& filler, DType dtype,
                                     std::vector<FileTensor>* tensors) {
  std::erase_if(*tensors, [&](const FileTensor& tensor) { return tensor.optional && !filler.Has(tensor); });
  std::vector<TensorSpec> specs;
  for (const FileTensor& tensor : *tensors) {
    DType type = dtype;
    if (tensor.role == WeightRole::kVector || tensor.role == WeightRole::kRouter) {
      CELER_ASSIGN(const std::vector<float> values, filler.Floats(tensor));
      if (!Holds(dtype, values)) type = DType::kF32;
    }
    specs.push_back({tensor.name, type, tensor.shape});
  }
  return specs;
}

Json ConfigJson(const ConvertSource& source, DType dtype) {
  Json json = source.json;
  json["dtype"] = TorchName(dtype);
  json["torch_dtype"] = TorchName(dtype);
  if (!source.vocabulary) return json;
  const StoredVocabulary& vocabulary = *source.vocabulary;
  if (vocabulary.bos) json["bos_token_id"] = *vocabulary.bos;
  if (vocabulary.ends.size() == 1) json["eos_token_id"] = vocabulary.ends[0];
  if (vocabulary.ends.size() > 1) json["eos_token_id"] = vocabulary.ends;
  if (vocabulary.pad) json["pad_token_id"] = *vocabulary.pad;
  return json;
}

Status WriteTokenizer(const StoredVocabulary& vocabulary, const Json& config, const fs::path& folder) {
  CELER_RETURN_IF_ERROR(
      WriteWholeFile(folder / "tokenizer.json", JsonText(vocabulary.TokenizerJson()) + "\n"));
  CELER_RETURN_IF_ERROR(
      WriteWholeFile(folder / "tokenizer_config.json", JsonText(vocabulary.TokenizerConfigJson(), 2) + "\n"));
  if (!vocabulary.chat_template.empty())
    CELER_RETURN_IF_ERROR(WriteWholeFile(folder / "chat_template.jinja", vocabulary.chat_template));
  Json generation = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (config.contains(key)) generation[key] = config[key];
  return WriteWholeFile(folder / "generation_config.json", JsonText(generation, 2) + "\n");
}

}  // namespace

Result<Converted> ConvertToHf(ConvertSource source, const fs::path& out, const ConvertOptions& options,
                              ThreadPool& pool) {
  CELER_ASSIGN(const DType dtype, TypeFor(options, source.parts.source()));
  CELER_ASSIGN(std::vector<FileTensor> tensors, FileTensors(source.parts.config(), ModelContainer::kHf));
  CELER_ASSIGN(const std::vector<TensorSpec> specs,
               Plan(TensorFiller(source.parts, false, pool, {}, 0), dtype, &tensors));
  std::unordered_map<std::string, const FileTensor*> by_name;
  for (const FileTensor& tensor : tensors) by_name[tensor.name] = &tensor;
  int64_t bytes = 0;
  for (const TensorSpec& spec : specs) bytes += TensorBytes(spec).value_or(0);
  constexpr int64_t kTextFiles = int64_t{64} << 20;  // tokenizer.json and the like, generously
  CELER_RETURN_IF_ERROR(CheckFreeSpace(out, bytes + (source.vocabulary ? kTextFiles : 0), kNoRoomRemedy));
  CELER_ASSIGN(AtomicFolder folder, AtomicFolder::Create(out));
  const Json config = ConfigJson(source, dtype);
  CELER_RETURN_IF_ERROR(WriteWholeFile(folder.path() / "config.json", JsonText(config, 2) + "\n"));
  if (source.vocabulary) {
    source.vocabulary->Pad(source.parts.config().vocab);
    CELER_RETURN_IF_ERROR(WriteTokenizer(*source.vocabulary, config, folder.path()));
  }
  TensorFiller filler(source.parts, false, pool, options.progress, bytes);
  CELER_RETURN_IF_ERROR(WriteShardedSafetensors(folder.path(), specs, {{"format", "pt"}}, options.shard_bytes,
                                                [&](const TensorSpec& spec, const TensorSink& sink) {
                                                  return filler.Fill(*by_name.at(spec.name), spec.dtype,
                                                                     sink);
                                                }));
  CELER_RETURN_IF_ERROR(folder.Commit());
  return Converted{.model = source.parts.config().family,
                   .weights = std::string(Name(dtype)),
                   .tensors = std::ssize(specs),
                   .bytes = bytes,
                   .notes = std::move(source.notes)};
}

}  // namespace celer
