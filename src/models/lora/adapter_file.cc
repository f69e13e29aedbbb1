#include "models/lora/adapter_file.h"

#include <optional>
#include <string_view>
#include <utility>

#include "io/file/printable.h"
#include "io/file/sha256.h"
#include "models/lora/lora_limits.h"
#include "models/lora/peft_config.h"

namespace celer {
namespace {

namespace fs = std::filesystem;

using Field = const TensorRecord* LoraModule::*;

struct Ending {
  std::string_view text;
  Field field;
  bool embedding = false;
};
// The first that fits.
constexpr Ending kPeftEndings[] = {
    {".lora_A.weight", &LoraModule::a},
    {".lora_A.default.weight", &LoraModule::a},
    {".lora_B.weight", &LoraModule::b},
    {".lora_B.default.weight", &LoraModule::b},
    {".lora_B.bias", &LoraModule::b_bias},
    {".lora_B.default.bias", &LoraModule::b_bias},
    {".lora_magnitude_vector", &LoraModule::magnitude},
    {".lora_magnitude_vector.weight", &LoraModule::magnitude},
    {".lora_magnitude_vector.default.weight", &LoraModule::magnitude},
    {".lora_embedding_A", &LoraModule::a, true},
    {".lora_embedding_B", &LoraModule::b, true},
    {".base_layer.weight", &LoraModule::base},
    {".base_layer.bias", &LoraModule::bias},
    {".modules_to_save.weight", &LoraModule::weight},
    {".modules_to_save.default.weight", &LoraModule::weight},
    {".modules_to_save.bias", &LoraModule::bias},
    {".modules_to_save.default.bias", &LoraModule::bias},
    {".weight", &LoraModule::weight},
    {".bias", &LoraModule::bias},
};
constexpr Ending kGgufEndings[] = {
    {".weight.lora_a", &LoraModule::a},
    {".weight.lora_b", &LoraModule::b},
};

Status AddTensor(const TensorRecord& record, std::string_view name, std::span<const Ending> endings,
                 AdapterFile* file) {
  for (const Ending& ending : endings) {
    if (!name.ends_with(ending.text)) continue;
    LoraModule& module = file->modules[std::string(name.substr(0, name.size() - ending.text.size()))];
    if (module.*ending.field)
      return Error::Corrupt(file->path, ": tensor '", Printable(record.name), "' is there twice, as '",
                            Printable((module.*ending.field)->name), "', too");
    module.*ending.field = &record;
    module.embedding |= ending.embedding;
    return {};
  }
  return Error::Unsupported(file->path, ": tensor '", Printable(record.name),
                            "' is no part of an adapter that is known here");
}

std::string ContentOf(std::string_view first, std::string_view second) {
  Sha256 hash;
  for (const std::string_view text : {first, second}) hash.Update(std::as_bytes(std::span(text)));
  return hash.Finish();
}

// Of a module that has A and B.
Status CheckPair(const AdapterFile& file, const std::string& name, const LoraModule& module) {
  if (!module.a != !module.b)
    return Error::Corrupt(file.path, ": module '", Printable(name), "' has lora_", module.a ? "A" : "B",
                          " and no lora_", module.a ? "B" : "A");
  if (!module.a && (module.b_bias || module.magnitude))
    return Error::Corrupt(file.path, ": module '", Printable(name),
                          "' has neither lora_A nor lora_B for its ",
                          module.magnitude ? "lora_magnitude_vector" : "lora_B.bias");
  if (module.a && module.weight)
    return Error::Corrupt(file.path, ": module '", Printable(name),
                          "' has lora_A and weights as a whole; one of them is expected");
  return {};
}

// Of a module that wraps a parameter, PEFT matches the parameter's name.
std::string StackOf(const std::string& name) {
  constexpr std::string_view kInner = ".base_layer";
  const std::string outer = name.ends_with(kInner) ? name.substr(0, name.size() - kInner.size()) : name;
  return outer.ends_with(".experts") ? outer : "";
}

Status CheckRank(const AdapterFile& file, const PeftConfig& config, const std::string& name,
                 const TensorRecord& a) {
  const std::string stack = StackOf(name);
  const int64_t stored = a.shape.rank() == 2 ? a.shape[0] : 0;
  const int64_t rank = config.RankOf(stack.empty() ? name : stack + ".gate_up_proj");
  // Experts' ranks are stacked, one expert after the other.
  const bool fits =
      stack.empty() ? stored == rank
                    : stored > 0 && (stored % rank == 0 || stored % config.RankOf(stack + ".down_proj") == 0);
  if (fits) return {};
  return Error::Corrupt(file.path, ": tensor '", Printable(a.name), "' has shape ", a.shape.ToString(),
                        ", expected rank ", rank, ", as adapter_config.json has it for this module");
}

Status ReadPeftModules(const PeftConfig& config, AdapterFile* file) {
  constexpr std::string_view kPrefix = "base_model.model.";
  for (const TensorRecord& record : file->safetensors->tensors()) {
    std::string_view name = record.name;
    if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
    CELER_RETURN_IF_ERROR(AddTensor(record, name, kPeftEndings, file));
  }
  if (file->modules.empty()) return Error::Corrupt(file->path, ": adapter_model.safetensors has no tensors");
  for (auto& [name, module] : file->modules) {
    CELER_RETURN_IF_ERROR(CheckPair(*file, name, module));
    if (module.a && config.dora() && !module.magnitude)
      return Error::Corrupt(file->path, ": 'use_dora' is true, and module '", Printable(name),
                            "' has no lora_magnitude_vector");
    if (module.magnitude && !config.dora())
      return Error::Corrupt(file->path, ": module '", Printable(name),
                            "' has a lora_magnitude_vector, and 'use_dora' is not true");
    const std::string stack = StackOf(name);
    module.scale = config.ScaleOf(stack.empty() ? name : stack + ".gate_up_proj");
    module.down_scale = config.ScaleOf(stack.empty() ? name : stack + ".down_proj");
    if (module.a) CELER_RETURN_IF_ERROR(CheckRank(*file, config, name, *module.a));
  }
  return {};
}

Result<AdapterFile> OpenPeft(const fs::path& folder) {
  const fs::path config_path = folder / "adapter_config.json", tensors = folder / "adapter_model.safetensors";
  std::error_code error;
  if (!fs::exists(tensors, error) && fs::exists(folder / "adapter_model.bin", error))
    return Error::Unsupported((folder / "adapter_model.bin").string(),
                              ": a pickle can run code and is not loaded; save the adapter again with "
                              "safe_serialization=True");
  CELER_ASSIGN(const PeftConfig config, PeftConfig::Read(config_path));
  AdapterFile file;
  file.path = folder.string();
  file.tied = config.tied();
  file.turned_experts = config.turned_experts();
  CELER_ASSIGN(file.safetensors, SafetensorsFile::Open(tensors));  // before all of it is read
  CELER_ASSIGN(const std::string first, Sha256File(config_path));
  CELER_ASSIGN(const std::string second, Sha256File(tensors));
  file.content = ContentOf(first, second);
  CELER_RETURN_IF_ERROR(ReadPeftModules(config, &file));
  return file;
}

Status ReadGgufModules(double alpha, AdapterFile* file) {
  for (const TensorRecord& record : file->gguf_file->tensors())
    CELER_RETURN_IF_ERROR(AddTensor(record, record.name, kGgufEndings, file));
  if (file->modules.empty()) return Error::Corrupt(file->path, ": it has no tensors");
  for (auto& [name, module] : file->modules) {
    CELER_RETURN_IF_ERROR(CheckPair(*file, name, module));
    module.embedding = name == "token_embd";
    const int dims = module.b->shape.rank();
    const int64_t rank = dims > 1 ? module.b->shape[dims - 1] : 0;
    if (rank < 1 || rank > kMostLoraRank)
      return Error::Corrupt(file->path, ": tensor '", Printable(module.b->name), "' has shape ",
                            module.b->shape.ToString(), ", expected a rank of 1 to ", kMostLoraRank);
    module.scale = alpha == 0 ? 1 : alpha / static_cast<double>(rank);
  }
  return {};
}

Result<AdapterFile> OpenGgufAdapter(const fs::path& path) {
  AdapterFile file;
  file.path = path.string();
  file.gguf = true;
  CELER_ASSIGN(file.gguf_file, GgufFile::Open(path));
  const GgufFile& gguf = *file.gguf_file;
  const std::string_view type = gguf.GetString("general.type").value_or("model"),
                         kind = gguf.GetString("adapter.type").value_or("");
  if (type != "adapter" || kind != "lora")
    return Error::Invalid(file.path, ": general.type is '", Printable(type, 40), "' and adapter.type '",
                          Printable(kind, 40), "'; a LoRA adapter has 'adapter' and 'lora'");
  for (const GgufValue& value : gguf.metadata())
    if (value.key.starts_with("adapter.alora."))
      return Error::Unsupported(file.path, ": metadata key '", Printable(value.key),
                                "': adapters that begin within a prompt are not implemented");
  file.architecture = gguf.GetString("general.architecture").value_or("");
  const std::optional<double> alpha = gguf.GetFloat("adapter.lora.alpha");
  if (!alpha || !(*alpha >= -1e6 && *alpha <= 1e6))
    return Error::Corrupt(file.path, ": metadata key 'adapter.lora.alpha' is no number");
  CELER_ASSIGN(file.content, Sha256File(path));
  CELER_RETURN_IF_ERROR(ReadGgufModules(*alpha, &file));
  return file;
}

}  // namespace

Result<AdapterFile> OpenAdapter(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    if (!fs::exists(path / "adapter_config.json", error))
      return Error::NotFound(path.string(),
                             ": no adapter_config.json; a LoRA adapter is a folder as PEFT saves ",
                             "it, or a GGUF file");
    return OpenPeft(path);
  }
  if (!fs::exists(path, error))
    return Error::NotFound(path.string(),
                           ": no such file; a LoRA adapter is a folder as PEFT saves it, or a ", "GGUF file");
  if (path.filename() == "adapter_config.json" || path.filename() == "adapter_model.safetensors")
    return OpenPeft(path.parent_path());
  return OpenGgufAdapter(path);
}

}  // namespace celer
