// A synthetic model as one GGUF file.
#include <unordered_map>

#include "io/file/disk_space.h"
#include "io/gguf/gguf_writer.h"
#include "models/synth/synth.h"
#include "models/synth/synth_tokenizer.h"
#include "models/synth/synth_values.h"

namespace celer {
namespace {

void SetMetadata(const SynthModel& model, GgufWriter* writer) {
  const LlmShape& s = model.shape;
  const std::string arch(model.gguf_architecture());
  const auto number = [&](const char* key, int64_t value) {
    writer->SetUint32(arch + "." + key, static_cast<uint32_t>(value));
  };
  writer->SetString("general.architecture", arch);
  writer->SetString("general.type", "model");
  writer->SetString("general.name", "synthetic " + s.name);
  writer->SetString("general.description", "synthetic: random weights");
  if (const auto type = GgufFileType(model.weights)) writer->SetUint32("general.file_type", *type);
  writer->SetUint32("general.quantization_version", 2);
  writer->SetBool("celer.synthetic", true);
  writer->SetString("celer.synthetic.preset", s.name);
  writer->SetUint64("celer.synthetic.seed", model.seed);

  number("vocab_size", s.vocab);
  number("context_length", model.positions);
  number("embedding_length", s.hidden);
  number("block_count", s.layers);
  number("feed_forward_length", model.dense_intermediate());
  number("attention.head_count", s.heads);
  number("attention.head_count_kv", s.kv_heads);
  number("attention.key_length", s.head_dim);
  number("attention.value_length", s.head_dim);
  writer->SetFloat32(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(model.norm_eps));
  if (model.sliding_window > 0) number("attention.sliding_window", model.sliding_window);
  number("rope.dimension_count", s.head_dim);
  writer->SetFloat32(arch + ".rope.freq_base", static_cast<float>(model.rope.theta));
  if (s.experts > 0) {
    number("expert_count", s.experts);
    number("expert_used_count", s.experts_per_token);
    number("expert_feed_forward_length", s.intermediate);
    if (s.shared_intermediate > 0) number("expert_shared_feed_forward_length", s.shared_intermediate);
  }
}

}  // namespace

Status WriteSynthGguf(const SynthModel& model, const std::filesystem::path& path, ThreadPool& pool,
                      const SynthProgress& progress) {
  GgufWriter writer;
  SetMetadata(model, &writer);
  SetSynthTokenizer(model.shape.vocab, &writer);
  const std::vector<SynthTensor> tensors = SynthTensors(model, SynthContainer::kGguf);
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
