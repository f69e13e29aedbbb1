#include "quantize/llm/job/job.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <system_error>

#include "io/file/detect.h"

namespace celer {

namespace fs = std::filesystem;

Result<QuantizeSource> QuantizeSource::Open(const fs::path& path, bool every_part) {
  QuantizeSource source;
  source.path = path;
  source.every_part = every_part;
  CELER_ASSIGN(const FileKind kind, DetectFile(path));
  if (kind != FileKind::kGguf && kind != FileKind::kHfDirectory)
    return Error::Unsupported(path.string(), ": is a ", celer::Name(kind),
                              " file; a GGUF file or a Hugging Face folder can be quantized");
  source.gguf = kind == FileKind::kGguf;
  CELER_ASSIGN(source.config, LoadDecoderConfig(path));
  CELER_ASSIGN(source.tensors, OpenForQuantize(path, every_part));
  return source;
}

Status QuantizeSource::CheckContainer(const fs::path& out) const {
  if ((out.extension() == ".gguf") == gguf) return {};
  return Error::Unsupported(
      out.string(), ": ", path.string(),
      gguf ? " is a GGUF file, which becomes another one: give a name that ends with .gguf"
           : " is a folder, which becomes another one: give a name without .gguf");
}

Status QuantizeSource::CheckChanges(const QuantizePlan& plan) const {
  if (plan.changes_anything()) return {};
  std::set<std::string> types;
  for (const PlannedTensor& tensor : plan.tensors)
    if (tensor.place.part != Part::kVector) types.insert(std::string(celer::Name(tensor.dtype)));
  return Error::Invalid(path.string(), ": nothing would change: its matrices (",
                        fmt::format("{}", fmt::join(types, ", ")),
                        ") are in the formats that were asked for, or are kept; give other weights, or copy "
                        "the model");
}

Result<Model> QuantizeSource::LoadForCalibration() const {
  return Model::Load(path, {.pack = false}, DefaultThreadPool());
}

Status WriteQuantized(const QuantizeSource& source, const QuantizePlan& plan, const fs::path& out,
                      WriteJob job) {
  ThreadPool& pool = DefaultThreadPool();
  std::optional<QuantizedParts> parts;
  if (job.text && !job.importance) {
    CELER_ASSIGN(const Model model, source.LoadForCalibration());
    if (job.method == Method::kRtn) {  // the importance alone
      CELER_ASSIGN(job.importance, CollectImportance(model, *job.text, pool, job.on_layer));
    } else {
      std::error_code ignored;
      const bool resumed = fs::exists(job.work, ignored);
      Result<QuantizedParts> made = MakeParts(model, source.gguf, plan, job.method, *job.text, pool, job.work,
                                              job.on_layer, job.device);
      if (!made) {  // what was stopped can go on; what is broken would break again
        if (!resumed && made.error().code() != Error::Code::kCancelled) RemoveWorkFolder(job.work);
        return made.error();
      }
      parts = *std::move(made);
    }
  }
  const WriteOptions options{.importance = job.importance ? &*job.importance : nullptr,
                             .parts = parts ? &*parts : nullptr,
                             .dequantized = job.dequantized,
                             .every_part = source.every_part,
                             .progress = std::move(job.on_bytes)};
  CELER_RETURN_IF_ERROR(source.gguf ? WriteQuantizedGguf(source.path, plan, out, options, pool)
                                    : WriteQuantizedHf(source.path, plan, out, options, pool));
  if (parts) RemoveWorkFolder(job.work);
  return {};
}

}  // namespace celer
