// A synthetic model as one GGUF file.
#include <unordered_map>

#include "io/file/disk_space.h"
#include "io/gguf/gguf_writer.h"
#include "models/load/gguf_keys.h"
#include "models/synth/synth.h"
#include "models/synth/synth_tokenizer.h"
#include "models/synth/synth_values.h"

namespace celer {
namespace {

Status SetMetadata(const SynthModel& model, GgufWriter* writer) {
  CELER_RETURN_IF_ERROR(SetGgufKeys(model.config, writer));
  writer->SetString("general.type", "model");
  writer->SetString("general.name", "synthetic " + model.name);
  writer->SetString("general.description", "synthetic: random weights");
  if (const auto type = GgufFileType(model.weights)) writer->SetUint32("general.file_type", *type);
  writer->SetUint32("general.quantization_version", 2);
  writer->SetBool("celer.synthetic", true);
  writer->SetString("celer.synthetic.preset", model.name);
  writer->SetUint64("celer.synthetic.seed", model.seed);
  return {};
}

}  // namespace

Status WriteSynthGguf(const SynthModel& model, const std::filesystem::path& path, ThreadPool& pool,
                      const SynthProgress& progress) {
  GgufWriter writer;
  CELER_RETURN_IF_ERROR(SetMetadata(model, &writer));
  SetSynthTokenizer(model.config.vocab, &writer);
  CELER_ASSIGN(const std::vector<SynthTensor> tensors, SynthTensors(model, SynthContainer::kGguf));
  std::unordered_map<std::string, const SynthTensor*> by_name;
  for (const SynthTensor& tensor : tensors) {
    writer.AddTensor(tensor.spec);
    by_name[tensor.spec.name] = &tensor;
  }
  const int64_t bytes = writer.FileBytes();
  CELER_RETURN_IF_ERROR(CheckFreeSpace(path, bytes, kNoSpaceRemedy));
  SynthFiller filler(model, pool, progress, bytes);
  return writer.Write(path, [&](const TensorSpec& spec, const TensorSink& sink) {
    return filler.Fill(*by_name.at(spec.name), sink);
  });
}

}  // namespace celer
