// A synthetic model as a folder in the form of Hugging Face.
#include <system_error>
#include <unordered_map>

#include "io/file/atomic_file.h"
#include "io/file/disk_space.h"
#include "io/file/tensor_stream.h"
#include "io/safetensors/safetensors.h"
#include "models/synth/synth.h"
#include "models/synth/synth_tokenizer.h"
#include "models/synth/synth_values.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

template <class Json>
Status WriteJson(const fs::path& path, const Json& json, int indent) {
  return WriteWholeFile(path, json.dump(indent) + "\n");
}

}  // namespace

Status WriteSynthHf(const SynthModel& model, const fs::path& folder, ThreadPool& pool,
                    const SynthProgress& progress, int64_t shard_bytes) {
  if (model.weights != DType::kF32 && model.weights != DType::kF16 && model.weights != DType::kBf16)
    return Error::Invalid(
        folder.string(), ": ", Name(model.weights),
        " exists in GGUF files only; give an output that ends with .gguf, or f32, f16 or bf16");
  CELER_ASSIGN(const std::vector<SynthTensor> tensors, SynthTensors(model, SynthContainer::kHf));
  std::unordered_map<std::string, const SynthTensor*> by_name;
  for (const SynthTensor& tensor : tensors) by_name[tensor.spec.name] = &tensor;
  std::vector<TensorSpec> specs;
  int64_t total = 0;
  for (const SynthTensor& tensor : tensors) {
    specs.push_back(tensor.spec);
    total += TensorBytes(tensor.spec).value();
  }

  constexpr int64_t kTextFiles = int64_t{32} << 20;  // tokenizer.json, headers and the index, generously
  CELER_RETURN_IF_ERROR(CheckFreeSpace(folder, total + kTextFiles, kNoSpaceRemedy));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Error::Io(folder.string(), ": cannot be made: ", error.message());

  const std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                       {"description", "synthetic: random weights"},
                                                       {"celer.synthetic", "true"},
                                                       {"celer.synthetic.preset", model.name},
                                                       {"celer.synthetic.seed", std::to_string(model.seed)}};
  SynthFiller filler(model, pool, progress, total);
  CELER_RETURN_IF_ERROR(WriteShardedSafetensors(folder, specs, metadata, shard_bytes,
                                                [&](const TensorSpec& spec, const TensorSink& sink) {
                                                  return filler.Fill(*by_name.at(spec.name), sink);
                                                }));
  CELER_RETURN_IF_ERROR(WriteJson(folder / "tokenizer.json", SynthTokenizerJson(model.config.vocab), -1));
  CELER_RETURN_IF_ERROR(WriteJson(folder / "tokenizer_config.json", SynthTokenizerConfigJson(), 2));
  // Last: without it the folder is not taken for a model, so a half-made one is not either.
  return WriteJson(folder / "config.json", model.json, 2);
}

}  // namespace celer
