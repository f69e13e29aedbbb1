#include "weights/published/published_source.h"

#include <fmt/format.h>

#include <map>
#include <unordered_set>
#include <utility>

#include "io/file/printable.h"
#include "io/safetensors/safetensors.h"
#include "weights/published/family.h"

namespace celer::published {
namespace {

// Tensors beside quantized weights that no forward pass here uses: scales of activations and of a KV cache.
bool IsActivationOrKvScale(std::string_view name) {
  for (const std::string_view suffix :
       {".input_scale", ".input_global_scale", ".input_zero_point", ".output_scale", ".activation_scale",
        ".k_scale", ".v_scale", ".q_scale", ".k_zero_point", ".v_zero_point", ".prob_output_scale"})
    if (name.ends_with(suffix)) return true;
  return false;
}

// "w": 12 tensors in one sentence.
std::vector<std::string> Grouped(const std::string& path, const Matrices& matrices,
                                 std::string (*text)(const Matrix&)) {
  std::map<std::string, std::pair<int64_t, const Matrix*>> lines;
  for (const auto& matrix : matrices)
    if (const std::string line = text(*matrix); !line.empty()) {
      auto& [n, first] = lines[line];
      if (n++ == 0) first = matrix.get();
    }
  std::vector<std::string> out;
  for (const auto& [line, found] : lines)
    out.push_back(found.first == 1
                      ? fmt::format("{}: tensor '{}' {}", path, Printable(found.second->name), line)
                      : fmt::format("{}: tensor '{}' and {} more: {}", path, Printable(found.second->name),
                                    found.first - 1, line));
  return out;
}

}  // namespace

std::string Where(const std::filesystem::path& config_path) {
  return fmt::format("{}: '{}'", config_path.string(), kConfigKey);
}

Result<std::unique_ptr<PublishedSource>> PublishedSource::Open(std::unique_ptr<TensorSource> file,
                                                               const nlohmann::json& config,
                                                               const std::string& where, bool keep_fp8) {
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(config, where));
  CELER_ASSIGN(const Family* family, FindFamily(fields));
  std::unique_ptr<PublishedSource> out(new PublishedSource);
  CELER_ASSIGN(out->scheme_, family->describe(fields));
  CELER_ASSIGN(out->matrices_, family->read(fields, *file));
  out->file_ = std::move(file);
  if (out->matrices_.empty())
    return Error::Corrupt(out->path(), ": 'quantization_config' says ", out->scheme_,
                          ", and the tensors hold no such weights");
  std::unordered_set<std::string_view> parts;
  for (const auto& matrix : out->matrices_) {
    CELER_RETURN_IF_ERROR(matrix->ChooseFormat(out->path(), keep_fp8));
    for (const TensorRecord* part : matrix->parts) parts.insert(part->name);
    const Shape shape = matrix->count > 1 ? Shape{matrix->count, matrix->rows, matrix->cols}
                                          : Shape{matrix->rows, matrix->cols};
    const DType dtype = matrix->format.stored() ? matrix->format.dtype : DType::kI8;
    if (!out->table_.Add({matrix->name, dtype, shape, matrix->parts[0]->bytes}))
      return Error::Corrupt(out->path(), ": tensor '", Printable(matrix->name), "' is there twice");
    out->by_name_[matrix->name] = matrix.get();
  }
  for (const TensorRecord& record : out->file_->tensors())
    if (!parts.contains(record.name) && !IsActivationOrKvScale(record.name) && !out->table_.Add(record))
      return Error::Corrupt(out->path(), ": tensor '", Printable(record.name),
                            "' is there both quantized and not");
  return out;
}

const CodedTensor* PublishedSource::Coded(std::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : it->second;
}

void PublishedSource::DropPages(const TensorRecord& tensor) const {
  if (const CodedTensor* coded = Coded(tensor.name)) {
    for (const TensorRecord* part : coded->parts) file_->DropPages(*part);
    return;
  }
  file_->DropPages(tensor);
}

std::vector<std::string> PublishedSource::Warnings() const {
  return Grouped(path(), matrices_, [](const Matrix& m) { return m.warning; });
}

std::vector<std::string> PublishedSource::Notes() const {
  return Grouped(path(), matrices_, [](const Matrix& m) {
    return m.note.empty() ? std::string()
                          : fmt::format("{} is held as {}, the same numbers, because {}", m.scheme,
                                        m.format.Name(), m.note);
  });
}

Result<std::unique_ptr<TensorSource>> OpenFolder(const std::filesystem::path& path, bool keep_fp8) {
  CELER_ASSIGN(SafetensorsModel model, SafetensorsModel::Open(path));
  std::unique_ptr<TensorSource> source =
      std::make_unique<FileTensorSource<SafetensorsModel>>(std::move(model), path.string());
  const std::filesystem::path config_path = path / "config.json";
  CELER_ASSIGN(const nlohmann::json json, ReadJsonFile(config_path));
  CELER_ASSIGN(const JsonFields fields, JsonFields::Of(json, config_path.string()));
  const nlohmann::json* config = fields.Find(kConfigKey);
  if (!config || config->empty()) return source;
  CELER_ASSIGN(std::unique_ptr<PublishedSource> coded,
               PublishedSource::Open(std::move(source), *config, Where(config_path), keep_fp8));
  return std::unique_ptr<TensorSource>(std::move(coded));
}

}  // namespace celer::published
